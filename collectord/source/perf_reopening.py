# SPDX-License-Identifier: Apache-2.0
"""Rings of perf that are opened anew, for a CPU that was offline.

The kernel removes the events of a CPU that goes offline, and does not attach them again: enabling
them has no effect. A new event has a new id, which files that were begun before do not name. So
its records get the id of the event that it replaces, when they are read. Those of a CPU that was
offline at the start, too, get the ids of events that the files name: its rings are made after the
pattern of another CPU's.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from collectord.errors import KernelError
from collectord.model import TASK_SCOPES
from collectord.source.kept_ring import holds
from collectord.source.perf_opening import Opening

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from collectord.kernel.port import Kernel
    from collectord.plan.session_plan import SessionPlan
    from collectord.source.open_perf import OpenPerf
    from collectord.source.perf_kept import RingMaker
    from collectord.source.perf_opening import Opened
    from collectord.source.perf_ring import PerfRing
    from collectord.source.ring import CounterFd, RingHandle


def can_reopen(plan: SessionPlan) -> bool:
    """Whether the rings of one CPU can be opened anew; those of tasks come back by themselves."""
    return plan.scope.kind not in TASK_SCOPES and all(ring.cpu >= 0 for ring in plan.rings)


class PerfReopening:
    """Closes and opens the rings of single CPUs. See `source.base.Hotplug`.

    Args:
        kernel: opens the events.
        plan: the session's plan.
        opened: what was opened at first.
        exclude_tids: see `source.base.Source`.
        perf: has the rings that are open.
        stack: closes all that is opened.
    """

    def __init__(
        self,
        kernel: Kernel,
        plan: SessionPlan,
        opened: Opened,
        *,
        exclude_tids: tuple[int, ...],
        perf: OpenPerf,
        stack: ExitStack,
    ) -> None:
        self._kernel = kernel
        self._plan = plan
        self._exclude_tids = exclude_tids
        self._perf = perf
        self._closers = dict(opened.closers)
        self._order = {ring.label: number for number, ring in enumerate(opened.rings)}
        self._ids = {ring.label: [c.event_id for c in ring.counters] for ring in opened.rings}
        self._pattern = opened.rings[0].label.cpu if opened.rings else -1
        stack.callback(self._close)

    def _close(self) -> None:
        for cpu in tuple(self._closers):
            self._closers.pop(cpu).close()

    def stop(self, cpu: int) -> None:
        """See `source.base.Hotplug`."""
        self._perf.disable_rings([ring for ring in self._perf.rings if ring.label.cpu == cpu])

    def leave(self, cpu: int) -> None:
        """See `source.base.Hotplug`."""
        self._perf.go_on_with(tuple(r for r in self._perf.rings if r.label.cpu != cpu))
        closer = self._closers.pop(cpu, None)
        if closer is not None:
            closer.close()

    def join(self, cpu: int) -> tuple[RingHandle, ...]:
        """See `source.base.Hotplug`."""
        self._plan_for(cpu)
        with ExitStack() as own:
            rings, resumers = self._open(cpu, own)
            self._closers[cpu] = own.pop_all()
        together = sorted((*self._perf.rings, *rings), key=lambda ring: self._order[ring.label])
        self._perf.go_on_with(tuple(together), resumers)
        return rings

    def _open(
        self, cpu: int, stack: ExitStack
    ) -> tuple[tuple[PerfRing, ...], Mapping[int, CounterFd]]:
        """Return the rings, and their `resumers` as in `Opened`."""
        opening = Opening(self._kernel, self._plan, stack, self._exclude_tids, cpu)
        opening.run()
        opened = opening.result()
        return tuple(self._with_known_ids(ring) for ring in opened.rings), opened.resumers

    def _plan_for(self, cpu: int) -> None:
        """Plan the rings of a CPU that has none, as it was offline at the start."""
        if any(ring.cpu == cpu for ring in self._plan.rings):
            return
        like = [ring for ring in self._plan.rings if ring.cpu == self._pattern]
        some = next((e.name for ring in like for e in ring.events if e.cpus), "")
        if some:
            raise KernelError(
                f"CPU {cpu} was offline at the start, when the CPUs of {some} were looked up",
                hint="restart the daemon to record it",
            )
        rings = (*self._plan.rings, *(replace(ring, cpu=cpu) for ring in like))
        self._plan = replace(self._plan, rings=rings)
        for label in [label for label in self._ids if label.cpu == self._pattern]:
            late = replace(label, cpu=cpu)
            self._ids[late] = self._ids[label]
            self._order[late] = len(self._order)

    def _with_known_ids(self, ring: PerfRing) -> PerfRing:
        """Give a ring's events the ids of those that they replace."""
        renamed = {
            counter.fd: replace(counter, event_id=known, kernel_id=counter.event_id)
            for counter, known in zip(ring.counters, self._ids[ring.label], strict=True)
        }
        areas = tuple(
            replace(area, counters=tuple(renamed[counter.fd] for counter in area.counters))
            for area in ring.areas
        )
        return replace(ring, counters=tuple(renamed.values()), areas=areas)

    def enable(self, rings: Sequence[RingHandle]) -> None:
        """See `source.base.Hotplug`."""
        self._perf.enable_rings(rings)


class KeptReopening(PerfReopening):
    """The same for rings that an opener holds: it opens new ones on the CPUs of its plan.

    Args:
        maker: maps them.
    """

    def __init__(
        self,
        kernel: Kernel,
        plan: SessionPlan,
        opened: Opened,
        *,
        exclude_tids: tuple[int, ...],
        perf: OpenPerf,
        stack: ExitStack,
        maker: RingMaker,
    ) -> None:
        super().__init__(kernel, plan, opened, exclude_tids=exclude_tids, perf=perf, stack=stack)
        self._maker = maker

    def _open(
        self, cpu: int, stack: ExitStack
    ) -> tuple[tuple[PerfRing, ...], Mapping[int, CounterFd]]:
        if self._maker.has(cpu) and holds(self._maker.connection):
            return self._maker.reopen(cpu, stack), {}
        return super()._open(cpu, stack)
