# SPDX-License-Identifier: Apache-2.0
"""Sessions whose rings an opener holds: which ones, and by what they are known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from collectord.config.event_spec import parse_one
from collectord.config.schema import Config, DaemonConfig
from collectord.config.schema_session import (
    BpfSourceConfig,
    RelaySourceConfig,
    SessionConfig,
    TargetConfig,
)
from collectord.errors import MissingFeature
from collectord.facts.kernel_facts import (
    CAP_SYS_ADMIN,
    BpfFacts,
    FtraceFacts,
    PmuFacts,
    RelayFacts,
)
from collectord.kernel.values.left_instance import InstanceNote
from collectord.model import RingRole, ScopeKind
from collectord.plan.build import build
from collectord.plan.held_resources import block_digest, digest, held_part, trace_digest
from collectord.plan.relay_source import RelayPlan
from collectord.source.trace_end import left_instance
from collectord.text.units import RingSize
from tests.support.bpf_pairs import SOURCE, program
from tests.support.configs import perf_source, tracefs_source
from tests.support.hosts import host

if TYPE_CHECKING:
    from collectord.facts.kernel_facts import KernelFacts
    from collectord.plan.session_plan import SessionPlan

RECORDER = {"mode": "flight-recorder"}
PLACE = "/run/collectord-opener/opener.sock"


def plan(
    session: SessionConfig, opener: str = PLACE, facts: KernelFacts | None = None
) -> SessionPlan:
    """Plan one session with an opener."""
    config = Config(daemon=DaemonConfig(opener=opener), session=(session,))
    return build(config, facts or host()).sessions[0]


def switches(**settings: object) -> SessionConfig:
    """Configure a session of context switches."""
    named = {"name": "calls", "source": (perf_source("sched:sched_switch"),), **settings}
    return SessionConfig(**named)  # type: ignore[arg-type]


def test_streams_on_whole_cpus_are_held() -> None:
    """Their events have no filter by the threads of one daemon."""
    held = plan(switches())
    assert held.opener == PLACE
    assert not any(event.exclude_self for event in held.events)
    alone = plan(switches(), opener="")
    assert alone.opener == ""
    assert any(event.exclude_self for event in alone.events)
    assert PLACE in "".join(held.describe())


def test_flight_recorders_on_whole_cpus_are_held() -> None:
    """Their rings overwrite, whoever opens them; without an opener they end with the daemon."""
    held = plan(switches(**RECORDER))
    assert held.opener == PLACE
    assert all(ring.overwrite for ring in held.rings if ring.role is RingRole.DATA)
    assert plan(switches(**RECORDER, freeze_on=parse_one("cpu-clock"))).opener == PLACE
    assert digest(held) != digest(plan(switches()))


def test_streams_with_aux_areas_are_held() -> None:
    """The opener tells of its PMUs: who may open nothing cannot try whether they have areas."""
    pmu = PmuFacts(type=10, aux=True)
    theirs = host(
        pmus={**host().pmus, "tracer": pmu},
        capabilities=frozenset({CAP_SYS_ADMIN}),
        euid=0,
        perf_event_paranoid=3,
    )
    bare = replace(
        theirs,
        pmus={**host().pmus, "tracer": replace(pmu, aux=False)},
        capabilities=frozenset(),
        euid=1000,
        opener=theirs.as_opener(),
    )
    assert bare.opener is not None
    assert bare.opener.pmus == {"tracer": pmu}
    session = SessionConfig(name="trace", source=(perf_source("tracer//"),))
    made = plan(session, facts=bare)
    assert made.opener == PLACE
    areas = [ring.aux for ring in made.rings if ring.aux is not None]
    assert len(areas) == len(bare.cpus_online)
    larger = SessionConfig(
        name="trace", source=(perf_source("tracer//", aux=RingSize(areas[0].data_bytes * 2)),)
    )
    assert digest(made) == digest(plan(session, facts=replace(theirs, opener=bare.opener)))
    assert digest(made) != digest(plan(larger, facts=bare))


def test_flight_recorders_of_aux_areas_are_not_held() -> None:
    """Their windows are found by the last bytes of the one before, which nobody keeps."""
    facts = host(pmus={**host().pmus, "tracer": PmuFacts(type=10, aux=True)})
    session = SessionConfig(name="trace", source=(perf_source("tracer//"),), **RECORDER)  # type: ignore[arg-type]
    made = plan(session, facts=facts)
    assert made.opener == ""
    assert any("flight recorders of AUX areas" in note for note in made.notes)


def test_what_is_never_held_is_nothing_to_an_opener() -> None:
    """It may neither try ftrace instances nor see devices; what it holds is planned as before."""
    traced = tracefs_source("sched:sched_switch")
    both = switches(source=(*switches().source, traced))
    config = Config(
        daemon=DaemonConfig(opener=PLACE),
        session=(both, switches(name="traced", source=(traced,))),
    )
    whole, part = build(config, host()), held_part(config)
    facts = host(ftrace=FtraceFacts(instances=False, problem="Read-only file system"))
    with pytest.raises(MissingFeature, match="Read-only"):
        build(config, facts)
    (held,) = build(part, facts).sessions
    assert [one.name for one in whole.sessions if one.opener] == [held.name] == ["calls"]
    assert digest(held) == digest(next(one for one in whole.sessions if one.opener))


@pytest.mark.parametrize(
    ("session", "reason"),
    [
        (switches(target=TargetConfig(scope=ScopeKind.PROCESS, pids=(1,))), "whole CPUs"),
        (switches(source=(tracefs_source("sched:sched_switch"),), **RECORDER), "flight recorders"),
    ],
    ids=["process", "ftrace flight recorder"],
)
def test_others_say_why_not(session: SessionConfig, reason: str) -> None:
    """The daemon opens them, as without an opener."""
    made = plan(session)
    assert made.opener == ""
    assert any("not held by the opener" in note and reason in note for note in made.notes)


def test_an_instance_of_ftrace_is_left_to_the_same_plan() -> None:
    """The next daemon finds it by a note with the digest of its own plan, under either name."""
    session = switches(source=(tracefs_source("sched:sched_switch"),))
    made = plan(session)
    assert made.opener == ""
    assert "records on while the daemon restarts" in "".join(made.describe())
    other = plan(switches(source=(tracefs_source("sched:sched_wakeup"),)))
    assert trace_digest(made) != trace_digest(other)
    notes = {"collectord-calls+": InstanceNote(Path("/x"), digest=trace_digest(made))}
    assert left_instance(made, notes.get) == ("collectord-calls+", *notes.values())
    assert left_instance(other, notes.get) is None
    assert left_instance(plan(session, opener=""), notes.get) is None
    assert left_instance(plan(switches()), notes.get) is None


def relay(**settings: object) -> SessionConfig:
    """Configure a session with a relay source."""
    return switches(source=(RelaySourceConfig(**settings),))  # type: ignore[arg-type]


def test_a_block_trace_is_left_to_the_same_plan() -> None:
    """Its digest is of the device, of what is recorded, and of where that goes."""
    traced = {"device": ("/dev/vda",)}
    made = plan(relay(**traced))
    assert made.opener == ""
    assert made.payload_of(RelayPlan).lasts
    assert "records on while the daemon restarts" in "".join(made.describe())
    others = [
        plan(relay(**traced, pid=3)),
        plan(relay(**traced, subbufs=8)),
        plan(relay(device=("/dev/vdb",))),
        replace(made, name="other"),
        replace(made, sink=replace(made.sink, directory="/elsewhere")),
    ]
    digests = {block_digest(one) for one in [made, *others, plan(relay(**traced))]}
    assert len(digests) == len(others) + 1
    assert not plan(relay(**traced), opener="").payload_of(RelayPlan).lasts


def test_a_channel_ends_with_its_client() -> None:
    """Its files are read on by whoever opens them, and nothing tells the next one of more."""
    path = "/sys/kernel/debug/x/channel"
    facts = host(relay=RelayFacts(debugfs="/sys/kernel/debug", channels={path: (0,)}))
    made = plan(relay(path=(path,)), facts=facts)
    assert not made.payload_of(RelayPlan).lasts
    assert any("end with its client" in note for note in made.notes)


def test_rings_are_planned_with_the_privileges_of_who_opens_them() -> None:
    """A daemon without any plans what the opener has planned, unless it opens the rings itself."""
    bare = replace(host(), capabilities=frozenset(), euid=1000, perf_event_paranoid=3)
    privileged = replace(bare, capabilities=frozenset({CAP_SYS_ADMIN}), euid=0)
    asked = replace(bare, opener=privileged.as_opener())
    sampled = SessionConfig(name="profile", source=(perf_source("cpu-clock"),))
    theirs = plan(sampled, facts=replace(privileged, opener=privileged.as_opener()))
    assert (
        digest(plan(sampled, facts=asked)) == digest(theirs) != digest(plan(sampled, facts=bare))
    )
    assert not plan(sampled, facts=asked).rings[0].events[0].attr.exclude_kernel
    some = TargetConfig(scope=ScopeKind.PROCESS, pids=(1,))
    of_some = SessionConfig(name="some", target=some, source=(perf_source("cpu-clock"),))
    for alone in (plan(of_some, facts=asked), plan(sampled, opener="", facts=asked)):
        assert alone.rings[0].events[0].attr.exclude_kernel


def test_rings_are_as_large_as_who_opens_them_may_lock() -> None:
    """The opener's fit its limit, by which both plan; others fit the daemon's."""
    bare = replace(host(), capabilities=frozenset(), rlimit_memlock_bytes=0)
    theirs = replace(bare, rlimit_memlock_bytes=None)
    asked = replace(bare, opener=theirs.as_opener())
    large = perf_source("sched:sched_switch", ring=RingSize(8 << 20))
    held = SessionConfig(name="held", source=(large,))
    target = TargetConfig(scope=ScopeKind.PROCESS, pids=(1,))
    other = SessionConfig(name="other", target=target, source=(large,))
    config = Config(daemon=DaemonConfig(opener=PLACE), session=(held, other))
    made = build(config, asked)
    first, second = made.sessions
    assert (first.rings[0].data_bytes, first.opener) == (8 << 20, PLACE)
    assert second.rings[0].data_bytes < 8 << 20
    (warning,) = (text for text in made.warnings if "made smaller" in text)
    assert "held/" not in warning
    planned = build(config, replace(theirs, opener=theirs.as_opener()))
    assert digest(planned.sessions[0]) == digest(first)


def test_programs_are_planned_with_the_privileges_of_who_loads_them() -> None:
    """Their texts, which everybody finds alone, are the daemon's own."""
    known = BpfFacts(python="/usr/bin/python3", programs={"switches": program(SOURCE)})
    bare = replace(
        host(bpf=replace(known, problem="a privilege is missing", need="CAP_BPF")),
        capabilities=frozenset(),
        perf_event_paranoid=3,
    )
    privileged = replace(bare, capabilities=frozenset({CAP_SYS_ADMIN}), bpf=known)
    source = (BpfSourceConfig(program="switches"),)
    asked = replace(bare, opener=privileged.as_opener())
    session = SessionConfig(name="p", source=source)
    held = plan(session, facts=asked)
    theirs = plan(session, facts=replace(privileged, opener=privileged.as_opener()))
    assert held.opener == PLACE
    assert digest(held) == digest(theirs)
    assert digest(held, ["a text"]) != digest(held, ["another"])
    of_some = TargetConfig(scope=ScopeKind.PROCESS, pids=(1,))
    (reason,) = plan(SessionConfig(name="p", source=source, target=of_some), facts=asked).degraded
    assert "privilege is missing" in reason


