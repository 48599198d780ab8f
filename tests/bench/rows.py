# SPDX-License-Identifier: Apache-2.0
"""The rows of the table: what is compared with what, and what ours must be."""

from __future__ import annotations

import math
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.bench import collectors, row, rows_bpf, rows_ftrace
from tests.bench.measure import cpu_seconds_of, own_memory_bytes, voluntary_switches
from tests.bench.row import Row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.bench.collectors import Outcome
    from tests.bench.row import Settings

MIB: Final = 1 << 20
OURS: Final = collectors.collectord_record("collectord -m 8M", "-m", "8M")
DEFAULTS: Final = collectors.perf_record("perf record")
TUNED: Final = collectors.perf_record(
    "perf record -m 8M --mmap-flush=128K", "-m", "8M", "--mmap-flush=128K"
)
_START_TIMEOUT_S: Final = 60


def _figures(outcomes: list[Outcome]) -> str:
    return row.figures([outcome.ns_per_event for outcome in outcomes], outcomes)


def _median(outcomes: list[Outcome]) -> float:
    return statistics.median(outcome.ns_per_event for outcome in outcomes)


def saturated_stream(settings: Settings) -> list[Row]:
    """One CPU saturated, to a file: CPU time against perf's defaults and the best tuned perf."""
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
            math.nan if problems else 0.12,
            "x",
            notes,
            runs,
        ),
        Row(
            f"{work}: CPU against tuned perf",
            _figures(ours),
            _figures(tuned),
            _median(ours) / _median(tuned),
            math.nan if problems else 0.4,
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
    """A new segment each second at 100,000 events/s with 600 processes alive."""
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
    """A saturated CPU, 1 M ev/s where it makes them, beside a Python thread that spins."""
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


@contextmanager
def _daemon(settings: Settings) -> Iterator[int]:
    """The daemon with the default configuration and a state directory of its own, when ready."""
    with (
        tempfile.TemporaryDirectory(dir=settings.directory.parent) as name,
        # where a socket's name fits (sun_path has 108 bytes), however long that folder's is
        tempfile.TemporaryDirectory(prefix="collectord-bench-", dir="/run") as sockets,
    ):
        directory = Path(name)
        text = (collectors.ROOT / "config/collectord.toml").read_text()
        text = re.sub(r"(?m)^#? ?state_dir *=.*", f'state_dir = "{directory}/state"', text)
        text = re.sub(r"(?m)^#? ?socket *=.*", f'socket = "{sockets}/control.sock"', text)
        text = re.sub(r"(?m)^#? ?listen *=.*", 'listen = "127.0.0.1:0"', text)
        config = directory / "collectord.toml"
        config.write_text(text)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            notify.bind(f"{sockets}/notify")
            notify.settimeout(_START_TIMEOUT_S)
            process = subprocess.Popen(
                [sys.executable, "-m", "collectord", "run", "--config", config],
                env={**os.environ, "NOTIFY_SOCKET": f"{sockets}/notify"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                cwd=collectors.ROOT,
            )
            try:
                while b"READY=1" not in notify.recv(4096):
                    pass
                yield process.pid
            finally:
                process.terminate()
                process.wait()


def idle_daemon(settings: Settings) -> list[Row]:
    """What the default configuration costs when nothing happens."""
    with _daemon(settings) as pid:
        time.sleep(settings.seconds / 2)  # what opening touched has settled
        cpu, switches, begun = cpu_seconds_of(pid), voluntary_switches(pid), time.monotonic()
        time.sleep(settings.seconds)
        elapsed = time.monotonic() - begun
        share = (cpu_seconds_of(pid) - cpu) / elapsed
        wakeups = (voluntary_switches(pid) - switches) / elapsed
        memory = own_memory_bytes(pid)
    return [
        Row("idle daemon, default config: CPU", f"{share:.3%}", "-", share, 0.002, "x"),
        Row("idle daemon: wake-ups", f"{wakeups:.1f}/s", "-", wakeups, 10, "1/s"),
        Row(
            "idle daemon: memory without rings and staging",
            f"{memory / MIB:.0f} MiB",
            "-",
            memory / MIB,
            72,
            "MiB",
        ),
    ]


ROWS: Final = {
    "stream": saturated_stream,
    "ftrace": rows_ftrace.saturated_ftrace,
    "bpf": rows_bpf.saturated_bpf,
    "rotation": rotation,
    "spin": spinning_python,
    "idle": idle_daemon,
}
