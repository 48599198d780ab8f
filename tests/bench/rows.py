# SPDX-License-Identifier: Apache-2.0
"""The rows of the table: the runs that are compared, and our budgets."""

from __future__ import annotations

import math
import statistics
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from tests.bench import (
    collectors,
    row,
    rows_bpf,
    rows_disk,
    rows_fleet,
    rows_ftrace,
    rows_idle,
    rows_imposed,
    rows_overload,
    rows_query,
    rows_scrape,
)
from tests.bench.row import Row

if TYPE_CHECKING:
    from tests.bench.collectors import Outcome
    from tests.bench.row import Settings

OURS: Final = collectors.collectord_record("collectord -m 8M", "-m", "8M")
DEFAULTS: Final = collectors.perf_record("perf record")
TUNED: Final = collectors.perf_record(
    "perf record -m 8M --mmap-flush=128K", "-m", "8M", "--mmap-flush=128K"
)


def _figures(outcomes: list[Outcome]) -> str:
    return row.figures([outcome.ns_per_event for outcome in outcomes], outcomes)


def _median(outcomes: list[Outcome]) -> float:
    return statistics.median(outcome.ns_per_event for outcome in outcomes)


def saturated_stream(settings: Settings) -> list[Row]:
    """Saturate one CPU and record to a file: CPU time against default perf and best tuned perf."""
    outcomes = row.interleaved(settings, (OURS, DEFAULTS, TUNED), count=settings.events)
    ours, defaults, tuned = outcomes[OURS.name], outcomes[DEFAULTS.name], outcomes[TUNED.name]
    problems = collectors.same_work([ours[0], defaults[0], tuned[0]])
    startup = ", ".join(
        f"{name} {statistics.median(run.cpu_startup for run in runs):.2f} s"
        for name, runs in outcomes.items()
    )
    size = ours[0].stored.sample_bytes / ours[0].stored.samples
    notes = (*problems, f"{size:.0f} B/event; start-up, not in the figures: {startup}")
    runs = tuple(asdict(run) for group in outcomes.values() for run in group)
    lost = float(row.lost(ours))
    work = "tracepoint stream, one CPU saturated, to a file"
    return [
        Row(
            f"{work}: CPU against perf's defaults",
            _figures(ours),
            _figures(defaults),
            _median(ours) / _median(defaults),
            math.nan if problems else 0.08,
            "x",
            notes,
            runs,
        ),
        Row(
            f"{work}: CPU against tuned perf",
            _figures(ours),
            _figures(tuned),
            _median(ours) / _median(tuned),
            math.nan if problems else 0.16,
            "x",
        ),
        Row(
            f"{work}: lost records",
            f"{lost:.0f}",
            f"{row.lost(tuned)} (tuned)",
            lost,
            max(0.0, row.lost(tuned)),
            "records",
        ),
        Row(
            "page cache filled, of the bytes written",
            f"{row.resident(ours):.2%}",
            f"{row.resident(tuned):.0%}",
            row.resident(ours),
            0.02,
            "x",
        ),
    ]


def rotation(settings: Settings) -> list[Row]:
    """Start a new segment each second at 100,000 events/s with 600 processes alive."""
    rate = 100_000
    count = int(rate * settings.seconds)
    ours = collectors.hosted("collectord, 1 s segments", "--segment-age=1s")
    peer = collectors.perf_record("perf record --switch-output=1s", "--switch-output=1s")
    with settings.generator.start("idle", processes=600) as idle:
        outcomes = {
            collector.name: collectors.run(
                collector, settings.generator, settings.directory, count=count, rate=rate
            )
            for collector in (ours, peer)
        }
        idle.run()
    mine, other = outcomes[ours.name], outcomes[peer.name]
    return [
        Row(
            "rotation each second, 100,000 ev/s, 600 processes: lost records",
            f"{mine.stored.lost} in {mine.files} files",
            f"{other.stored.lost} in {other.files} files",
            mine.stored.lost,
            0,
            "records",
            (f"collectord's own ledger: {_ledger(mine)}",),
            (asdict(mine), asdict(other)),
        )
    ]


def _ledger(outcome: Outcome) -> str:
    if outcome.answer is None:
        return "none"
    session = outcome.answer["sessions"][0]
    keys = ("ledger_basis", "produced", "stored", "unaccounted")
    return ", ".join(f"{key} {session[key]}" for key in keys)


def spinning_python(settings: Settings) -> list[Row]:
    """Saturate a CPU, with 1 M ev/s if possible, beside a Python thread that spins."""
    collector = collectors.hosted("collectord beside a spinning thread", "--spin", "--ring=8MiB")
    outcome = collectors.run(
        collector,
        settings.generator,
        settings.directory,
        count=int(1_000_000 * settings.seconds),
    )
    assert outcome.answer is not None
    staging = outcome.answer["staging"]
    fill = 1 - staging["chunks_free_min"] / staging["chunks"]
    work = f"{outcome.generated / outcome.generated_s / 1e6:.2f} M ev/s beside a spinning thread"
    runs = (asdict(outcome),)
    lost = outcome.stored.lost
    return [
        Row(f"{work}: staging filled", f"{fill:.0%}", "-", fill, 0.5, "x", (), runs),
        Row(f"{work}: lost records", str(lost), "-", lost, 0, "records", (_ledger(outcome),)),
    ]


ROWS: Final = {
    "stream": saturated_stream,
    "ftrace": rows_ftrace.saturated_ftrace,
    "bpf": rows_bpf.saturated_bpf,
    "rotation": rotation,
    "spin": spinning_python,
    "idle": rows_idle.idle_daemon,
    "imposed": rows_imposed.imposed,
    "overload": rows_overload.overloaded,
    "disk": rows_disk.disk,
    "scrape": rows_scrape.scrape,
    "query": rows_query.query,
    "fleet": rows_fleet.fleet,
}
