# SPDX-License-Identifier: Apache-2.0
"""The toy source: it fills a ring in memory itself. Becomes `collectord/source/toy.py`.

It follows perf's protocol, so that the ring is of a kind that the core has. Its descriptor is
never ready: records wait for the next pass of the timer.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from collectord._native._core import RingMap
from collectord.codec.perf_attr import SampleType, id_trailer_from, sample_time_offset
from collectord.codec.perf_record import frame
from collectord.model import Geometry, Produced, RingLabel
from collectord.source.base import Abilities
from collectord.source.perf_ring import PerfRing
from collectord.source.ring import CounterFd
from tests.support.toy.plan import ToyPlan  # in the package `collectord.plan.toy_source`

if TYPE_CHECKING:
    from collections.abc import Mapping

    from collectord._native._core import Core, Stream
    from collectord.kernel.port import Kernel
    from collectord.plan.session_plan import SessionPlan
    from collectord.source.ring import RingHandle

_PAGE: Final = os.sysconf("SC_PAGESIZE")
_HEAD_AT: Final = 1024  # perf_event_mmap_page
_SAMPLE: Final = 9
_USER: Final = 2
_BODY: Final = struct.Struct("=QQIIQII")  # BASE_SAMPLE_TYPE
_ID: Final = 1


def open_session(
    kernel: Kernel,
    plan: SessionPlan,
    stack: ExitStack,
    *,
    exclude_tids: tuple[int, ...] = (),
    abort: int = -1,
) -> OpenToy:
    """Make the ring. See `source.base.Source`."""
    del kernel, exclude_tids, abort
    ring = plan.rings[0]
    with ExitStack() as own:
        memory_fd = os.memfd_create("toy")
        own.callback(os.close, memory_fd)
        os.ftruncate(memory_fd, _PAGE + ring.data_bytes)
        memory = own.enter_context(mmap.mmap(memory_fd, _PAGE + ring.data_bytes))
        wakeup_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        own.callback(os.close, wakeup_fd)
        ring_map = RingMap(memory_fd, ring.data_bytes)
        own.callback(ring_map.close)
        stack.push(own.pop_all())
    attr = plan.events[0].attr
    handle = PerfRing(
        map=ring_map,
        fd=wakeup_fd,
        basis=ring.basis,
        geometry=Geometry(ring.data_bytes, ring.watermark_bytes, ring.requested_bytes),
        label=RingLabel(plan.name, plan.source, ring.role, ring.cpu),
        counters=(CounterFd(wakeup_fd, event_index=0, event_id=_ID, read_format=0),),
        time_offset=sample_time_offset(attr),
        time_trailer=id_trailer_from(attr, SampleType.TIME),
        cpu_trailer=id_trailer_from(attr, SampleType.CPU),
    )
    return OpenToy(plan.payload_of(ToyPlan), handle, memory)


class OpenToy:
    """The open ring. See `source.base.OpenSource`."""

    def __init__(self, plan: ToyPlan, ring: PerfRing, memory: mmap.mmap) -> None:
        self.rings: tuple[RingHandle, ...] = (ring,)
        self.event_ids: Mapping[int, tuple[int, ...]] = {0: (_ID,)}
        self.target_fds: tuple[int, ...] = ()
        self._plan = plan
        self._ring = ring
        self._memory = memory
        self._written = 0
        self._counted = 0

    @property
    def abilities(self) -> Abilities:
        """See `source.base.OpenSource`."""
        return Abilities()

    def add_stream(self, core: Core) -> Stream:
        """See `source.base.OpenSource`."""
        return core.add_stream()

    def enable(self) -> None:
        """Make the records, of which the last ones find no room."""
        records = b"".join(map(self._sample, range(self._plan.records)))
        self._memory[_PAGE : _PAGE + len(records)] = records
        self._memory[_HEAD_AT : _HEAD_AT + 8] = struct.pack("@Q", len(records))
        self._written = self._plan.records
        self._counted = self._plan.records + self._plan.lost

    def _sample(self, number: int) -> bytes:
        """Return a record; its number stands for the address of its instruction."""
        pid, now_ns = os.getpid(), time.monotonic_ns()
        body = _BODY.pack(_ID, number, pid, pid, now_ns, self._ring.label.cpu, 0)
        return frame(_SAMPLE, _USER, body)

    def disable(self) -> None:
        """Do nothing: it makes no more."""

    def read_produced(self, ring: RingHandle) -> Produced:
        """Return its own count."""
        del ring
        return Produced(value=self._counted, lost=self._counted - self._written)
