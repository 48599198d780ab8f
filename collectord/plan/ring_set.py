# SPDX-License-Identifier: Apache-2.0
"""Sets of equal perf rings, one on each CPU, and the events that write into them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from collectord.codec.aux_pmu import decoder_of
from collectord.codec.file_formats import PERF_DATA
from collectord.codec.perf_attr import SampleType
from collectord.config.schema_session import PerfSourceConfig
from collectord.errors import PlanError
from collectord.model import FLIGHT_RECORDER, FOLLOWING, TASK_SCOPES, RingRole
from collectord.plan import ring_sizes
from collectord.plan.aux_areas import arrange, aux_set
from collectord.plan.event_attrs import sideband_event
from collectord.plan.freeze import frozen
from collectord.plan.ring_plan import RingPlan
from collectord.plan.scope import excludes_self, ring_cpus
from collectord.plan.source_draft import SourceDraft
from collectord.plan.source_events import ABSENCE, in_scope, source_events, without_self
from collectord.text import cpu_list
from collectord.text.units import Share, show_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from collectord.config.schema_session import SessionConfig
    from collectord.facts.kernel_facts import KernelFacts
    from collectord.model import Scope
    from collectord.plan.aux_areas import AuxSet
    from collectord.plan.event_attrs import EventPlan

_SIDEBAND_WATERMARK: Final = Share(percent=25.0)
# A hundred thousand context switches a second are 6 MiB of records.
_SWITCHES_RING_BYTES: Final = 1 << 20
# A flight recorder's ring cannot grow; this holds 16 s of a busy scheduler's 4000 events a second.
RECORDER_RING_BYTES: Final = 4 << 20
_NO_CGROUPS: Final = (
    "this kernel does not record cgroups: it needs Linux 5.7 with CONFIG_CGROUP_PERF"
)
ASSUMED_BYTES_PER_SECOND: Final = 256 << 10


@dataclass(frozen=True, slots=True)
class RingSet:
    """A set of equal rings.

    Attributes:
        source: source in labels: "perf", "perf-2", "bpf".
        role: role of all of them.
        requested_bytes: size of each ring's data, a power of two of pages.
        watermark: fill at which they wake the drain.
        events: events that write into them, those that cannot be on a CPU included.
        cpus: one ring on each; (-1,) for one ring per thread.
        aux: the AUX area of each, None without.
        overwrite: they overwrite their oldest records.
    """

    source: str
    role: RingRole
    requested_bytes: int
    watermark: Share
    events: tuple[EventPlan, ...]
    cpus: tuple[int, ...]
    aux: AuxSet | None = None
    overwrite: bool = False

    def rings(self, data_bytes: int, aux_bytes: int = 0) -> Iterator[RingPlan]:
        """Plan the rings, and their AUX areas, at the sizes that the budget allows.

        An overwritable ring gets no watermark: the kernel would wake us at least each time it
        wraps.
        """
        watermark = ring_sizes.watermark_bytes(self.watermark, data_bytes)
        if self.overwrite:
            watermark = data_bytes
        area = self.aux.plan(aux_bytes) if self.aux is not None else None
        # The event that is mapped sets the ring's watermark; any may be the first on a CPU.
        events = [
            replace(
                event,
                attr=replace(
                    event.attr,
                    # The event that freezes the ring wakes us at once, at one sample.
                    watermark=not event.freezes,
                    wakeup=1 if event.freezes else watermark,
                    write_backward=self.overwrite,
                ),
            )
            for event in self.events
        ]
        if area is not None:
            events = [
                replace(event, attr=replace(event.attr, aux_watermark=area.watermark_bytes))
                if event.aux
                else event
                for event in events
            ]
        for cpu in self.cpus:
            here = tuple(e for e in events if cpu < 0 or not e.cpus or cpu in e.cpus)
            yield RingPlan(
                source=self.source,
                role=self.role,
                cpu=cpu,
                requested_bytes=self.requested_bytes,
                data_bytes=data_bytes,
                watermark_bytes=0 if self.overwrite else watermark,
                overwrite=self.overwrite,
                events=here,
                aux=area if any(event.aux for event in here) else None,
            )


@dataclass(frozen=True, slots=True)
class Rings(SourceDraft):
    """Sources whose rings are sized within one budget, after all others are drafted.

    Attributes:
        sets: sets of equal rings, from which the rings are made.
    """

    kind: str = PerfSourceConfig.kind
    form: str = PERF_DATA
    sets: tuple[RingSet, ...] = ()


def numbered(kind: str, number: int) -> str:
    """Return the label of the Nth source of a kind in its session: "perf", "perf-2"."""
    return kind if number == 1 else f"{kind}-{number}"


def perf_rings(session: SessionConfig, scope: Scope, facts: KernelFacts) -> Rings:
    """Return rings of a session's perf sources, and their sideband. Raises as `build` does."""
    cpus = ring_cpus(scope, facts)
    recorder = session.mode == FLIGHT_RECORDER
    sets: list[RingSet] = []
    notes: list[str] = []
    degraded: list[str] = []
    sideband_bytes = 0
    count = groups = 0
    perf = [source for source in session.source if isinstance(source, PerfSourceConfig)]
    named = [(numbered(source.kind, number), source) for number, source in enumerate(perf, 1)]
    for name, source in named:
        try:
            events = arrange(tuple(source_events(source, scope, facts, notes)))
            overwrite = recorder and not any(event.aux for event in events)
            if excludes_self(source.include_self, scope, drained=not overwrite):
                events = without_self(events, facts)
            if session.freeze_on is not None:
                events = frozen(session.freeze_on, session.freeze_filter, scope, facts, events)
        except ABSENCE as error:
            if source.when != "present":
                raise
            degraded.append(f"{name}: {error.message}")
            continue
        events = tuple(
            replace(event, index=count + i, group=groups + event.group)
            for i, event in enumerate(events)
        )
        count += len(events)
        groups = max(event.group for event in events) + 1
        area = aux_set(source, events, facts, snapshot=recorder)
        if area is not None and scope.kind in FOLLOWING:
            raise PlanError(
                f"{events[0].name}: an AUX area belongs to one process, and scope "
                f"'{scope.kind}' follows many",
                what=events[0].name,
                hint="give the pid, or observe a cgroup or whole CPUs",
            )
        default = RECORDER_RING_BYTES if overwrite else _default_ring_bytes(events)
        sets.append(
            RingSet(
                name,
                RingRole.DATA,
                rounded(source.ring.in_bytes(facts.page_size, default), facts),
                source.watermark,
                events,
                _where(events, cpus, scope),
                area,
                overwrite,
            )
        )
        if overwrite:
            notes.append(_window(sets[-1]))
        wanted = source.sideband_ring.in_bytes(facts.page_size, 0)
        sideband_bytes = max(sideband_bytes, wanted)
    if sets:
        sets.append(sideband(sets, scope, facts, sideband_bytes))
        sets = _for_decoders(sets, facts, notes)
        if not facts.format_lost:
            notes.append("kernel before 6.0: losses after a ring's last record are unknown")
    degraded += _lack_cgroups(named, facts)
    optional = [name for name, source in named if source.when == "present"]
    return Rings(
        sets=tuple(sets),
        notes=tuple(notes),
        degraded=tuple(degraded),
        may_fail=len(optional) == len(named),
        optional=tuple(optional),
    )


