# SPDX-License-Identifier: Apache-2.0
"""Exports as perf.data and trace.dat: stock tools print the lines of the time, and no others."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from datetime import UTC, datetime
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

from collectord.cli import export, query
from tests.support import daemons

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path

    from tests.support.perf_tools import Perf
    from tests.support.trace_cmds import TraceCmd

pytestmark = pytest.mark.usefixtures("tracefs")

LOAD: Final = ("sh", "-c", "for i in 1 2 3 4 5 6; do /bin/true; sleep 0.03; done; : $(seq 9999)")
# A gap between records that is wider than clocks of two segments may differ.
GAP_NS: Final = 5_000
NS: Final = 1_000_000_000
PERF: Final = ("switches", "calls")
TRACE: Final = ("pages", "more")
FIELDS: Final = ("-F", "comm,pid,tid,cpu,time,event,ip,dso")
# perf looks for the files of processes of other roots, which may end while it is asked again.
WITHOUT_SYMBOLS: Final = ("-F", "-sym,-symoff")
_SWITCHES: Final = '["sched:sched_switch", "sched:sched_process_exec"]'
_CALLS: Final = '["raw_syscalls:sys_enter"]'
# The rings have room for what other tests do on this machine meanwhile.
SESSIONS: Final = "".join(
    f"""
[[session]]
name = "{name}"
[[session.source]]
kind = "{kind}"
events = {events}
ring = "16MiB"
{more}
"""
    for name, kind, events, more in (
        ("switches", "perf", _SWITCHES, 'call_graph = "fp"'),
        ("calls", "perf", _CALLS, ""),
        ("pages", "tracefs", _SWITCHES, ""),
        ("more", "tracefs", _CALLS, ""),
    )
)
# The time in lines of `perf script --ns` and of `trace-cmd report -t`.
_STAMP: Final = re.compile(r" (\d+)\.(\d{9}): ")
# A task's name and thread id in lines of `trace-cmd report`.
_TASK: Final = re.compile(r"^(?:pages: |more: )? *(.+)-(\d+) +\[\d+\] ")


class Times(NamedTuple):
    """A span of time: in UTC, as words of a command line, and in the stamps of records."""

    words: tuple[str, ...]
    since_ns: int
    until_ns: int

    def has(self, record: str) -> bool:
        """Whether a record that a tool printed is of the time."""
        found = _STAMP.search(record)
        assert found, record
        return self.since_ns <= int(found[1]) * NS + int(found[2]) <= self.until_ns


@pytest.fixture
def state(
    start_cli: Callable[..., subprocess.Popen[str]],
    run_cli: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
) -> Path:
    """Two segments of each of four sessions: two in each format."""
    config = daemons.write_sessions(tmp_path, SESSIONS)
    with daemons.running(start_cli, config) as daemon:
        subprocess.run(LOAD, check=True, stdout=subprocess.DEVNULL)
        done = run_cli("rotate", "--socket", tmp_path / "control.sock")
        assert done.returncode == 0, done.stderr
        subprocess.run(LOAD, check=True, stdout=subprocess.DEVNULL)
        assert daemon.stop().status == 0
    return tmp_path / "state"


def _segments(state: Path, sessions: Sequence[str]) -> list[Path]:
    found = [
        path
        for name in sessions
        for path in sorted((state / name).iterdir())
        if path.suffix in {".data", ".dat"}
    ]
    assert len(found) == 2 * len(sessions)
    return found


def _span(capsys: pytest.CaptureFixture[str], tables: str, *targets: Path) -> Times:
    """Return the middle third of the records, between gaps."""
    sql = f"SELECT epoch_ns(time) utc, mono_ns mono FROM ({tables}) ORDER BY mono"  # noqa: S608
    capsys.readouterr()
    assert query.run(["--json", sql, *map(str, targets)]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(rows) > 100
    edges = []
    for first in (len(rows) // 3, 2 * len(rows) // 3):
        one, other = next(
            (one, other)
            for one, other in zip(rows[first:], rows[first + 1 :], strict=False)
            if other["mono"] - one["mono"] > GAP_NS
        )
        edges.append([(one[key] + other[key]) // 2 for key in ("utc", "mono")])
    (since_utc, since_ns), (until_utc, until_ns) = edges
    words = ("--since", _utc(since_utc), "--until", _utc(until_utc))
    return Times(words, since_ns, until_ns)


def _utc(time_ns: int) -> str:
    second, rest = divmod(time_ns, NS)
    return f"{datetime.fromtimestamp(second, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09}Z"


def _cut(form: str, output: Path, *words: str | Path) -> Path:
    assert export.run(["--format", form, "-o", str(output), *map(str, words)]) == 0
    return output


def _scripted(perf: Perf, file: Path, *words: str) -> list[str]:
    """Return the records that perf prints, each with its call chain, whatever the columns."""
    done = perf.run("script", "--ns", *words, "-i", file)
    assert (done.returncode, done.stderr) == (0, ""), f"perf {perf.version}"
    starts = re.split(r"\n(?=[^\t\n])", done.stdout)
    return [" ".join(one.split()) for one in starts if one.strip()]


def test_perf_prints_the_records_of_the_time_of_several_sessions(
    state: Path,
    tmp_path: Path,
    run_cli: Callable[..., subprocess.CompletedProcess[str]],
    perfs: tuple[Perf, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Names, call chains, mapped files and fields are as in the segments, compressed or not."""
    segments = _segments(state, PERF)
    times = _span(capsys, "FROM samples", *segments)
    cut = _cut("perf.data", tmp_path / "cut.data", *times.words, state)
    alone = _cut("perf.data", tmp_path / "one.data", *times.words, "--session", "switches", state)
    done = run_cli("segments", "compress", segments[0])
    assert done.returncode == 0, done.stderr
    packed = _cut("perf.data", tmp_path / "packed.data", *times.words, state)
    assert packed.read_bytes() == cut.read_bytes()
    for perf in perfs:
        # The fields that perf prints unasked depend on the other events in the file.
        whole = [one for path in segments for one in _scripted(perf, path, *FIELDS)]
        found = _scripted(perf, cut, *FIELDS)
        assert len(found) > 100
        more, fewer = _differences(found, [one for one in whole if times.has(one)])
        assert (more, fewer) == ([], []), "\n".join(("more:", *more, "fewer:", *fewer))
        stamps = [match[1] + match[2] for one in found if (match := _STAMP.search(one))]
        assert stamps == sorted(stamps)
        switches = [
            one for path in segments[:2] for one in _scripted(perf, path, *WITHOUT_SYMBOLS)
        ]
        wanted = [one for one in switches if times.has(one)]
        assert _scripted(perf, alone, *WITHOUT_SYMBOLS) == wanted
        done = perf.run("report", "--stdio", "-i", cut)
        assert (done.returncode, done.stderr) == (0, "")


