# SPDX-License-Identifier: Apache-2.0
"""Sink stage: from a plan and the opened events to the sink that writes them."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from typing import TYPE_CHECKING, Final, TypedDict

from collectord import __version__
from collectord.codec.aux_info import Switches, encode_info
from collectord.codec.file_formats import PERF_DATA, TRACE_DAT
from collectord.codec.perf_attr import CLOCK_MONOTONIC
from collectord.codec.perf_data import AttrSection
from collectord.codec.perf_features import ClockData, Features, Group
from collectord.codec.perf_targets import IdPlace
from collectord.codec.tracing_data import build as build_tracing_data
from collectord.model import FLIGHT_RECORDER
from collectord.plan.ftrace_plan import FtracePlan
from collectord.plan.relay_source import RelayPlan
from collectord.session.program_watch import ROOM_BYTES
from collectord.sink.manifest import EventLayout, Identity
from collectord.sink.perf_data_sink import PerfDataSink
from collectord.sink.relay_sink import RelaySink
from collectord.sink.trace_dat_sink import TraceDatSink
from collectord.text.foreign import encode_json
from collectord.text.units import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from collectord.facts.kernel_facts import KernelFacts
    from collectord.kernel.port import Kernel
    from collectord.kernel.values.host import Host
    from collectord.model import ClockReading
    from collectord.plan.event_attrs import EventPlan
    from collectord.plan.session_plan import SessionPlan
    from collectord.session.counter_reader import Drained
    from collectord.sink.base import Sink
    from collectord.source.base import OpenSource
    from collectord.source.open_program import OpenProgram

_CMDLINE_MAX_BYTES: Final = 16 << 10


def make_sink(
    plan: SessionPlan,
    *,
    source: OpenSource,
    rings: Sequence[Drained],
    kernel: Kernel,
    host: Host,
    facts: KernelFacts,
    clock: ClockReading,
    make_room: Callable[[int], bool],
) -> Sink:
    """Make the sink of a session.

    Args:
        plan: says what is recorded, and where to.
        source: the opened events.
        rings: its rings in the core.
        kernel: reads formats of tracepoints, build-ids, BPF programs and properties of the
            machine.
        host: the recording host.
        facts: has the names of the PMUs.
        clock: a reading at the start; ties record times to the wall clock.
        make_room: see `FileSink`.

    Raises:
        SinkError: the directory cannot be made, read or written.
        KernelError: the formats cannot be read.
    """
    identity = Identity(
        host=host.hostname,
        boot_id=host.boot_id,
        kernel=host.release,
        session=plan.name,
        source=plan.source,
        scope=plan.scope.describe(),
        plan_sha256=hashlib.sha256(encode_json(plan)).hexdigest(),
        filters=dict(_filters(plan)),
    )
    cpus = {drained.ring.id: drained.handle.label.cpu for drained in rings}
    if plan.sink.format == TRACE_DAT:
        (instance,) = source.abilities.tracing
        return TraceDatSink(
            plan.sink,
            identity,
            metadata=instance.metadata(),
            cpus=cpus,
            make_room=make_room,
            comms=instance.comms,
            recount=any(drained.handle.is_unseen for drained in rings),
        )
    if plan.sink.format != PERF_DATA:
        channel = plan.payload_of(RelayPlan).name
        return RelaySink(plan.sink, identity, cpus=cpus, channel=channel, make_room=make_room)
    tracepoints = tuple(e.tracepoint for e in plan.events if e.tracepoint is not None)
    tracing = kernel.tracing_data(tracepoints) if tracepoints else None
    return PerfDataSink(
        plan.sink,
        identity,
        attrs=[AttrSection(e.attr, source.event_ids[e.index], e.name) for e in plan.events],
        features=_features(plan, host, kernel, facts, clock),
        tracing_data=build_tracing_data(tracing) if tracing is not None else None,
        layouts=_layouts(one for group in source.abilities.programs for one in group.programs),
        make_room=make_room,
        places=_places(plan, rings),
        aux_info=_aux_info(plan, rings, kernel, facts),
    )


def _filters(plan: SessionPlan) -> Iterator[tuple[str, str]]:
    """Yield the filters that the kernel applies, each with the name of its event."""
    yield from ((event.name, event.filter) for event in plan.events if event.filter)
    if isinstance(plan.payload, FtracePlan):
        ftrace = plan.payload
        yield from ((str(event), event.filter) for event in ftrace.events if event.filter)
        yield from ((str(probe), probe.filter) for probe in ftrace.probes if probe.filter)


def _places(plan: SessionPlan, rings: Sequence[Drained]) -> list[IdPlace]:
    """Return the ids of all events in the events' order, each with its CPU and thread.

    Rings are numbered per event: perf has one ring for all events of a CPU.
    """
    places = []
    for event in plan.events:
        carriers = [
            (drained.handle.label, counter)
            for drained in rings
            for counter in drained.handle.counters
            if counter.event_index == event.index
        ]
        targets = {(label.cpu, label.tid): None for label, _ in carriers}
        numbers = {target: number for number, target in enumerate(targets)}
        places += [
            IdPlace(counter.event_id, numbers[label.cpu, label.tid], label.cpu, counter.tid)
            for label, counter in carriers
        ]
    return places


def _aux_info(
    plan: SessionPlan, rings: Sequence[Drained], kernel: Kernel, facts: KernelFacts
) -> bytes | None:
    """Return what perf's decoder needs to know about the trace; None if it has no decoder for it.

    A file has one such record, so a session has one PMU with a decoder: the plan ensures that.
    """
    areas = [area for drained in rings for area in drained.handle.areas]
    pmu = next((area.plan.pmu for area in areas if area.plan.pmu in facts.aux_pmus), "")
    event = next((event for event in plan.events if event.aux and event.pmu == pmu), None)
    if not pmu or event is None:
        return None
    cpus = sorted({area.label.cpu for area in areas if area.label.cpu >= 0})
    return encode_info(
        facts.aux_pmus[pmu],
        pmu_type=event.attr.type,
        formats=facts.pmus[pmu].formats,
        config=event.attr.config,
        clock=kernel.time_conversion(),
        cpus=cpus or facts.cpus_online,
        per_cpu=bool(cpus),
        snapshot=plan.mode == FLIGHT_RECORDER,
        switches=Switches.SWITCH if plan.per_task else Switches.SWITCH_CPU_WIDE,
        filter_text=event.filter,
    )


def _layouts(programs: Iterable[OpenProgram]) -> dict[str, EventLayout]:
    """Return the layouts of the programs' samples, by the name of the event."""
    layouts = {}
    for program in programs:
        plan = program.plan
        if program.layout is not None:
            layouts[plan.name] = EventLayout(
                program=plan.name, layout=program.layout, columns=plan.program.manifest.columns
            )
        for kept in plan.kept:
            layouts[kept.record.event] = EventLayout(
                program=plan.name,
                layout=program.records[kept.record.event],
                columns=kept.record.columns,
                comms=kept.record.comms,
            )
    return layouts