def test_facts_of_an_opener_are_its_own() -> None:
    """The host's are the daemon's."""
    bare = replace(host(), capabilities=frozenset(), hardware_pmu=False)
    theirs = replace(bare, capabilities=frozenset({CAP_SYS_ADMIN}), hardware_pmu=True)
    asked = replace(bare, rlimit_nofile=77, opener=theirs.as_opener())
    assert asked.for_opener() == replace(theirs, rlimit_nofile=77, opener=asked.opener)
    assert bare.for_opener() is bare


def test_a_digest_is_of_what_is_opened() -> None:
    """Other events, filters, CPUs and sizes have another one; what a budget allows has not."""
    made = plan(switches())
    (ring, *others) = made.rings
    (event, *more) = ring.events
    changed = [
        replace(made, rings=tuple(others)),
        replace(made, rings=(replace(ring, requested_bytes=4096), *others)),
        replace(made, rings=(replace(ring, cpu=7), *others)),
        replace(made, rings=(replace(ring, events=(replace(event, filter="a"), *more)), *others)),
        replace(
            made,
            rings=(
                replace(ring, events=(replace(event, attr=replace(event.attr, config=1)), *more)),
                *others,
            ),
        ),
    ]
    digests = {digest(one) for one in (made, *changed)}
    assert len(digests) == 1 + len(changed)
    assert digest(replace(made, rings=(replace(ring, data_bytes=4096), *others))) == digest(made)
