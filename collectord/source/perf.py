# SPDX-License-Identifier: Apache-2.0
"""The `perf` source: rings that are read by a shared mapping.

A streamed ring is written forward, and waits for its reader. A flight recorder's ring is written
backward, waits for nobody, and is read while it is paused (PERF_EVENT_IOC_PAUSE_OUTPUT); the
sideband of its session is streamed all the same.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from collectord._native._core import RingMap
from collectord.codec.perf_attr import SampleType, id_trailer_from, sample_time_offset
from collectord.kernel.values.kept_rings import KeptRings
from collectord.model import FLIGHT_RECORDER, FOLLOWING, Basis, Geometry, Produced, RingRole
from collectord.source.aux import await_resumed
from collectord.source.base import Abilities
from collectord.source.event_counts import OwnCounts
from collectord.source.kept_memory import KeptMemory, has_areas
from collectord.source.kept_ring import holds, legacies
from collectord.source.perf_following import PerfFollowing
from collectord.source.perf_kept import ask_opener, kept_session, own_given, without_opener
from collectord.source.perf_opening import Opening
from collectord.source.perf_reopening import KeptReopening, PerfReopening, can_reopen
from collectord.source.ring import PerfRing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from collectord._native._core import Core, Stream
    from collectord.codec.perf_attr import PerfEventAttr
    from collectord.kernel.port import Kernel
    from collectord.kernel.values.counter_reading import CounterReading
    from collectord.model import RingLabel
    from collectord.plan.session_plan import SessionPlan
    from collectord.source.base import Following, Hotplug
    from collectord.source.event_counts import EventCounts
    from collectord.source.kept_ring import Legacy
    from collectord.source.perf_kept import RingMaker
    from collectord.source.perf_opening import Opened
    from collectord.source.ring import CounterFd, RingHandle

_FED_BYTES: Final = 256 << 10
_TICK_S: Final = 0.001  # in which the time of an enabled event goes on, whatever its clock


def open_session(
    kernel: Kernel,
    plan: SessionPlan,
    stack: ExitStack,
    *,
    exclude_tids: tuple[int, ...] = (),
    abort: int = -1,
) -> OpenPerf:
    """Open a session's rings and events, all disabled. See `source.base.Source`.

    Those that an opener holds are not disabled, if an earlier process drained them.
    """
    with ExitStack() as own:
        asked = ask_opener(kernel, plan, abort=abort) if plan.opener else None
        if isinstance(asked, KeptRings):
            own_given(kernel, asked, own)
            memory = KeptMemory(asked.memory, len(plan.rings), own, areas=has_areas(plan))
            made = kept_session(kernel, plan, asked, memory, own)
            legacy = legacies(memory, asked, made[1].rings)
            opened: OpenPerf = open_kept(kernel, plan, made, own, exclude_tids, *legacy)
        else:
            with without_opener(asked):
                opened = open_own(kernel, plan, own, exclude_tids)
        stack.push(own.pop_all())
    return opened


def open_own(
    kernel: Kernel, plan: SessionPlan, stack: ExitStack, exclude_tids: tuple[int, ...]
) -> OpenPerf:
    """Open a session's rings and events by this process. See `source.base.Source`."""
    opening = Opening(kernel, plan, stack, exclude_tids)
    opening.run()
    found = opening.result()
    if plan.scope.kind in FOLLOWING:
        following = PerfFollowing(kernel, opening, found.rings, stack)
        opened = OpenPerf(kernel, found, plan, following)
        opened.following = (following,)
    else:
        opened = OpenPerf(kernel, found, plan, OwnCounts(kernel))
    if can_reopen(plan):
        reopening = PerfReopening(
            kernel, plan, found, exclude_tids=exclude_tids, perf=opened, stack=stack
        )
        opened.hotplug = (reopening,)
    return opened


def open_kept(
    kernel: Kernel,
    plan: SessionPlan,
    made: tuple[RingMaker, Opened],
    stack: ExitStack,
    exclude_tids: tuple[int, ...],
    *legacy: Legacy,
) -> OpenKept:
    """Return the source of rings that an opener holds.

    Args:
        kernel: reads their counters.
        plan: of the perf rings of a session.
        made: these rings, and what maps later ones.
        stack: closes what is opened later.
        exclude_tids: see `source.base.Source`.
        legacy: what earlier processes leave; none if somebody else accounts for it.
    """
    maker, found = made
    opened = OpenKept(kernel, found, plan, maker=maker, legacy=legacy)
    if can_reopen(plan):
        reopening = KeptReopening(
            kernel,
            plan,
            found,
            exclude_tids=exclude_tids,
            perf=opened,
            stack=stack,
            maker=maker,
        )
        opened.hotplug = (reopening,)
    return opened


