# SPDX-License-Identifier: Apache-2.0
"""`fleet`: what a row of Parquet takes; one question to 10, 50 and 200 hosts, and their ledger.

The hosts are made of a real segment of block requests: each has its name, its clock, and other
times that the requests took, so that no two rows are the same.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from obstore.store import LocalStore

from collectord.cli import answer_file
from collectord.fleet.engines import ENGINES
from collectord.fleet.engines.place import Place
from collectord.fleet.questions import Asking
from collectord.fleet.redaction import Redaction
from collectord.fleet.required_events import RequiredEvents
from collectord.fleet.segment_rows import write_rows
from collectord.fleet.selection import Selection, Wanted
from collectord.fleet.store import Store
from collectord.fleet.store_audit import fleet_ledger
from collectord.fleet.table_file import Place as OfSegment
from collectord.programs.parameter import values_of
from collectord.reader.embedded_db import literal
from collectord.reader.event_file import Window
from tests.bench import rows_ship
from tests.bench.row import Row
from tests.support.fleets import BEGIN_NS, DAY, SECOND, Host, Shipped

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.bench.row import Settings

_DAYS: Final = 7
_HOSTS: Final = tuple(map(int, os.environ.get("FLEET_HOSTS", "10,50,200").split(",")))
# 200 hosts of a week have 10^8 rows by 71,400 a day.
_ROWS_A_DAY: Final = int(os.environ.get("FLEET_ROWS", "71400"))
_ONE_WORKER: Final = "local-cluster[1,1,1024]"
_ENGINES: Final = (
    ("duckdb", ""),
    ("clickhouse", ""),
    ("spark", _ONE_WORKER),
    ("spark", "local-cluster[2,1,1024]"),
)
_KERNELS: Final = ("6.1.0", "6.6.0", "6.12.0", "6.18.0")
_ISSUE: Final = "block:block_rq_issue"
_COMPLETE: Final = "block:block_rq_complete"
_LATEST: Final = 20
# The budget of a row of Parquet, with everything that is done for it.
_ROW_BUDGET_NS: Final = 150
_LOOPS: Final = 400_000
_QUESTION: Final = "SELECT next_comm, count(*), max(mono_ns) FROM {table} GROUP BY 1"


class _Counted(Store):
    """A folder that is read as any other store is, by ranges, and counts what it hands out.

    Attributes:
        read_bytes: of objects, and of commits.
        requests: that handed them out.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__("s3://counted", LocalStore(folder))
        self.read_bytes = self.requests = 0
        self._lock = threading.Lock()

    def get(self, key: str, limit_bytes: int) -> bytes:
        """Return an object."""
        return self._told(super().get(key, limit_bytes))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Return a part of an object."""
        return self._told(super().get_range(key, start, length))

    def _told(self, data: bytes) -> bytes:
        with self._lock:
            self.requests += 1
            self.read_bytes += len(data)
        return data


def _recorded(directory: Path) -> Path:
    """Record block requests; return the Parquet of their events."""
    events = ("-e", _ISSUE, "-e", _COMPLETE)
    command = (sys.executable, "-m", "collectord", "record", "-a", *events, "-m", "8M")
    output = directory / "blocks.data"
    loads = f"dd if=/dev/zero of={directory / 'load'} bs=4k count=4000 oflag=direct"
    subprocess.run(
        [*command, "-o", output, "--", "sh", "-c", loads], check=True, capture_output=True
    )
    (directory / "load").unlink()
    exported = directory / "seed"
    words = ("export", "--format", "parquet", output, "-o", exported)
    subprocess.run([sys.executable, "-m", "collectord", *words], check=True, capture_output=True)
    return exported


def _written(settings: Settings) -> list[Row]:
    """Return what a row of all events of `sched` takes of a processor until it is in Parquet.

    And what one question takes of the segment, and of its Parquet.
    """
    source = settings.directory / "sched.dat"
    load = ("perf", "bench", "sched", "pipe", "-l", str(_LOOPS))
    how = ("record", "-a", "-e", "sched:*", "--via", "ftrace", "-m", "64MiB", "-o", source)
    command = (sys.executable, "-m", "collectord", *how, "--", *load)
    subprocess.run(command, check=True, capture_output=True)
    runs = []
    for _ in range(3):
        rows = size_bytes = 0
        began = time.process_time_ns()
        with TemporaryDirectory(dir=settings.directory) as folder, ExitStack() as stack:
            place = OfSegment(source, Path(folder), "sched", "")
            for file in write_rows(place, Redaction(), stack):
                rows += file.rows
                size_bytes += file.path.stat().st_size
        runs.append((time.process_time_ns() - began) / rows)
    ratio = source.stat().st_size / size_bytes
    parquet = settings.directory / "sched.parquet"
    with TemporaryDirectory(dir=settings.directory) as folder, ExitStack() as stack:
        place = OfSegment(source, Path(folder), "sched", "")
        for file in write_rows(place, Redaction(), stack):
            if file.table == "sched_switch":
                shutil.copy(file.path, parquet)
    code = (
        f"import duckdb; duckdb.sql({_QUESTION.format(table=literal(str(parquet)))!r}).fetchall()"
    )
    of_parquet = _cpu_s(sys.executable, "-c", code)
    words = ("query", "--json", _QUESTION.format(table="sched_switch"), source)
    of_segment = _cpu_s(sys.executable, "-m", "collectord", *words)
    source.unlink()
    parquet.unlink()
    written = Row(
        f"fleet: Parquet of sched:*, {rows:,} rows",
        f"{min(runs):.0f} ns of processor time a row, trace.dat is {ratio:.1f} times as large",
        "-",
        min(runs),
        _ROW_BUDGET_NS,
        "ns",
    )
    asked = Row(
        f"fleet: switches by next task, of {rows:,} rows of sched:*",
        f"{of_parquet:.2f} s of processor time by DuckDB of the Parquet",
        f"{of_segment:.2f} s by query of the trace.dat",
        of_parquet / of_segment,
        None,
        "x",
    )
    return [written, asked]


def _cpu_s(*words: str | Path) -> float:
    """Return the processor time of a program."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(words, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _fill(shipped: Shipped, seed: Path) -> None:
    """Have the database hold the pairs of issue and completion of the seed, often enough."""
    files = {
        name: seed / f"table={name}" / "records.parquet"
        for name in ("block_rq_issue", "block_rq_complete")
    }
    issue, complete = (f"read_parquet('{path}')" for path in files.values())
    shipped.connection.execute(f"""
CREATE TABLE pair AS
WITH ended AS (SELECT dev, sector, mono_ns, row_number() OVER w AS n FROM {complete}
    WINDOW w AS (PARTITION BY dev, sector ORDER BY mono_ns)),
begun AS (SELECT *, row_number() OVER w AS n FROM {issue}
    WINDOW w AS (PARTITION BY dev, sector ORDER BY mono_ns))
SELECT begun.* EXCLUDE (time, mono_ns, n), (ended.mono_ns - begun.mono_ns)::BIGINT AS took
FROM begun JOIN ended USING (dev, sector, n) WHERE ended.mono_ns > begun.mono_ns
""")  # noqa: S608
    shipped.connection.execute(f"""
CREATE TABLE many AS
SELECT pair.* REPLACE (((i * 8)::UBIGINT) AS sector), i FROM (
    SELECT *, row_number() OVER () - 1 AS k FROM pair
) pair JOIN range({_ROWS_A_DAY // 2}) r(i) ON pair.k = r.i % (SELECT count(*) FROM pair)
ORDER BY i
""")  # noqa: S608


