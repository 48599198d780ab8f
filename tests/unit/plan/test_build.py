# SPDX-License-Identifier: Apache-2.0
"""Configuration and facts to a plan."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from collectord.codec.perf_attr import SampleType
from collectord.codec.tracepoint import Tracepoint
from collectord.config.schema import Config, DaemonConfig, RetentionConfig
from collectord.config.schema_session import (
    EventConfig,
    PerfSourceConfig,
    SessionConfig,
    TargetConfig,
)
from collectord.errors import MissingFeature, MissingPrivilege, PlanError, UnknownEvent, UsageError
from collectord.model import STREAMS_MAX, Basis, RingRole, ScopeKind
from collectord.plan.build import build
from collectord.plan.plan_limits import check_streams
from collectord.plan.sink_plan import RetentionPlan
from collectord.plan.source_events import tracepoint_patterns
from collectord.text import cpu_list
from collectord.text.units import Bytes, Least, Nanoseconds, RingSize, Share
from tests.support.configs import perf_event, perf_source
from tests.support.hosts import host, unprivileged

if TYPE_CHECKING:
    from collectord.facts.kernel_facts import KernelFacts
    from collectord.plan.plan import Plan
    from collectord.plan.ring_plan import RingPlan
    from collectord.plan.session_plan import SessionPlan

SWITCH = "sched:sched_switch"


def config(
    *sources: PerfSourceConfig,
    target: TargetConfig | None = None,
    **session: Any,  # noqa: ANN401
) -> Config:
    """Return a configuration with one session called `s`."""
    return Config(
        session=(
            SessionConfig(name="s", source=sources, target=target or TargetConfig(), **session),
        )
    )


def perf(*events: str | EventConfig, **settings: Any) -> PerfSourceConfig:  # noqa: ANN401
    """Return a perf source."""
    return perf_source(*events, **settings)


def session(
    *events: str,
    facts: KernelFacts | None = None,
    target: TargetConfig | None = None,
    **settings: Any,  # noqa: ANN401
) -> SessionPlan:
    """Return the only session of a plan."""
    (found,) = build(config(perf(*events, **settings), target=target), facts or host()).sessions
    return found


def rings(plan: SessionPlan, role: RingRole) -> list[RingPlan]:
    """Return the rings of one role."""
    return [ring for ring in plan.rings if ring.role is role]


def test_system_scope_has_two_rings_a_cpu() -> None:
    """Counted events share the data ring; the dummy has one of its own."""
    plan = session(SWITCH, "page-faults")
    data, side = rings(plan, RingRole.DATA), rings(plan, RingRole.SIDEBAND)
    assert [ring.cpu for ring in data] == [ring.cpu for ring in side] == [0, 1, 2, 3]
    assert [event.name for event in data[0].events] == [SWITCH, "page-faults"]
    assert [event.name for event in side[0].events] == ["dummy:HG"]
    assert [event.index for event in plan.events] == [0, 1, 2]
    assert plan.files == 12


def test_all_events_of_a_ring_have_its_watermark() -> None:
    """The kernel takes it from the event that is mapped, whichever that is."""
    plan = session(SWITCH, "page-faults", ring=RingSize(1 << 20), watermark=Share(65536))
    for ring in rings(plan, RingRole.DATA):
        assert ring.watermark_bytes == 65536
        assert all((e.attr.watermark, e.attr.wakeup) == (True, 65536) for e in ring.events)


def test_ring_sizes_follow_what_is_recorded() -> None:
    """Small for clocked samples, larger for events at any rate, largest with stacks."""

    def size(*events: str, **settings: Any) -> int:  # noqa: ANN401
        return session(*events, **settings).rings[0].data_bytes

    assert size("cpu-clock") == 512 << 10
    assert size(SWITCH) == 2 << 20
    assert size("cpu-clock", SWITCH) == 2 << 20
    assert size("cpu-clock", call_graph="dwarf") == 8 << 20
    assert size(SWITCH, ring=RingSize(pages=100)) == 128 * 4096
    assert size(SWITCH, ring=RingSize(300 << 10)) == 512 << 10
    with pytest.raises(PlanError, match="at most 1GiB"):
        size(SWITCH, ring=RingSize(2 << 30))


@pytest.mark.parametrize(
    ("target", "cpus", "inherit"),
    [
        (TargetConfig(scope=ScopeKind.CPUS, cpus=(1, 3)), [1, 3], False),
        (TargetConfig(scope=ScopeKind.PROCESS, pids=(7,)), [0, 1, 2, 3], True),
        (TargetConfig(scope=ScopeKind.PROCESS, pids=(7,), inherit=False), [0, 1, 2, 3], False),
        (TargetConfig(scope=ScopeKind.PROCESS, pids=(7,), cpus=(2,)), [2], True),
        (TargetConfig(scope=ScopeKind.THREAD, pids=(7,), per_thread=True), [-1], False),
        (TargetConfig(scope=ScopeKind.THREAD, pids=(7,), per_thread=True, cpus=(0,)), [0], False),
        (TargetConfig(scope=ScopeKind.USER, user=1000), [0, 1, 2, 3], True),
        (TargetConfig(scope=ScopeKind.CGROUP, cgroup="a/b"), [0, 1, 2, 3], False),
        (TargetConfig(scope=ScopeKind.COMM, comm="work-*"), [0, 1, 2, 3], True),
        (TargetConfig(scope=ScopeKind.UNIT, unit="nginx", cpus=(1,)), [1], True),
        (TargetConfig(scope=ScopeKind.COMMAND), [0, 1, 2, 3], True),
    ],
)
def test_each_scope_has_its_rings(target: TargetConfig, cpus: list[int], inherit: bool) -> None:
    """Task scopes have a ring for each CPU and inherit; per-thread has one and does not."""
    plan = session(SWITCH, target=target)
    assert [ring.cpu for ring in rings(plan, RingRole.DATA)] == cpus
    # A task is named on one CPU and sampled on another.
    naming = cpus if cpus == [-1] else [0, 1, 2, 3]
    assert [ring.cpu for ring in rings(plan, RingRole.SIDEBAND)] == naming
    assert plan.scope.kind == ScopeKind(target.scope)
    assert all(event.attr.inherit is inherit for event in plan.events)
    on_exec = target.scope == "command"
    assert all(event.attr.enable_on_exec is on_exec for event in plan.events)


def test_a_scope_that_follows_says_whom_and_how_many() -> None:
    """A unit without a type is a service; the number of processes has a default."""
    unit = session(SWITCH, target=TargetConfig(scope=ScopeKind.UNIT, unit="nginx")).scope
    assert unit.describe() == "unit nginx.service (up to 64 processes)"
    target = TargetConfig(scope=ScopeKind.UNIT, unit="x.slice", limit=2)
    assert session(SWITCH, target=target).scope.describe() == "unit x.slice (up to 2 processes)"


@pytest.mark.parametrize(
    ("cpus", "words"),
    [
        ("1,5", "CPU 5 is offline; online: 0-3"),
        ("5-7", "CPUs 5-7 are offline"),
        ("9", "CPU 9 is not in this machine"),
        ("5,9", "CPU 9 is not in this machine, CPU 5 is offline"),
    ],
)
def test_cpus_that_are_not_there_are_named(cpus: str, words: str) -> None:
    """The error says which, and which there are."""
    with pytest.raises(PlanError) as caught:
        session(SWITCH, target=TargetConfig(scope=ScopeKind.CPUS, cpus=cpu_list.parse(cpus)))
    assert words in str(caught.value)


def test_own_threads_are_left_out_of_wide_tracepoints() -> None:
    """Unless include_self, and never where the scope has them not or events are no tracepoints."""
    assert [event.exclude_self for event in session(SWITCH, "cs").events] == [True, False, False]
    assert not session(SWITCH, include_self=True).events[0].exclude_self
    narrow = session(SWITCH, target=TargetConfig(scope=ScopeKind.PROCESS, pids=(7,)))
    assert not narrow.events[0].exclude_self


def test_own_threads_stay_in_what_is_about_two_tasks() -> None:
    """A switch to one of them is told, and so is the switch away from it."""
    facts = host(task_tracepoints=frozenset({Tracepoint.parse(SWITCH)}))
    call = "raw_syscalls:sys_enter"
    assert [e.exclude_self for e in session(SWITCH, call, facts=facts).events[:2]] == [False, True]


def test_groups_have_one_leader() -> None:
    """The leader alone is disabled at first: the members follow it."""
    plan = session(
        "cycles", "{cycles,instructions}:u", target=TargetConfig(scope=ScopeKind.COMMAND)
    )
    alone, leader, member, dummy = plan.events
    assert [e.group for e in plan.events] == [0, 1, 1, 2]
    assert [e.leader for e in plan.events] == [True, True, False, True]
    assert [e.attr.disabled for e in (alone, leader, member, dummy)] == [True, True, False, True]
    assert [e.attr.enable_on_exec for e in (leader, member)] == [True, False]


def test_a_glob_is_many_groups() -> None:
    """Events of a glob are scheduled each for itself."""
    plan = session("sched:sched_process_*")
    assert [event.group for event in plan.events] == [0, 1, 2, 3]


def test_the_first_choice_that_exists_is_taken() -> None:
    """Without hardware counters it is the next one, and a note says why."""
    assert session("cycles|cpu-clock").events[0].name == "cycles"
    plan = session("cycles|cpu-clock", facts=host(hardware_pmu=False))
    assert plan.events[0].name == "cpu-clock"
    assert any("no hardware counters" in note for note in plan.notes)
    with pytest.raises(UnknownEvent, match="nor:this"):
        session("not:here|nor:this")


def test_samples_have_cgroups_where_that_is_asked_for() -> None:
    """And the sideband tells of new ones; a kernel without them degrades the session."""
    plan = session(SWITCH, "cpu-clock", cgroups=True)
    *events, dummy = plan.events
    assert len(events) == 2
    assert all(event.attr.sample_type & SampleType.CGROUP for event in events)
    assert not any(event.attr.cgroup for event in events)
    assert (dummy.attr.cgroup, dummy.attr.sample_type & SampleType.CGROUP) == (True, 0)
    assert not plan.degraded
    old = session(SWITCH, facts=host(sample_cgroup=False), cgroups=True)
    assert old.events == session(SWITCH).events
    assert "Linux 5.7" in old.degraded[0]


def test_what_may_be_absent_degrades_the_session() -> None:
    """`when = "present"` leaves a source out; the others go on under their own names."""
    optional = perf("cycles", when="present")
    absent = host(hardware_pmu=False)
    (plan,) = build(config(optional, perf(SWITCH)), absent).sessions
    assert {ring.source for ring in plan.rings if ring.role is RingRole.DATA} == {"perf-2"}
    assert plan.events[0].index == 0
    assert "no hardware counters" in plan.degraded[0]
    with pytest.raises(MissingFeature):
        build(config(perf("cycles"), perf(SWITCH)), absent)


def test_a_session_without_anything_is_there_and_says_why() -> None:
    """All that it names is absent: nothing is opened, and it is no error."""
    absent = host(hardware_pmu=False)
    nothing = build(config(perf("cycles", when="present")), absent)
    (plan,) = nothing.sessions
    assert (plan.name, plan.source, plan.rings, plan.files) == ("s", "perf", (), 0)
    assert plan.is_absent
    assert plan.may_fail
    assert "no hardware counters" in plan.degraded[0]
    assert "session s records nothing" in nothing.warnings[0]
    first, second = plan.describe()
    assert first.endswith("nothing to record")
    assert "no hardware counters" in second
    assert plan.to_dict()["rings"] == []


def test_every_plan_of_a_session_has_its_class() -> None:
    """The weight of its losses is for the user to say; rings and files are the same."""
    source = perf(SWITCH)
    (plain,) = build(config(source), host()).sessions
    (dear,) = build(config(source, loss_class="must-not-lose"), host()).sessions
    assert (plain.loss_class, dear.loss_class) == ("normal", "must-not-lose")
    assert (dear.rings, dear.sink) == (plain.rings, plain.sink)
    assert dear.to_dict()["class"] == "must-not-lose"


def test_the_class_decides_who_lacks_staging_first() -> None:
    """The core ranks the classes as they matter, and `check` tells of the uncommon ones."""
    plans = {
        name: build(config(perf(SWITCH), loss_class=name), host()).sessions[0]
        for name in ("must-not-lose", "normal", "spare")
    }
    assert [plan.rank for plan in plans.values()] == [0, 1, 2]
    words = {name: [s for s in plan.describe() if "class" in s] for name, plan in plans.items()}
    assert words == {
        "must-not-lose": ["  class must-not-lose: staging is kept for it while that is short"],
        "normal": [],
        "spare": ["  class spare: the first that lacks staging"],
    }


def test_more_sessions_than_can_run_are_refused() -> None:
    """Each kind of source of a session takes a place of the core, whose number the message has."""

    def many(count: int) -> Config:
        """Return a configuration of so many sessions."""
        sessions = (
            SessionConfig(name=f"s{number}", source=(perf(SWITCH),)) for number in range(count)
        )
        return Config(session=tuple(sessions))

    full = build(many(STREAMS_MAX), host()).sessions
    assert len(full) == STREAMS_MAX
    with pytest.raises(PlanError, match="65 sessions would run at a time, and at most 64 can"):
        build(many(STREAMS_MAX + 1), host())
    with pytest.raises(PlanError, match="66 sessions"):
        check_streams((*full, *full[:2]))
    # A session that records nothing on this host takes no place.
    check_streams((*full, replace(full[0], rings=())))


def test_what_may_fail_is_told_of_each_session() -> None:
    """Only hardware that a session may do without is no error when it is opened."""
    lacks = MissingFeature("no driver", feature="x")
    refused = MissingPrivilege("no", need="CAP_X")
    optional = perf(SWITCH, when="present")
    (both,) = build(config(perf("cs"), optional), host()).sessions
    assert (both.may_fail, both.optional) == (False, ("perf-2",))
    assert not both.contains(lacks)
    (alone,) = build(config(optional), host()).sessions
    assert (alone.may_fail, alone.optional) == (True, ("perf",))
    assert alone.contains(lacks)
    assert not alone.contains(refused)


def test_a_source_can_be_left_out_later() -> None:
    """Its rings go, the rest is numbered anew; without any ring nothing is left."""
    sources = (perf("cs", when="present"), perf(SWITCH))
    (whole,) = build(config(*sources), host()).sessions
    plan = whole.without("perf", "no driver")
    assert [event.name for event in plan.events] == [SWITCH, "dummy:HG"]
    assert [event.index for event in plan.events] == [0, 1]
    assert {ring.source for ring in plan.rings} == {"perf-2"}
    assert len(rings(plan, RingRole.SIDEBAND)) == len(rings(whole, RingRole.SIDEBAND))
    assert (plan.degraded, plan.optional) == (("perf: no driver",), ())
    assert plan.without("perf-2", "gone").is_absent


def test_a_wrong_option_is_not_taken_for_absence() -> None:
    """An event that exists and cannot be asked for that way is an error in any case."""
    with pytest.raises(UsageError):
        session("page-faults:p", when="present")
    with pytest.raises(UsageError):
        session("page-faults:p|cpu-clock")


def test_several_sources_share_one_sideband() -> None:
    """Data rings are apart, indexes and groups run on, and tasks are told once."""
    side = RingSize(1 << 20)
    (plan,) = build(config(perf("cs"), perf(SWITCH, sideband_ring=side)), host()).sessions
    assert [event.name for event in plan.events] == ["cs", SWITCH, "dummy:HG"]
    assert [event.group for event in plan.events] == [0, 1, 2]
    assert len(rings(plan, RingRole.DATA)) == 8
    assert {ring.data_bytes for ring in rings(plan, RingRole.SIDEBAND)} == {1 << 20}


def test_filters_reach_the_tracepoints() -> None:
    """An event's own filter goes before the source's, which only tracepoints take."""
    own = perf_event("sched:sched_wakeup", filter="pid == 1")
    plan = build(config(perf(SWITCH, own, "cs", filter="prev_pid == 2")), host()).sessions[0]
    assert [e.filter for e in plan.events] == ["prev_pid == 2", "pid == 1", "", ""]
    with pytest.raises(UsageError, match="filter needs a tracepoint"):
        session("cs", filter="x == 1")
    with pytest.raises(UsageError, match="takes no filter"):
        build(config(perf(perf_event("cs", filter="x == 1"))), host())


def test_an_events_own_rate_goes_before_the_sources() -> None:
    """Frequency or period of the entry replace both of the source."""
    slow = perf_event("cs", period=10)
    plan = build(config(perf("cycles", slow, frequency=99)), host()).sessions[0]
    assert [(e.attr.freq, e.attr.sample_period) for e in plan.events[:2]] == [
        (True, 99),
        (False, 10),
    ]


def test_basis_is_the_weakest_of_what_is_counted() -> None:
    """The sideband does not weaken a session; a clock does."""
    assert session(SWITCH, "page-faults").basis is Basis.EXACT
    assert session(SWITCH, "cpu-clock").basis is Basis.LOST_ONLY


def test_uncore_events_go_to_their_cpus() -> None:
    """They are opened where the PMU says, alone or beside others, and for no task."""
    alone = session("uncore_imc/event=1/")
    assert [ring.cpu for ring in rings(alone, RingRole.DATA)] == [0, 2]
    beside = session("uncore_imc/event=1/", "cs")
    assert [len(ring.events) for ring in rings(beside, RingRole.DATA)] == [2, 1, 2, 1]
    assert beside.files == 6 + 4
    with pytest.raises(PlanError, match="whole machine"):
        session("uncore_imc/event=1/", target=TargetConfig(scope=ScopeKind.PROCESS, pids=(7,)))
    with pytest.raises(PlanError, match="only on CPUs 0,2"):
        session("uncore_imc/event=1/", target=TargetConfig(scope=ScopeKind.CPUS, cpus=(1,)))


def test_sinks_are_folders_or_one_file() -> None:
    """Segments have limits and retention, a single file has none."""
    limits = RetentionConfig(bytes=Least(5), age=Nanoseconds(6), free=Share(percent=7.0))
    base = config(perf(SWITCH), segment_bytes=Bytes(3), segment_age=Nanoseconds(4))
    full = Config(daemon=DaemonConfig(state_dir="/x"), retention=limits, session=base.session)
    sink = build(full, host()).sessions[0].sink
    assert (sink.directory, sink.single_file) == ("/x/s", None)
    assert (sink.segment_bytes, sink.segment_age_ns) == (3, 4)
    assert sink.retention == RetentionPlan(bytes=5, age_ns=6, free_percent=7.0)
    single = build(config(perf(SWITCH), single_file="/tmp/a/p.data"), host()).sessions[0].sink  # noqa: S108 - no file is made
    assert (single.directory, single.single_file) == ("/tmp/a", "/tmp/a/p.data")  # noqa: S108
    assert (single.segment_bytes, single.retention) == (0, RetentionPlan())
    assert build(config(perf(SWITCH), directory="/d"), host()).sessions[0].sink.directory == "/d"


def test_rings_shrink_to_the_mlock_budget() -> None:
    """Rings beyond the budget are smaller, with sizes and remedies in a warning."""
    poor = unprivileged(perf_event_paranoid=0, rlimit_memlock_bytes=0)
    plan = build(config(perf("cs", ring=RingSize(4 << 20))), poor)
    ring = plan.sessions[0].rings[0]
    assert ring.requested_bytes == 4 << 20
    assert ring.data_bytes < ring.requested_bytes
    assert ring.watermark_bytes == ring.data_bytes // 4
    assert plan.pinned_bytes <= 4 * 516 * 1024
    (warning,) = plan.warnings
    assert "s/perf data 4MiB to 128KiB" in warning
    assert "CAP_IPC_LOCK" in warning
    assert "LimitMEMLOCK" in warning


def test_no_room_at_all_is_an_error() -> None:
    """Even one page for each ring is too much."""
    poor = unprivileged(perf_event_paranoid=0, perf_event_mlock_kb=4, rlimit_memlock_bytes=0)
    with pytest.raises(PlanError, match="at any size"):
        build(config(perf("cs")), poor)


def test_descriptors_are_counted_against_the_limit() -> None:
    """Above the soft limit it is raised, above the hard one nothing can be done."""
    soft = build(config(perf(SWITCH)), host(rlimit_nofile=70))
    assert "72 file descriptors" in soft.warnings[0]
    with pytest.raises(PlanError, match="LimitNOFILE"):
        build(config(perf(SWITCH)), host(rlimit_nofile=60, rlimit_nofile_hard=71))
    assert build(config(perf(SWITCH)), host(rlimit_nofile=72)).warnings == ()


@pytest.mark.parametrize(
    ("events", "target", "level", "words"),
    [
        ("cs", TargetConfig(), 2, "whole CPUs needs CAP_PERFMON (or"),
        (
            SWITCH,
            TargetConfig(scope=ScopeKind.PROCESS, pids=(7,)),
            1,
            "tracepoints need CAP_PERFMON",
        ),
        (
            "cs:k",
            TargetConfig(scope=ScopeKind.PROCESS, pids=(7,)),
            2,
            "kernel mode needs CAP_PERFMON",
        ),
        ("cs", TargetConfig(scope=ScopeKind.USER, user=1), 2, "another user's processes"),
        ("cs", TargetConfig(scope=ScopeKind.PROCESS, pids=(7,)), 3, "needs CAP_SYS_ADMIN"),
    ],
)
def test_missing_privileges_are_foreseen(
    events: str, target: TargetConfig, level: int, words: str
) -> None:
    """A warning names the capability before the sysctl."""
    facts = unprivileged(perf_event_paranoid=level, rlimit_memlock_bytes=None)
    plan = build(config(perf(events), target=target), facts)
    assert any(words in warning for warning in plan.warnings)
    assert build(config(perf(events), target=target), host()).warnings == ()


def test_errors_of_a_file_are_not_usage_errors() -> None:
    """A misspelt event of a configuration exits 6 with the file's name, of an option 2."""
    with pytest.raises(UnknownEvent):
        build(config(perf("cyclse")), host())
    with pytest.raises(PlanError, match=r"a\.toml: session 's': unknown event 'cyclse'") as caught:
        build(config(perf("cyclse"), origin="a.toml"), host())
    assert caught.value.exit_code == 6
    assert 'did you mean "cycles"' in str(caught.value)


