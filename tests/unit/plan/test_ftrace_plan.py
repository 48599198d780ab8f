# SPDX-License-Identifier: Apache-2.0
"""A tracefs source's configuration and facts to the plan of its instance."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from collectord.codec.tracepoint import Tracepoint
from collectord.config.event_spec import parse_one
from collectord.config.schema import Config, DaemonConfig
from collectord.config.schema_session import (
    PerfSourceConfig,
    SessionConfig,
    TargetConfig,
    TraceEventConfig,
    TracefsSourceConfig,
)
from collectord.config.trace_probe import Probe, ProbeKind
from collectord.errors import (
    CollectordError,
    MissingFeature,
    MissingPrivilege,
    PlanError,
    UnknownEvent,
    UsageError,
)
from collectord.facts.kernel_facts import FtraceFacts, KernelFacts
from collectord.model import Basis, RingRole, ScopeKind, Transport
from collectord.plan import trace_source
from collectord.plan.build import build
from collectord.plan.facts_document import read_facts
from collectord.plan.ftrace_plan import FtracePlan
from collectord.plan.payload import Payload
from collectord.plan.source_events import tracepoint_patterns
from collectord.text.units import Bytes, Least, Nanoseconds, RingSize, Share
from tests.support.configs import perf_source, trace_event, tracefs_source
from tests.support.hosts import host

if TYPE_CHECKING:
    from collectord.plan.plan import Plan
    from collectord.plan.session_plan import SessionPlan

SWITCH = "sched:sched_switch"
CALL = "raw_syscalls:sys_enter"
KPROBE = Probe(kind=ProbeKind.KPROBE, name="opened", place="do_filp_open", filter="x > 1")
EPROBE = Probe(kind=ProbeKind.EPROBE, name="woken", place="sched.sched_wakeup", filter="pid > 1")
SECOND_NS = 1_000_000_000


def config(source: TracefsSourceConfig, **session: Any) -> Config:  # noqa: ANN401
    """Return a configuration with one session called `s` with this source."""
    return Config(session=(SessionConfig(name="s", source=(source,), **session),))


def planned(
    *events: str | TraceEventConfig,
    facts: KernelFacts | None = None,
    target: TargetConfig | None = None,
    mode: str = "stream",
    **settings: Any,  # noqa: ANN401
) -> SessionPlan:
    """Return the only session of a plan."""
    source = tracefs_source(*events, **settings)
    made = config(source, mode=mode, target=target or TargetConfig())
    (found,) = build(made, facts or host()).sessions
    return found


def ftrace(*events: str | TraceEventConfig, **settings: Any) -> FtracePlan:  # noqa: ANN401
    """Return its instance."""
    return instance(planned(*events, **settings))


def instance(plan: SessionPlan) -> FtracePlan:
    """Return the instance of a session."""
    return plan.payload_of(FtracePlan)


def excluding(plan: FtracePlan) -> list[str]:
    """Return the part that excludes our own threads."""
    events = [str(event) for event in plan.events if event.exclude_self]
    return events + [probe.name for probe in plan.probes if plan.exclude_self]


def recorder(**settings: Any) -> SessionPlan:  # noqa: ANN401
    """Return a flight recorder of context switches."""
    return planned(SWITCH, mode="flight-recorder", **settings)


def test_each_cpu_has_a_ring_and_no_sideband() -> None:
    """All events share the instance's rings; the balance is exact."""
    plan = planned(SWITCH, "raw_syscalls:sys_enter")
    assert (plan.source, plan.sink.format) == ("tracefs", "trace.dat")
    assert [(r.source, r.role, r.cpu) for r in plan.rings] == [
        ("tracefs", RingRole.DATA, cpu) for cpu in range(4)
    ]
    assert plan.events == ()
    assert {ring.basis for ring in plan.rings} == {Basis.EXACT}
    assert plan.basis is Basis.EXACT
    assert not plan.per_task


def test_events_by_wildcard_once_each() -> None:
    """A wildcard stands for all that match; an entry of its own keeps its filter."""
    own = trace_event(SWITCH, filter="prev_pid > 0")
    found = ftrace("sched:sched_process_*", own, "sched:*", filter="common_pid > 1").events
    assert len({(event.system, event.name) for event in found}) == len(found) == 6
    filters = {event.name: event.filter for event in found}
    assert filters.pop("sched_switch") == "prev_pid > 0"
    assert set(filters.values()) == {"common_pid > 1"}


