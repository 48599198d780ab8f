# SPDX-License-Identifier: Apache-2.0
"""The kernel's numbers of an event's spelling on this host, and how the event counts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from collectord.codec.aux_pmu import decoder_of
from collectord.codec.event_names import NAMED_EVENTS, NamedEvent
from collectord.codec.perf_attr import BreakpointType, EventType
from collectord.codec.tracepoint import Tracepoint
from collectord.config.event_spec import Alias, Breakpoint, PmuEvent, Raw
from collectord.errors import MissingFeature, MissingPrivilege, UnknownEvent, UsageError
from collectord.plan.known_aux import default_terms
from collectord.plan.pmu import lay_out
from collectord.text.nearest import did_you_mean

if TYPE_CHECKING:
    from collectord.config.event_spec import EventSpec
    from collectord.facts.kernel_facts import KernelFacts, PmuFacts
    from collectord.plan.pmu import PmuConfig

# PMUs whose events name a probe by a string that no config word holds.
_STRING_PMUS: Final = frozenset({"kprobe", "uprobe"})

# Tracepoints that perf_count() something other than occurrences, nanoseconds in all of them.
_WEIGHTED: Final = Tracepoint("sched", "sched_stat_*")
_BYTES: Final = "bytes"  # from a PMU's `events/NAME.unit`


@dataclass(frozen=True, slots=True)
class Kind:
    """One event of the kernel.

    Attributes:
        name: name in the perf.data attribute section.
        type, config, config1, config2, bp_type: as in `perf_event_attr`.
        counting: at period 1 there is one record for each count, both made by one function of the
            kernel.
        weighted: its count is a weight, not a number of events.
        core: it counts for a CPU core, and knows guests and privilege levels.
        uncore: it counts for the whole machine.
        tracepoint: (system, name).
        cpus: CPUs that it can be opened on, empty for any.
        frequency, period: values of its own terms, 0 for none.
        pmu: name of its dynamic PMU, "" without.
        aux: it writes into an AUX area.
        counts_bytes: it counts traced bytes.
        address_filters: how many it takes.
    """

    name: str
    type: int
    config: int = 0
    config1: int = 0
    config2: int = 0
    bp_type: int = 0
    counting: bool = False
    weighted: bool = False
    core: bool = False
    uncore: bool = False
    tracepoint: Tracepoint | None = None
    cpus: tuple[int, ...] = ()
    frequency: int = 0
    period: int = 0
    pmu: str = ""
    aux: bool = False
    counts_bytes: bool = False
    address_filters: int = 0


def kinds_of(spec: EventSpec, facts: KernelFacts) -> tuple[Kind, ...]:
    """Return the events of a spelling: several for a glob, or an alias of several PMUs.

    Raises:
        UnknownEvent: a name that is unknown on this host.
        UsageError: terms that the PMU does not take.
        MissingFeature: the machine lacks the event.
        MissingPrivilege: tracefs may not be read.
    """
    match spec.body:
        case NamedEvent() as named:
            hardware = named.type is not EventType.SOFTWARE
            if hardware:
                _need_hardware(spec.text, facts)
            kind = Kind(
                spec.text, named.type, int(named.config), counting=named.counts, core=hardware
            )
            return (kind,)
        case Raw(config):
            _need_hardware(spec.text, facts)
            return (Kind(spec.text, EventType.RAW, config, core=True),)
        case Breakpoint() as point:
            return (_breakpoint(point, spec.text, facts),)
        case Tracepoint() as pattern:
            return _tracepoints(pattern, spec, facts)
        case PmuEvent() as event:
            return (_pmu(event, spec.text, facts),)
        case Alias(name):
            events = [
                PmuEvent(p, ((name, None),)) for p, f in facts.pmus.items() if name in f.events
            ]
            if not events:
                raise _unknown(spec.text, name, facts)
            return tuple(_pmu(event, spec.text, facts) for event in events)


def _need_hardware(text: str, facts: KernelFacts) -> None:
    if not facts.hardware_pmu:
        raise MissingFeature(
            f"{text!r}: this host has no hardware counters",
            feature="hardware PMU",
            hint="use cpu-clock (virtual machines often have no PMU)",
        )


def _breakpoint(point: Breakpoint, text: str, facts: KernelFacts) -> Kind:
    if facts.arch == "x86_64" and point.access == "r":
        raise MissingFeature(
            f"{text!r}: x86 has no read-only breakpoints", feature="mem:r", hint="use rw"
        )
    access = BreakpointType(0)
    for letter in point.access:
        access |= BreakpointType[letter.upper()]
    # A hit is counted and sampled in one place, perf_swevent_event(), as software events are.
    return Kind(
        text,
        EventType.BREAKPOINT,
        config1=point.address,
        config2=point.length_bytes,
        bp_type=access,
        counting=True,
    )


def _tracepoints(pattern: Tracepoint, spec: EventSpec, facts: KernelFacts) -> tuple[Kind, ...]:
    if pattern.is_glob:
        found = sorted(filter(pattern.matches, facts.tracepoints))
    else:
        found = [pattern] if pattern in facts.tracepoints else []
    if not found:
        # This comes first: a directory that may not be searched does not show whether it is
        # mounted.
        if facts.tracefs_need:
            raise MissingPrivilege(
                f"{spec.text!r}: {facts.tracefs_problem}", need=facts.tracefs_need
            )
        if facts.tracefs_path is None:
            raise MissingFeature(
                f"{spec.text!r}: {facts.tracefs_problem or 'tracefs is not mounted'}",
                feature="tracefs",
                hint="mount -t tracefs nodev /sys/kernel/tracing",
            )
        if facts.tracefs_problem:
            raise MissingPrivilege(
                f"{spec.text!r}: {facts.tracefs_problem}",
                need=f"read access to {facts.tracefs_path}/events",
            )
        raise _unknown(spec.text, str(pattern), facts)
    # Globs become names, modifiers stay.
    modifiers = f":{spec.letters}" if spec.letters else ""
    return tuple(
        Kind(
            f"{tracepoint}{modifiers}",
            EventType.TRACEPOINT,
            facts.tracepoints[tracepoint],
            counting=True,
            weighted=_WEIGHTED.matches(tracepoint),
            tracepoint=tracepoint,
        )
        for tracepoint in found
    )


def _pmu(event: PmuEvent, text: str, facts: KernelFacts) -> Kind:
    pmu = facts.pmus.get(event.pmu)
    if pmu is None:
        raise MissingFeature(
            f"{text!r}: this host has no PMU {event.pmu!r}",
            feature=event.pmu,
            hint=did_you_mean(event.pmu, facts.pmus) or f"there are {', '.join(facts.pmus)}",
        )
    if event.pmu in _STRING_PMUS:
        raise UsageError(
            f"{text!r}: {event.pmu} events must be created in tracefs",
            hint="use SYSTEM:NAME",
        )
    sinks = [name for name, value in event.terms if name.startswith("@") and value is None]
    aux = facts.aux_pmus.get(event.pmu)
    terms = (*(default_terms(aux, pmu) if aux else ()), *_without(event.terms, sinks))
    words = lay_out(replace(event, terms=terms), pmu, text)
    # A tracing PMU may have a `cpumask` and traces tasks all the same (arm_spe). A PMU that is in
    # no table gets no attribute that its driver may refuse.
    core = pmu.core and pmu.type not in (EventType.SOFTWARE, EventType.BREAKPOINT)
    return Kind(
        words.name or text,
        pmu.type,
        words.config,
        words.config1,
        words.config2 | _sink(event.pmu, sinks, text, facts),
        core=bool(decoder_of(event.pmu)) if pmu.aux else core,
        uncore=not pmu.core and not pmu.aux,
        cpus=pmu.cpus,
        frequency=words.frequency,
        period=words.period,
        pmu=event.pmu,
        aux=pmu.aux,
        counts_bytes=_counts_bytes(event.pmu, words, pmu),
        address_filters=pmu.address_filters,
    )


def _without(
    terms: tuple[tuple[str, str | None], ...], names: list[str]
) -> tuple[tuple[str, str | None], ...]:
    return tuple(term for term in terms if term[0] not in names)


def _sink(pmu: str, names: list[str], text: str, facts: KernelFacts) -> int:
    """Return the number of CoreSight's `@NAME`, a term of `config2`; 0 lets the kernel choose."""
    if not names:
        return 0
    known = facts.aux_pmus[pmu].sinks if pmu in facts.aux_pmus else {}
    name = names[-1].removeprefix("@")
    if name not in known or len(names) > 1:
        hint = did_you_mean(name, known) or f"there are {', '.join(known) or 'none'}"
        raise UsageError(f"PMU {pmu} has no sink {name!r} ({text!r})", hint=hint)
    return known[name]


def _counts_bytes(name: str, words: PmuConfig, pmu: PmuFacts) -> bool:
    """Whether the event is one that the PMU names, with bytes as the unit of its count."""
    own = (words.config, words.config1, words.config2)
    for alias, unit in pmu.units.items():
        if unit != _BYTES or alias not in pmu.events:
            continue
        named = lay_out(PmuEvent(name, ((alias, None),)), pmu, alias)
        if own == (named.config, named.config1, named.config2):
            return True
    return False


def _unknown(text: str, name: str, facts: KernelFacts) -> UnknownEvent:
    known = [event.name for event in NAMED_EVENTS]
    known += [alias for pmu in facts.pmus.values() for alias in pmu.events]
    known += map(str, facts.tracepoints)
    hint = did_you_mean(name, known) or "see `collectord list`"
    return UnknownEvent(f"unknown event {text!r}", hint=hint)