def test_trace_cmd_prints_the_records_of_the_time(
    state: Path,
    tmp_path: Path,
    run_cli: Callable[..., subprocess.CompletedProcess[str]],
    trace_cmds: tuple[TraceCmd, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Those of two segments are in their order; those of two sessions have the names of these."""
    segments = _segments(state, TRACE)
    tables = "SELECT time, mono_ns FROM sched_switch UNION ALL SELECT time, mono_ns FROM sys_enter"
    times = _span(capsys, tables, *segments)
    cut = _cut("trace.dat", tmp_path / "cut.dat", *times.words, state)
    alone = _cut("trace.dat", tmp_path / "one.dat", *times.words, "--session", "pages", state)
    done = run_cli("segments", "compress", segments[0])
    assert done.returncode == 0, done.stderr
    packed = _cut("trace.dat", tmp_path / "packed.dat", *times.words, state)
    assert packed.read_bytes() == cut.read_bytes()
    for trace_cmd in trace_cmds:
        whole = {path: trace_cmd.report(path, "-t") for path in segments}
        # A file has one name of a task: one that was renamed meanwhile has two in two segments.
        told = {
            (match[2], match[1]) for one in chain(*whole.values()) if (match := _TASK.search(one))
        }
        renamed = {tid for tid, count in Counter(tid for tid, _ in told).items() if count > 1}
        assert len(renamed) < len(told) / 2
        pages = [one for path in segments[:2] for one in whole[path] if times.has(one)]
        assert len(pages) > 10
        assert _but(trace_cmd.report(alone, "-t"), renamed) == _but(pages, renamed)
        more = [one for path in segments[2:] for one in whole[path] if times.has(one)]
        theirs = tmp_path / f"theirs-{trace_cmd.version}.dat"
        words = ("-i", segments[1], "-o", theirs, "--compression", "any")
        assert trace_cmd.run("convert", *words).returncode == 0
        copied = _cut("trace.dat", tmp_path / f"copied-{trace_cmd.version}.dat", theirs)
        assert trace_cmd.report(copied, "-t") == whole[segments[1]]
        named = [*(f"pages: {one}" for one in pages), *(f"more: {one}" for one in more)]
        found = trace_cmd.report(cut, "-t")
        assert _differences(_but(found, renamed), _but(named, renamed)) == ([], [])


def _but(lines: Sequence[str], tids: Collection[str]) -> list[str]:
    """Return lines whatever their columns, without those of some tasks."""
    tasks = ((one, _TASK.search(one)) for one in lines)
    return [" ".join(one.split()) for one, task in tasks if task is None or task[2] not in tids]


def _differences(found: Sequence[str], wanted: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return lines that are found too often, and those that are missing, in any order."""
    ours, theirs = Counter(found), Counter(wanted)
    return sorted((ours - theirs).elements()), sorted((theirs - ours).elements())


def test_files_of_perf_are_cut_too(
    tmp_path: Path, perf: Perf, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a clock that it tells, of a time; else as a whole."""
    path = tmp_path / "perf.data"
    events = ("-e", "cpu-clock", "-e", "sched:sched_switch", "-g", "-F", "997", "-a")
    for clock in (("-k", "CLOCK_MONOTONIC"), ()):
        done = perf.run("record", "-q", *clock, *events, "-o", path, "--", *LOAD)
        assert done.returncode == 0, done.stderr
        words: tuple[str, ...] = ()
        wanted = _scripted(perf, path, *WITHOUT_SYMBOLS)
        if clock:
            times = _span(capsys, "FROM samples", path)
            words, wanted = times.words, [one for one in wanted if times.has(one)]
        output = tmp_path / f"cut{len(clock)}.data"
        cut = _cut("perf.data", output, *words, path)
        assert _scripted(perf, cut, *WITHOUT_SYMBOLS) == wanted
