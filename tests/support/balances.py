# SPDX-License-Identifier: Apache-2.0
"""Balances and a daemon's status with known figures, as a default host has them."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from collectord._native._core import QUARANTINE_REASONS, AuxCounters, CoreCounters
from collectord.kernel.values.host import Scheduling
from collectord.ledger.aux_ledger import AUX_LOSS_PAIRS, AuxBalance
from collectord.ledger.record_ledger import NO_COUNTERS, RingBalance, SessionBalance
from collectord.model import Basis, ClockReading, RingLabel, RingRole, SinkStats, loss_pairs
from collectord.plan.aux_areas import AuxPlan, Framing, HeadRule
from collectord.session.cost_meter import Cost
from collectord.session.daemon_status import DaemonStatus
from collectord.session.incident_status import (
    IncidentLine,
    IncidentsStatus,
    Suppression,
    TriggerStatus,
)
from collectord.session.maps.program_status import BpfStatus, FunctionRuns
from collectord.session.running_threads import RunningThread, RunningThreads

Balance = TypeVar("Balance", RingBalance, AuxBalance)

CAPACITY_BYTES = 1 << 19
# The plan of an area of a PMU that counts bytes.
AREA_PLAN = AuxPlan(
    pmu="plain",
    requested_bytes=4096,
    data_bytes=4096,
    watermark_bytes=1024,
    framing=Framing.HIDDEN,
    whole_records=False,
    head_rule=HeadRule.MONOTONIC,
    snapshot=False,
    flush_ns=0,
    counts_bytes=True,
)


def ring(
    session: str, cpu: int, *, role: RingRole = RingRole.DATA, basis: Basis = Basis.EXACT
) -> RingBalance:
    """Return a ring that produced 100 records, of which 90 were stored and 10 did not fit."""
    exact = basis is Basis.EXACT and role is RingRole.DATA
    return RingBalance(
        label=RingLabel(session, "perf", role, cpu),
        basis=basis,
        capacity_bytes=CAPACITY_BYTES,
        produced=100 if exact else None,
        stored=90,
        lost=no_loss() | {"kernel_ring/ring_full": 10},
        overwritten=0,
        in_flight=0,
        unaccounted=0 if exact else None,
        counters=NO_COUNTERS._replace(
            high_watermark_bytes=CAPACITY_BYTES // 2,
            bytes=9_000,
            records=92,
            wakeups_watermark=3,
            wakeups_timer=4,
            throttles=1,
            last_sample_ns=5_000_000_000,
            fill_buckets=(4, 0, 2, 0, 1, 0, 0, 0, 0, 0, 0),
        ),
        used_bytes=CAPACITY_BYTES // 4,
    )


def in_quarantine(balance: Balance, reason: str) -> Balance:
    """Return the balance of a ring or an area that is not read any more."""
    number = QUARANTINE_REASONS.index(reason)
    counters = balance.counters._replace(quarantined=1, quarantine_reason=number)
    return replace(balance, counters=counters)


def no_loss(source: str = "perf") -> dict[str, int]:
    """Return every stage and reason of a source at 0."""
    return {f"{stage}/{reason}": 0 for stage, reason in loss_pairs(source)}


def session(name: str, *, cpus: int = 2, basis: Basis = Basis.EXACT) -> SessionBalance:
    """Return a session with one data and one sideband ring per CPU."""
    data = tuple(ring(name, cpu, basis=basis) for cpu in range(cpus))
    sideband = tuple(
        replace(
            ring(name, cpu, role=RingRole.SIDEBAND),
            stored=0,
            lost=no_loss() | {"kernel_ring/ring_full": 3},
        )
        for cpu in range(cpus)
    )
    return SessionBalance(
        name=name,
        source="perf",
        scope="system",
        basis=basis,
        state="running",
        produced=100 * cpus if basis is Basis.EXACT else None,
        stored=90 * cpus,
        lost=no_loss() | {"kernel_ring/ring_full": 10 * cpus},
        overwritten=0,
        in_flight=0,
        unaccounted=0 if basis is Basis.EXACT else None,
        rings=data + sideband,
        segments=(f"/var/lib/collectord/{name}/20260101T000000Z-000001.perf.data",),
        degraded_reasons=(),
        heard_ns=1_700_000_004_000_000_000,
        sink=SinkStats(
            segments=1,
            segment_bytes=4096,
            deleted={"quota": 2},
            write_errors=0,
            oldest_ns=1_600_000_000_500_000_000,
        ),
    )


def recorder(name: str, *, cpus: int = 2) -> SessionBalance:
    """Return a flight recorder whose rings produced 100 records each, and overwrote 60 of them."""
    rings = tuple(
        replace(
            ring(name, cpu),
            label=RingLabel(name, "tracefs", RingRole.DATA, cpu),
            stored=0,
            lost=no_loss("tracefs"),
            overwritten=60,
            in_flight=40,
            transport="read",
            oldest_unread_age_ns=(cpu + 30) * 1_000_000_000,
            window_ns=(cpu + 30) * 1_000_000_000,
            held=True,
        )
        for cpu in range(cpus)
    )
    return replace(
        session(name, cpus=cpus),
        source="tracefs",
        stored=0,
        lost=no_loss("tracefs"),
        overwritten=60 * cpus,
        in_flight=40 * cpus,
        rings=rings,
        segments=(),
        keep_ns=30_000_000_000,
    )


def area(session: str, cpu: int = 0) -> AuxBalance:
    """Return an AUX area of a PMU that counts bytes: 1000 traced, 900 stored, 100 without room."""
    lost: dict[str, int | None] = {f"{s}/{r}": 0 for s, r in AUX_LOSS_PAIRS}
    return AuxBalance(
        label=RingLabel(session, "perf", RingRole.AUX, cpu),
        pmu="intel_pt",
        basis=Basis.EXACT,
        capacity_bytes=4 << 20,
        produced_bytes=1000,
        lost_bytes=lost | {"kernel_ring/truncated": 100},
        overwritten_bytes=0,
        unaccounted_bytes=0,
        lost_records=5,
        window_bytes=0,
        counters=AuxCounters._make(0 for _ in AuxCounters._fields)._replace(
            high_watermark_bytes=1 << 20,
            stored_bytes=900,
            records=9,
            truncated=3,
            partial=2,
            collisions=1,
            unrecorded_bytes=64,
            orphan_bytes=32,
            pieces=5,
            enables=7,
            restarts=6,
            disabled_ns=1_500_000_000,
            wakeups_watermark=4,
            wakeups_timer=2,
            fill_buckets=(0,) * 11,
        ),
    )


def traced(name: str, *, cpus: int = 2) -> SessionBalance:
    """Return a session with an AUX area for each CPU."""
    areas = tuple(area(name, cpu) for cpu in range(cpus))
    return replace(session(name, cpus=cpus), aux=areas)


def tracer(name: str, *, cpus: int = 2) -> SessionBalance:
    """Return a flight recorder of AUX areas, with 300 bytes of trace in each."""
    whole = traced(name, cpus=cpus)
    data = [ring for ring in whole.rings if ring.label.role is RingRole.DATA]
    return replace(
        whole,
        rings=tuple(replace(ring, held=True, beside_aux=True) for ring in data),
        aux=tuple(replace(one, window_bytes=300) for one in whole.aux),
    )


def channel(name: str) -> SessionBalance:
    """Return a relay channel of one CPU, of which 5000 bytes were stored and 1000 overwritten."""
    whole = session(name, cpus=1, basis=Basis.NONE)
    lost = no_loss("relay") | {"kernel_ring/overrun": 1000}
    only = replace(
        whole.rings[0],
        label=RingLabel(name, "relay", RingRole.DATA, 0),
        stored=5000,
        lost=lost,
        counters=whole.rings[0].counters._replace(records=5000),
        in_bytes=True,
    )
    return replace(whole, source="relay", stored=5000, lost=lost, rings=(only,))


def status(*sessions: SessionBalance) -> DaemonStatus:
    """Return a daemon with these sessions; by default those of the default configuration."""
    return DaemonStatus(
        sessions=sessions
        or (session("profile", basis=Basis.LOST_ONLY), session("exec"), recorder("blackbox")),
        core=core(),
        clocks=ClockReading(
            monotonic_ns=10_000_000_000,
            realtime_ns=1_700_000_010_000_000_000,
            perf_ns=0,
            bracket_ns=100,
        ),
        started_ns=1_700_000_000_000_000_000,
        config_sha256="ab" * 32,
        cpus_online=2,
        cpus_covered=2,
        uncovered_ns=1_500_000_000,
        uncovered_by_session={("exec", "perf"): 500_000_000},
        unclean_stops=1,
        damaged_files=2,
        left_records=7,
        log_lines_dropped=3,
        store_limit_bytes=8 << 30,
        bpf=(program(),),
        drain=RunningThreads(
            (RunningThread("drain/0", 4711, (0, 1), Scheduling("fifo", 10, 0, (1,))),),
            ("something was refused",),
        ),
        cost=Cost(
            own_ns=60_000_000_000,
            imposed_ns={
                ("profile", "perf"): 3_270_000,
                ("exec", "perf"): 770_000,
                ("blackbox", "tracefs"): 2_000_000_000,
            },
            ratio=0.00125,
            budget=0.005,
            private_bytes=80 << 20,
            memory_limit_bytes=256 << 20,
        ),
        incidents=incidents(),
    )


def incidents() -> IncidentsStatus:
    """Return the triggers of a daemon, one of which has made the only incident."""
    held = dict.fromkeys(map(str, Suppression), 0)
    return IncidentsStatus(
        triggers=(
            TriggerStatus("manual", "request"),
            TriggerStatus(
                "io-stall",
                "pressure",
                made=2,
                suppressed={**held, "cooldown": 7},
                fired_ns=1_700_000_005_000_000_000,
                trouble="looked at once per flush interval",
            ),
        ),
        last=(
            IncidentLine(
                "20231114T221325Z-io-stall",
                "io-stall",
                1_700_000_005_000_000_000,
                "tasks waited for io more than 1 s of 2 s",
            ),
        ),
        kept=1,
        bytes=3 << 20,
        evicted=1,
        failed=4,
    )


def program() -> BpfStatus:
    """Return a BPF program of the session `opens`, with all that is told of any."""
    return BpfStatus(
        session="opens",
        program="opensnoop",
        functions=(FunctionRuns("enter", 7, runs=3, run_time_ns=1500, recursion_misses=0),),
        submit_failures={"ENOSPC": 0, "EBUSY": 0, "ENOENT": 0, "other": 0},
        tables={"unmatched": False},
    )


def core() -> CoreCounters:
    """Return counters of a core that wrote two chunks."""
    return CoreCounters(
        chunks=64,
        chunks_free=60,
        chunks_free_min=50,
        written_bytes=2 << 20,
        written_chunks=2,
        write_errors=0,
        write_ns=4_000_000,
        passes=7,
        wakeups=7,
        pass_ns=14_000_000,
        pass_ns_max=5_000_000,
        oldest_unwritten_ns=250_000_000,
    )