def _events(number: int, day: int) -> dict[str, str]:
    """Return the SELECTs of the events of a host's day."""
    step_ns = DAY // (_ROWS_A_DAY // 2) - 1000
    took = f"took + ((i * 7919 + {number} * 104729 + {day} * 1299709) % 999983)"
    place = f"i * {step_ns}"
    return {
        _ISSUE: f"SELECT i AS n, * EXCLUDE (i, took), {place} AS after FROM many",  # noqa: S608
        _COMPLETE: (
            f"SELECT i AS n, * EXCLUDE (i, took), {place} + {took} AS after FROM many"  # noqa: S608
        ),
    }


def _hosts(store: Store, seed: Path) -> Iterator[int]:
    """Put a week of hosts, and yield their number each time there are as many as are asked."""
    with Shipped(store) as shipped:
        _fill(shipped, seed)
        for number in range(max(_HOSTS)):
            host = Host(
                f"host-{number:03}", _KERNELS[number % 4], clock_off_ns=(number % 7) * 1_000_000
            )
            for day in range(_DAYS):
                shipped.segment(host, _events(number, day), BEGIN_NS + day * DAY, DAY - SECOND)
            if number + 1 in _HOSTS:
                yield sum(shipped.produced.values())


def _read_bytes(pids: set[int]) -> int:
    total = 0
    for pid in pids:
        try:
            told = Path(f"/proc/{pid}/io").read_text()
        except OSError:
            continue
        total += int(told.split("rchar: ")[1].split()[0])
    return total


