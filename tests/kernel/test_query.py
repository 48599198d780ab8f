# SPDX-License-Identifier: Apache-2.0
"""`query` on records of the running kernel, against trace-cmd and the ledger."""

from __future__ import annotations

import json
import re
import struct
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from collectord.kernel.linux import LinuxKernel
from tests.support import daemons
from tests.support.all_systems import EVENTS, load
from tests.support.daemons import EVENT, FILTER, NUMBER
from tests.support.recording import result_of, segments_of

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    from tests.support.generator import Generator
    from tests.support.recording import Start
    from tests.support.trace_cmds import TraceCmd

    Cli = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = pytest.mark.usefixtures("tracefs")

COUNT: Final = 40_000
SOURCE: Final = f"""
[[session.source]]
kind = "perf"
events = ["{EVENT}"]
filter = "{FILTER}"
"""
SESSIONS: Final = f"""
[[session]]
name = "calls"
segment_bytes = "512KiB"
segment_age = "0"
{SOURCE}
ring = "16MiB"

[[session]]
name = "box"
mode = "flight-recorder"
{SOURCE}
"""
TOTALS: Final = (
    "SELECT session, sum(produced)::BIGINT produced, sum(stored)::BIGINT stored, "
    "sum(lost)::BIGINT lost, sum(in_flight)::BIGINT in_flight, "
    "sum(unaccounted)::BIGINT unaccounted FROM ledger GROUP BY session ORDER BY session"
)
CPUS: Final = LinuxKernel().online_cpus()
COMMON: Final = {"time", "mono_ns", "cpu", "pid", "tid", "comm"}
_LINE: Final = re.compile(r"\s*(.*)-(\d+)\s+\[(\d+)\]\S*\s+(\d+)\.(\d{9}):\s+(\w+):\s*(.*)")
_FIELD: Final = re.compile(r"(\w+)=(.*?)(?=\s\w+=|\s*$)")
_HEX: Final = re.compile(r"(?:0x)?[0-9a-f]+")
_WORDS: Final = 1 << 64


def _symbols() -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for line in Path("/proc/kallsyms").read_text().splitlines():
        address, _, name = line.split()[:3]
        found.setdefault(name, set()).add(int(address, 16))
    return found


def _query(run_cli: Cli, *words: str | Path) -> list[dict[str, Any]]:
    done = run_cli("query", "--json", *words)
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


def _is(value: object, shown: str, symbols: dict[str, set[int]]) -> bool:
    """Whether trace-cmd's text is that of a value; it shows some numbers by name or in hex."""
    if isinstance(value, str):
        return value.strip() == shown
    if isinstance(value, list):  # of system calls: words, which trace-cmd shows byte by byte
        shown = shown.removeprefix("ARRAY[").removesuffix("]").replace(",", "")
        return bytes.fromhex(shown) == struct.pack(f"<{len(value)}Q", *value)
    assert isinstance(value, int)
    readings = {int(shown, 10)} if re.fullmatch(r"-?\d+", shown) else set()
    if _HEX.fullmatch(shown):
        readings.add(int(shown, 16))
    name, _, offset = shown.partition("+0x")
    readings |= {at + int(offset or "0", 16) for at in symbols.get(name, set())}
    if shown == "(nil)":
        readings.add(0)
    return value % _WORDS in {reading % _WORDS for reading in readings}


