# SPDX-License-Identifier: Apache-2.0
"""The kernel's counts of ftrace rings for the ledger, those of undrained rings included.

The kernel makes an instance's ring of a CPU when that is online for the first time, and records
into it: a mask of CPUs, written before, does not reach a ring that does not exist yet
(tracing_set_cpumask(), trace_rb_cpu_prepare()). Only its counters reveal such a ring.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from collectord.kernel.values.ring_stats import parse_stats, with_heading
from collectord.model import (
    RING_DROPPED,
    RING_OVERRUN,
    RING_UNCOVERED,
    Produced,
    Reason,
    RingLabel,
    RingRole,
    Stage,
)
from collectord.source.base import LateRing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from contextlib import ExitStack

    from collectord.kernel.port import Kernel
    from collectord.kernel.values.instance_settings import OpenedInstance
    from collectord.kernel.values.ring_files import RingFiles
    from collectord.kernel.values.ring_stats import CpuStats
    from collectord.plan.session_plan import SessionPlan


def produced(
    stats: CpuStats,
    *,
    recorder: bool,
    resets: int = 0,
    uncounted: bool = False,
    capacity_bytes: int = 0,
) -> Produced:
    """Return a ring's counters in the ledger's form.

    Args:
        stats: a reading.
        recorder: the ring is meant to overwrite, which is then no loss.
        resets: see `Produced`.
        uncounted: see `Produced`.
        capacity_bytes: see `Produced`.
    """
    overrun = 0 if recorder else stats.overrun
    losses = {
        RING_OVERRUN: overrun,
        (Stage.KERNEL_RING, Reason.COMMIT_OVERRUN): stats.commit_overrun,
        RING_DROPPED: stats.dropped,
        RING_UNCOVERED: 0,  # late rings only
        (Stage.STAGING, Reason.DROPPED): 0,  # known once another process salvages the ring
    }
    return Produced(
        value=stats.written + stats.dropped + stats.commit_overrun,
        lost=sum(losses.values()),
        losses=losses,
        overwritten=stats.overrun - overrun,
        read_events=stats.read_events,
        unread=stats.entries,
        unread_bytes=stats.bytes if stats.entries else 0,
        oldest_unread_ns=stats.oldest_event_ns,
        now_ns=stats.now_ns,
        resets=resets,
        uncounted=uncounted,
        capacity_bytes=capacity_bytes,
    )


def open_ring(kernel: Kernel, instance: OpenedInstance, cpu: int, stack: ExitStack) -> RingFiles:
    """Open a CPU's ring until the stack closes.

    Raises:
        NoSuchTarget, MissingPrivilege, KernelError: it cannot be opened.
    """
    files = kernel.open_instance_ring(instance.id, cpu)
    for fd in (files.raw_fd, files.stats_fd):
        stack.callback(kernel.close, fd)
    return files


class LateTraceRings:
    """The rings of an instance whose CPUs came online since they were opened.

    Args:
        kernel: reads their counters.
        instance: the rings' instance.
        plan: plan of the session; one that names its CPUs has no late rings.
        recorder: see `produced`.
        taken: by CPU, the counters as earlier processes left them.
    """

    def __init__(
        self,
        kernel: Kernel,
        instance: OpenedInstance,
        plan: SessionPlan,
        *,
        recorder: bool,
        taken: Mapping[int, CpuStats],
    ) -> None:
        self._kernel = kernel
        self._instance = instance
        self._plan = plan
        self._recorder = recorder
        opened = {ring.cpu for ring in plan.rings}
        self._others = frozenset(instance.cpus) - opened if not plan.scope.cpus else frozenset()
        self._seen: set[int] = set()
        self._taken = taken

    def read(self, *, last: bool) -> tuple[LateRing, ...]:
        """Read the rings that were written to. See `LateSource.late_rings`."""
        if not self._others:
            return ()
        looked_at = self._others
        if not last:  # each costs about 30 us, and a host may have many CPUs that never come
            looked_at &= self._seen.union(self._kernel.online_cpus())
        rings = {
            cpu: produced(
                parse_stats(self._stats(cpu)).since(self._taken.get(cpu)), recorder=self._recorder
            )
            for cpu in sorted(looked_at)
        }
        self._seen = {cpu for cpu, ring in rings.items() if ring.value}
        return tuple(
            LateRing(
                RingLabel(self._plan.name, self._plan.source, RingRole.DATA, cpu),
                self._plan.rings[0].data_bytes,
                rings[cpu],
            )
            for cpu in sorted(self._seen)
        )

    def leave_out(self, cpu: int) -> None:
        """Stop reading a CPU's ring: it is open."""
        self._others -= {cpu}
        self._seen.discard(cpu)

    def take_back(self, cpu: int) -> None:
        """Read a CPU's ring again, since it is not open any more."""
        self._others |= {cpu}

    def texts(self) -> dict[int, str]:
        """Return their counters, as trace-cmd keeps them. Raises KernelError."""
        return {cpu: with_heading(cpu, self._stats(cpu)) for cpu in sorted(self._seen)}

    def pages(self, cpus: Iterable[int], stack: ExitStack) -> dict[int, Iterator[bytes]]:
        """Take their sub-buffers. See `Tracing.late_pages`."""
        subbuf_bytes = self._instance.effective.subbuf_bytes
        return {
            cpu: open_ring(self._kernel, self._instance, cpu, stack).pages(subbuf_bytes)
            for cpu in cpus
        }

    def _stats(self, cpu: int) -> bytes:
        return self._kernel.instance_stats(self._instance.id, cpu)
