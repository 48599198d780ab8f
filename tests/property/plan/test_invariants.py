# SPDX-License-Identifier: Apache-2.0
"""Invariants of every list, term, spelling, budget and plan."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectord.codec.event_names import NAMED_EVENTS
from collectord.codec.perf_attr import (
    PerfEventAttr,
    ReadFormat,
    SampleType,
    id_trailer_from,
    sample_time_offset,
)
from collectord.config import call_graph
from collectord.config.event_spec import parse_choices
from collectord.config.schema import Config
from collectord.config.schema_session import (
    Mode,
    PerfSourceConfig,
    SessionConfig,
    TargetConfig,
    TracefsSourceConfig,
)
from collectord.config.trace_probe import Probe, ProbeKind
from collectord.errors import CollectordError, PlanError, UsageError
from collectord.facts.kernel_facts import FtraceFacts, KernelFacts
from collectord.model import Basis, RingRole, ScopeKind, Transport
from collectord.plan import lock_budget, ring_sizes
from collectord.plan.build import build
from collectord.plan.ftrace_plan import FtracePlan
from collectord.plan.pmu import scatter
from collectord.text import cpu_list
from collectord.text.units import Bytes, Least, Nanoseconds, RingSize, Share
from tests.support.configs import perf_event, perf_source, trace_event
from tests.support.hosts import TRACEPOINTS, host

if TYPE_CHECKING:
    from collectord.plan.session_plan import SessionPlan

CPU = st.integers(0, cpu_list.MAX_CPU)
NAMES = [event.name for event in NAMED_EVENTS] + [*map(str, TRACEPOINTS)]
NAMES += ["r1a8", "mem:0x1000/4:rw", "cpu/event=0x3c,umask=1/", "sched:sched_process_*"]


@given(st.sets(CPU, max_size=200))
def test_cpu_lists_round_trip(cpus: set[int]) -> None:
    """A rendered list parses to the same CPUs."""
    assert cpu_list.parse(cpu_list.render(cpus)) == tuple(sorted(cpus))


@given(st.text(alphabet="0123456789,- x", max_size=20))
def test_any_text_is_a_cpu_list_or_a_usage_error(text: str) -> None:
    """No other exception escapes, and the parsed list is ascending and unique."""
    try:
        cpus = cpu_list.parse(text)
    except UsageError:
        return
    assert list(cpus) == sorted(set(cpus))


@given(st.data())
def test_scatter_loses_no_bit(data: st.DataObject) -> None:
    """Gathering the ranges again gives the value, and no other bit is touched."""
    edges = sorted(data.draw(st.sets(st.integers(0, 63), min_size=2, max_size=8)))
    pairs = list(zip(edges[::2], edges[1::2], strict=False))
    ranges = data.draw(st.permutations(pairs))
    width = sum(high - low + 1 for low, high in ranges)
    value = data.draw(st.integers(0, (1 << width) - 1))
    word = scatter(value, ",".join(f"{low}-{high}" for low, high in ranges))
    gathered = taken = 0
    for low, high in ranges:
        bits = high - low + 1
        gathered |= (word >> low & (1 << bits) - 1) << taken
        taken += bits
    assert gathered == value
    assert word.bit_count() == value.bit_count()
    with pytest.raises(ValueError, match="does not fit"):
        scatter(1 << width, ",".join(f"{low}-{high}" for low, high in ranges))


@given(st.text(alphabet="abcyles-:u kp{}/=,|*mr0x1", max_size=30))
def test_any_text_is_an_event_list_or_a_usage_error(text: str) -> None:
    """The parser never fails in another way, and never returns an empty list."""
    try:
        choices = parse_choices(text)
    except UsageError:
        return
    assert all(group.events for choice in choices for group in choice)
    assert all(choices)


@given(st.lists(st.sampled_from(NAMES), min_size=1, max_size=5), st.booleans())
def test_event_texts_survive_lists_and_groups(names: list[str], braced: bool) -> None:
    """A list gives back the spelling of each event, grouped or not."""
    text = ",".join(names)
    ((*groups,),) = parse_choices(f"{{{text}}}" if braced else text)
    assert [event.text for group in groups for event in group.events] == names
    assert len(groups) == (1 if braced else len(names))


@given(st.text(max_size=12))
def test_any_text_is_a_unit_value_or_a_unit_error(text: str) -> None:
    """No other exception leaves the parsers of values with units."""
    for kind in (Share, RingSize):
        with contextlib.suppress(UsageError):
            assert kind.parse(text) is not None


@given(st.integers(0, 1 << 40), st.sampled_from([4096, 16384, 65536]))
def test_ring_sizes(asked: int, page: int) -> None:
    """The result is the least power of two of pages that holds what was asked."""
    size = ring_sizes.ring_bytes(asked, page)
    pages = size // page
    assert size % page == 0
    assert pages & (pages - 1) == 0
    assert size >= asked
    assert size == page or size // 2 < asked


@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(1, 64)), max_size=6),
    st.integers(0, 1 << 28),
)
def test_rings_fit_their_budget_or_nothing_does(
    shapes: list[tuple[int, int]], limit_bytes: int
) -> None:
    """Sizes stay powers of two of pages, never grow, and give no more up than they must."""
    page = 4096
    rings = [(page << order, count) for order, count in shapes]
    least = sum(2 * page * count for _, count in rings)
    sizes = lock_budget.fit(rings, page, limit_bytes)
    if sizes is None:
        assert least > limit_bytes
        return
    pinned = [lock_budget.pinned_bytes(size, page) for size in sizes]
    total = sum(each * count for each, (_, count) in zip(pinned, rings, strict=True))
    assert total <= limit_bytes
    for size, (asked, _) in zip(sizes, rings, strict=True):
        assert page <= size <= asked
        assert (size // page).bit_count() == 1
    wanted = sum(lock_budget.pinned_bytes(size, page) * count for size, count in rings)
    assert (wanted <= limit_bytes) == (list(sizes) == [size for size, _ in rings])


@st.composite
def hosts(draw: st.DrawFn) -> KernelFacts:
    """Return hosts of all sizes and privileges."""
    online = tuple(sorted(draw(st.sets(st.integers(0, 7), min_size=1))))
    return host(
        cpus_online=online,
        cpus_possible=tuple(range(8)),
        page_size=draw(st.sampled_from([4096, 65536])),
        perf_event_paranoid=draw(st.integers(-1, 4)),
        perf_event_max_sample_rate=draw(st.sampled_from([100, 100_000])),
        rlimit_memlock_bytes=draw(st.none() | st.integers(0, 1 << 26)),
        capabilities=draw(st.frozensets(st.sampled_from(["CAP_PERFMON", "CAP_IPC_LOCK"]))),
        hardware_pmu=draw(st.booleans()),
        format_lost=draw(st.booleans()),
        sample_cgroup=draw(st.booleans()),
    )


SOURCES = st.builds(
    PerfSourceConfig,
    events=st.lists(
        st.sampled_from([perf_event(name) for name in (*NAMES, "{cs,page-faults}:u")]),
        min_size=1,
        max_size=3,
    ).map(tuple),
    frequency=st.none() | st.integers(1, 200_000),
    call_graph=st.sampled_from([None, *map(call_graph.parse, ("fp", "dwarf"))]),
    ring=st.just(RingSize()) | st.builds(RingSize, st.integers(1, 1 << 24)),
    watermark=st.builds(Share, st.integers(1, 1 << 24)) | st.just(Share(percent=25.0)),
    when=st.sampled_from(["always", "present"]),
)
TARGETS = st.sampled_from(
    [
        TargetConfig(),
        TargetConfig(scope=ScopeKind.PROCESS, pids=(1,)),
        TargetConfig(scope=ScopeKind.PROCESS, pids=(1,), per_thread=True),
        TargetConfig(scope=ScopeKind.COMMAND),
        TargetConfig(scope=ScopeKind.CGROUP, cgroup="a"),
    ]
)
SESSIONS = st.builds(
    SessionConfig,
    name=st.just("s"),
    target=TARGETS,
    source=st.lists(SOURCES, min_size=1, max_size=3).map(tuple),
)


@given(hosts(), SESSIONS)
def test_every_plan_can_be_opened(facts: KernelFacts, session: SessionConfig) -> None:
    """A plan is whole: its events, rings, budget and records agree with each other."""
    try:
        plan = build(Config(session=(session,)), facts)
    except CollectordError:
        return
    limit = lock_budget.LockBudget.of(facts).bytes
    assert limit is None or plan.pinned_bytes <= limit
    assert json.dumps(plan.to_dict())
    assert plan.describe()
    for opened in plan.sessions:
        _check_session(opened, facts)
        for name in opened.optional:
            _check_session(opened.without(name, "absent"), facts)


def _check_session(opened: SessionPlan, facts: KernelFacts) -> None:
    if opened.is_absent:
        assert opened.degraded
        assert not opened.events
        return
    assert [event.index for event in opened.events] == list(range(len(opened.events)))
    offsets = {sample_time_offset(event.attr) for event in opened.events}
    trailers = {id_trailer_from(event.attr, SampleType.TIME) for event in opened.events}
    assert len(offsets) == len(trailers) == 1
    for ring in opened.rings:
        assert 8 <= ring.watermark_bytes <= ring.data_bytes // 2
        assert ring.data_bytes <= ring.requested_bytes
        assert ring.events
        assert not (ring.cpu < 0 and any(event.attr.inherit for event in ring.events))
        leaders = {event.group for event in ring.events if event.leader}
        assert leaders == {event.group for event in ring.events}
        sideband = ring.role is RingRole.SIDEBAND
        for event in ring.events:
            _check_attr(event.attr, facts, sideband=sideband)
    if any(event.attr.freq for event in opened.events):
        assert opened.basis is not Basis.EXACT


TRACED = st.builds(
    TracefsSourceConfig,
    events=st.lists(
        st.sampled_from(
            [
                trace_event(name)
                for name in ("sched:*", "sched:sched_switch", "raw_syscalls:sys_enter")
            ]
        ),
        max_size=3,
    ).map(tuple),
    probes=st.sampled_from([(), (Probe(kind=ProbeKind.KPROBE, name="a", place="b"),)]),
    transport=st.sampled_from(["auto", "mmap", "read", "splice"]),
    ring=st.just(RingSize()) | st.builds(RingSize, st.integers(1, 1 << 31)),
    subbuf=st.just(Bytes(0)) | st.builds(Bytes, st.integers(1, 1 << 20)),
    watermark=st.builds(Share, st.integers(0, 1 << 24)) | st.just(Share(percent=25.0)),
    keep=st.none() | st.builds(Nanoseconds, st.integers(1, 10**13)),
    max=st.none() | st.builds(Least, st.integers(1, 1 << 34)),
)
COSTS = st.dictionaries(st.sampled_from(list(Transport)), st.floats(0.1, 1e4))


@given(
    hosts(),
    st.builds(FtraceFacts, mmap=st.booleans(), splice=st.booleans(), subbuf_sizes=st.booleans()),
    COSTS,
    TRACED,
    TARGETS,
    st.sampled_from(["stream", "flight-recorder"]),
)
def test_every_instance_can_be_made(  # noqa: PLR0917 - drawn
    facts: KernelFacts,
    ftrace: FtraceFacts,
    costs: dict[str, float],
    source: TracefsSourceConfig,
    target: TargetConfig,
    mode: Mode,
) -> None:
    """Sizes, watermark and transport are such that the kernel takes them, on any host."""
    facts = replace(facts, ftrace=replace(ftrace, transport_ns=costs))
    session = SessionConfig(name="s", mode=mode, target=target, source=(source,))
    try:
        plan = build(Config(session=(session,)), facts)
    except CollectordError:
        return
    assert plan.pinned_bytes == 0
    assert json.dumps(plan.to_dict())
    assert plan.describe()
    for opened in plan.sessions:
        made = opened.payload_of(FtracePlan)
        assert made.events or made.probes
        assert len(set(made.events)) == len(made.events)
        pages = made.subbuf_bytes // facts.page_size
        assert (pages.bit_count(), made.subbuf_bytes % facts.page_size) == (1, 0)
        assert 1 <= pages <= (128 if ftrace.subbuf_sizes else 1)
        assert 1 <= made.buffer_percent <= 100
        assert made.transport is Transport.READ or getattr(ftrace, made.transport)
        assert {ring.cpu for ring in opened.rings} <= set(facts.cpus_online)
        for ring in opened.rings:
            assert made.buffer_bytes <= ring.data_bytes <= 1 << 30
            assert ring.data_bytes % made.subbuf_bytes == 0
            assert ring.data_bytes >= 2 * made.subbuf_bytes
        if mode == "stream":
            assert (made.keep_ns, made.max_bytes) == (0, 0)
        elif source.ring == RingSize() and not source.subbuf:
            # The reader has a sub-buffer besides.
            each = opened.rings[0].data_bytes + made.subbuf_bytes
            least = 3 * made.subbuf_bytes
            assert each <= max(made.max_bytes // len(opened.rings), least)


def _check_attr(attr: PerfEventAttr, facts: KernelFacts, *, sideband: bool) -> None:
    assert PerfEventAttr.decode(attr.encode()) == attr
    assert attr.sample_period > 0
    assert (attr.mmap, attr.mmap2, attr.comm, attr.task) == (sideband,) * 4
    assert bool(attr.read_format & ReadFormat.LOST) == facts.format_lost
    assert not attr.freq or attr.sample_period <= facts.perf_event_max_sample_rate


@given(st.sets(st.integers(0, 20), min_size=1))
def test_only_online_cpus_are_planned(cpus: set[int]) -> None:
    """A list with any other CPU is refused, and the error names all of those."""
    target = TargetConfig(scope=ScopeKind.CPUS, cpus=tuple(sorted(cpus)))
    source = perf_source("cs")
    config = Config(session=(SessionConfig(name="s", target=target, source=(source,)),))
    wrong = cpus - set(host().cpus_online)
    if not wrong:
        rings = build(config, host()).sessions[0].rings
        assert {ring.cpu for ring in rings if ring.role is RingRole.DATA} == cpus
        return
    with pytest.raises(PlanError) as caught:
        build(config, host())
    assert set(cpu_list.parse(caught.value.what)) == wrong
