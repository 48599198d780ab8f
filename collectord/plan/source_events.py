# SPDX-License-Identifier: Apache-2.0
"""The events of a session's source: alternatives chosen, groups formed, fitted to the scope."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from collectord.codec.tracepoint import Tracepoint
from collectord.config.event_spec import PmuEvent, events_of
from collectord.config.schema_session import PerfSourceConfig, TracefsSourceConfig
from collectord.errors import CollectordError, MissingFeature, UnknownEvent, UsageError
from collectord.model import ScopeKind
from collectord.plan.event_attrs import Sampling, may_exclude_self, resolve

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from collectord.config.event_filter import Filter
    from collectord.config.event_spec import EventChoices, EventGroup, EventSpec
    from collectord.config.schema import Config
    from collectord.facts.kernel_facts import KernelFacts
    from collectord.model import Scope
    from collectord.plan.event_attrs import EventPlan

# Errors that a choice of events ("cycles|cpu-clock") and `when = "present"` take for absence.
ABSENCE: Final = (MissingFeature, UnknownEvent)


def tracepoint_patterns(config: Config) -> tuple[Tracepoint, ...]:
    """Return every tracepoint that the configuration mentions, with its globs.

    A probe looks up only these, so that it need not read a thousand files.
    """
    bodies = (event.body for event in _every_event(config))
    return tuple(sorted({body for body in bodies if isinstance(body, Tracepoint)}))


def pmu_names(config: Config) -> tuple[str, ...]:
    """Return every PMU that the configuration names, except the CPU's own, which samples."""
    names = {e.body.pmu for e in _every_event(config) if isinstance(e.body, PmuEvent)}
    return tuple(sorted(names - {"cpu", "software", "tracepoint", "breakpoint"}))


def _every_event(config: Config) -> Iterator[EventSpec]:
    for session in config.session:
        for source in session.source:
            if isinstance(source, PerfSourceConfig | TracefsSourceConfig):
                for entry in source.events:
                    yield from events_of(entry.event)
        if session.freeze_on is not None:
            yield session.freeze_on


def source_events(
    source: PerfSourceConfig, scope: Scope, facts: KernelFacts, notes: list[str]
) -> Iterator[EventPlan]:
    """Yield a source's events, groups numbered from 0, in the form that the scope needs.

    The alternatives that were left out are added to `notes`. Raises as `build` does.
    """
    number = 0
    filtered = not source.filter
    for own in source.events:
        has_rate = own.frequency is not None or own.period is not None
        sampling = Sampling(
            frequency=own.frequency if has_rate else source.frequency,
            period=own.period if has_rate else source.period,
            call_graph=source.call_graph,
            max_stack=source.max_stack,
            cgroups=source.cgroups,
            filter=own.filter,
        )
        for group in _first_choice(own.event, sampling, source.filter, facts, notes):
            for event in group:
                filtered = filtered or bool(event.filter)
                yield replace(in_scope(event, scope), group=number)
            number += 1
    if not filtered:
        raise UsageError("a filter needs a tracepoint")


def without_self(events: Iterable[EventPlan], facts: KernelFacts) -> tuple[EventPlan, ...]:
    """Return the events without the daemon's own threads, where that is possible."""
    return tuple(replace(event, exclude_self=may_exclude_self(event, facts)) for event in events)


def _first_choice(
    choices: EventChoices,
    sampling: Sampling,
    shared_filter: Filter,
    facts: KernelFacts,
    notes: list[str],
) -> list[list[EventPlan]]:
    """Return groups of the first alternative that the host has."""
    missing: list[CollectordError] = []
    for choice in choices:
        try:
            groups = [
                group
                for spec_group in choice
                for group in _resolve_group(spec_group, sampling, shared_filter, facts)
            ]
        except ABSENCE as error:
            missing.append(error)
            continue
        notes += [f"{error.message}: the next choice is taken" for error in missing]
        return groups
    raise missing[-1]


def _resolve_group(
    group: EventGroup, sampling: Sampling, shared_filter: Filter, facts: KernelFacts
) -> list[list[EventPlan]]:
    """Return events of a braced group in one list, others in a list each."""
    found: list[EventPlan] = []
    for spec in group.events:
        own = sampling
        if isinstance(spec.body, Tracepoint) and not sampling.filter:
            own = replace(sampling, filter=shared_filter)
        found += resolve(spec, facts, own)
    if not group.braced:
        return [[event] for event in found]
    # The leader is enabled for all; a member that is itself disabled would stay off.
    members = [
        replace(event, leader=False, attr=replace(event.attr, disabled=False, pinned=False))
        for event in found[1:]
    ]
    return [[found[0], *members]]


def in_scope(event: EventPlan, scope: Scope) -> EventPlan:
    """Return the event with the attributes that follow from the scope."""
    on_exec = scope.kind is ScopeKind.COMMAND and event.leader
    attr = replace(event.attr, inherit=scope.inherit, enable_on_exec=on_exec)
    return replace(event, attr=attr)
