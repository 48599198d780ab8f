# SPDX-License-Identifier: Apache-2.0
"""`query` on perf.data of the running kernel, against perf itself and the ledger."""

from __future__ import annotations

import json
import re
import struct
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from collectord.cli import query as query_verb
from collectord.codec.perf_data import parse_header
from collectord.codec.perf_section import Feature
from tests.support.all_systems import EVENTS, load
from tests.support.perf_values import dump, living, samples
from tests.support.recording import result_of, segments_of

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    from tests.support.perf_tools import Perf
    from tests.support.perf_values import Dumped, Sample

    Cli = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = pytest.mark.usefixtures("tracefs")

COMMON: Final = ("time", "mono_ns", "cpu", "pid", "tid", "comm")
LOAD: Final = ("sh", "-c", "for i in 1 2 3 4 5; do /bin/true; sleep 0.05; done")
_MAPPING: Final = re.compile(
    r" (-?\d+)/(\d+): \[(\S+)\((\S+)\) @ (\S+)(?: ([0-9a-f]+):([0-9a-f]+) (\d+) \d+)?\]: \S+ (.*)"
)
_TASKS: Final = {
    "COMM": re.compile(r"( exec)?: (.*):(-?\d+)/(\d+)"),
    "FORK": re.compile(r"\((\d+):(\d+)\):\((\d+):(\d+)\)"),
    "EXIT": re.compile(r"\((\d+):(\d+)\):\((\d+):(\d+)\)"),
}


@pytest.fixture
def query(capsys: pytest.CaptureFixture[str]) -> Callable[..., list[dict[str, Any]]]:
    """Return the rows of a statement, of which nothing is missing that is in the file."""

    def rows(*words: str | Path) -> list[dict[str, Any]]:
        status = query_verb.run(["--json", *map(str, words)])
        told = capsys.readouterr()
        if status:
            (path,) = words[1:]
            assert _is_cut_by_perf(Path(path)), told.err
            assert told.err.startswith(f"collectord: {path}: 1 damaged place")
            assert told.err.count("\n") == 1
        else:
            assert told.err == ""
        return [json.loads(line) for line in told.out.splitlines()]

    def _is_cut_by_perf(path: Path) -> bool:
        """Whether `perf record -z` kept the end of the last record in its compressor.

        perf 6.1 does where more than 64 KiB are left at its end, and says nothing.
        """
        query_verb.run(["--json", "SELECT reason FROM damage", str(path)])
        reasons = [json.loads(line)["reason"] for line in capsys.readouterr().out.splitlines()]
        is_packed = parse_header(path.read_bytes()).features >> Feature.COMPRESSED & 1
        return bool(is_packed) and reasons == ["past_head"]

    return rows


@pytest.fixture(scope="module")
def recordings() -> dict[str, Path]:
    """Return the files that were recorded already, by recorder."""
    return {}