def test_every_field_has_the_value_that_trace_cmd_shows(
    tmp_path: Path, run_cli: Cli, trace_cmds: tuple[TraceCmd, ...]
) -> None:
    """Each record of seven systems: stamp, CPU, thread, name and all fields."""
    done = run_cli(
        "record", "-e", ",".join(EVENTS), "--via", "ftrace", "-a", "-m", "16MiB",
        "--output-dir", tmp_path / "out", "--json", "--", *load(tmp_path),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    session = result_of(done.stdout)
    symbols = _symbols()
    compared = [
        _compare(run_cli, trace_cmds[0], segment, symbols) for segment in segments_of(session)
    ]
    assert sum(compared) == session["stored"] > 100


def _compare(
    run_cli: Cli, trace_cmd: TraceCmd, segment: Path, symbols: dict[str, set[int]]
) -> int:
    """See that a segment has the records that trace-cmd shows; return how many."""
    shown: dict[tuple[str, int, int], list[tuple[str, int, str]]] = {}
    for line in trace_cmd.report(segment, "-R", "-t"):
        found = _LINE.fullmatch(line)
        assert found, line
        place = found[6], int(found[4] + found[5]), int(found[3])
        shown.setdefault(place, []).append((found[1], int(found[2]), found[7]))
    total = 0
    for name in sorted({event for event, _, _ in shown}):
        rows = _query(run_cli, f'FROM "{name}" ORDER BY cpu, mono_ns', segment)
        total += len(rows)
        for row in rows:
            comm, tid, fields = shown[name, row["mono_ns"], row["cpu"]].pop(0)
            assert (comm, tid) == (row["comm"] or "<...>", row["tid"])
            told = dict(_FIELD.findall(fields))
            own = {key.removeprefix("event_"): row[key] for key in row if key not in COMMON}
            assert set(told) == set(own), fields
            wrong = {key for key in own if not _is(own[key], told[key].strip(), symbols)}
            assert not wrong, (wrong, own, fields)
    assert not any(shown.values())
    return total


def test_a_file_of_trace_cmd_has_the_same_records(
    tmp_path: Path, run_cli: Cli, trace_cmds: tuple[TraceCmd, ...]
) -> None:
    """One of version 7 that trace-cmd makes of ours counts the same."""
    done = run_cli(
        "record", "-e", "sched:*", "--via", "ftrace", "-a", "-m", "4MiB",
        "-o", tmp_path / "ours", "--json", "--", "sleep", "0.2",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    statement = "SELECT mono_ns, cpu, prev_comm, next_pid FROM sched_switch ORDER BY ALL"
    theirs = tmp_path / "theirs"
    converted = trace_cmds[0].run(
        "convert", "-i", tmp_path / "ours", "-o", theirs, "--compression", "any"
    )
    assert converted.returncode == 0, converted.stderr
    expected = _query(run_cli, statement, tmp_path / "ours")
    assert expected
    assert _query(run_cli, statement, theirs) == expected


def test_manifests_are_tables(
    tmp_path: Path, start_cli: Start, run_cli: Cli, generator: Generator
) -> None:
    """Over rotations, a snapshot, a kill and a running segment they say what the lists say."""
    config = daemons.write_sessions(tmp_path, SESSIONS)
    state = tmp_path / "state"

    def make(count: int) -> None:
        with generator.start("count", nr=NUMBER, count=count, rate=40_000, cpu=0) as running:
            running.run()

    def listed(session: str) -> list[dict[str, Any]]:
        rows = json.loads(run_cli("segments", "list", "--json", state).stdout)["segments"]
        return [row for row in rows if row["session"] == session]

    with daemons.running(start_cli, config) as daemon:
        make(COUNT)
        answer = daemon.post("/v1/snapshot", {"sessions": ["box"]})
        (snapshot,) = answer["snapshots"]
        daemon.await_stored(COUNT)
        stored = {row["session"]: row["stored"] for row in _query(run_cli, TOTALS, state)}
        assert stored["calls"] == sum(row["samples"] or 0 for row in listed("calls"))
        (running,) = _query(
            run_cli, "FROM coverage WHERE session = 'calls' AND what = 'recorded'", state
        )
        assert (running["until"], running["cause"]) == (None, None)
        assert daemon.stop().status == 0

    sealed = sorted((state / "calls").glob("*.perf.data"))
    assert len(sealed) >= 4
    _assert_balanced(run_cli, state, sealed, listed("calls"))
    _assert_snapshot(run_cli, state, snapshot)
    _assert_clocks(run_cli, state, sealed)

    with daemons.running(start_cli, config) as daemon:
        make(COUNT)
        daemon.await_stored(COUNT // 2)
        daemon.kill()
    lasting = "FROM coverage WHERE session = 'calls' AND until IS NULL"
    assert _query(run_cli, lasting, state) == []  # though nothing is repaired yet
    with daemons.running(start_cli, config) as daemon:
        assert daemon.stop().status == 0
    counted = "SELECT sum(stored)::BIGINT n FROM ledger WHERE session = 'calls'"
    (total,) = _query(run_cli, counted, state)
    assert total["n"] == sum(row["samples"] for row in listed("calls"))
    assert "recovered" in {row["state"] for row in listed("calls")}
    _assert_covered(run_cli, state)


def _assert_balanced(
    run_cli: Cli, state: Path, sealed: list[Path], listed: list[dict[str, Any]]
) -> None:
    """Sums over a run are the last ledger, and each segment has what the list says."""
    told = daemons.manifest(sealed[-1])["ledger"]
    rows = {row["session"]: row for row in _query(run_cli, TOTALS, state)}
    assert rows["calls"] == {
        "session": "calls",
        "produced": told["produced"],
        "stored": told["stored"],
        "lost": sum(told["lost"].values()),
        "in_flight": 0,
        "unaccounted": told["unaccounted"],
    }
    assert told["produced"] == told["stored"] == COUNT
    verified = json.loads(run_cli("segments", "verify", "--json", state).stdout)["segments"]
    assert sum(row["stored"] for row in rows.values()) == sum(row["samples"] for row in verified)
    each = _query(run_cli, "SELECT * FROM ledger WHERE session = 'calls' ORDER BY file", state)
    assert [row["stored"] for row in each] == [row["samples"] for row in listed]
    for row in each:
        assert row["basis"] == "exact"
        assert row["stored_by_cpu"]["0"] == row["stored"]


def _assert_snapshot(run_cli: Cli, state: Path, snapshot: dict[str, Any]) -> None:
    """The row says what the daemon answered."""
    (taken,) = _query(run_cli, "FROM snapshots WHERE reason = 'request'", state)
    note = daemons.manifest(Path(taken["file"]))["snapshot"]
    assert [taken["file"]] == snapshot["segments"]
    assert (taken["session"], taken["reason"]) == ("box", "request")
    assert (taken["samples"], taken["mono_ns"]) == (snapshot["samples"], note["taken_ns"])
    assert taken["window_ns"] == snapshot["last_ns"] - snapshot["first_ns"]
    assert taken["first"] <= taken["last"] <= taken["time"]


def _assert_clocks(run_cli: Cli, state: Path, sealed: list[Path]) -> None:
    """All readings of the manifests are rows."""
    clocks = _query(run_cli, "FROM clocks WHERE session = 'calls' ORDER BY mono_ns", state)
    for segment in sealed:
        own = [row for row in clocks if row["file"] == str(segment)]
        read = daemons.manifest(segment)["clocks"]
        wanted = [read["open"], *read["flushes"], read["close"]]
        assert [row["mono_ns"] for row in own] == [one["monotonic_ns"] for one in wanted]
        assert {row["moment"] for row in own} >= {"open", "close"}
        assert all(row["bracket_ns"] > 0 for row in own)


def _assert_covered(run_cli: Cli, state: Path) -> None:
    """Three runs, between which there was a stop and a kill, on all CPUs."""
    times = _query(
        run_cli, "FROM coverage WHERE session = 'calls' ORDER BY since, what DESC", state
    )
    assert [(row["what"], row["cause"]) for row in times] == [
        ("recorded", None),
        ("gap", "stop"),
        ("recorded", None),
        ("gap", "kill"),
        ("recorded", None),
    ]
    for row, after in pairwise(times):
        assert row["since"] <= row["until"] <= after["until"]
    recorded = [row for row in times if row["what"] == "recorded"]
    assert {tuple(row["cpus"]) for row in recorded} == {(*CPUS,)}
    gap = daemons.manifest(max((state / "calls").glob("*.perf.data")))["gap"]
    assert times[3]["length_ns"] == gap["until_ns"] - gap["from_ns"]