def test_core_sizes() -> None:
    """Chunks fill the staging memory; shards follow the CPUs unless they are given."""
    many = tuple(range(40))
    core = build(Config(), host(cpus_online=many, cpus_possible=many)).core
    assert (core.shards, core.chunks, core.chunk_bytes) == (3, 64, 1 << 20)
    assert build(Config(daemon=DaemonConfig(shards=2)), host()).core.shards == 2


def test_old_kernels_are_told_of() -> None:
    """Without PERF_FORMAT_LOST a last loss goes unseen, and the plan says so."""
    assert any(
        "before 6.0" in note for note in session(SWITCH, facts=host(format_lost=False)).notes
    )


@pytest.mark.parametrize(
    ("watermark", "shown"), [(Share(48 << 10), "48KiB"), (Share(percent=90.0), "90%")]
)
def test_a_watermark_above_half_a_ring_is_told(watermark: Share, shown: str) -> None:
    """It is lowered with a note, in bytes or in percent."""
    plan = session(SWITCH, ring=RingSize(64 << 10), watermark=watermark)
    assert plan.notes == (f"the watermark of {shown} is more than half a ring: wakes at 32KiB",)


def test_half_a_ring_is_no_late_watermark() -> None:
    """The most that a ring gets has no note."""
    assert session(SWITCH, ring=RingSize(64 << 10), watermark=Share(percent=50.0)).notes == ()


