# SPDX-License-Identifier: Apache-2.0
"""JSON documents that scripts read: all their keys, in their order, with known values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pytest

from collectord._native._core import AuxCounters, RingCounters, SidebandCounters
from collectord.codec.blktrace import Action
from collectord.config.schema import Config
from collectord.config.schema_session import BpfSourceConfig, RelaySourceConfig, SessionConfig
from collectord.config.trace_probe import Probe, ProbeKind
from collectord.control.documents import status_json
from collectord.facts.kernel_facts import BpfFacts, PmuFacts, RelayFacts
from collectord.ledger.aux_ledger import AuxBracket, AuxReading, balance_aux
from collectord.ledger.manifest_balance import final_balance, manifest_balance
from collectord.ledger.present_loss import PresentLoss
from collectord.ledger.record_ledger import FILL_BUCKETS, Bracket, balance_session
from collectord.model import (
    Basis,
    Geometry,
    Produced,
    Reason,
    RingLabel,
    RingRole,
    Stage,
    Transport,
)
from collectord.plan.build import build
from collectord.session.maps.answers import (
    HistogramAnswer,
    Section,
    Slot,
    TableAnswer,
)
from collectord.session.maps.folded_answer import FoldedAnswer
from collectord.session.suppression import HiddenWindow
from collectord.source.channel_ring import ChannelRing
from collectord.source.ftrace_ring import FtraceRing
from collectord.source.perf_ring import OverwritableRing
from collectord.text.foreign import encode_json
from collectord.text.units import RingSize
from tests.support import balances
from tests.support.bpf_pairs import SOURCE, program
from tests.support.commands import lost, snapshot
from tests.support.configs import perf_source, trace_event, tracefs_source
from tests.support.hosts import host

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from collectord.config.schema_session import SourceConfig
    from collectord.ledger.record_ledger import SessionBalance
    from collectord.session.maps.answers import Answer

DOCUMENTS: Final = Path(__file__).parent / "documents"
SWITCH: Final = "sched:sched_switch"
CHANNEL: Final = "/sys/kernel/debug/dir/chan"
READING: Final = Produced(value=10**6, lost=None, read_events=10**6)


def plan() -> dict[str, Any]:
    """Return the plan of a session of each kind, as `check --json` prints it."""
    facts = host(
        cpus_online=(0, 1),
        numa_nodes=((0, 1),),
        pmus={**host().pmus, "plain": PmuFacts(type=20, aux=True)},
        bpf=BpfFacts(python="/usr/bin/python3", programs={"one": program(SOURCE, name="one")}),
        relay=RelayFacts(
            debugfs="/sys/kernel/debug",
            blktrace=True,
            devices=("/dev/vda",),
            channels={CHANNEL: (0, 1)},
        ),
    )
    sources: dict[str, tuple[SourceConfig, ...]] = {
        "perf": (
            perf_source(SWITCH, "uncore_imc/event=1/", filter="prev_pid > 1"),
            perf_source("cycles", frequency=19, call_graph="dwarf"),
            perf_source("absent//", when="present"),
        ),
        "area": (perf_source("plain//"),),
        "ftrace": (
            tracefs_source(
                trace_event(SWITCH, filter="prev_pid > 0"),
                probes=(Probe(ProbeKind.KPROBE, "opened", "do_filp_open", "flags=%si", "x > 1"),),
            ),
        ),
        "bpf": (BpfSourceConfig(program="one", transport="ringbuf", ring=RingSize(1 << 16)),),
        "relay": (
            RelaySourceConfig(
                device=("/dev/vda",), actions=(Action.ISSUE, Action.COMPLETE), pid=7
            ),
            RelaySourceConfig(path=(CHANNEL,)),
        ),
    }
    sessions = [SessionConfig(name=name, source=source) for name, source in sources.items()]
    recorders = [
        SessionConfig(name=f"{name}-recorder", mode="flight-recorder", source=sources[name])
        for name in ("area", "ftrace")
    ]
    return build(Config(session=(*sessions, *recorders)), facts).to_dict()


def numbered(fields: Iterable[str]) -> dict[str, Any]:
    """Return counters that differ from each other, of a ring in quarantine."""
    buckets = tuple(range(FILL_BUCKETS))
    fixed = {"fill_buckets": buckets, "quarantined": 1, "quarantine_reason": 1, "head_rule": 0}
    return {name: fixed.get(name, 1000 + number) for number, name in enumerate(fields)}


def counted() -> tuple[SessionBalance, dict[RingLabel, Bracket]]:
    """Return a session with a ring of several kinds and areas of both modes, and its readings."""
    counters = RingCounters(**numbered(RingCounters._fields))
    common: Any = {"fd": -1, "basis": Basis.EXACT, "geometry": Geometry(4096, 1024, 8192)}
    perf: Any = {"map": None, "time_offset": 0, "time_trailer": 0}
    labels = [RingLabel("all", "perf", RingRole.DATA, cpu, tid=7) for cpu in range(3)]
    rings = (
        OverwritableRing(label=labels[0], held=True, **common, **perf),
        FtraceRing(
            label=labels[1],
            held=True,
            stats_fd=-1,
            subbuf_bytes=4096,
            subbufs=2,
            transport=Transport.READ,
            **common,
        ),
        ChannelRing(label=labels[2], **common),
    )
    after = replace(
        READING, unread=6, unread_bytes=77, oldest_unread_ns=5, now_ns=9, capacity_bytes=1 << 20
    )
    bracket = Bracket(READING, counters, after, closed=True)
    areas = tuple(
        balance_aux(
            RingLabel("all", "perf", RingRole.AUX, 0),
            replace(balances.AREA_PLAN, snapshot=snapshot),
            AuxBracket(
                AuxReading(10**6, 10**6, 3),
                AuxCounters(**numbered(AuxCounters._fields)),
                AuxReading(10**6, 10**6, 3),
                closed=True,
            ),
        )
        for snapshot in (False, True)
    )
    event: Any = type("Event", (), {"name": SWITCH})
    losing = PresentLoss((Stage.SINK, Reason.DISK_FULL), "records", 5, "disk full", 11, 12)
    balance = replace(
        balance_session(
            "all",
            "perf",
            "system",
            tuple(ring.balance(bracket, Basis.EXACT, (4, 5)) for ring in rings),
            shared={(Stage.SINK, Reason.DROPPED): 9},
            suppressed=[HiddenWindow(event, (4,), 1, 2).to_json()],
            aux=areas,
        ),
        state="degraded",
        directory="/s/all",
        segments=("/s/all/1.perf.data",),
        degraded_reasons=("losing",),
        losing=(losing,),
        snapshots=1,
        snapshots_failed=2,
        paused_ns=3,
        sideband=SidebandCounters(1, 2, 3, 4, 5),
    )
    return balance, dict.fromkeys(labels, bracket)


def status() -> dict[str, Any]:
    """Return the document of `/v1/status`, but for the running program."""
    sessions = (
        balances.session("exec"),
        balances.recorder("blackbox"),
        balances.traced("traced", cpus=1),
        balances.tracer("tracer", cpus=1),
        balances.channel("channel"),
        replace(balances.session("opens", cpus=1), source="bpf"),
        counted()[0],
    )
    return {**status_json(balances.status(*sessions)), "version": "", "pid": 0}


def manifest_ledgers() -> list[dict[str, Any]]:
    """Return the ledgers of manifests: of running sessions, and of one that is over."""
    balance, brackets = counted()
    streamed = balances.session("exec", cpus=0)
    lost_by = {(Stage.SINK, Reason.DROPPED): 2}
    return [
        manifest_balance(balance, brackets, (1, 2), since_ns=3, until_ns=4).to_json(),
        manifest_balance(streamed, {}).to_json(),
        final_balance(produced=9, stored=5, lost=lost_by, overwritten=1).to_json(),
        final_balance(produced=None, stored=5, lost=lost_by, overwritten=1).to_json(),
    ]


def results() -> dict[str, Any]:
    """Return what `--json` has beside sessions: answers of programs, and snapshots."""
    taken = replace(snapshot(("/s/1.perf.data",)), lost=lost(full=1, failed=2, aux_full=3))
    slots = (Slot(0, 1, 5), Slot(2, 3, 6))
    answers: list[Answer] = [
        HistogramAnswer("latency", "us", (Section({"disk": "vda"}, slots),), complete=True),
        TableAnswer(
            title="files",
            columns=(("FILE", False), ("N", True)),
            fields=("name", "n"),
            rows=(("a", "7"),),
            values=((b"\x00a", 7),),
            left_out=3,
            complete=False,
        ),
        FoldedAnswer("stacks", "count", ((("main", "read"), 8),), complete=True),
    ]
    return {
        "answers": [answer.to_dict() for answer in answers],
        "snapshots": [taken.to_json(), replace(taken, last_ns=0).to_json()],
    }


@pytest.mark.parametrize("document", [plan, status, manifest_ledgers, results])
def test_a_document_is_golden(document: Callable[[], Any], tmp_path: Path) -> None:
    """Scripts may rely on each key, and people on their order."""
    golden = DOCUMENTS / f"{document.__name__}.json"
    made = tmp_path / golden.name
    made.write_bytes(msgspec.json.format(encode_json(document()), indent=1) + b"\n")
    assert made.read_text() == golden.read_text(), f"if right: cp {made} {golden}"
