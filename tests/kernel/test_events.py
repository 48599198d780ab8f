# SPDX-License-Identifier: Apache-2.0
"""`events` on recordings of the running kernel: the same as trace-cmd shows of them."""

from __future__ import annotations

import json
import re
from collections import Counter
from contextlib import nullcontext
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.support import daemons
from tests.support.daemons import EVENT, FILTER, NUMBER
from tests.support.recording import (
    USUAL_PRIORITY,
    daemon_config,
    result_of,
    segments_of,
    stopped,
)

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tests.support.generator import Generator
    from tests.support.trace_cmds import TraceCmd

    Start = Callable[..., subprocess.Popen[str]]
    Cli = Callable[..., subprocess.CompletedProcess[str]]
    TraceCmds = tuple[TraceCmd, ...]

pytestmark = pytest.mark.usefixtures("tracefs")

CALLS: Final = 2_000
# Far more than the smallest rings hold, at a pace that nobody drains.
OVERLOAD: Final = 100_000
SWITCH: Final = "sched:sched_switch"
EXEC: Final = "sched:sched_process_exec"
# `    COMM-PID   [CPU] SECONDS.NANOSECONDS: NAME: FIELDS`
_LINE: Final = re.compile(r"\s*(.*)-(\d+)\s+\[(\d+)\]\S*\s+(\d+)\.(\d{9}):\s+(\w+):\s*(.*)")


def events(run_cli: Cli, *words: str | Path) -> str:
    """Return the output of `events WORDS`, for segments that are whole."""
    done = run_cli("events", *words)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def objects(run_cli: Cli, *words: str | Path) -> list[dict[str, Any]]:
    """Return the objects of `events --json WORDS`."""
    return [json.loads(line) for line in events(run_cli, "--json", *words).splitlines()]


def reported(trace_cmd: TraceCmd, segments: Sequence[Path]) -> Iterator[re.Match[str]]:
    """Yield the lines of `trace-cmd report` with raw fields and whole times."""
    for segment in segments:
        for line in trace_cmd.report(segment, "-R", "-t"):
            found = _LINE.fullmatch(line)
            assert found, line
            yield found


def place(found: re.Match[str]) -> tuple[int, int, int, str]:
    """Time, CPU, pid and name of an event, as trace-cmd shows it."""
    return int(found[4] + found[5]), int(found[3]), int(found[2]), found[6]


