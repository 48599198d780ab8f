# SPDX-License-Identifier: Apache-2.0
"""AUX areas in the plan: who owns a ring, sizes, what decoders want of the other events."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from collectord.codec.aux_pmu import AuxPmuFacts
from collectord.codec.perf_attr import AuxAction, EventType
from collectord.config.event_filter import Filter
from collectord.config.event_spec import parse, parse_one
from collectord.config.rules import check_config
from collectord.config.schema import Config, DaemonConfig
from collectord.config.schema_session import EventConfig, SessionConfig, TargetConfig
from collectord.errors import MissingFeature, PlanError, UsageError
from collectord.facts.kernel_facts import PmuFacts
from collectord.model import Basis, RingRole, ScopeKind
from collectord.plan.aux_areas import Framing, HeadRule
from collectord.plan.build import build
from collectord.plan.source_events import pmu_names
from collectord.text.units import Bytes, Nanoseconds, RingSize, Share
from tests.support.configs import perf_event, perf_source
from tests.support.hosts import host, unprivileged

if TYPE_CHECKING:
    from collectord.facts.kernel_facts import KernelFacts
    from collectord.plan.plan import Plan
    from collectord.plan.ring_plan import RingPlan
    from collectord.plan.session_plan import SessionPlan

PT = PmuFacts(type=10, formats={"tsc": "config:10"}, aux=True, address_filters=2)
ETM = PmuFacts(type=11, formats={"timestamp": "config:28"}, aux=True, address_filters=8)
SPE = PmuFacts(type=12, cpus=(0, 1), core=False, aux=True)
PLAIN = PmuFacts(
    type=20,
    formats={"mode": "config:0-7"},
    events={"trace": "mode=0x1"},
    units={"trace": "bytes"},
    aux=True,
)
SWITCH = "sched:sched_switch"


def tracing(**changes: Any) -> KernelFacts:  # noqa: ANN401 - fields of any type
    """Return a host with every tracing PMU."""
    facts = host(
        pmus={
            **host().pmus,
            "intel_pt": PT,
            "cs_etm": ETM,
            "arm_spe_0": SPE,
            "plain": PLAIN,
        },
        aux_pmus={
            "intel_pt": AuxPmuFacts("intel_pt"),
            "cs_etm": AuxPmuFacts("cs_etm", sinks={"tmc_etr0": 0x3D1F3C07}),
            "arm_spe_0": AuxPmuFacts("arm_spe"),
        },
    )
    return replace(facts, **changes)


def plan(
    *events: str | EventConfig,
    facts: KernelFacts | None = None,
    daemon: DaemonConfig | None = None,
    mode: Any = "stream",  # noqa: ANN401
    target: TargetConfig | None = None,
    **settings: Any,  # noqa: ANN401
) -> Plan:
    """Return the plan of one session with one source."""
    source = perf_source(*events, **settings)
    one = SessionConfig(name="s", mode=mode, source=(source,), target=target or TargetConfig())
    config = Config(session=(one,), daemon=daemon or DaemonConfig())
    return build(config, facts or tracing())


def session(*events: str | EventConfig, **settings: Any) -> SessionPlan:  # noqa: ANN401
    """Return its only session."""
    (found,) = plan(*events, **settings).sessions
    return found


def data(found: SessionPlan) -> RingPlan:
    """Return its first data ring."""
    return next(ring for ring in found.rings if ring.role is RingRole.DATA)


def test_the_tracing_event_comes_first() -> None:
    """It owns the ring, wherever its source names it; the others follow in their order."""
    found = session(SWITCH, "cs", "plain//")
    assert [event.name for event in data(found).events] == ["plain//", SWITCH, "cs"]
    assert [event.index for event in found.events] == [0, 1, 2, 3]
    assert [event.aux for event in found.events] == [True, False, False, False]
    assert [event.group for event in found.events] == [0, 1, 2, 3]


def test_a_tracing_event_makes_no_samples() -> None:
    """Period 1 whatever the source says; the ring's balance rests on the other events."""
    found = session("plain//", SWITCH, frequency=99)
    attr = found.events[0].attr
    assert (attr.type, attr.freq, attr.sample_period) == (20, False, 1)
    assert session("plain//", SWITCH).basis is Basis.EXACT
    assert session("plain//").basis is Basis.LOST_ONLY