def _features(
    plan: SessionPlan, host: Host, kernel: Kernel, facts: KernelFacts, clock: ClockReading
) -> Features:
    return Features(
        build_ids=kernel.kernel_build_ids(),
        hostname=host.hostname,
        osrelease=host.release,
        version=f"collectord {__version__}",
        arch=host.machine,
        nrcpus=(host.cpus_online, host.cpus_configured),
        cpudesc=host.cpudesc,
        cpuid=host.cpuid,
        total_mem_kib=host.total_mem_kib,
        cmdline=command_line(),
        machine=kernel.machine(),
        bpf=kernel.loaded_bpf(None, ROOM_BYTES),
        pmu_mappings=tuple((name, pmu.type) for name, pmu in sorted(facts.pmus.items())),
        group_desc=_groups(plan.events),
        **_clocks(plan, clock),
    )


def command_line() -> tuple[str, ...]:
    """Return this process's words that fit: arguments may be megabytes, and each file has them."""
    words = []
    left = _CMDLINE_MAX_BYTES
    for word in sys.argv:
        left -= len(os.fsencode(word)) + 1
        if left < 0:
            words.append("...")
            break
        words.append(word)
    return tuple(words)


class _Clocks(TypedDict, total=False):
    clockid_resolution_ns: int
    clock_data: ClockData


def _clocks(plan: SessionPlan, clock: ClockReading) -> _Clocks:
    """Relate the records' clock to the wall clock; perf's own clock has no clock id."""
    if plan.perf_clock:
        return {}
    return {
        "clockid_resolution_ns": int(time.clock_getres(time.CLOCK_MONOTONIC) * NS_PER_SECOND),
        "clock_data": ClockData(CLOCK_MONOTONIC, clock.realtime_ns, clock.monotonic_ns),
    }


def _groups(events: tuple[EventPlan, ...]) -> tuple[Group, ...]:
    """Return the event groups of more than one member, by the position of their leader."""
    groups = []
    for position, leader in enumerate(events):
        members = [event for event in events if event.group == leader.group]
        if leader.leader and len(members) > 1:
            groups.append(Group(position, len(members)))
    return tuple(groups)
