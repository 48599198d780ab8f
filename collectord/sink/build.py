# SPDX-License-Identifier: Apache-2.0
"""Sink stage: from a plan and the opened events to the sink that carries them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from collectord import __version__
from collectord.codec.perf_attr import CLOCK_MONOTONIC
from collectord.codec.perf_data import AttrSection
from collectord.codec.perf_features import ClockData, Features, Group
from collectord.codec.tracing_data import build as build_tracing_data
from collectord.sink.manifest import Identity
from collectord.sink.perf_data import PerfDataSink

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from collectord.codec.tracing_data import TracingData
    from collectord.kernel.host import Host
    from collectord.model import ClockReading
    from collectord.plan.events import EventPlan
    from collectord.plan.facts import KernelFacts
    from collectord.plan.session import SessionPlan
    from collectord.sink.base import Sink


def make_sink(
    plan: SessionPlan,
    *,
    event_ids: Mapping[int, tuple[int, ...]],
    tracing: TracingData | None,
    host: Host,
    facts: KernelFacts,
    clock: ClockReading,
    make_room: Callable[[int], bool],
) -> Sink:
    """The sink of a session.

    Args:
        plan: what is recorded, and where to.
        event_ids: ids that samples carry, by `EventPlan.index`.
        tracing: formats of the plan's tracepoints, None without any.
        host: where it is recorded.
        facts: names of the PMUs.
        clock: a reading at the start; ties record times to the wall clock.
        make_room: see `PerfDataSink`.

    Raises:
        SinkError: the directory cannot be made, read or written.
    """
    events = plan.events
    return PerfDataSink(
        plan.sink,
        Identity(
            host=host.hostname,
            boot_id=host.boot_id,
            kernel=host.release,
            session=plan.name,
            source=plan.source,
            scope=plan.scope.describe(),
        ),
        attrs=[AttrSection(e.attr, event_ids[e.index], e.name) for e in events],
        features=Features(
            hostname=host.hostname,
            osrelease=host.release,
            version=f"collectord {__version__}",
            arch=host.machine,
            nrcpus=(host.cpus_online, host.cpus_configured),
            cpudesc=host.cpudesc,
            total_mem_kib=host.total_mem_kib,
            pmu_mappings=tuple((name, pmu.type) for name, pmu in sorted(facts.pmus.items())),
            group_desc=_groups(events),
            clockid_resolution_ns=int(time.clock_getres(time.CLOCK_MONOTONIC) * 1e9),
            clock_data=ClockData(CLOCK_MONOTONIC, clock.realtime_ns, clock.monotonic_ns),
        ),
        tracing_data=build_tracing_data(tracing) if tracing is not None else None,
        make_room=make_room,
    )


def _groups(events: tuple[EventPlan, ...]) -> tuple[Group, ...]:
    """Event groups of more than one member, by the position of their leader."""
    groups = []
    for position, leader in enumerate(events):
        members = [event for event in events if event.group == leader.group]
        if leader.leader and len(members) > 1:
            name = ",".join(event.name for event in members)
            groups.append(Group("{" + name + "}", position, len(members)))
    return tuple(groups)
