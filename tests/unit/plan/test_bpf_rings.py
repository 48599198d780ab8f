# SPDX-License-Identifier: Apache-2.0
"""Buffers for events of BPF programs: shared perf rings, or ring buffers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from collectord.config.schema import Config
from collectord.config.schema_session import BpfSourceConfig, SessionConfig, TargetConfig
from collectord.daemon.coverage import Coverage
from collectord.errors import MissingFeature, PlanError
from collectord.model import Basis, RingRole, ScopeKind
from collectord.plan.bpf_plan import BpfPlan
from collectord.plan.build import build
from collectord.source import bpf_buffer
from collectord.text.units import RingSize, Share
from tests.support.bpf_pairs import SOURCE, facts

if TYPE_CHECKING:
    from collectord.facts.kernel_facts import KernelFacts
    from collectord.plan.ring_plan import RingPlan
    from collectord.plan.session_plan import SessionPlan

COSTS: Final = Path(__file__).parents[3] / "docs/ftrace.md"
MIB: Final = 1 << 20
OWN_OUTPUT: Final = SOURCE + "BPF_PERF_OUTPUT(events);\n"
ONE_CPU: Final = TargetConfig(scope=ScopeKind.CPUS, cpus=(1,))


def plan(
    known: KernelFacts, *sources: BpfSourceConfig, target: TargetConfig | None = None
) -> SessionPlan:
    """Plan one session of these sources."""
    made = SessionConfig(name="s", source=sources, target=target or TargetConfig())
    (session,) = build(Config(session=(made,)), known).sessions
    return session


def source(name: str = "switches", **keys: Any) -> BpfSourceConfig:  # noqa: ANN401 - any key
    """Return a source of kind "bpf" with a ring buffer."""
    return BpfSourceConfig(**{"program": name, "transport": "ringbuf", **keys})


def data(session: SessionPlan) -> list[RingPlan]:
    """Return its data rings."""
    return [ring for ring in session.rings if ring.role is RingRole.DATA]


def test_a_ring_buffer_is_one_for_all_cpus() -> None:
    """It is as large as the perf rings together; perf rings on each CPU carry task names."""
    session = plan(facts(("switches", SOURCE)), source())
    (ring,) = data(session)
    assert (ring.source, ring.cpu, ring.data_bytes, ring.watermark_bytes) == (
        "bpf",
        -1,
        8 * MIB,
        2 * MIB,
    )
    assert [event.name for event in ring.events] == ["switches"]
    assert (session.basis, session.source) == (Basis.EXACT, "bpf")
    sideband = [ring.cpu for ring in session.rings if ring.role is RingRole.SIDEBAND]
    assert sideband == [0, 1, 2, 3]
    assert session.payload_of(BpfPlan).cpus == (0, 1, 2, 3)
    assert Coverage((session,), (0, 1, 2, 3)).covered == {0, 1, 2, 3}
    text = "\n".join(session.describe())
    assert "into a BPF ring buffer" in text
    assert "bpf data: 1 x 8MiB, wake at 2MiB, one for all CPUs" in text
    (shown,) = session.to_dict()["bpf"]["programs"]
    assert shown["transports"] == ["ringbuf"]


def test_a_submission_into_a_ring_buffer_is_expected_to_cost_less() -> None:
    """A session costs what its dearest event does: one into rings of perf, if there is any."""
    known = facts(("switches", SOURCE), ("others", SOURCE))
    perf = source("others", transport="perf")
    costs = [
        plan(known, *sources).to_dict()["imposed"]["event_ns"]
        for sources in ((source(),), (perf,), (source(), perf))
    ]
    assert costs[0] < costs[1] == costs[2]
    text = COSTS.read_text()
    assert f"| An event of a BPF program, into perf rings | {costs[1]} ns |" in text
    assert f"| An event of a BPF program, into a BPF ring buffer | {costs[0]} ns |" in text


def test_each_program_has_its_own() -> None:
    """It has the requested size; other programs of the session may use perf rings."""
    known = facts(("one", SOURCE), ("two", SOURCE), ("three", SOURCE))
    small = source("one", ring=RingSize(3 << 16), watermark=Share(1 << 14))
    session = plan(
        known, small, source("two", ring=RingSize(MIB)), source("three", transport="perf")
    )
    rings = {ring.source: ring for ring in data(session) if ring.cpu < 0}
    assert {name: ring.data_bytes for name, ring in rings.items()} == {
        "bpf-2": 1 << 18,
        "bpf-3": MIB,
    }
    assert rings["bpf-2"].watermark_bytes == 1 << 14
    assert [e.name for ring in rings.values() for e in ring.events] == ["one", "two"]
    shared = [ring for ring in data(session) if ring.source == "bpf"]
    assert [ring.cpu for ring in shared] == [0, 1, 2, 3]
    assert [event.name for event in shared[0].events] == ["three"]
    assert shared[0].data_bytes == 2 * MIB


def test_outputs_of_its_own_stay_with_perf() -> None:
    """A program may have both."""
    session = plan(facts(("switches", OWN_OUTPUT)), source(), target=ONE_CPU)
    assert [(ring.source, ring.cpu) for ring in data(session)] == [("bpf", 1), ("bpf-2", -1)]
    assert [ring.events[0].name for ring in data(session)] == ["switches/events", "switches"]


def test_a_ring_buffer_is_not_pinned() -> None:
    """It takes nothing of what a user may pin, and is not made smaller for want of that."""
    known = facts(
        ("switches", SOURCE),
        capabilities=frozenset({"CAP_PERFMON"}),
        rlimit_memlock_bytes=0,
        perf_event_mlock_kb=132,
    )
    (ring,) = data(plan(known, source(ring=RingSize(MIB))))
    assert ring.data_bytes == MIB
    (ring, *_) = data(plan(known, source(ring=RingSize(MIB), transport="perf")))
    assert ring.data_bytes < MIB


def test_a_kernel_without_ring_buffers() -> None:
    """It is said what it lacks and what to do; by default of that session alone."""
    known = facts(("switches", SOURCE), release="5.7.19")
    with pytest.raises(MissingFeature, match=r"need Linux 5\.8, and this is 5\.7\.19") as caught:
        plan(known, source(when="always"))
    assert caught.value.hint == 'transport = "perf" works everywhere'
    session = plan(known, source())
    assert session.rings == ()
    assert "this kernel has no BPF ring buffers" in session.degraded[0]
    assert data(plan(known, source(transport="perf", when="always")))


def test_a_ring_buffer_that_is_too_large() -> None:
    """A gigabyte is the most, as of all rings."""
    with pytest.raises(PlanError, match="a ring of 2GiB"):
        plan(facts(("switches", SOURCE)), source(ring=RingSize(2 << 30)))


def test_what_the_program_is_told() -> None:
    """The ring's pages, and each CPU's share of the watermark: together they fill no more."""
    (ring,) = data(plan(facts(("switches", SOURCE)), source()))
    assert bpf_buffer.defines(ring, page_bytes=4096, writers=4) == (
        "#define COLLECTORD_RING_PAGES 2048\n#define COLLECTORD_WAKE_BYTES 524288\n"
    )
