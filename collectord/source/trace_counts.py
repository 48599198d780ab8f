# SPDX-License-Identifier: Apache-2.0
"""The kernel's counts of ftrace rings for the ledger, those of undrained rings included.

The kernel makes an instance's ring of a CPU when that is online for the first time, and records
into it: a mask of CPUs, written before, does not reach a ring that does not exist yet
(tracing_set_cpumask(), trace_rb_cpu_prepare()). Only its counters reveal such a ring.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from collectord.model import Produced, Reason, RingLabel, RingRole, Stage
from collectord.source.base import LateRing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from contextlib import ExitStack

    from collectord.kernel.port import Kernel
    from collectord.kernel.tracefs.instance import Instance
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
        (Stage.KERNEL_RING, Reason.OVERRUN): overrun,
        (Stage.KERNEL_RING, Reason.COMMIT_OVERRUN): stats.commit_overrun,
        (Stage.KERNEL_RING, Reason.DROPPED): stats.dropped,
        (Stage.KERNEL_RING, Reason.UNCOVERED): 0,  # late rings only
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


class LateTraceRings:
    """The rings of an instance whose CPUs came online since they were opened.

    Args:
        kernel: provides the online CPUs.
        instance: the rings' instance.
        plan: plan of the session; one that names its CPUs has no late rings.
        recorder: see `produced`.
    """

    def __init__(
        self, kernel: Kernel, instance: Instance, plan: SessionPlan, *, recorder: bool
    ) -> None:
        self._kernel = kernel
        self._instance = instance
        self._plan = plan
        self._recorder = recorder
        opened = {ring.cpu for ring in plan.rings}
        self._others = frozenset(instance.cpus()) - opened if not plan.scope.cpus else frozenset()
        self._seen: set[int] = set()

    def read(self, *, last: bool) -> tuple[LateRing, ...]:
        """Read the rings that were written to. See `LateSource.late_rings`."""
        if not self._others:
            return ()
        looked_at = self._others
        if not last:  # each costs about 30 us, and a host may have many CPUs that never come
            looked_at &= self._seen.union(self._kernel.online_cpus())
        found = {cpu: self._instance.stats(cpu) for cpu in sorted(looked_at)}
        rings = {cpu: produced(stats, recorder=self._recorder) for cpu, stats in found.items()}
        self._seen = {cpu for cpu, ring in rings.items() if ring.value}
        return tuple(
            LateRing(
                RingLabel(self._plan.name, self._plan.source, RingRole.DATA, cpu),
                self._plan.rings[0].data_bytes,
                rings[cpu],
            )
            for cpu in sorted(self._seen)
        )

    def texts(self) -> dict[int, str]:
        """Return their counters, as trace-cmd keeps them. Raises KernelError."""
        return {cpu: self._instance.stats_text(cpu) for cpu in sorted(self._seen)}

    def pages(self, cpus: Iterable[int], stack: ExitStack) -> dict[int, Iterator[bytes]]:
        """Take their sub-buffers. See `Tracing.late_pages`."""
        subbuf_bytes = self._instance.effective().subbuf_bytes
        return {cpu: self._instance.open_ring(cpu, stack).pages(subbuf_bytes) for cpu in cpus}
