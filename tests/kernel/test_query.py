# SPDX-License-Identifier: Apache-2.0
"""`query` on records of the running kernel, against trace-cmd and the ledger."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.support.recording import result_of, segments_of

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    from tests.support.trace_cmds import TraceCmd

    Cli = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = pytest.mark.usefixtures("tracefs")

EVENTS: Final = "sched:*,irq:*,timer:*,raw_syscalls:*"
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
        return value == shown
    if isinstance(value, list):  # of system calls: words, which trace-cmd shows byte by byte
        shown = shown.removeprefix("ARRAY[").removesuffix("]").replace(",", "")
        return bytes.fromhex(shown) == struct.pack(f"<{len(value)}Q", *value)
    assert isinstance(value, int)
    readings = {int(shown, 10)} if re.fullmatch(r"-?\d+", shown) else set()
    if _HEX.fullmatch(shown):
        readings.add(int(shown, 16))
    readings |= symbols.get(shown, set())
    return value % _WORDS in {reading % _WORDS for reading in readings}


def test_every_field_has_the_value_that_trace_cmd_shows(
    tmp_path: Path, run_cli: Cli, trace_cmds: tuple[TraceCmd, ...]
) -> None:
    """Each record of a second of four systems: stamp, CPU, thread, name and all fields."""
    command = ("sh", "-c", "for i in 1 2 3 4 5 6 7 8 9; do sleep 0.1; done")
    done = run_cli(
        "record", "-e", EVENTS, "--via", "ftrace", "-a", "-m", "4MiB",
        "--output-dir", tmp_path / "out", "--json", "--", *command,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    session = result_of(done.stdout)
    (segment,) = segments_of(session)
    symbols = _symbols()
    shown: dict[tuple[str, int, int], list[re.Match[str]]] = {}
    for line in trace_cmds[0].report(segment, "-R", "-t"):
        found = _LINE.fullmatch(line)
        assert found, line
        place = found[6], int(found[4] + found[5]), int(found[3])
        shown.setdefault(place, []).append(found)
    total = 0
    for name in sorted({event for event, _, _ in shown}):
        rows = _query(run_cli, f'FROM "{name}" ORDER BY cpu, mono_ns', segment)
        total += len(rows)
        for row in rows:
            seen = shown[name, row["mono_ns"], row["cpu"]].pop(0)
            assert (seen[1], int(seen[2])) == (row["comm"] or "<...>", row["tid"])
            told = dict(_FIELD.findall(seen[7]))
            own = {key.removeprefix("event_"): row[key] for key in row if key not in COMMON}
            assert set(told) == set(own), seen[0]
            wrong = {key for key in own if not _is(own[key], told[key].strip(), symbols)}
            assert not wrong, (wrong, own, seen[0])
    assert not any(shown.values())
    assert total == session["stored"] > 100


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