def fed_ring(attr: PerfEventAttr, label: RingLabel, stack: ExitStack) -> PerfRing:
    """Make a sideband ring that this process feeds, by its map, with what no event reports.

    It is drained like the kernel's rings: its records reach the file, and the state that later
    segments begin with, in the order of the passes. Its descriptor is never ready: records wait
    for the next full pass.

    Args:
        attr: attributes of the event whose records they are.
        label: label of a ring of that event.
        stack: closes the ring, after whoever drains it.
    """
    memory = os.memfd_create("collectord-fed-ring", os.MFD_CLOEXEC)
    stack.callback(os.close, memory)
    os.ftruncate(memory, os.sysconf("SC_PAGESIZE") + _FED_BYTES)
    fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    stack.callback(os.close, fd)
    ring_map = RingMap(memory, _FED_BYTES)
    stack.callback(ring_map.close)
    return PerfRing(
        map=ring_map,
        fd=fd,
        basis=Basis.NONE,
        geometry=Geometry(_FED_BYTES, 0, _FED_BYTES),
        label=label,
        time_offset=sample_time_offset(attr),
        time_trailer=id_trailer_from(attr, SampleType.TIME),
        cpu_trailer=id_trailer_from(attr, SampleType.CPU),
    )


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
        """Have these rings from now on; the kernel may use the descriptors of others again.

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
        """Resume the rings, those that were frozen included."""
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


class OpenKept(OpenPerf):
    """Open rings of a perf session that outlive this process, unless their opener ends."""

    def __init__(
        self,
        kernel: Kernel,
        opened: Opened,
        plan: SessionPlan,
        *,
        maker: RingMaker,
        legacy: tuple[Legacy, ...],
    ) -> None:
        super().__init__(kernel, opened, plan, OwnCounts(kernel))
        self._connection = maker.connection
        self._use = maker.use
        # A stream's rings go on in any case; those of a recorder hold the window of its end.
        self._recorder = plan.mode == FLIGHT_RECORDER
        self._outlives = False
        self._armed: set[int] = set()  # events that an earlier process has armed
        # Answers that were not asked for yet: a poll asks for each event once.
        self._told: dict[int, tuple[int, ...] | None] = {}
        self._legacy = legacy

    @property
    def abilities(self) -> Abilities:
        """See `source.base.OpenSource`."""
        return replace(
            super().abilities,
            pausable=(),
            lasting=self._legacy,
            shared=tuple(one for one in self._legacy if not one.in_bytes),
            outliving=(self,) if self._recorder else (),
        )

    def outlive(self) -> bool:
        """See `source.base.Outliving`."""
        self._outlives = holds(self._connection)
        return self._outlives

    def enable(self) -> None:
        """Start counting where an earlier process has not.

        An event that freezes its ring is armed once, and off as soon as that has frozen: one that
        did so, and was not armed again, is left to be found.
        """
        before = {fd: self._reading(fd) for fd in self._freezers}
        if before:
            time.sleep(_TICK_S)
        for fd, reading in before.items():
            if self._reading(fd).time_enabled_ns > reading.time_enabled_ns:
                self._happened[fd] = reading.value
                self._armed.add(fd)
            elif reading.value:
                self._armed.add(fd)
        super().enable()

    def _reading(self, fd: int) -> CounterReading:
        return self._kernel.read_counter(fd, self._freezers[fd].read_format)

    def _enable(self, counter: CounterFd) -> None:
        if counter.fd in self._armed:
            self._armed.remove(counter.fd)
        else:
            super()._enable(counter)

    def disable(self) -> None:
        """Stop counting in rings that end now; the others count on for the next process."""
        self._use.ended = self._recorder and not self._outlives
        self.disable_rings([ring for ring in self.rings if not ring.goes_on()])
        if self._use.ended and holds(self._connection):
            self._kernel.end_kept(self._connection)

    def suppressed_by(self, event_index: int) -> tuple[int, ...] | None:
        """See `OpenPerf`. The opener looks, as long as it lives: it takes a privilege."""
        if not holds(self._connection):
            return super().suppressed_by(event_index)
        if event_index not in self._told:
            self._told = dict(self._kernel.hiding_programs(self._connection))
        return self._told.pop(event_index, ())
