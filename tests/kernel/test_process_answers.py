# SPDX-License-Identifier: Apache-2.0
"""`answer processes` on processes that the test starts: their parent, lifetime and end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest

from collectord.cli import answer
from tests.support.recording import recording

if TYPE_CHECKING:
    from collections.abc import Callable

    Start = Callable[..., subprocess.Popen[str]]
    Rows = dict[int, dict[str, Any]]

pytestmark = pytest.mark.usefixtures("tracefs")

EVENTS: Final = "sched:sched_process_exec,sched:sched_process_fork,sched:sched_process_exit"
SLEPT_S: Final = 0.3
# A thread that is not the first executes a program: the process and its number stay.
OF_A_THREAD: Final = """
import os, threading
threading.Thread(target=os.execv, args=("/bin/sh", ["sh", "-c", "exit 9"])).start()
threading.Event().wait()
"""
# Two processes of one program: the second executes none, and ends by a signal.
FORKED: Final = """
import os, signal
pid = os.fork()
if not pid:
    os.kill(os.getpid(), signal.SIGTERM)
os.waitpid(pid, 0)
print(pid)
"""


class Ended(NamedTuple):
    """A process that ended.

    Attributes:
        pid: of it.
        program: the path that it executed last.
        code: that it ended with.
        signal: that ended it; 0 for none.
        took_ms: from before it was made until its parent knew of its end.
    """

    pid: int
    program: str
    code: int
    signal: int
    took_ms: float


def ended(*words: str) -> tuple[Ended, str]:
    """Run a program until it ends; returns that, and what it printed."""
    began = time.monotonic()
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        printed, _ = process.communicate()
    took_ms = (time.monotonic() - began) * 1000
    how = process.returncode
    return Ended(process.pid, words[0], max(how, 0), max(-how, 0), took_ms), printed


def caused() -> tuple[list[Ended], int]:
    """Start processes that end in several ways; also returns the pid of one that only forked."""
    found = [ended("/bin/sh", "-c", f"exit {code}")[0] for code in (0, 3, 255)]
    found.append(ended("/bin/sh", "-c", "kill -9 $$")[0])
    found.append(ended("/bin/sleep", str(SLEPT_S))[0])
    thread = ended(sys.executable, "-c", OF_A_THREAD)[0]
    found.append(thread._replace(program="/bin/sh"))
    parent, printed = ended(sys.executable, "-c", FORKED)
    return [*found, parent], int(printed)


def told(capsys: pytest.CaptureFixture[str], *words: str | Path) -> Rows:
    """Return the rows of the answer by pid."""
    assert answer.run(["processes", "--json", "--param", "limit=100000", *map(str, words)]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    found = {row["pid"]: row for row in rows}
    assert len(found) == len(rows)
    return found


def check(rows: Rows, causes: list[Ended], *, codes: bool) -> None:
    """Compare rows with what the test has started; without `codes` nothing tells these."""
    name = Path("/proc/self/comm").read_text().strip()
    for cause in causes:
        row = rows[cause.pid]
        assert (row["program"], row["started_by"], row["parent"]) == (
            cause.program, name, os.getpid()), row  # fmt: skip
        assert 0 < row["lifetime_ms"] <= cause.took_ms
        expected = (cause.code, cause.signal) if codes else (None, None)
        assert (row["code"], row["signal"]) == expected, row


@pytest.mark.parametrize("via", ["perf", "ftrace"])
def test_tracepoints_tell_parents_and_lifetimes(
    start_cli: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str], via: str
) -> None:
    """No code is made up: what is not recorded is null."""
    words = ("-a", "-m", "4MiB", "-e", EVENTS, "--via", via)
    with recording(start_cli, tmp_path, *words):
        causes, _ = caused()
    rows = told(capsys, tmp_path / "out")
    check(rows, causes, codes=False)
    (slept,) = (one.pid for one in causes if one.program == "/bin/sleep")
    assert rows[slept]["lifetime_ms"] >= SLEPT_S * 1000


@pytest.mark.usefixtures("bcc")
def test_exitsnoop_tells_how_processes_end(
    require: Callable[[str], None],
    start_cli: Start,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its codes and signals are beside what the tracepoints tell; alone it has no path."""
    require("BTF")
    places = {"exec": tmp_path / "exec", "exits": tmp_path / "exits"}
    with ExitStack() as stack:
        for name, words in (
            ("exec", ("-a", "-m", "4MiB", "-e", EVENTS)),
            ("exits", ("--bpf", "exitsnoop")),
        ):
            places[name].mkdir()
            stack.enter_context(recording(start_cli, places[name], *words))
        causes, forked = caused()
    folders = [place / "out" for place in places.values()]
    rows = told(capsys, *folders)
    check(rows, causes, codes=True)
    assert rows[forked]["parent"] == causes[-1].pid
    assert (rows[forked]["code"], rows[forked]["signal"]) == (0, signal.SIGTERM)
    failed = told(capsys, "--param", "failed=true", *folders)
    assert failed.keys() == {pid for pid, row in rows.items() if row["code"] or row["signal"]}
    alone = told(capsys, folders[1])
    for cause in causes:
        row = alone[cause.pid]
        assert (row["started_by"], row["parent"]) == (None, os.getpid())
        assert (row["code"], row["signal"]) == (cause.code, cause.signal)
        assert 0 < row["lifetime_ms"] <= cause.took_ms
        assert "/" not in row["program"]