def test_first_choice_that_the_host_has() -> None:
    """For "a|b" the first existing event is taken, as for perf."""
    (found,) = ftrace(f"oom:mark_victim|{SWITCH}").events
    assert str(found) == SWITCH


def test_two_filters_for_one_event() -> None:
    """An instance has one filter for an event, so that a second one is an error."""
    entries = [trace_event(SWITCH, filter=text) for text in ("a > 1", "b > 1")]
    assert ftrace(entries[0], entries[0]).events[0].filter == "a > 1"
    with pytest.raises(UsageError, match="two filters for sched:sched_switch"):
        ftrace(*entries)


def test_what_a_probe_must_look_up() -> None:
    """Tracepoints of tracefs sources are among those that a probe reads."""
    source = tracefs_source(SWITCH, trace_event("block:*"))
    assert [*map(str, tracepoint_patterns(config(source)))] == ["block:*", SWITCH]


def test_when_a_probe_must_try_ftrace() -> None:
    """Only for tracefs sources, and costs only where a transport is to be chosen."""
    perf = Config(session=(SessionConfig(name="p", source=(perf_source("cs"),)),))
    fixed = config(tracefs_source(SWITCH, transport="read"))
    auto = config(tracefs_source(SWITCH))
    found = [(trace_source.is_used(c), trace_source.chooses(c)) for c in (perf, fixed, auto)]
    assert found == [(False, False), (True, False), (True, True)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cycles", "'cycles' is not a tracepoint"),
        ("sched:sched_switch:u", "takes no modifiers"),
        ("{sched:sched_switch,sched:sched_wakeup}", "ftrace has no groups"),
        ("sched:sched_swicth", 'did you mean "sched:sched_switch"'),
    ],
)
def test_what_ftrace_does_not_have(text: str, words: str) -> None:
    """Events of other kinds, modifiers, groups and misspelt names are usage errors."""
    with pytest.raises(UsageError) as caught:
        ftrace(text)
    assert words in str(caught.value)


def test_a_file_is_blamed_for_its_events() -> None:
    """A misspelt event is an error of the configuration file that has it."""
    source = tracefs_source("sched:sched_swicth")
    with pytest.raises(PlanError, match=r"^c\.toml: session 's': unknown event"):
        build(config(source, origin="c.toml"), host())


@pytest.mark.parametrize("when", ["always", "present"])
def test_events_that_may_be_absent(when: Any) -> None:  # noqa: ANN401 - parametrized
    """With `when = "present"` an event that the kernel lacks is left out, and that is said."""
    entry = trace_event("oom:mark_victim", when=when)
    if when == "always":
        with pytest.raises(UnknownEvent):
            planned(SWITCH, entry)
        return
    plan = planned(SWITCH, entry)
    assert [str(event) for event in instance(plan).events] == [SWITCH]
    assert plan.degraded == ("tracefs: unknown event 'oom:mark_victim'",)
    assert "  lacks tracefs: unknown event 'oom:mark_victim'" in plan.describe()


def test_a_source_that_is_absent_altogether() -> None:
    """Its session exists without rings, and says why."""
    absent = trace_event("oom:mark_victim", when="present")
    whole = build(config(tracefs_source(absent)), host())
    (plan,) = whole.sessions
    assert (plan.source, plan.payload, plan.is_absent) == ("tracefs", Payload(), True)
    assert plan.degraded == ("tracefs: unknown event 'oom:mark_victim'",)
    assert "session s records nothing: tracefs: unknown event" in whole.warnings[0]
    source = tracefs_source(SWITCH, when="present")
    without = host(ftrace=FtraceFacts(instances=False, problem="no tracefs"))
    (plan,) = build(config(source), without).sessions
    assert plan.is_absent
    assert "no ftrace instance: no tracefs" in plan.degraded[0]


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"instances": False, "problem": "p", "need": "CAP_X"}, MissingPrivilege, "needs CAP_X"),
        ({"instances": False, "problem": "p"}, MissingFeature, "no ftrace instance: p"),
        ({"clock_mono": False}, MissingFeature, "CLOCK_MONOTONIC"),
        ({"kprobes": False}, MissingFeature, "probe opened: this kernel has no kprobes"),
        ({"eprobes": False}, MissingFeature, "probe woken: this kernel has no eprobes"),
    ],
)
def test_what_the_host_lacks(
    changes: dict[str, Any], kind: type[CollectordError], words: str
) -> None:
    """Each is the error of its class, with the privilege or the feature."""
    facts = host(ftrace=replace(FtraceFacts(), **changes))
    with pytest.raises(kind) as caught:
        ftrace(SWITCH, probes=(KPROBE, EPROBE), facts=facts)
    assert words in str(caught.value)


