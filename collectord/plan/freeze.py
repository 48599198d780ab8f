# SPDX-License-Identifier: Apache-2.0
"""The event that stops a flight recorder by itself: `freeze_on`, and its place among the events.

An event that overflows as often as it was armed for disables itself, and all others of the group
that it leads (perf_event_disable_inatomic() in kernel/events/core.c). That stops overwritable
rings, and an AUX area too. Where the kernel can pause the area in the overflow itself, with no
interrupt in between, the event is in the AUX event's group and pauses it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from collectord.codec.perf_attr import AuxAction
from collectord.codec.tracepoint import Tracepoint
from collectord.errors import PlanError, UsageError
from collectord.model import ScopeKind
from collectord.plan.event_attrs import Sampling, may_exclude_self, resolve
from collectord.plan.ftrace_plan import FtraceEvent
from collectord.plan.scope import ring_cpus
from collectord.plan.source_events import in_scope
from collectord.text import cpu_list

if TYPE_CHECKING:
    from collections.abc import Sequence

    from collectord.config.event_filter import Filter
    from collectord.config.event_spec import EventSpec
    from collectord.config.schema_session import SessionConfig
    from collectord.facts.kernel_facts import KernelFacts
    from collectord.model import Scope
    from collectord.plan.event_attrs import EventPlan


def freezing_tracepoint(session: SessionConfig) -> FtraceEvent | None:
    """Return the tracepoint that stops rings of ftrace, None for none."""
    if session.freeze_on is None or not isinstance(session.freeze_on.body, Tracepoint):
        return None
    return FtraceEvent(*session.freeze_on.body, session.freeze_filter.text)


def frozen(
    freeze_on: EventSpec,
    freeze_filter: Filter,
    scope: Scope,
    facts: KernelFacts,
    events: Sequence[EventPlan],
) -> tuple[EventPlan, ...]:
    """Return the events of a perf source, arranged, with the `freeze_on` event that stops them.

    Raises:
        UsageError: this host lacks the event, it is not one event, or it never overflows.
        PlanError: it cannot be on each CPU, or another event would restart what it stops.
        MissingFeature, MissingPrivilege: as `resolve`.
    """
    freezing = _freezing(freeze_on, freeze_filter, scope, facts)
    cpus = ring_cpus(scope, facts)
    if freezing.cpus and not set(cpus) <= set(freezing.cpus):
        raise PlanError(
            f"freeze_on = {freeze_on.text!r} exists only on CPUs "
            f"{cpu_list.render(freezing.cpus)}: the rings of the other CPUs would go on",
            what="freeze_on",
            hint="a tracepoint or a software event is on every CPU; or observe those CPUs alone",
        )
    owner = next((event for event in events if event.aux), None)
    if owner is None:
        return _led_by(freezing, events)
    # A cgroup's events are on a CPU only while it runs there: the end of a freeze would be
    # unknown.
    can_pause = facts.pmus[owner.pmu].aux_pause and scope.kind is not ScopeKind.CGROUP
    refused = AuxAction.RESUME if can_pause else AuxAction.RESUME | AuxAction.PAUSE
    acting = next((event for event in events if event.attr.aux_action & refused), None)
    if acting is not None:
        does_it = "would resume what freeze_on has stopped"
        if not acting.attr.aux_action & AuxAction.RESUME:
            does_it = "wants the AUX event to lead its group, and freeze_on leads it"
        raise PlanError(
            f"{acting.name} {does_it}",
            what="freeze_on",
            hint="freeze_on without aux-action, or aux-action without freeze_on",
        )
    if not can_pause:
        return _led_by(freezing, events)
    # Off until it is armed: it disables itself alone when it has paused the area.
    attr = replace(freezing.attr, disabled=True, aux_action=AuxAction.PAUSE)
    member = replace(freezing, group=owner.group, leader=False, attr=attr)
    return (owner, member, *(event for event in events if event is not owner))


def _freezing(
    freeze_on: EventSpec, freeze_filter: Filter, scope: Scope, facts: KernelFacts
) -> EventPlan:
    found = resolve(freeze_on, facts, Sampling(period=1, filter=freeze_filter))
    if len(found) != 1:
        raise UsageError(
            f"{freeze_on.text!r} is {len(found)} events",
            hint="one event freezes a flight recorder",
        )
    if found[0].aux:
        raise UsageError(
            f"freeze_on = {freeze_on.text!r}: an event with an AUX area does not count, so it "
            "cannot stop a ring",
            hint="a tracepoint, a software event or a counter",
        )
    event = in_scope(found[0], scope)
    return replace(event, freezes=True, exclude_self=may_exclude_self(event, facts))


def _led_by(freezing: EventPlan, events: Sequence[EventPlan]) -> tuple[EventPlan, ...]:
    """Return the events of a ring as one group, whose leader disables all of them."""
    members = (
        replace(
            event,
            group=0,
            leader=False,
            attr=replace(event.attr, disabled=False, pinned=False, exclusive=False),
        )
        for event in events
    )
    return (freezing, *members)