def _for_decoders(sets: list[RingSet], facts: KernelFacts, notes: list[str]) -> list[RingSet]:
    """Set the attributes that perf's decoders of AUX traces need on all events, sideband included.

    Trace is stamped by the CPU's counter, the base of perf's clock alone: perf_event_open() with
    another clock would put trace and records on two time lines. And only context switches tell who
    runs on a CPU.
    """
    traced = {ring_set.aux.pmu for ring_set in sets if ring_set.aux is not None}
    decoded = sorted(pmu for pmu in traced if decoder_of(pmu))
    if not decoded:
        return sets
    if len(decoded) > 1:
        raise PlanError(
            f"{' and '.join(decoded)} are in one session, but perf decodes one kind of trace in a "
            "file",
            what=decoded[1],
            hint="give each a session of its own",
        )
    notes.append("perf's own clock on all events, and context switches: to decode the trace")
    found = []
    for ring_set in sets:
        side = ring_set.role is RingRole.SIDEBAND
        events = tuple(
            replace(
                event,
                attr=replace(event.attr, use_clockid=False, clockid=0, context_switch=side),
            )
            for event in ring_set.events
        )
        size = ring_set.requested_bytes
        if side:
            size = max(size, rounded(_SWITCHES_RING_BYTES, facts))
        found.append(replace(ring_set, events=events, requested_bytes=size))
    return found