@pytest.fixture(params=["collectord", "perf", "perf -z"])
def recorded(
    request: pytest.FixtureRequest,
    run_cli: Cli,
    perf: Perf,
    recordings: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A load of seven systems and samples with call chains, once by each recorder.

    To open and to close all these events takes some seconds.
    """
    name = request.param
    if name not in recordings:
        place = tmp_path_factory.mktemp("recorded")
        by_us = name == "collectord"
        recordings[name] = _by_us(run_cli, place) if by_us else _by_perf(perf, name, place)
    return recordings[name]


def _by_perf(perf: Perf, name: str, place: Path) -> Path:
    words = [word for event in EVENTS for word in ("-e", event)]
    done = perf.run(
        *("record", *name.split()[1:], "-q", "-a", "-m", "16M", "-k", "CLOCK_MONOTONIC"),
        *("-F", "997", "-g", "-e", "cpu-clock", *words, "-o", str(place / "perf.data")),
        *("--", *map(str, load(place))),
    )
    assert done.returncode == 0, done.stderr
    return place / "perf.data"


def _by_us(run_cli: Cli, place: Path) -> Path:
    done = run_cli(
        *("record", "-a", "-m", "16MiB", "-g", "-F", "997", "-e", "cpu-clock"),
        *("-e", ",".join(EVENTS), "--output-dir", place / "out", "--json"),
        *("--", *load(place)),
    )
    assert done.returncode == 0, done.stderr
    session = result_of(done.stdout)
    (segment,) = segments_of(session)
    assert sum(session["lost"].values()) == 0
    return segment


def _same(value: object, told: object) -> bool:
    """Whether perf read a value: it gives negative numbers in their width, and arrays as bytes.

    A text is such an array if it has more behind its NUL, which the kernel left there.
    """
    if isinstance(value, str) and value != told:
        return value.encode() == bytes.fromhex(str(told)).partition(b"\0")[0]
    if isinstance(value, list):
        return struct.pack(f"<{len(value)}Q", *value).hex() == told
    if isinstance(value, int) and value < 0:
        return told in {value, *(value + (1 << bits) for bits in (8, 16, 32, 64))}
    return value == told


def _named(comm: str | None, told: Sample) -> bool:
    """Whether a name is perf's; the idle threads and unknown ones have other names there."""
    known = {"swapper": "<idle>", f":{told.tid}": None, ":-1": None}
    return comm == known.get(told.comm, told.comm)


@pytest.mark.beside
def test_every_value_of_every_sample_is_perfs(
    recorded: Path, query: Callable[..., list[dict[str, Any]]], perf: Perf, tmp_path: Path
) -> None:
    """Stamp, CPU, task, name and all fields; addresses, periods; and as many as perf has."""
    told: dict[tuple[str, int, int, int | None], list[Sample]] = {}
    for one in samples(perf, recorded, tmp_path):
        place = one.event.rpartition("__")[2], one.time_ns, one.cpu, living(one.tid)
        told.setdefault(place, []).append(one)
    total = sum(map(len, told.values()))
    for name in sorted({place[0] for place in told} - {"cpu-clock"}):
        for row in query(f'FROM "{name}" ORDER BY mono_ns', recorded):
            seen = told[name, row["mono_ns"], row["cpu"], row["tid"]].pop(0)
            assert row["pid"] == living(seen.pid)
            assert _named(row["comm"], seen), (row, seen)
            own = {key.removeprefix("event_"): row[key] for key in row if key not in COMMON}
            assert own.keys() == seen.fields.keys()
            wrong = {key: own[key] for key in own if not _same(own[key], seen.fields[key])}
            assert not wrong, (wrong, seen)
    assert {name for (name, *_), left in told.items() if left} == {"cpu-clock"}
    assert query("SELECT count(*) n FROM samples", recorded) == [{"n": total}]
    statement = "SELECT ip, period, pid FROM samples WHERE event LIKE 'cpu-clock%'"
    clock = [one for left in told.values() for one in left]
    found = [tuple(row.values()) for row in query(statement, recorded)]
    assert Counter(found) == Counter((one.ip, one.period, living(one.pid)) for one in clock)
    assert total > 1000
    assert found


@pytest.mark.beside
def test_call_chains_tasks_and_mappings_are_those_of_the_records(
    recorded: Path, query: Callable[..., list[dict[str, Any]]], perf: Perf
) -> None:
    """Each of them is in its table once, with what perf dumps of it."""
    records = dump(perf, recorded)
    told = Counter((one.time_ns, one.chain) for one in records if one.type == "SAMPLE")
    rows = query("SELECT mono_ns, callchain FROM samples", recorded)
    assert Counter((row["mono_ns"], tuple(row["callchain"])) for row in rows) == told
    assert max(len(chain) for _, chain in told) > 5
    statement = "SELECT mono_ns, what, comm, pid, tid, parent_pid, parent_tid FROM tasks"
    found = Counter(tuple(row.values()) for row in query(statement, recorded))
    seen = Counter(task for one in records for task in _task(one))
    # Forks and exits have no name in perf's dump.
    assert Counter(_without_name(task) for task in found.elements()) == seen
    assert {task[1] for task in seen} == {"comm", "exec", "fork", "exit"}
    statement = "SELECT pid, address, length, file_offset, major, minor, inode, file FROM mappings"
    mapped = Counter(tuple(row.values()) for row in query(statement, recorded))
    assert mapped == Counter(mapping for one in records for mapping in _mapping(one))


def _without_name(task: tuple[Any, ...]) -> tuple[Any, ...]:
    return task if task[1] in {"comm", "exec"} else (*task[:2], None, *task[3:])


def _task(one: Dumped) -> list[tuple[Any, ...]]:
    if one.type not in _TASKS:
        return []
    found = _TASKS[one.type].fullmatch(one.text)
    assert found, one
    time_ns = one.time_ns or None
    if one.type == "COMM":
        what, pid, tid = "exec" if found[1] else "comm", int(found[3]), int(found[4])
        return [(time_ns, what, found[2], pid, tid, None, None)]
    return [(time_ns, one.type.lower(), None, *map(int, found.groups()))]


def _mapping(one: Dumped) -> list[tuple[Any, ...]]:
    if one.type not in {"MMAP", "MMAP2"}:
        return []
    found = _MAPPING.fullmatch(one.text)
    assert found, one
    place = [int(found[at], 16) for at in (3, 4, 5)]
    inode = int(found[8]) if found[8] else None
    device = [int(found[at], 16) if found[8] else None for at in (6, 7)]
    pid = None if found[1] == "-1" else int(found[1])
    return [(pid, *place, *device, inode, found[9])]


def test_one_table_has_the_records_of_both_ways(
    run_cli: Cli, query: Callable[..., list[dict[str, Any]]], tmp_path: Path
) -> None:
    """An event by ftrace and by perf is one table, and each segment stores what it says."""
    stored = {}
    for via in ("perf", "ftrace"):
        done = run_cli(
            *("record", "-a", "-m", "4MiB", "-e", "sched:sched_switch", "--via", via),
            *("--output-dir", tmp_path / via, "--json", "--", *LOAD),
        )
        assert done.returncode == 0, done.stderr
        stored[via] = result_of(done.stdout)["stored"]
    rows = query(
        "SELECT pid IS NOT NULL AS by_perf, count(*) n, count(next_comm) named, "
        "count(time) timed, count(comm) comms FROM sched_switch GROUP BY 1",
        *(tmp_path / via for via in stored),
    )
    by_way = {("perf" if row.pop("by_perf") else "ftrace"): row for row in rows}
    assert {via: row["n"] for via, row in by_way.items()} == stored
    for row in by_way.values():
        assert row["named"] == row["timed"] == row["n"] > 10
        # The kernel keeps the names of 128 tasks for ftrace: on a busy host some are gone.
        assert row["comms"] > row["n"] * 0.5