@pytest.mark.vm
def test_same_as_trace_cmd(
    tmp_path: Path, run_cli: Cli, generator: Generator, trace_cmds: TraceCmds
) -> None:
    """Numbers, times, tasks and fields of switches, calls and execs are those of trace-cmd."""
    command = generator.command("count", count=CALLS, rate=20_000, nr=NUMBER)
    done = run_cli(
        "record", "-e", EVENT, "--filter", FILTER, "-e", f"{SWITCH},{EXEC}", "--via", "ftrace",
        "-a", "-m", "4MiB", "--output-dir", tmp_path / "out", "--json", "--", *command,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    session = result_of(done.stdout)
    segments = segments_of(session)
    counts = json.loads(events(run_cli, "--count", "--json", *segments))
    by_name = {row["event"]: row["count"] for row in counts["events"]}
    assert by_name[EVENT] == CALLS
    assert sum(by_name.values()) == session["stored"]
    assert counts["lost"] == {}

    found = objects(run_cli, *segments)
    assert all(one["time_ns"] <= other["time_ns"] for one, other in pairwise(found))
    marked = objects(run_cli, "-e", EVENT, "--filter", f"{FILTER} && common_pid > 0", *segments)
    assert marked == [one for one in found if one["event"] == EVENT]
    assert objects(run_cli, "--filter", "id == 0", *segments) == []
    places = Counter((o["time_ns"], o["cpu"], o["pid"], o["event"].split(":")[1]) for o in found)
    comms = Counter((o["comm"], o["pid"]) for o in found)
    switches = Counter(_switch(one["fields"]) for one in found if one["event"] == SWITCH)
    paths = [one["fields"]["filename"] for one in found if one["event"] == EXEC]
    assert str(generator.program) in paths
    for trace_cmd in trace_cmds:
        lines = list(reported(trace_cmd, segments))
        names = Counter(line[6] for line in lines)
        assert names == {name.split(":")[1]: count for name, count in by_name.items()}
        assert Counter(map(place, lines)) == places
        assert Counter((line[1], int(line[2])) for line in lines) == comms
        shown = [_raw_switch(line[7]) for line in lines if line[6] == "sched_switch"]
        assert Counter(shown) == switches
        execs = [line[7] for line in lines if line[6] == "sched_process_exec"]
        assert [re.findall(r"filename=(\S+)", text) for text in execs] == [[p] for p in paths]


def _switch(fields: dict[str, Any]) -> tuple[str, ...]:
    return tuple(
        str(fields[name])
        for name in ("prev_comm", "prev_pid", "prev_state", "next_comm", "next_pid")
    )


def _raw_switch(text: str) -> tuple[str, ...]:
    found = re.fullmatch(
        r"prev_comm=(.*) prev_pid=(\d+) prev_prio=\d+ prev_state=(\w+) "
        r"next_comm=(.*) next_pid=(\d+) next_prio=\d+\s*",
        text,
    )
    assert found, text
    comm, pid, state, next_comm, next_pid = found.groups()
    return comm, pid, str(int(state, 0)), next_comm, next_pid


def test_losses(
    tmp_path: Path, start_cli: Start, run_cli: Cli, generator: Generator, trace_cmds: TraceCmds
) -> None:
    """Events that a small ring lost are shown where trace-cmd shows them, and as many."""
    config = _config(tmp_path, ring="64KiB")
    with daemons.running(start_cli, config) as daemon:
        for reader in (stopped(daemon.process), nullcontext()):
            with generator.start("count", count=OVERLOAD // 2, nr=NUMBER) as running, reader:
                running.run()
        assert daemon.stop().status == 0
    segments = sorted((tmp_path / "state").rglob("*.trace.dat"))
    found = objects(run_cli, *segments)
    losses = [(one["cpu"], one["lost"]) for one in found if "lost" in one]
    assert losses
    stored = sum(daemons.manifest(path)["samples"] for path in segments)
    assert len(found) - len(losses) == stored < OVERLOAD
    for trace_cmd in trace_cmds:
        told = [loss for path in segments for loss in trace_cmd.losses(path)]
        assert Counter(told) == Counter(losses)


def test_segment_that_is_being_written(
    tmp_path: Path, start_cli: Start, run_cli: Cli, generator: Generator
) -> None:
    """The stored events of a running daemon are shown, from the file without its seal."""
    with daemons.running(start_cli, _config(tmp_path, ring="1MiB")) as daemon:
        with generator.start("count", count=CALLS, rate=20_000, nr=NUMBER) as running:
            assert running.run()["events"] == CALLS
        daemon.await_stored(CALLS)
        found: list[dict[str, Any]] = []

        def are_shown() -> bool:
            """Read the segment in use, and the next one; a flush shows what it has stored last."""
            running = (tmp_path / "state").rglob("*.trace.dat.partial")
            found[:] = objects(run_cli, *sorted(running))
            return len(found) >= CALLS

        daemons.wait_for(are_shown, f"{CALLS} events in the files")
        assert daemon.stop().status == 0
    assert [one["fields"]["id"] for one in found] == [NUMBER] * CALLS


def _config(directory: Path, *, ring: str) -> Path:
    """Return the configuration of one ftrace session of this run's marked system calls."""
    source = f'ring = "{ring}"\ntransport = "read"'
    path = daemon_config(
        directory, core=f'flush_interval = "100ms"\n{USUAL_PRIORITY}', source=source
    )
    path.write_text(path.read_text().replace('kind = "perf"', 'kind = "tracefs"'))
    return path