def test_probes_and_their_filters() -> None:
    """An eprobe's filter is in its definition, that of others is their event's."""
    kprobe, eprobe = ftrace(probes=(KPROBE, EPROBE)).probes
    assert (kprobe.kind, kprobe.name, kprobe.place) == ("kprobe", "opened", "do_filp_open")
    assert (kprobe.definition("g"), kprobe.event_filter) == ("p:g/opened do_filp_open", "x > 1")
    definition = "e:g/woken sched.sched_wakeup if pid > 1"
    assert (eprobe.definition("g"), eprobe.event_filter) == (definition, "")


@pytest.mark.parametrize(
    ("target", "cpus", "excludes"),
    [
        (TargetConfig(), [0, 1, 2, 3], True),
        (TargetConfig(scope=ScopeKind.CPUS, cpus=(1, 3)), [1, 3], True),
        (TargetConfig(scope=ScopeKind.PROCESS, pids=(7,)), [0, 1, 2, 3], False),
        (TargetConfig(scope=ScopeKind.PROCESS, pids=(7,), cpus=(2,)), [2], False),
        (TargetConfig(scope=ScopeKind.COMMAND), [0, 1, 2, 3], False),
    ],
)
def test_scopes(target: TargetConfig, cpus: list[int], excludes: bool) -> None:
    """Our own threads are left out where all others are in."""
    plan = planned(CALL, target=target, probes=(KPROBE,))
    assert [ring.cpu for ring in plan.rings] == cpus
    assert excluding(instance(plan)) == (["raw_syscalls:sys_enter", "opened"] if excludes else [])
    assert (f"  event {CALL}, without collectord's own threads" in plan.describe()) is excludes
    everything = ftrace(CALL, target=target, probes=(KPROBE,), include_self=True)
    assert excluding(everything) == []


def test_a_flight_recorder_leaves_our_threads_out_only_if_asked() -> None:
    """It is not drained, so that a filter would cost each event more than it spares."""
    assert excluding(ftrace(CALL, mode="flight-recorder")) == []
    assert excluding(ftrace(CALL, mode="flight-recorder", include_self=False)) == [CALL]


def test_our_threads_stay_in_what_names_another_task() -> None:
    """A switch to one of them is told, and so is the switch away from it."""
    facts = host(task_tracepoints=frozenset({Tracepoint.parse(SWITCH)}))
    assert excluding(ftrace(SWITCH, CALL, facts=facts)) == [CALL]


def test_our_threads_stay_in_what_freezes_the_rings() -> None:
    """Whoever stops them, what they hold tells of it."""
    source = tracefs_source(CALL, SWITCH, include_self=False)
    made = config(source, mode="flight-recorder", freeze_on=parse_one(CALL))
    (plan,) = build(made, host()).sessions
    assert excluding(instance(plan)) == [SWITCH]


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (TargetConfig(scope=ScopeKind.THREAD, pids=(7,)), "the thread scope"),
        (TargetConfig(scope=ScopeKind.USER, user=1), "the user scope"),
        (TargetConfig(scope=ScopeKind.CGROUP, cgroup="a"), "the cgroup scope"),
        (TargetConfig(scope=ScopeKind.COMM, comm="a"), "the comm scope"),
        (TargetConfig(scope=ScopeKind.PROCESS, pids=(7,), per_thread=True), "per-thread rings"),
    ],
)
def test_scopes_that_ftrace_does_not_have(target: TargetConfig, words: str) -> None:
    """The error says which scopes it has."""
    with pytest.raises(PlanError, match=f"ftrace does not support {words}") as caught:
        planned(SWITCH, target=target)
    assert "system, cpus, process or command" in caught.value.hint


def test_ring_sizes() -> None:
    """The ring is what the kernel makes of the size: whole sub-buffers with room for it."""
    plan = planned(SWITCH)
    assert (instance(plan).buffer_bytes, instance(plan).subbuf_bytes) == (4 << 20, 64 << 10)
    # 64 sub-buffers of 65520 bytes hold a little less than 4 MiB.
    assert {ring.data_bytes for ring in plan.rings} == {65 * (64 << 10)}
    assert planned(SWITCH, ring=RingSize(pages=4)).rings[0].data_bytes == 5 * 4096
    assert planned(SWITCH, ring=RingSize(1)).rings[0].data_bytes == 2 * 4096
    with pytest.raises(PlanError, match="at most 1GiB"):
        planned(SWITCH, ring=RingSize(2 << 30))


