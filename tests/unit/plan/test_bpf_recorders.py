# SPDX-License-Identifier: Apache-2.0
"""BPF programs that are flight recorders: their slots, and what takes their place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from collectord.codec.tracepoint import Tracepoint
from collectord.config.rules import check_session
from collectord.config.schema import Config, DaemonConfig
from collectord.config.schema_session import BpfSourceConfig, SessionConfig
from collectord.errors import MissingFeature, PlanError, UsageError
from collectord.facts.kernel_facts import BpfFacts
from collectord.model import Basis, RingRole
from collectord.plan.bpf_plan import BpfPlan
from collectord.plan.build import build
from collectord.programs.bpf_program import defines, problems
from collectord.text.units import NS_PER_SECOND, Nanoseconds, RingSize
from tests.support.bpf_pairs import KEEPER, KEEPER_MANIFEST, keeper, keeping_host, program
from tests.support.configs import tracefs_source

if TYPE_CHECKING:
    from collectord.facts.kernel_facts import KernelFacts
    from collectord.plan.session_plan import SessionPlan

MIB: Final = 1 << 20
SLOT: Final = 24
KEEPS: Final = keeper()
SUBMITS: Final = program()


def plans(known: KernelFacts, *sources: Any, **keys: Any) -> tuple[SessionPlan, ...]:  # noqa: ANN401 - of any kind
    """Plan a flight recorder of these sources."""
    made = SessionConfig(**{"name": "s", "mode": "flight-recorder", **keys}, source=sources)
    return build(Config(session=(made,)), known).sessions


def source(name: str = "keeps", **keys: Any) -> BpfSourceConfig:  # noqa: ANN401 - any key
    """Return a source of kind "bpf"."""
    return BpfSourceConfig(program=name, **keys)


def test_each_cpu_has_slots() -> None:
    """They are numbered, so the ledger is exact; sideband rings name the tasks."""
    (session,) = plans(keeping_host(), source(ring=RingSize(MIB)))
    data = [ring for ring in session.rings if ring.role is RingRole.DATA]
    # The largest power of two of slots that a MiB has.
    assert [(ring.cpu, ring.slots) for ring in data] == [(cpu, 32768) for cpu in range(4)]
    assert {ring.data_bytes for ring in data} == {32768 * SLOT}
    assert {str(ring.basis) for ring in data} == {str(Basis.EXACT)}
    assert not any(ring.overwrite or ring.watermark_bytes for ring in data)
    assert [event.name for event in data[0].events] == [
        "sched:sched_switch",
        "block:block_rq_issue",
    ]
    (planned,) = session.payload_of(BpfPlan).programs
    assert [kept.event_index for kept in planned.kept] == [0, 1]
    assert planned.gated
    text = "\n".join(session.describe())
    assert "into slots that it overwrites" in text
    assert "bpf data, overwritten: 4 x 768KiB" in text


def test_slots_take_a_share_of_memory() -> None:
    """By default 4 MiB on each CPU, and on all that are possible at most 1% of the memory."""
    (session,) = plans(keeping_host(), source())
    assert session.rings[0].slots == 1 << 17
    little = keeping_host(memory_bytes=800 * MIB)
    (session,) = plans(little, source())
    assert session.rings[0].data_bytes * 4 <= 8 * MIB
    many = keeping_host(cpus_possible=tuple(range(256)))
    (session,) = plans(many, source())
    assert session.rings[0].data_bytes * 256 <= 256 * MIB


def test_the_plan_says_what_they_hold() -> None:
    """Half a minute by default, or as `keep` says, up to a rate that the plan names."""
    (session,) = plans(keeping_host(), source())
    assert session.payload.window_ns == 30 * NS_PER_SECOND
    assert "131,072 slots a CPU hold 30s up to 4,369 slots a second" in session.notes
    (session,) = plans(keeping_host(), source(ring=RingSize(MIB), keep=Nanoseconds(NS_PER_SECOND)))
    assert session.payload.window_ns == NS_PER_SECOND
    assert "32,768 slots a CPU hold 1s up to 32,768 slots a second" in session.notes


@pytest.mark.parametrize(
    ("ring", "said"),
    [(25 * MIB, "24MiB a CPU is the most"), (1 << 10, "3KiB a CPU is the least")],
)
def test_a_size_that_slots_do_not_have_is_told(ring: int, said: str) -> None:
    """The plan has the nearest one; a power of two of slots is no surprise."""
    (session,) = plans(keeping_host(), source(ring=RingSize(ring)))
    assert f"slots of keeps: {said}" in session.notes
    (session,) = plans(keeping_host(), source(ring=RingSize(MIB)))
    assert not any(note.startswith("slots of") for note in session.notes)


def test_slots_are_in_the_total() -> None:
    """They are the kernel's memory as rings are, though no limit counts them."""
    made = SessionConfig(name="s", mode="flight-recorder", source=(source(ring=RingSize(MIB)),))
    plan = build(Config(session=(made,)), keeping_host())
    assert plan.slots_bytes == 4 * 768 * 1024
    assert plan.ring_bytes == plan.pinned_bytes + plan.slots_bytes


