# SPDX-License-Identifier: Apache-2.0
"""Cgroups of samples on the running kernel: a load in each, and the names that perf has."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from collectord.cli import events as events_verb
from collectord.cli import flame as flame_verb
from collectord.cli import query as query_verb
from tests.support import daemons
from tests.support.perf_values import living
from tests.support.programs import compile_busy
from tests.support.recording import recorded_by

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.perf_tools import Perf

    Cli = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = pytest.mark.usefixtures("tracefs", "own_cache")

# Each process moves itself; the third cgroup is made while the recording runs.
_LOAD: Final = """
mkdir "$0/late"
for name in first second late; do
    (echo 0 >"$0/$name/cgroup.procs"; exec "$1" long) &
done
wait
"""
_SPIN: Final = 'echo 0 >"$0/cgroup.procs"; echo; while :; do :; done'
_SESSION: Final = """
[[session]]
name = "load"

[[session.source]]
kind = "perf"
events = ["cpu-clock"]
frequency = 997
cgroups = true
"""
_SAMPLE: Final = re.compile(r"\s*(-?\d+) +(\d+)\.(\d{9}): +(\S+)\s*$")
_REPORTED: Final = re.compile(r"^ *(\d+) +(/\S*) +(\S.*?) *$", re.MULTILINE)


@pytest.fixture
def parent(require: Callable[[str], None]) -> Iterator[Path]:
    """Provide a cgroup with two others in it, and remove whatever is in it in the end."""
    require("cgroup v2")
    mounts = Path("/proc/self/mountinfo").read_text()
    found = re.search(r"^\S+ \S+ \S+ \S+ (\S+) .* - cgroup2 ", mounts, re.MULTILINE)
    assert found
    directory = Path(found[1]) / f"collectord-test-{os.getpid()}"
    try:
        for name in ("first", "second"):
            (directory / name).mkdir(parents=True)
        yield directory
    finally:
        for path in (*(entry for entry in directory.glob("*") if entry.is_dir()), directory):
            path.rmdir()


def _rows(
    capsys: pytest.CaptureFixture[str], statement: str, *places: Path
) -> list[dict[str, Any]]:
    assert query_verb.run(["--json", statement, *map(str, places)]) == 0
    told = capsys.readouterr()
    assert told.err == ""
    return [json.loads(line) for line in told.out.splitlines()]


def _events(capsys: pytest.CaptureFixture[str], place: Path) -> list[dict[str, Any]]:
    assert events_verb.run(["--json", str(place)]) == 0
    told = capsys.readouterr()
    assert told.err == ""
    return [json.loads(line) for line in told.out.splitlines()]


@pytest.fixture(params=["collectord", "perf"])
def recorded(
    request: pytest.FixtureRequest, run_cli: Cli, perf: Perf, tmp_path: Path, parent: Path
) -> Path:
    """A recording of all CPUs, by either recorder, in which each of three cgroups has a load."""
    words = ("record", "-a", "-F", "997", "-g", "-m", "512", "-e", "cpu-clock", "--all-cgroups")
    load = ("sh", "-c", _LOAD, str(parent), str(compile_busy(tmp_path, "-g")))
    by = perf if request.param == "perf" else run_cli
    return recorded_by(by, words, load, tmp_path)


def test_each_load_is_in_its_cgroup_as_perf_has_it(
    recorded: Path,
    perfs: tuple[Perf, ...],
    parent: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In samples one by one, in the sums of a report, and as the outermost frame of stacks."""
    own = {f"/{parent.name}/{name}" for name in ("first", "second", "late")}
    loads = _rows(
        capsys,
        "SELECT cgroup, pid, count(*) AS n FROM samples WHERE comm = 'busy' GROUP BY ALL",
        recorded,
    )
    assert len(loads) == 3
    assert {row["cgroup"] for row in loads} == own
    assert min(row["n"] for row in loads) > 100

    rows = _rows(capsys, "SELECT tid, mono_ns, cgroup, comm FROM samples", recorded)
    script, report = perfs[-1], perfs[0]  # perf 6.1 prints no cgroup of a sample
    printed = script.run(
        "script", "--force", "--ns", "-G", "-F", "tid,time,cgroup", "-i", recorded
    )
    assert printed.returncode == 0, printed.stderr
    theirs = Counter(
        (living(int(found[1])), int(found[2]) * 10**9 + int(found[3]), found[4])
        for line in printed.stdout.splitlines()
        if (found := _SAMPLE.match(line))
    )
    assert Counter((living(row["tid"]), row["mono_ns"], row["cgroup"]) for row in rows) == theirs

    printed_rows = _events(capsys, recorded)
    assert (
        Counter((living(row["tid"]), row["time_ns"], row["cgroup"]) for row in printed_rows)
        == theirs
    )
    statement = "SELECT tid, mono_ns, cgroup FROM frames WHERE NOT inlined AND position < 1"
    framed = _rows(capsys, statement, recorded)
    assert {(living(row["tid"]), row["mono_ns"], row["cgroup"]) for row in framed} <= {*theirs}
    summed_rows = _rows(
        capsys, 'SELECT cgroup, sum("count")::INT AS n FROM stacks GROUP BY 1', recorded
    )
    by_cgroup = Counter(row["cgroup"] for row in rows)
    assert {row["cgroup"]: row["n"] for row in summed_rows} == by_cgroup

    words = ("--stdio", "--no-children", "-g", "none", "-F", "sample,cgroup,comm")
    summed = report.run("report", "--force", *words, "-i", recorded)
    assert summed.returncode == 0, summed.stderr
    sums = {(path, comm): int(n) for n, path, comm in _REPORTED.findall(summed.stdout)}
    named = Counter((row["cgroup"], row["comm"]) for row in rows if row["comm"] == "busy")
    assert {key: n for key, n in sums.items() if key[1] == "busy"} == named

    assert flame_verb.run([str(recorded), "--by", "cgroup"]) == 0
    stacks: Counter[tuple[str, ...]] = Counter()
    for line in capsys.readouterr().out.splitlines():
        frames, _, count = line.rpartition(" ")
        stacks[tuple(frames.split(";"))] += int(count)
    assert stacks.total() == len(rows)
    for path in own:
        ours = {stack: n for stack, n in stacks.items() if stack[0] == path}
        nested = sum(n for stack, n in ours.items() if stack[2:4] == ("main", "outer"))
        assert nested > 0.8 * sum(ours.values()) > 80