def test_sizes_and_watermarks() -> None:
    """The defaults are perf's: 4 MiB, or 128 KiB; the watermark is a share of the area."""
    area = data(session("plain//")).aux
    assert area is not None
    assert (area.data_bytes, area.watermark_bytes) == (4 << 20, 1 << 20)
    assert data(session("plain//")).events[0].attr.aux_watermark == 1 << 20
    small = data(session("plain//", facts=tracing(capabilities=frozenset(), euid=1000))).aux
    assert small is not None
    assert small.requested_bytes == 128 << 10
    own = data(session("plain//", aux=RingSize(pages=100), aux_watermark=Share(4096))).aux
    assert own is not None
    assert (own.data_bytes, own.watermark_bytes) == (128 * 4096, 4096)
    with pytest.raises(PlanError, match="at most 1GiB"):
        session("plain//", aux=RingSize(2 << 30))


def test_areas_count_against_the_budget() -> None:
    """Data rings and areas share what a user may pin, and the plan says which shrink."""
    facts = unprivileged(
        pmus=tracing().pmus, rlimit_memlock_bytes=0, perf_event_mlock_kb=516, perf_event_paranoid=0
    )
    made = plan("plain//", facts=facts, aux=RingSize(8 << 20))
    area = data(made.sessions[0]).aux
    assert area is not None
    assert area.data_bytes < area.requested_bytes == 8 << 20
    assert any("s/perf aux 8MiB to" in warning for warning in made.warnings)
    pinned = sum(
        ring.data_bytes + 4096 + (ring.aux.data_bytes + 4096 if ring.aux else 0)
        for ring in made.sessions[0].rings
    )
    assert pinned == made.pinned_bytes <= 516 * 1024 * 4


def test_decoders_get_perfs_clock_and_switches() -> None:
    """Trace that perf decodes is stamped by the counter; every event of the session follows."""
    found = session("intel_pt//", SWITCH)
    assert found.perf_clock
    assert not any(event.attr.use_clockid for event in found.events)
    assert [event.attr.context_switch for event in found.events] == [False, False, True]
    plain = session("plain//", SWITCH)
    assert not plain.perf_clock
    assert all(event.attr.use_clockid for event in plain.events)
    assert not any(event.attr.context_switch for event in plain.events)


@pytest.mark.parametrize(
    ("event", "framing", "whole", "rule", "flush_ns"),
    [
        ("intel_pt//", Framing.AUXTRACE, True, HeadRule.OFFSET, 0),
        ("arm_spe_0//", Framing.AUXTRACE, True, HeadRule.OFFSET, 0),
        ("cs_etm//", Framing.AUXTRACE, True, HeadRule.MONOTONIC, 100_000_000),
        ("plain//", Framing.HIDDEN, False, HeadRule.LEARNED, 0),
    ],
)
def test_each_pmu_has_its_rules(
    event: str, framing: Framing, whole: bool, rule: HeadRule, flush_ns: int
) -> None:
    """A PMU determines the framing, where pieces may end, and whether to flush."""
    area = data(session(event)).aux
    assert area is not None
    assert (area.framing, area.whole_records, area.head_rule) == (framing, whole, rule)
    assert area.flush_ns == flush_ns
    never = data(session(event, aux_flush=Nanoseconds(0))).aux
    assert never is not None
    assert never.flush_ns == 0


def test_a_recorders_area_runs_free() -> None:
    """It wakes nobody and is not flushed."""
    area = data(session("cs_etm//", mode="flight-recorder")).aux
    assert area is not None
    assert (area.snapshot, area.watermark_bytes, area.flush_ns) == (True, 0, 0)


def test_own_threads_are_left_out_beside_a_recorders_area() -> None:
    """Its rings of records are drained, as a stream's are."""
    events = session("cs_etm//", SWITCH, mode="flight-recorder").events
    assert [event.exclude_self for event in events] == [False, True, False]


def test_lost_bytes_are_known_where_the_pmu_counts_bytes() -> None:
    """The event must be the one whose unit sysfs gives."""
    named, other = data(session("plain/trace/")).aux, data(session("plain//")).aux
    same = data(session("plain/mode=1/")).aux
    assert named is not None
    assert other is not None
    assert same is not None
    assert (named.counts_bytes, same.counts_bytes, other.counts_bytes) == (True, True, False)


