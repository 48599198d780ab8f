# SPDX-License-Identifier: Apache-2.0
"""Perf events, opened by this process."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final

from collectord._native import _syscalls
from collectord.codec.tracing_data import TracingData
from collectord.kernel.host import errno_mapping, processes
from collectord.kernel.host.clocks import read_time_conversion
from collectord.kernel.local.descriptor_calls import DescriptorCalls
from collectord.kernel.local.local_host import LocalHost
from collectord.kernel.local.opener_client import (
    end_kept,
    hiding_programs,
    kept_pressure,
    kept_rings,
    kept_staging,
    left_staging,
    opener_facts,
    opener_listens,
    reopened_rings,
)
from collectord.kernel.values.limits import Purpose

if TYPE_CHECKING:
    from collections.abc import Sequence

    from collectord.codec.aux_pmu import TimeConversion
    from collectord.codec.perf_attr import PerfEventAttr
    from collectord.codec.tracepoint import Tracepoint

_ANY_PURPOSE: Final = Purpose()


class LocalPerf(DescriptorCalls, LocalHost):
    """See `PerfPort`."""

    opener_facts = staticmethod(opener_facts)
    opener_listens = staticmethod(opener_listens)
    kept_rings = staticmethod(kept_rings)
    hiding_programs = staticmethod(hiding_programs)
    reopened_rings = staticmethod(reopened_rings)
    end_kept = staticmethod(end_kept)
    left_staging = staticmethod(left_staging)
    kept_staging = staticmethod(kept_staging)
    kept_pressure = staticmethod(kept_pressure)

    def perf_event_open(
        self,
        attr: PerfEventAttr,
        *,
        pid: int,
        cpu: int,
        group_fd: int = -1,
        flags: int = 0,
        purpose: Purpose = _ANY_PURPOSE,
    ) -> int:
        """See `Kernel.perf_event_open`."""
        try:
            return _syscalls.perf_event_open(attr.encode(), pid, cpu, group_fd, flags)
        except OSError as error:
            code = error.errno or 0
            if code == errno.ESRCH:  # frequent where processes that come and go are followed
                raise errno_mapping.task_gone(pid) from error
            # Without descriptors no file can be read either, and the CPU is not to blame.
            online = () if code in (errno.EMFILE, errno.ENFILE) else self.online_cpus()
            raise errno_mapping.open_refused(
                code, attr, purpose, self.limits(), pid=pid, cpu=cpu, online=online
            ) from error

    def time_conversion(self) -> TimeConversion:
        """See `Kernel.time_conversion`."""
        return read_time_conversion(self.page_bytes)

    def filter_refusal(self, tracepoint: Tracepoint, text: str) -> str:
        """See `Kernel.filter_refusal`."""
        with self.tracefs.seen() as tracefs:
            return tracefs.filter_refusal(tracepoint, text)

    def running_state(
        self, attr: PerfEventAttr, event_id: int, pids: Sequence[int] | None = None
    ) -> bytes:
        """See `Kernel.running_state`."""
        return processes.scan(attr, event_id, pids=pids, proc=self.proc)

    def process_state(self, attr: PerfEventAttr, event_id: int, pid: int, time_ns: int) -> bytes:
        """See `Kernel.process_state`."""
        return processes.describe(attr, event_id, [pid], time_ns, proc=self.proc)

    def tracing_data(self, tracepoints: Sequence[Tracepoint]) -> TracingData:
        """See `Kernel.tracing_data`."""
        formats: dict[str, list[bytes]] = {}
        for one in dict.fromkeys(tracepoints):
            formats.setdefault(one.system, []).append(self.tracefs.event_format(one))
        return TracingData(
            header_page=self.tracefs.header_page(),
            header_event=self.tracefs.header_event(),
            page_size_bytes=self.page_bytes,
            events=formats,
        )