def test_patterns_are_what_a_probe_must_read() -> None:
    """Every tracepoint of every alternative, groups included, and nothing else."""
    found = tracepoint_patterns(config(perf("cycles|a:b", "{c:d*,cs}", perf_event("e:f"))))
    assert [*map(str, found)] == ["a:b", "c:d*", "e:f"]


def plan_of_everything() -> Plan:
    """Return a plan with each word that `check` knows."""
    first = perf("sched:sched_process_*", "uncore_imc/event=1/", filter="pid > 1")
    second = perf("cycles|cpu-clock", frequency=19, call_graph="dwarf")
    third = perf("cycles:u", call_graph="lbr", when="present")
    facts = host(
        hardware_pmu=False, rlimit_memlock_bytes=0, capabilities=frozenset({"CAP_PERFMON"})
    )
    return build(config(first, second, third), facts)


def test_describe_tells_all_of_it() -> None:
    """Events, rings, files, sink, notes and warnings are lines for a reader."""
    text = "\n".join(plan_of_everything().describe())
    for words in (
        "session s: perf, system, stream, ledger lost_only",
        "event sched:sched_process_exec, period 1, exact, filter 'pid > 1', without",
        "on CPUs 0,2",
        "event cpu-clock, 19 Hz, lost_only, dwarf call chains of 8192 bytes",
        "rings perf-2 data: 4 x 128KiB (of 8MiB), wake at 32KiB, CPUs 0-3",
        "cost  each event costs the traced programs some 3290 ns: record 770",
        "files 22 descriptors",
        "sink  perf.data in /var/lib/collectord/s, a segment: 256MiB or 1h",
        "note  'cycles': this host has no hardware counters",
        "lacks perf-3: 'cycles:u': this host has no hardware counters",
        "warning: ",
    ):
        assert words in text
    per_thread = TargetConfig(scope=ScopeKind.THREAD, pids=(7,), per_thread=True)
    text = "\n".join(session(SWITCH, target=per_thread).describe())
    assert "thread 7 per-thread" in text
    assert "files 2 descriptors a thread" in text
    assert "one a thread" in text


def test_the_json_form_has_it_too() -> None:
    """`check --json` is plain JSON with every ring and attribute."""
    found = json.loads(json.dumps(plan_of_everything().to_dict()))
    (only,) = found["sessions"]
    assert [ring["role"] for ring in only["rings"]] == ["data"] * 8 + ["sideband"] * 4
    assert only["events"][0]["tracepoint"] == "sched:sched_process_exec"
    fields = set(only["events"][0]["attr"]["sample_type"])
    assert fields == {"IDENTIFIER", "IP", "TID", "TIME", "CPU", "PERIOD", "RAW"}
    assert found["core"]["chunks"] == 64
