# SPDX-License-Identifier: Apache-2.0
"""The open rings of a perf session, as the session uses them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collectord.model import Basis, Produced, RingRole
from collectord.source.aux import await_resumed
from collectord.source.base import Abilities

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from collectord._native._core import Core, Stream
    from collectord.kernel.port import Kernel
    from collectord.plan.session_plan import SessionPlan
    from collectord.source.base import Following, Hotplug
    from collectord.source.event_counts import EventCounts
    from collectord.source.perf_opening import Opened
    from collectord.source.perf_ring import PerfRing
    from collectord.source.ring import CounterFd, RingHandle


class OpenPerf:
    """Open rings of a perf session. See `source.base.OpenSource`."""

    stands_still = True

    def __init__(
        self, kernel: Kernel, opened: Opened, plan: SessionPlan, counts: EventCounts
    ) -> None:
        self.rings: tuple[PerfRing, ...] = ()
        self.hotplug: tuple[Hotplug, ...] = ()
        self.following: tuple[Following, ...] = ()
        self._counts = counts
        self._foreign_clock = plan.perf_clock
        self._pids = opened.pids
        self.target_fds = opened.target_fds
        self._kernel = kernel
        self._events = {event.index: event for event in plan.events}
        self._freezers: Mapping[int, CounterFd] = {}
        self._resumers: Mapping[int, CounterFd] = {}
        self._happened: dict[int, int] = {}  # by descriptor, how often it was found
        self._fired: set[int] = set()
        self.go_on_with(opened.rings, opened.resumers)
        self._with_aux = frozenset(event.index for event in plan.events if event.aux)

    def go_on_with(
        self, rings: tuple[PerfRing, ...], resumers: Mapping[int, CounterFd] | None = None
    ) -> None:
        """Replace the rings by these; the kernel may reuse the descriptors of the old ones.

        Args:
            rings: all rings.
            resumers: of the rings that are new, as in `Opened`.
        """
        self.rings = rings
        self._freezers = {
            counter.fd: counter
            for counter in self._counters(RingRole.DATA)
            if self._events[counter.event_index].freezes
        }
        known = {**self._resumers, **(resumers or {})}
        self._resumers = {fd: one for fd, one in known.items() if fd in self._freezers}
        self._happened = {fd: n for fd, n in self._happened.items() if fd in self._freezers}
        self._fired &= self._freezers.keys()

    @property
    def abilities(self) -> Abilities:
        """See `source.base.OpenSource`."""
        return Abilities(
            sideband=(self,),
            recording=(self,),
            suppressible=(self,),
            hotplug=self.hotplug,
            pausable=(self,),
            following=self.following,
        )

    @property
    def event_ids(self) -> Mapping[int, tuple[int, ...]]:
        """Ids that samples carry, by event."""
        ids: dict[int, list[int]] = {index: [] for index in self._events}
        for ring in self.rings:
            for counter in ring.counters:
                ids[counter.event_index].append(counter.event_id)
        return {index: tuple(found) for index, found in ids.items()}

    def add_stream(self, core: Core) -> Stream:
        """See `source.base.OpenSource`."""
        return core.add_stream(
            foreign_clock=self._foreign_clock, snapshots=bool(self._overwritable())
        )

    def enable_sideband(self) -> None:
        """Start recording names and mappings."""
        self._enable_all(RingRole.SIDEBAND, self.rings)

    def running_state(self) -> bytes:
        """Return what ran before the sideband started, as its records."""
        sideband = self._counters(RingRole.SIDEBAND)
        if not sideband:
            return b""
        attr = self._events[sideband[0].event_index].attr
        return self._kernel.running_state(attr, sideband[0].event_id, self._pids)

    def enable(self) -> None:
        """Start counting; events that wait for exec are left to it."""
        self._enable_all(RingRole.DATA, self.rings)

    def enable_rings(self, rings: Sequence[RingHandle]) -> None:
        """Start counting in these rings, names and mappings first."""
        for role in (RingRole.SIDEBAND, RingRole.DATA):
            self._enable_all(role, rings)

    def disable(self) -> None:
        """Stop counting, sideband last. Counters are final afterwards."""
        self.disable_rings(self.rings)

    def disable_rings(self, rings: Sequence[RingHandle]) -> None:
        """Stop counting in these rings, names and mappings last."""
        for role in (RingRole.DATA, RingRole.SIDEBAND):
            self._disable_all(role, rings)

    def disable_events(self) -> None:
        """Stop counting; names and mappings are recorded on."""
        self._disable_all(RingRole.DATA, self.rings)

    def disable_sideband(self) -> None:
        """Stop recording names and mappings."""
        self._disable_all(RingRole.SIDEBAND, self.rings)

    @property
    def freeze_fds(self) -> tuple[int, ...]:
        """Descriptors of the events that stop a ring."""
        return tuple(self._freezers)

    def frozen(self) -> bool:
        """Whether one of these events has happened since it was armed.

        The kernel has disabled it with all others that it leads, on its CPU; an event that
        leads none has paused the AUX area of its group.
        """
        for fd, counter in self._freezers.items():
            reading = self._kernel.read_counter(fd, counter.read_format)
            if reading.value > self._happened.get(fd, 0):
                self._happened[fd] = reading.value
                self._fired.add(fd)
        return bool(self._fired)

    def pause(self) -> None:
        """Pause the rings of a flight recorder; streamed ones go on.

        Overwritable rings refuse new records. Events that write into free-running AUX areas are
        stopped: the driver then posts its data and the position of its head.
        """
        for ring in self._overwritable():
            self._kernel.pause_output(ring.fd, paused=True)
        for counter in self._free_running():
            self._kernel.disable(counter.fd)

    def resume(self) -> None:
        """Resume the rings, including the rings that were frozen."""
        for ring in self._overwritable():
            self._kernel.pause_output(ring.fd, paused=False)
        for fd in self._fired:
            # Its count between its overflow and its end is not a new incident.
            reading = self._kernel.read_counter(fd, self._freezers[fd].read_format)
            self._happened[fd] = reading.value
            if fd in self._resumers:
                self._kernel.refresh(self._resumers[fd].fd)
            self._kernel.refresh(fd)
        # After their members, which are scheduled with them: see `_free_running`.
        for counter in self._free_running():
            if counter.fd not in self._fired:  # these are enabled since they were armed
                self._kernel.enable(counter.fd)
        resumed = [self._resumers[fd] for fd in self._fired if fd in self._resumers]
        self._fired.clear()
        for resumer in resumed:
            await_resumed(self._kernel, resumer)

    def _overwritable(self) -> list[RingHandle]:
        return [ring for ring in self.rings if ring.has_window]

    def _free_running(self) -> list[CounterFd]:
        """Return the events that start and stop the AUX areas read only for snapshots.

        They are the group leaders of the events with such an area: a member that is enabled again
        is not scheduled where its leader belongs to another PMU (ctx_resched() in
        kernel/events/core.c).
        """
        found = []
        for ring in self.rings:
            areas = (area for area in ring.areas if area.plan.snapshot)
            writers = [counter for area in areas for counter in area.counters]
            for counter in ring.counters:
                if self._events[counter.event_index].leader:
                    leader = counter
                if counter in writers:
                    found.append(leader)
        return found

    def _disable_all(self, role: RingRole, rings: Sequence[RingHandle]) -> None:
        for counter in self._open_counters(rings, role):
            self._kernel.disable(counter.fd)

    def _enable_all(self, role: RingRole, rings: Sequence[RingHandle]) -> None:
        counters = self._open_counters(rings, role)
        # A group counts from the moment its leader is enabled.
        for counter in sorted(counters, key=lambda c: self._events[c.event_index].leader):
            self._enable(counter)

    def _open_counters(self, rings: Sequence[RingHandle], role: RingRole) -> list[CounterFd]:
        chosen = (ring for ring in rings if ring.label.role is role)
        return [counter for ring in chosen for counter in self._counts.of(ring)]

    def _enable(self, counter: CounterFd) -> None:
        event = self._events[counter.event_index]
        if event.freezes:
            self._kernel.refresh(counter.fd)
        elif not event.attr.enable_on_exec:
            self._kernel.enable(counter.fd)

    def _counters(self, role: RingRole) -> list[CounterFd]:
        """Return the counters that were opened with the rings."""
        return [c for ring in self.rings if ring.label.role is role for c in ring.counters]

    def read_produced(self, ring: RingHandle) -> Produced:
        """Sum the ring's counters; `value` is None unless each of its events counts records.

        What an event with AUX counts and loses in this ring is not samples: see
        `counter_reader`.
        """
        counts = self._counts.read(ring)
        samples = [one for one in counts if one.event_index not in self._with_aux]
        losses = [one.lost for one in samples if one.lost is not None]
        return Produced(
            value=sum(one.value for one in samples) if self._counts_records(ring) else None,
            lost=sum(losses) if len(losses) == len(samples) else None,
            per_event=tuple((one.event_id, one.value, one.lost or 0) for one in counts),
        )

    def _counts_records(self, ring: RingHandle) -> bool:
        events = [self._events[counter.event_index] for counter in ring.counters]
        sampling = [event for event in events if not event.aux]
        return bool(sampling) and all(event.basis is Basis.EXACT for event in sampling)

    def suppressed_by(self, event_index: int) -> tuple[int, ...] | None:
        """Return ids of foreign BPF programs on the event's tracepoint.

        A program that returns 0 hides the event from its ring and from all counters. Asking one
        descriptor is enough: programs belong to the tracepoint. Empty for other kinds of event.
        """
        if self._events[event_index].tracepoint is None:
            return ()
        fds = (c.fd for ring in self.rings for c in ring.counters if c.event_index == event_index)
        fd = next(fds, None)
        return () if fd is None else self._kernel.query_bpf(fd)