def test_whole_records_take_large_chunks() -> None:
    """A piece that perf decodes may be as large as its area; staging must hold four of it."""
    made = plan("cs_etm//", aux=RingSize(4 << 20))
    assert (made.core.chunk_bytes, made.core.chunks) == (8 << 20, 8)
    assert any("AUX records stay whole" in warning for warning in made.warnings)
    assert plan("plain//").core.chunk_bytes == 1 << 20
    with pytest.raises(PlanError, match="has room for fewer than 4"):
        plan("cs_etm//", aux=RingSize(4 << 20), daemon=DaemonConfig(staging=Bytes(16 << 20)))


def test_one_area_a_ring_and_one_decoder_a_session() -> None:
    """Two PMUs want two sources, and two that perf decodes two sessions."""
    with pytest.raises(PlanError, match="one AUX area") as caught:
        session("plain//", "intel_pt//")
    assert "[[session.source]] of its own" in caught.value.hint
    with pytest.raises(PlanError, match="one AUX area") as caught:
        session("intel_pt//", "cs_etm//", "plain//")
    assert caught.value.hint == "give each a session of its own"
    both = SessionConfig(
        name="s",
        source=(
            perf_source("intel_pt//"),
            perf_source("arm_spe_0//"),
        ),
    )
    with pytest.raises(PlanError, match="one kind of trace"):
        build(Config(session=(both,)), tracing())


def test_keys_of_aux_want_an_area() -> None:
    """A size or an interval for events without AUX is a mistake, not nothing."""
    with pytest.raises(UsageError, match="no event of the source has an AUX area"):
        session(SWITCH, aux=RingSize(1 << 20))
    with pytest.raises(UsageError, match="no event of the source has an AUX area"):
        session("uncore_imc//", aux_flush=Nanoseconds(1_000_000))


def test_pausing_events_join_the_group() -> None:
    """The kernel looks for the AUX event in their group; each keeps what else it is."""
    found = session("{cs,cpu-clock}", f"{SWITCH}/aux-action=resume/", "intel_pt/tsc/", "cs")
    leader, member, *rest = found.events[:-1]
    assert (leader.group, leader.leader, leader.attr.disabled) == (0, True, True)
    assert (member.group, member.leader, member.attr.disabled) == (0, False, False)
    assert member.attr.aux_action == AuxAction.RESUME
    assert [(event.group, event.leader) for event in rest] == [(1, True), (1, False), (2, True)]


def test_a_tracing_event_leads_its_group() -> None:
    """Wherever it stands in the braces, and with what is the leader's to have."""
    found = session("{cs,plain//,cpu-clock}", target=TargetConfig(scope=ScopeKind.COMMAND))
    owner, *members, _ = found.events
    assert owner.name == "plain//"
    assert (owner.group, owner.leader) == (0, True)
    assert (owner.attr.disabled, owner.attr.enable_on_exec) == (True, True)
    for event in members:
        assert (event.group, event.leader) == (0, False)
        assert (event.attr.disabled, event.attr.enable_on_exec) == (False, False)


def test_a_group_that_lost_its_leader_has_another() -> None:
    """The first of the braces pauses the AUX event; the rest goes on without it."""
    found = session("{cs/aux-action=pause/,cpu-clock,faults}", "plain//")
    assert [event.name for event in found.events[:2]] == ["plain//", "cs/aux-action=pause/"]
    first, second = found.events[2:4]
    assert (first.group, first.leader, first.attr.disabled) == (1, True, True)
    assert (second.group, second.leader, second.attr.disabled) == (1, False, False)


def test_pausing_needs_something_to_pause() -> None:
    """Without an AUX event in the source there is nothing to pause, nor to start paused."""
    with pytest.raises(UsageError, match="no event of its source has an AUX area"):
        session("cs/aux-action=pause/")
    with pytest.raises(UsageError, match="could start paused"):
        session("cs/aux-action=start-paused/", "plain//")


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("intel_pt/aux-action=start-paused/", AuxAction.START_PAUSED),
        ("intel_pt/tsc,aux-action=start-paused/u", AuxAction.START_PAUSED),
        ("syscalls:sys_enter_read/aux-action=resume/", AuxAction.RESUME),
        ("cs/aux-action=pause/u", AuxAction.PAUSE),
        ("cycles", 0),
    ],
)
def test_actions_are_terms_of_any_event(text: str, action: int) -> None:
    """They are spelt as in perf."""
    (group,) = parse(text)
    assert group.events[0].aux_action == action


def test_a_wrong_action_is_told() -> None:
    """The message lists the existing actions."""
    with pytest.raises(UsageError) as caught:
        parse("cs/aux-action=stop/")
    assert "start-paused, pause, resume" in str(caught.value)