@contextmanager
def _spinning(directory: Path) -> Iterator[int]:
    """Have a process that is in a cgroup use a CPU, until the end."""
    words = ["sh", "-c", _SPIN, str(directory)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "\n"
            yield process.pid
        finally:
            process.kill()


def test_each_segment_names_the_cgroups_of_its_samples(
    run_cli: Cli,
    start_cli: Callable[..., subprocess.Popen[str]],
    tmp_path: Path,
    parent: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One that was there before, and one that was made in an earlier segment."""
    config = daemons.write_sessions(tmp_path, _SESSION)

    def stored() -> int:
        number: int = daemon.session("load")["stored"]
        return number

    with daemons.running(start_cli, config) as daemon:
        (parent / "late").mkdir()
        with _spinning(parent / "first") as first, _spinning(parent / "late") as late:
            for _ in range(2):
                enough = stored() + 2000
                daemons.wait_for(lambda: stored() > enough, "samples")  # noqa: B023
                done = run_cli("rotate", "--socket", tmp_path / "control.sock")
                assert done.returncode == 0, done.stderr
            enough = stored() + 2000
            daemons.wait_for(lambda: stored() > enough, "samples")
        daemon.stop()
    segments = sorted((tmp_path / "state/load").glob("*.perf.data"))
    assert len(segments) == 3
    for segment in segments:
        statement = (
            "SELECT cgroup, pid FROM samples "  # noqa: S608  # of this test
            f"WHERE pid IN ({first}, {late}) AND cgroup LIKE '/{parent.name}/%' GROUP BY ALL"
        )
        found = {(row["cgroup"], row["pid"]) for row in _rows(capsys, statement, segment)}
        assert found == {(f"/{parent.name}/first", first), (f"/{parent.name}/late", late)}
        (unnamed,) = _rows(
            capsys, "SELECT count(*) AS n FROM samples WHERE cgroup IS NULL", segment
        )
        assert unnamed["n"] == 0
        everything = _rows(capsys, "SELECT tid, mono_ns, cgroup FROM samples", segment)
        assert Counter(
            (living(row["tid"]), row["time_ns"], row["cgroup"]) for row in _events(capsys, segment)
        ) == Counter((living(row["tid"]), row["mono_ns"], row["cgroup"]) for row in everything)