def sideband(
    data: Sequence[RingSet], scope: Scope, facts: KernelFacts, ring_bytes: int
) -> RingSet:
    """Return the rings that name the tasks and mappings of a session's data rings.

    A task gets its name and maps on any CPU, and is sampled on those of `data`.
    """
    events = [event for ring_set in data for event in ring_set.events]
    dummy = replace(
        in_scope(
            sideband_event(facts, unwinds=_unwinds(events), cgroups=_have_cgroups(events)), scope
        ),
        index=len(events),
        group=max(event.group for event in events) + 1,
    )
    every = data[0].cpus if data[0].cpus == (-1,) else facts.cpus_online
    size = rounded(ring_bytes, facts)
    return RingSet(data[0].source, RingRole.SIDEBAND, size, _SIDEBAND_WATERMARK, (dummy,), every)


def _unwinds(events: Sequence[EventPlan]) -> bool:
    """Whether samples carry a stack that readers unwind."""
    return any(event.attr.sample_type & SampleType.STACK_USER for event in events)


def _lack_cgroups(
    named: Sequence[tuple[str, PerfSourceConfig]], facts: KernelFacts
) -> Iterator[str]:
    """Yield which sources ask for cgroups on a kernel that does not record them."""
    if not facts.sample_cgroup:
        yield from (f"{name}: {_NO_CGROUPS}" for name, source in named if source.cgroups)


def _have_cgroups(events: Sequence[EventPlan]) -> bool:
    return any(event.attr.sample_type & SampleType.CGROUP for event in events)


def rounded(requested_bytes: int, facts: KernelFacts) -> int:
    """Return the size of a ring that holds so many bytes.

    Raises:
        PlanError: it is larger than any ring should be.
    """
    return ring_sizes.check_size(ring_sizes.ring_bytes(requested_bytes, facts.page_size))


def _where(events: Sequence[EventPlan], cpus: tuple[int, ...], scope: Scope) -> tuple[int, ...]:
    """Return CPUs on which at least one of the events can be opened."""
    for event in events:
        if event.uncore and scope.kind in TASK_SCOPES:
            raise PlanError(
                f"{event.name}: an uncore PMU can only count for the whole machine",
                what=event.name,
                hint="use the system scope",
            )
        if event.cpus and cpus != (-1,) and not set(event.cpus) & set(cpus):
            raise PlanError(
                f"{event.name} can be opened only on CPUs {cpu_list.render(event.cpus)}",
                what=event.name,
            )
    _check_leaders(events, cpus)
    if cpus == (-1,) or not all(event.cpus for event in events):
        return cpus
    return tuple(cpu for cpu in cpus if any(cpu in event.cpus for event in events))


def _check_leaders(events: Sequence[EventPlan], cpus: tuple[int, ...]) -> None:
    """Check that a group can be opened wherever its leader can be."""
    leaders = {event.group: event for event in events if event.leader}
    for event in events:
        leader = leaders[event.group]
        here = set(event.cpus or cpus) & set(cpus)
        if leader.cpus and cpus != (-1,) and not here <= set(leader.cpus):
            raise PlanError(
                f"{event.name} is in the group of {leader.name}, which can be opened only on CPUs "
                f"{cpu_list.render(leader.cpus)}",
                what=event.name,
                hint="observe those CPUs alone, or give it a source of its own",
            )


def _window(rings: RingSet) -> str:
    """Return in words what a flight recorder's rings hold."""
    size = rings.requested_bytes
    seconds = size / ASSUMED_BYTES_PER_SECOND
    rate = f"{show_bytes(ASSUMED_BYTES_PER_SECOND)}/s a CPU"
    return f"{rings.source} keeps the last {show_bytes(size)} a CPU, {seconds:.3g}s at {rate}"


def _default_ring_bytes(events: Sequence[EventPlan]) -> int:
    if _unwinds(events):
        return ring_sizes.STACK_RING_BYTES
    if all(event.attr.freq or event.aux for event in events):
        return ring_sizes.SAMPLING_RING_BYTES
    return ring_sizes.EVENT_RING_BYTES