def test_subbuf_sizes() -> None:
    """Asked for: rounded up to a power of two of pages. Chosen: by ring and transport."""

    def size(**settings: Any) -> int:  # noqa: ANN401
        return ftrace(SWITCH, **settings).subbuf_bytes

    assert size(subbuf=Bytes(1)) == 4096
    assert size(subbuf=Bytes(20 << 10)) == 32 << 10
    assert size(ring=RingSize(256 << 10)) == 8 << 10
    assert size(ring=RingSize(64 << 10)) == 4096
    assert size(transport="mmap") == 16 << 10
    assert size(transport="mmap", subbuf=Bytes(64 << 10)) == 64 << 10
    with pytest.raises(PlanError, match="at most 512KiB"):
        size(subbuf=Bytes(513 << 10))
    old = host(ftrace=FtraceFacts(subbuf_sizes=False))
    assert size(facts=old) == size(facts=old, subbuf=Bytes(4096)) == 4096
    with pytest.raises(MissingFeature, match="size of a page"):
        size(facts=old, subbuf=Bytes(8192))


@pytest.mark.parametrize(
    ("watermark", "percent"),
    [
        (Share(percent=25.0), 25),
        (Share(percent=0.2), 1),
        (Share(percent=100.0), 99),
        (Share(1 << 20), 25),
        (Share(1), 1),
        (Share(0), 1),
        (Share(1 << 30), 99),
    ],
)
def test_a_watermark_never_wakes_for_each_event(watermark: Share, percent: int) -> None:
    """buffer_percent 0 would; the least is 1, and 100 is a flight recorder's."""
    assert ftrace(SWITCH, watermark=watermark).buffer_percent == percent


def test_transport_follows_the_facts() -> None:
    """The plan has the transport and why; it changes with what was measured."""
    costs = {"read": 10.0, "mmap": 20.0, "splice": 5.0}
    facts = host(ftrace=FtraceFacts(transport_ns=costs))
    plan = planned(SWITCH, facts=facts)
    assert instance(plan).transport is Transport.SPLICE
    (line,) = [line for line in plan.describe() if line.startswith("  drain ")]
    assert line == ("  drain splice: cheapest, ns an event: read 10, mmap 20, splice 5 (measured)")
    # A splicing ring has a pipe.
    assert plan.files == planned(SWITCH, facts=facts, transport="read").files + 2 * 4
    costs["read"] = 1.0
    assert ftrace(SWITCH, facts=facts).transport is Transport.READ
    assert ftrace(SWITCH, facts=facts, transport="mmap").transport_reason == "as configured"


def test_flight_recorder_begins_with_the_assumed_rate() -> None:
    """`keep` at the assumed rate, within `max`; its rings wake nobody and overwrite."""
    plan = recorder(keep=Nanoseconds(16 * SECOND_NS), max=Least(64 << 20))
    assert (instance(plan).keep_ns, instance(plan).max_bytes) == (16 * SECOND_NS, 64 << 20)
    assert plan.payload.window_ns == 16 * SECOND_NS
    assert (instance(plan).overwrite, instance(plan).buffer_percent) == (True, 100)
    # 4 MiB, less the sub-buffer that the reader has.
    assert {ring.data_bytes for ring in plan.rings} == {63 * (64 << 10)}
    assert {ring.watermark_bytes for ring in plan.rings} == {0}
    text = "\n".join(plan.describe())
    assert "keeps 16s in at most 64MiB" in text
    assert "begins with 3.94MiB a CPU, 15.8s at an assumed 256KiB/s a CPU" in text
    assert "max of 64MiB is 16MiB a CPU: 16s up to 1MiB/s a CPU" in text
    assert "wake at" not in text


def test_what_max_cannot_hold_is_said() -> None:
    """On many CPUs `max` may be too little for `keep`: the plan says how much it is."""
    many = host(cpus_online=tuple(range(256)), cpus_possible=tuple(range(256)))
    plan = recorder(facts=many)
    assert sum(ring.data_bytes for ring in plan.rings) <= 256 << 20
    assert "max of 256MiB is 1MiB a CPU: 4s at that rate, not 30s" in "\n".join(plan.notes)
    with pytest.raises(PlanError, match=r"max = 8MiB leaves 32KiB for each of 256 CPUs") as caught:
        recorder(facts=many, max=Least(8 << 20))
    assert caught.value.hint == "at least 16MiB"