def test_an_opener_does_not_hold_them() -> None:
    """The note says so."""
    made = SessionConfig(name="s", mode="flight-recorder", source=(source(),))
    config = Config(daemon=DaemonConfig(opener="/run/opener"), session=(made,))
    (session,) = build(config, keeping_host()).sessions
    assert session.opener == ""
    assert "flight recorders of BPF programs end with the daemon" in "\n".join(session.notes)


@pytest.mark.parametrize(
    ("name", "mode", "said"),
    [
        ("switches", "flight-recorder", "switches is not a flight recorder"),
        ("keeps", "stream", "keeps keeps its records for snapshots"),
    ],
)
def test_a_program_is_used_for_what_it_does(name: str, mode: str, said: str) -> None:
    """Its manifest tells which it is."""
    with pytest.raises((UsageError, PlanError), match=said):
        plans(keeping_host(), source(name), mode=mode)


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"release": "5.4.0"}, "no arrays that can be mapped"), ({"arch": "aarch64"}, "on x86 only")],
)
def test_what_the_host_lacks_is_said(changes: dict[str, str], said: str) -> None:
    """By the plan, or as an error where it must be there."""
    (session,) = plans(keeping_host(**changes), source())
    assert said in "\n".join(session.degraded)
    with pytest.raises(MissingFeature, match=said):
        plans(keeping_host(**changes), source(when="always"))


def test_ftrace_otherwise() -> None:
    """It is used only where the program cannot run, and the plan says which and why."""
    both = (source(), tracefs_source("sched:sched_switch", when="otherwise"))
    (chosen,) = plans(keeping_host(), *both)
    assert (chosen.source, chosen.rings[0].slots > 0) == ("bpf", True)
    assert "ftrace is not needed" in "\n".join(chosen.describe())
    without = keeping_host(bpf=BpfFacts(problem="no bcc", programs={"keeps": KEEPS}))
    (chosen,) = plans(without, *both)
    assert chosen.source == "tracefs"
    assert "ftrace, as the host lacks what is preferred: keeps: keeps: no bcc" in "\n".join(
        chosen.describe()
    )
    assert chosen.degraded == ()


def test_a_host_with_neither_says_what_both_lack() -> None:
    """The session is there without rings, and why: the program first, then ftrace."""
    lacking = BpfFacts(problem="no bcc", programs={"keeps": KEEPS})
    without = keeping_host(bpf=lacking, tracepoints={Tracepoint("sched", "sched_process_exec"): 1})
    both = (source(), tracefs_source("sched:sched_switch", when="otherwise"))
    (neither,) = plans(without, *both)
    assert neither.rings == ()
    program, events = neither.degraded
    assert program == "keeps: keeps: no bcc"
    assert events.startswith("tracefs: unknown event 'sched:sched_switch'")


def test_ftrace_for_a_program_that_failed() -> None:
    """It stands in for what a daemon could not load, which without it is tried again."""
    facts = BpfFacts(programs={"keeps": KEEPS}, failed_programs={"keeps": "keeps: no such struct"})
    known = keeping_host(bpf=facts)
    (chosen,) = plans(known, source(), tracefs_source("sched:sched_switch", when="otherwise"))
    assert chosen.source == "tracefs"
    assert "no such struct" in "\n".join(chosen.describe())
    (alone,) = plans(known, source())
    assert (alone.source, alone.degraded) == ("bpf", ())


def test_rules_of_recorders() -> None:
    """A source that stands in for others is not alone, and no event freezes a program's slots."""
    alone = SessionConfig(
        name="s",
        mode="flight-recorder",
        source=(tracefs_source("sched:sched_switch", when="otherwise"),),
    )
    assert [problem.key for problem in check_session(alone)] == ["source[0].when"]
    kept = SessionConfig(name="s", mode="flight-recorder", source=(source(keep=Nanoseconds(1)),))
    assert list(check_session(kept)) == []
    none = SessionConfig(name="s", mode="flight-recorder", source=(source(keep=Nanoseconds(0)),))
    assert [problem.key for problem in check_session(none)] == ["source[0].keep"]
    stream = SessionConfig(name="s", source=(source(keep=Nanoseconds(1)),))
    assert [problem.key for problem in check_session(stream)] == ["source[0].keep"]


def test_kinds_are_numbered_for_the_program() -> None:
    """It gets the number of each kind, and tells the layouts by tables."""
    text = defines(KEEPS, {})
    assert "#define COLLECTORD_KIND_one 1\n" in text
    assert "#define COLLECTORD_KIND_other 2\n" in text
    assert "BPF_ARRAY(collectord_record_2, struct other, 1);" in text
    assert "DESCRIBE" not in defines(SUBMITS, {"pid": 0})


@pytest.mark.parametrize(
    ("text", "manifest", "said"),
    [
        (KEEPER.replace("struct other", "struct another"), KEEPER_MANIFEST, "no struct 'other'"),
        (KEEPER.replace('#include "collectord.h"', ""), KEEPER_MANIFEST, "keeps no record"),
        ("#define COLLECTORD_EVENT struct one\n" + KEEPER, KEEPER_MANIFEST, "submits events too"),
        (KEEPER, KEEPER_MANIFEST.partition("[[record]]")[0], "list their kinds"),
    ],
)
def test_text_and_manifest_agree(text: str, manifest: str, said: str) -> None:
    """Each contradiction is named."""
    found = problems(program(text, manifest, name="keeps"))
    assert any(said in f"{one.message} {one.hint}" for one in found)
