# SPDX-License-Identifier: Apache-2.0
"""`query` and `events`: the time that a record costs, beside those who print the same records."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, NamedTuple

from collectord.codec.perf_data import Section
from collectord.codec.trace_dat import build_head
from collectord.codec.trace_dat_head import Place
from collectord.reader.any_events import open_tables
from collectord.reader.event_file import Window
from collectord.reader.event_tables import tables_of
from collectord.sink import perf_file, trace_file
from tests.bench.row import Row
from tests.support.arrow_streams import drain

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tests.bench.row import Settings

_EVENT: Final = "sched_switch"
# Two tasks that wake each other: two switches each time.
_LOOPS: Final = 500_000
_ASKED_EVENTS: Final = 10_000_000
_STATEMENT: Final = f"SELECT next_comm, count(*), max(mono_ns) FROM {_EVENT} GROUP BY 1"  # noqa: S608
_DECODE_BUDGET_NS: Final = 50
_QUERY_BUDGET_S: Final = 2
_MEMORY_BUDGET_MIB: Final = 512
# The share of the peer's time for the same file, start of the program included.
_TEXT_BUDGET: Final = 0.7
_COUNT_BUDGET: Final = 0.1


class _Way(NamedTuple):
    """A way to record.

    Attributes:
        name: of the way, and of the file.
        record: writes the file that the next word names.
        peer: prints the file that its last word names.
        repeat: writes a file with a number of copies of another one's records; None: nothing does.
    """

    name: str
    record: Sequence[str]
    peer: Sequence[str]
    repeat: Callable[[Path, Path, int], None] | None


def _ours(via: str) -> Sequence[str]:
    words = ("record", "-a", "-e", f"sched:{_EVENT}", "--via", via, "-m", "64MiB", "--json", "-o")
    return (sys.executable, "-m", "collectord", *words)


def _recorded(path: Path, way: _Way) -> None:
    """Record the load, and again if perf ended a compressed file within a record."""
    load = ("perf", "bench", "sched", "pipe", "-l", str(_LOOPS))
    command: tuple[str | Path, ...] = (*way.record, path, "--", *load)
    for _ in range(_RECORDINGS):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise OSError(done.stderr)
        count = (sys.executable, "-m", "collectord", "events", "--count", path)
        if not subprocess.run(count, capture_output=True, check=False).returncode:
            return
    raise OSError(f"{way.name} was damaged {_RECORDINGS} times")


def _repeat_records(source: Path, target: Path, times: int) -> None:
    """Write a perf.data whose header tells of all, as that of a running one does."""
    with source.open("rb") as file:
        head = perf_file.read_head(file.fileno())
        data = head.header.data
        body = os.pread(
            file.fileno(), data.offset + data.size - head.write_offset, head.write_offset
        )
    size = head.write_offset - data.offset + times * len(body)
    header = head.header._replace(data=Section(data.offset, size)).encode()
    with target.open("wb") as file:
        file.write(header + head.image[len(header) :])
        for _ in range(times):
            file.write(body)


def _repeat_pages(source: Path, target: Path, times: int) -> None:
    """Write a trace.dat with the sub-buffers of each CPU again and again."""
    with source.open("rb") as file:
        head = trace_file.read_head(file.fileno())
        pages = {
            cpu: os.pread(file.fileno(), extent.size_bytes, extent.offset)
            for cpu, extent in head.extents.items()
        }
    most = max(map(len, pages.values()))
    made = build_head(head.metadata, sorted(pages), times * most)
    with target.open("wb") as file:
        file.write(made.image)
        file.truncate(made.file_bytes)
        places = {}
        for cpu, data in pages.items():
            file.seek(made.extents[cpu].offset)
            places[cpu] = Place(made.extents[cpu].offset, times * len(data))
            for _ in range(times):
                file.write(data)
        patch = made.places_patch(places)
        file.seek(patch.offset)
        file.write(patch.data)


_RECORDINGS: Final = 3
_PERF_SCRIPT: Final = ("perf", "script", "--force", "-i")
_PERF_RECORD: Final = (
    *("perf", "record", "-q", "-a", "-e", f"sched:{_EVENT}", "-c", "1", "-m", "16M"),
    *("-k", "CLOCK_MONOTONIC", "-o"),
)
_WAYS: Final = (
    _Way("ftrace", _ours("ftrace"), ("trace-cmd", "report", "-i"), _repeat_pages),
    _Way("perf", _ours("perf"), _PERF_SCRIPT, _repeat_records),
    _Way("perf-record", _PERF_RECORD, _PERF_SCRIPT, None),
    _Way("perf-record-z", (*_PERF_RECORD[:2], "-z", *_PERF_RECORD[2:]), _PERF_SCRIPT, None),
)


def _decoded(path: Path, repeats: int) -> tuple[int, list[float], int]:
    """Return rows, ns for each in each run, and the number of columns."""
    runs = []
    with ExitStack() as stack:
        file = open_tables(path, stack)
        assert file is not None
        table = tables_of([file])[_EVENT]
        rows = drain(table.scan(table.columns, Window()))
        for _ in range(repeats):
            began = time.thread_time_ns()
            drain(table.scan(table.columns, Window()))
            runs.append((time.thread_time_ns() - began) / rows)
    return rows, runs, len(table.columns)


def _printed(command: Sequence[str], path: Path) -> float:
    """Return the time of a peer in s."""
    began = time.perf_counter()
    words: list[str | Path] = [*command, path]
    done = subprocess.run(
        words, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    if done.returncode:
        raise OSError(f"{command[-1]} of {path.name}: {done.stderr[-500:]}")
    return time.perf_counter() - began


def _asked(path: Path, expected: int) -> tuple[float, float]:
    """Return the time of a statement in s, start of the program included, and its MiB."""
    command = (sys.executable, "-m", "collectord", "query", "--json", _STATEMENT, str(path))
    began = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    with process.stdout as out:
        counted = sum(json.loads(line)["count_star()"] for line in out)
    _, status, usage = os.wait4(process.pid, 0)
    taken = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode or counted != expected:
        raise OSError(f"{counted} of {expected} events counted, status {process.returncode}")
    return taken, usage.ru_maxrss / 1024


def _shown(settings: Settings, way: _Way, path: Path, count: int) -> tuple[list[Row], float]:
    """Return the rows of `events` beside the peer in turns, and the peer's ns for an event."""
    ours = (sys.executable, "-m", "collectord", "events")
    words = {"text": (), "count": ("--count",)}
    times: dict[str, list[float]] = {name: [] for name in (*words, "peer")}
    for _ in range(settings.repeats):
        times["peer"].append(_printed(way.peer, path))
        for name, more in words.items():
            times[name].append(_printed((*ours, *more), path))
    peer_s = statistics.median(times["peer"])
    peer = f"{peer_s:.2f} s ({way.peer[0]} {way.peer[1]}, all fields as text)"
    rows = []
    for name, budget in (("text", _TEXT_BUDGET), ("count", _COUNT_BUDGET)):
        taken_s = statistics.median(times[name])
        share = taken_s / peer_s
        rows.append(
            Row(
                f"events of {way.name}: {name} of {count:,} events",
                f"{taken_s:.2f} s, {taken_s / count * 1e9:.0f} ns/event, {share:.2f} x",
                peer,
                share,
                budget,
                "x",
            )
        )
    return rows, peer_s / count * 1e9