def test_recorder_settings() -> None:
    """Defaults are 30 s and 4 MiB a CPU; a ring that is given is what it begins with."""
    plan = instance(recorder(ring=RingSize(1 << 20)))
    assert plan is not None
    assert (plan.keep_ns, plan.max_bytes) == (30 * SECOND_NS, 4 * (4 << 20))
    assert plan.buffer_bytes == 1 << 20
    little = host(memory_bytes=1 << 30)
    assert instance(recorder(facts=little)).max_bytes == (1 << 30) // 100
    assert instance(recorder(facts=little, max=Least(percent=50.0))).max_bytes == 1 << 29
    mapped = recorder(transport="mmap")
    assert any("mapped rings keep their size" in note for note in mapped.notes)
    stream = ftrace(SWITCH)
    assert (stream.keep_ns, stream.max_bytes) == (0, 0)


def both() -> Plan:
    """Return a session with sources of both kinds."""
    sources = (perf_source("cs"), tracefs_source(SWITCH))
    return build(Config(session=(SessionConfig(name="s", source=sources),)), host())


def test_sources_of_two_kinds_are_two_plans_of_one_name() -> None:
    """Each kind has its rings, basis and files; the descriptors are those of both."""
    plan = both()
    assert [(s.name, s.source, s.sink.format) for s in plan.sessions] == [
        ("s", "perf", "perf.data"),
        ("s", "tracefs", "trace.dat"),
    ]
    perf, traced = plan.sessions
    assert perf.payload == Payload()
    assert perf.sink.directory == traced.sink.directory
    assert plan.files == perf.files + traced.files
    # ftrace's memory is the kernel's, and pins nothing.
    assert plan.pinned_bytes == sum(ring.data_bytes + 4096 for ring in perf.rings)
    assert plan.ftrace_bytes == sum(ring.data_bytes for ring in traced.rings)


def test_absent_parts_of_a_mixed_session_are_told_once() -> None:
    """The absent parts of both kinds are reported together, or each in its own plan."""
    perf = perf_source("oom:mark_victim", when="present")
    absent = trace_event("oom:mark_victim", when="present")
    traced = tracefs_source(absent)

    def sessions(*sources: PerfSourceConfig | TracefsSourceConfig) -> tuple[SessionPlan, ...]:
        return build(Config(session=(SessionConfig(name="s", source=sources),)), host()).sessions

    (only,) = sessions(perf_source("cs"), traced)
    assert only.degraded == ("tracefs: unknown event 'oom:mark_victim'",)
    (only,) = sessions(perf, tracefs_source(SWITCH))
    assert only.degraded == ("perf: unknown event 'oom:mark_victim'",)
    perf_plan, trace_plan = sessions(perf_source("cs"), tracefs_source(SWITCH, absent))
    assert perf_plan.degraded == ()
    assert len(trace_plan.degraded) == 1


def test_the_plan_as_json() -> None:
    """The instance is in the document, whole; a perf session has none."""
    perf, traced = json.loads(json.dumps(both().to_dict()))["sessions"]
    assert perf["ftrace"] is None
    event = {"name": SWITCH, "filter": "", "exclude_self": True}
    assert traced["ftrace"]["events"] == [event]
    assert traced["ftrace"]["transport"] == "read"
    # The exclusions of probes are told with each of them.
    assert {*traced["ftrace"], "exclude_self"} == set(FtracePlan.__slots__)


def test_ftrace_facts_survive_json() -> None:
    """Facts that doctor writes on one machine decide on another."""
    costs = {"read": 10.5, "mmap": 20.0, "splice": 30.0}
    facts = host(ftrace=FtraceFacts(mmap=False, problem="p", transport_ns=costs))
    assert read_facts(facts.to_json()) == facts
    # Facts of an older version say nothing of ftrace: nothing is known to be missing.
    document = json.loads(facts.to_json())
    del document["ftrace"]
    assert read_facts(json.dumps(document)).ftrace == FtraceFacts()


def test_a_sub_buffer_fits_a_chunk() -> None:
    """A size beyond the staging's is refused, with both remedies."""
    made = config(tracefs_source(SWITCH, subbuf=Bytes(512 << 10)))
    small = msgspec.structs.replace(made, daemon=DaemonConfig(chunk=Bytes(256 << 10)))
    with pytest.raises(PlanError, match="does not fit into a chunk") as refused:
        build(small, host())
    assert "subbuf" in refused.value.hint
    assert build(made, host()).sessions