def test_addresses_filter_a_tracing_event() -> None:
    """In the kernel's spelling; a PMU that takes none says so."""
    found = session(perf_event("intel_pt//u", filter="filter 4096/512@/bin/true"))
    assert found.events[0].filter == "filter 0x1000/0x200@/bin/true"
    with pytest.raises(MissingFeature, match="takes no address filters"):
        session(perf_event("plain//", filter="filter 0x1000/0x200"))
    with pytest.raises(UsageError):
        session(perf_event("intel_pt//", filter="prev_pid == 0"))


def test_a_pmu_takes_so_many_addresses() -> None:
    """The limit is in sysfs; one more is refused before anything is opened."""
    ranges = [f"filter {at:#x}/16@/bin/true" for at in (0, 64, 128)]
    both = session(perf_event("intel_pt//u", filter=",".join(ranges[:2])))
    assert both.events[0].filter.count("filter ") == 2
    with pytest.raises(PlanError, match="3 address filters, but PMU intel_pt takes 2") as caught:
        session(perf_event("intel_pt//u", filter=",".join(ranges)))
    assert caught.value.hint


@pytest.mark.parametrize(
    "events",
    [
        ("plain//", "plain//"),
        ("{plain//,cs,plain//}",),
        ("plain/trace/", "plain/mode=1/"),
        ("intel_pt//u", "cs", "intel_pt/tsc/k"),
    ],
)
def test_a_tracing_event_is_there_once(events: tuple[str, ...]) -> None:
    """The kernel has no second one beside it; whose PMU nobody knows may be of several kinds."""
    with pytest.raises(UsageError, match="traces for one event at a time") as caught:
        session(*events)
    assert caught.value.hint == "leave one out"
    assert len(session("plain/mode=1/", "plain/mode=2/").events) == 3


def test_coresights_sink_is_a_term() -> None:
    """By its name in sysfs; the kernel takes the number."""
    assert session("cs_etm/@tmc_etr0,timestamp/u").events[0].attr.config2 == 0x3D1F3C07
    assert session("cs_etm//").events[0].attr.config2 == 0
    with pytest.raises(UsageError, match="no sink 'tmc_et0'"):
        session("cs_etm/@tmc_et0/")


def test_spe_has_a_period_and_follows_tasks() -> None:
    """Its period is the sampling interval; its `cpumask` makes it no uncore PMU."""
    assert session("arm_spe_0//").events[0].attr.sample_period == 4096
    assert session("arm_spe_0//", period=1000).events[0].attr.sample_period == 1000
    found = session("arm_spe_0//", target=TargetConfig(scope=ScopeKind.PROCESS, pids=(7,)))
    assert [ring.cpu for ring in found.rings if ring.role is RingRole.DATA] == [0, 1]


def test_a_driver_that_nobody_knows_is_asked_for_nothing() -> None:
    """Such as to leave guests out, which it may refuse; the known ones do."""
    assert not session("plain//").events[0].attr.exclude_guest
    assert session("intel_pt//").events[0].attr.exclude_guest


def test_absent_hardware_degrades_or_fails() -> None:
    """With `when = "present"` the session goes on without it and says so, as for any event."""
    bare = host()
    with pytest.raises(MissingFeature, match="no PMU 'intel_pt'"):
        session("intel_pt//", facts=bare)
    sources = (
        perf_source("intel_pt//", when="present"),
        perf_source(SWITCH),
    )
    config = Config(session=(SessionConfig(name="s", source=sources),))
    (found,) = build(config, bare).sessions
    assert "no PMU 'intel_pt'" in found.degraded[0]
    assert found.events[0].name == SWITCH


def frozen(*events: str, pauses: bool, scope: Any = "system", **settings: Any) -> SessionPlan:  # noqa: ANN401
    """Return a flight recorder of events that a context switch freezes."""
    facts = tracing()
    pmus = {**facts.pmus, "plain": replace(PLAIN, aux_pause=pauses)}
    target = TargetConfig(scope=ScopeKind(scope), cgroup="/web" if scope == "cgroup" else "")
    one = SessionConfig(
        name="s",
        mode="flight-recorder",
        freeze_on=parse_one(SWITCH),
        freeze_filter=Filter.parse("prev_pid == 1"),
        source=(perf_source(*events, **settings),),
        target=target,
    )
    (found,) = build(Config(session=(one,)), replace(facts, pmus=pmus)).sessions
    return found