def _children() -> set[int]:
    found = {os.getpid()}
    grown = True
    while grown:
        more = set()
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                words = path.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(words[1]) in found:
                more.add(int(path.parent.name))
        grown = not more <= found
        found |= more
    return found


def _asked(store: Store, engine: str, address: str) -> tuple[list[object], float, float, int]:
    """Return the rows of the question, s until it could begin and until its end, bytes read."""
    began = time.monotonic()
    one = answer_file.load("slow-io")
    selection = Selection(store, Wanted(Window(BEGIN_NS, BEGIN_NS + _DAYS * DAY)))
    asking = Asking(selection, Place(store, address), ENGINES[engine])
    values = {**values_of(one.name, one.head.parameter, {}), "limit": _LATEST}
    needs = RequiredEvents(one.head.needs, one.head.optional, one.head.columns)
    question = asking.of_answer(one.text, needs, values, ("host", "kernel"))
    shape = asking.shape(question)
    ready = time.monotonic()
    with ExitStack() as stack:
        before = _read_bytes(_children())
        rows = ENGINES[engine].ask(question, asking.place, shape, stack)
        found = [row for batch in rows.batches() for row in batch]
        took = time.monotonic() - ready
        read = _read_bytes(_children()) - before
    return [*found], ready - began, took, read


def _by_ranges(folder: Path, work: str) -> tuple[Row, list[object]]:
    """Return how much DuckDB reads of a store that is no folder, and its rows."""
    counted = _Counted(folder)
    found, _, took_s, _ = _asked(counted, "duckdb", "")
    told = f"{counted.read_bytes / 1e6:.1f} MB in {counted.requests:,} requests"
    row = Row(work, f"duckdb by obstore {took_s:.1f} s, read {told}", "-", took_s, None, "s")
    print(row.work, row.ours, file=sys.stderr, flush=True)
    return row, found


def fleet(settings: Settings) -> list[Row]:
    """Ship beside a daemon; ask many hosts for their slowest block requests, by each engine."""
    settings.directory.mkdir(parents=True, exist_ok=True)
    rows = [*rows_ship.shipping(settings), *_written(settings)]
    for row in rows[-2:]:
        print(row.work, row.ours, row.peer, file=sys.stderr, flush=True)
    seed = _recorded(settings.directory)
    store = Store.open(str(settings.directory / "store"), make=True)
    began = time.monotonic()
    for count, produced in zip(sorted(_HOSTS), _hosts(store, seed), strict=True):
        print(f"{count} hosts after {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        size = sum(info.bytes for info in store.objects("events"))
        work = f"fleet: slow-io of {count} hosts, {produced:,} rows, {size / 1e6:.0f} MB"
        answers: dict[str, list[object]] = {}
        for engine, address in _ENGINES:
            if address == _ONE_WORKER and count != sorted(_HOSTS)[len(_HOSTS) // 2]:
                continue  # how it grows with workers is asked of one number of hosts
            found, ready_s, took_s, read = _asked(store, engine, address)
            answers[f"{engine} {address}"] = found
            row = Row(
                work,
                f"{engine} {address} {took_s:.1f} s, read {read / 1e6:.0f} MB",
                "-",
                took_s,
                None,
                "s",
                (f"{count} hosts: found in {ready_s:.1f} s what to read",),
            )
            print(row.work, row.ours, row.notes, file=sys.stderr, flush=True)
            rows.append(row)
        row, answers["by ranges"] = _by_ranges(settings.directory / "store", work)
        rows.append(row)
        same = len({str(sorted(map(str, found))) for found in answers.values()}) == 1
        asked = time.monotonic()
        ended_ns = BEGIN_NS + _DAYS * DAY
        everything = Selection(store, Wanted(Window()))
        ledger = fleet_ledger(everything, None, DAY, now_ns=ended_ns, verify=count <= 50)
        took_s = time.monotonic() - asked
        told = sum(one.figures.produced or 0 for one in ledger.sessions)
        rows.append(
            Row(
                f"fleet: ledger of {count} hosts, {len(ledger.sessions)} sessions",
                f"{took_s:.1f} s, sums {'are' if told == produced else 'ARE NOT'} those of the "
                f"manifests, rows of all engines {'are the same' if same else 'DIFFER'}",
                "-",
                float(not same) + float(told != produced) + len(ledger.findings),
                0,
                "wrong",
            )
        )
        print(rows[-1].ours, [*ledger.findings][:2], file=sys.stderr, flush=True)
    return rows