def _rows(settings: Settings, way: _Way) -> list[Row]:
    path = settings.directory / way.name
    settings.directory.mkdir(parents=True, exist_ok=True)
    _recorded(path, way)
    count, runs, columns = _decoded(path, settings.repeats)
    shown, peer_ns = _shown(settings, way, path, count)
    asked = _asked_rows(settings, way, path, count, peer_ns) if way.repeat is not None else []
    path.unlink()
    return [
        Row(
            f"query of {way.name}: {count:,} events decoded into {columns} columns",
            f"{statistics.median(runs):.0f} ns/event ({min(runs):.0f}-{max(runs):.0f})",
            f"{peer_ns:.0f} ns/event ({way.peer[0]} {way.peer[1]}, all fields as text)",
            statistics.median(runs),
            _DECODE_BUDGET_NS,
            "ns/event",
        ),
        *asked,
        *shown,
    ]


def _asked_rows(
    settings: Settings, way: _Way, path: Path, count: int, peer_ns: float
) -> list[Row]:
    """Return the rows of a statement over many copies of the records of a file."""
    assert way.repeat is not None
    large = settings.directory / f"{way.name}-large"
    times = -(-_ASKED_EVENTS // count)
    way.repeat(path, large, times)
    asked = [_asked(large, times * count) for _ in range(settings.repeats)]
    size = large.stat().st_size
    large.unlink()
    seconds, memory = (statistics.median(figures) for figures in zip(*asked, strict=True))
    work = (
        f"query of {way.name}: count, max and group of {times * count / 1e6:.1f} M events, "
        f"{size / 1e6:.0f} MB"
    )
    return [
        Row(
            work,
            f"{seconds:.2f} s",
            f"{peer_ns * times * count / 1e9:.0f} s",
            seconds,
            _QUERY_BUDGET_S,
            "s",
        ),
        Row(f"{work}: memory", f"{memory:.0f} MiB", "-", memory, _MEMORY_BUDGET_MIB, "MiB"),
    ]


def query(settings: Settings) -> list[Row]:
    """Decode and ask records of two tasks that wake each other, by each way to record."""
    return [row for way in _WAYS for row in _rows(settings, way)]