def test_a_freeze_pauses_the_area() -> None:
    """If the kernel can: in the group that the AUX event leads, off until armed."""
    found = frozen("cs", "plain//", pauses=True)
    owner, freezing, other, _ = found.events
    assert (owner.name, owner.leader, owner.group) == ("plain//", True, 0)
    assert (freezing.name, freezing.leader, freezing.group) == (SWITCH, False, 0)
    assert (freezing.freezes, freezing.pauses, freezing.filter) == (True, True, "prev_pid == 1")
    assert (freezing.attr.aux_action, freezing.attr.disabled) == (AuxAction.PAUSE, True)
    assert (freezing.attr.watermark, freezing.attr.wakeup) == (False, 1)
    assert (other.name, other.leader) == ("cs", True)
    area = data(found).aux
    assert area is not None
    assert area.snapshot
    # With what resumes the area: one more for each ring.
    rings = [ring for ring in found.rings if ring.role is RingRole.DATA]
    assert found.files == sum(len(ring.events) for ring in found.rings) + len(rings)


@pytest.mark.parametrize(("pauses", "scope"), [(False, "system"), (True, "cgroup")])
def test_a_freeze_that_cannot_pause_leads(*, pauses: bool, scope: str) -> None:
    """All events of the ring stop with it, the AUX event among them, which still owns the ring."""
    found = frozen("cs", "plain//", pauses=pauses, scope=scope)
    freezing, *members, _ = found.events
    assert (freezing.name, freezing.leader, freezing.pauses) == (SWITCH, True, False)
    assert freezing.attr.aux_action == 0
    assert [member.name for member in members] == ["plain//", "cs"]
    assert not any(member.leader or member.attr.disabled for member in members)
    assert {event.group for event in (freezing, *members)} == {0}
    assert data(found).aux is not None


@pytest.mark.parametrize("event", ["intel_pt//", "plain/trace/"])
def test_a_tracing_event_freezes_nothing(event: str) -> None:
    """It never overflows: the kernel would take it, or not, and nothing would ever stop."""
    one = SessionConfig(
        name="s",
        mode="flight-recorder",
        freeze_on=parse_one(event),
        source=(perf_source("cs"),),
    )
    with pytest.raises(UsageError, match="cannot stop a ring") as caught:
        build(Config(session=(one,)), tracing())
    assert caught.value.hint


def test_nothing_starts_again_what_was_frozen() -> None:
    """An event that resumes does not go with a freeze, nor one that must be in another group."""
    resume = "cs/aux-action=resume/"
    for pauses in (True, False):
        with pytest.raises(PlanError, match="resume what freeze_on has stopped"):
            frozen(resume, "plain//", pauses=pauses)
    pause = "cs/aux-action=pause/"
    assert frozen(pause, "plain//", pauses=True).freezes
    with pytest.raises(PlanError, match="wants the AUX event to lead"):
        frozen(pause, "plain//", pauses=False)


def test_check_prints_the_areas() -> None:
    """It prints their sizes, watermarks, and whether lost bytes are known."""
    lines = session("plain/trace/").describe()
    assert any("perf aux: 4 x 4MiB AUX of plain, wake at 1MiB" in line for line in lines)
    assert any("lost bytes are counted" in line for line in lines)
    recorder = session("plain//", mode="flight-recorder").describe()
    assert any("overwrites, for snapshots" in line for line in recorder)
    ring = data(session("plain/trace/")).to_dict()
    assert ring["aux"]["pmu"] == "plain"


def test_the_probe_learns_which_pmus_are_meant() -> None:
    """Those of events in slashes, but for the ones that are never traced."""
    source = perf_source("plain//", "cpu/event=1/", SWITCH, "x//|y//")
    config = Config(session=(SessionConfig(name="s", source=(source,)),))
    assert pmu_names(config) == ("plain", "x", "y")


def test_a_flush_is_not_too_often() -> None:
    """Each one stops the trace for a moment."""
    source = perf_source("cs_etm//", aux_flush=Nanoseconds(1000))
    config = Config(session=(SessionConfig(name="s", source=(source,)),))
    (problem,) = check_config(config)
    assert problem.key == "session[0].source[0].aux_flush"


def test_event_type_of_a_tracing_pmu_is_its_own() -> None:
    """Dynamic PMUs begin behind the kernel's fixed types."""
    assert session("plain//").events[0].attr.type > max(EventType)
