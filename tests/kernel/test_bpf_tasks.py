# SPDX-License-Identifier: Apache-2.0
"""Programs that tell of ends of processes and of slow tasks find exactly those."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.support import bpf_load
from tests.support.bpf_counts import COMM, child, program
from tests.support.bpf_load import check_found, events_of, own_comm, table_of, tool
from tests.support.daemons import wait_for
from tests.support.recording import check_balance, recording

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.perf_tools import Perf
    from tests.support.recording import Start

    Run = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = [pytest.mark.usefixtures("tracefs", "bcc", "btf"), pytest.mark.beside]

TIMES: Final = 20
SWITCHES: Final = 300
SLOW_NS: Final = 1_000_000
SLOW_TIMES: Final = 10
# Some hosts switch now and then to a task or from it without telling tracepoints.
UNSEEN_PERCENT: Final = 5
HOSTILE: Final = b"\x1b[2J;\xff"
# The first thread ends by itself, before another one ends the process with a code.
THREADS: Final = """
import ctypes, os, threading, time
first = f"/proc/self/task/{os.getpid()}/stat"
def run():
    while open(first).read().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.001)
    os._exit(7)
threading.Thread(target=run).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def _ended(*words: str) -> tuple[int, int]:
    """Run a program until it ends; returns its pid and how it ended, as Popen tells it."""
    with subprocess.Popen(words) as process:
        return process.pid, process.wait()


def _caused() -> list[tuple[int, int, int, int]]:
    """Let processes end in several ways; returns pid, parent, code, and signal of each."""
    ended = [_ended("sh", "-c", f"exit {number}") for number in range(TIMES)]
    ended += [_ended("sh", "-c", f"kill -{number} $$") for number in (9, 15) for _ in range(TIMES)]
    ended.append(_ended(sys.executable, "-c", THREADS))
    assert ended[-1][1] == 7
    return [(pid, os.getpid(), max(how, 0), max(-how, 0)) for pid, how in ended]


def test_processes_that_end(start_cli: Start, run_cli: Run, tmp_path: Path, perf: Perf) -> None:
    """Each is reported once, whichever thread was the last, with what its parent is told."""
    with recording(start_cli, tmp_path, "--bpf", "exitsnoop") as running:
        caused = _caused()
    check_balance(running.session, (perf,))
    names = ("pid", "parent", "code", "signal")
    events = [e for e in events_of(run_cli, running.session) if e["parent"] == os.getpid()]
    pids = {pid for pid, *_ in caused}
    found = [tuple(event[n] for n in names) for event in events if event["pid"] in pids]
    check_found(running.session, found, caused)
    assert {event["uid"] for event in events} == {os.getuid()}
    assert all(0 < event["lifetime_ns"] < 60_000_000_000 for event in events)
    assert "SIGKILL" in table_of(run_cli, running.session)


def test_processes_that_fail(start_cli: Start, run_cli: Run, tmp_path: Path, perf: Perf) -> None:
    """With `failed` and `comm` the kernel leaves out all others."""
    words = program("exitsnoop", failed="true", comm="sh")
    with recording(start_cli, tmp_path, *words) as running:
        caused = _caused()[:-1]  # the last is no shell
    check_balance(running.session, (perf,))
    events = events_of(run_cli, running.session)
    assert {event["comm"] for event in events} == {"sh"}
    found = [(e["pid"], e["code"], e["signal"]) for e in events if e["parent"] == os.getpid()]
    failed = [(pid, code, number) for pid, _, code, number in caused if code or number]
    assert len(failed) == len(caused) - 1
    check_found(running.session, found, failed)


def test_the_length_of_a_life(start_cli: Start, run_cli: Run, tmp_path: Path, perf: Perf) -> None:
    """It is the time from the fork on; a name with escape sequences does a terminal no harm."""
    with (
        child(comm=HOSTILE) as sleeper,
        recording(start_cli, tmp_path, *program("exitsnoop", pid=sleeper.pid)) as running,
    ):
        sleeper.do("sleep", SWITCHES)  # of 1 ms each
        os.kill(sleeper.pid, signal.SIGKILL)
        wait_for(lambda: not sleeper.is_running(), "the end of the child")
    check_balance(running.session, (perf,))
    (event,) = events_of(run_cli, running.session)
    assert (event["pid"], event["signal"]) == (sleeper.pid, signal.SIGKILL)
    assert event["lifetime_ns"] > SWITCHES * SLOW_NS
    table = table_of(run_cli, running.session)
    assert all(line.isprintable() for line in table.split("\n"))
    assert r"\x1b[2J;\xff" in table


def test_parents(start_cli: Start, run_cli: Run, tmp_path: Path, perf: Perf) -> None:
    """An exec tells its parent's pid; `path` leaves out all other files."""
    wanted, other = tool(tmp_path / "wanted-tool"), tool(tmp_path / "other-tool")
    words = program("execsnoop", path=f"{tmp_path}/wanted*")
    with recording(start_cli, tmp_path, *words) as running:
        caused = []
        for _ in range(TIMES):
            caused.append((bpf_load.execute(wanted), os.getpid(), str(wanted)))
            bpf_load.execute(other)
    check_balance(running.session, (perf,))
    events = events_of(run_cli, running.session)
    found = [(event["pid"], event["parent"], event["filename"]) for event in events]
    check_found(running.session, found, caused)


@pytest.mark.parametrize("chosen", ["pid", "tid", "comm"])
def test_waits_for_a_cpu(
    start_cli: Start, run_cli: Run, tmp_path: Path, *, perf: Perf, chosen: str
) -> None:
    """From 0 ns on there is a wait for each time that a task leaves a CPU."""
    with child(comm=b"waits-for-cpu") as sleeper:
        given: dict[str, int | str] = {chosen: sleeper.pid if chosen != "comm" else "waits-for*"}
        words = program("runqslower", min_wait="0ns", **given)
        with recording(start_cli, tmp_path, *words) as running:
            before = sleeper.switches()
            sleeper.do("sleep", SWITCHES)
            switches = sum(sleeper.switches().since(before))
    check_balance(running.session, (perf,))
    events = events_of(run_cli, running.session)
    assert {(e["pid"], e["tid"], e["comm"]) for e in events} == {
        (sleeper.pid, sleeper.pid, "waits-for-cpu")
    }
    assert all(event["waited_ns"] > 0 for event in events)
    # It waits once more before it leaves, if it is woken when the recording begins.
    assert switches * (100 - UNSEEN_PERCENT) <= len(events) * 100 <= (switches + 1) * 100


def test_long_waits(start_cli: Start, run_cli: Run, tmp_path: Path, perf: Perf) -> None:
    """Two that could go on share a CPU: each waits while the other runs, and that is told."""
    cpu = min(os.sched_getaffinity(0))
    with child(cpu=cpu, comm=b"other") as other, child(cpu=cpu) as spinner:
        before = spinner.switches()

        def often_preempted() -> bool:
            return spinner.switches().since(before).involuntary >= SWITCHES // 10

        words = program("runqslower", pid=spinner.pid, min_wait="1ms")
        with recording(start_cli, tmp_path, *words) as running:
            other.begin("spin")
            spinner.begin("spin")
            wait_for(often_preempted, "preemptions")
            spinner.stop()
            other.stop()
    check_balance(running.session, (perf,))
    events = events_of(run_cli, running.session)
    assert len(events) >= SLOW_TIMES
    assert {(event["pid"], event["comm"]) for event in events} == {(spinner.pid, COMM)}
    assert min(event["waited_ns"] for event in events) >= SLOW_NS
    assert spinner.pid not in {event["previous_tid"] for event in events}
    assert all(event["previous_comm"] for event in events)


def test_the_filters_of_a_task(start_cli: Start, run_cli: Run, tmp_path: Path, perf: Perf) -> None:
    """A whole name is no beginning of another one, and a uid that is another's leaves all out."""
    there = tmp_path / "there"
    there.touch()
    name = own_comm()
    for given, times in (
        ({"comm": name, "path": str(there)}, TIMES),
        ({"comm": f"{name[:2]}*", "path": f"{tmp_path}/the*"}, TIMES),
        ({"comm": name[:-1], "path": str(there)}, 0),
        ({"comm": name, "path": str(there)[:-1]}, 0),
        ({"uid": os.getuid() + 1, "path": str(there)}, 0),
    ):
        folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        with recording(start_cli, folder, *program("opensnoop", **given)) as running:
            for _ in range(TIMES):
                os.close(os.open(there, os.O_RDONLY))
        check_balance(running.session, (perf,))
        found = [event["path"] for event in events_of(run_cli, running.session)]
        check_found(running.session, found, [str(there)] * times)


def test_the_filter_of_a_cgroup(
    start_cli: Start, run_cli: Run, tmp_path: Path, *, perf: Perf, require: Callable[[str], None]
) -> None:
    """Tasks in the cgroup and below it are wanted, those above and beside it are not."""
    require("cgroup v2")
    mounts = Path("/proc/self/mountinfo").read_text()
    found = re.search(r"^\S+ \S+ \S+ \S+ (\S+) .* - cgroup2 ", mounts, re.MULTILINE)
    assert found
    root = Path(found[1], f"collectord-test-{os.getpid()}")
    wanted, below, beside = root / "wanted", root / "wanted/below", root / "beside"
    groups = [root, wanted, below, beside]
    for group in groups:
        group.mkdir()
    try:
        words = program("opensnoop", cgroup=wanted.stat().st_ino, path=f"{tmp_path}/in-*")
        with recording(start_cli, tmp_path, *words) as running:
            for group in groups:
                script = f'echo 0 >"{group}/cgroup.procs"; for _ in 1 2 3; do : >"$0"; done'
                subprocess.run(["sh", "-c", script, tmp_path / f"in-{group.name}"], check=True)
    finally:
        for group in reversed(groups):
            group.rmdir()
    check_balance(running.session, (perf,))
    opened = [event["path"] for event in events_of(run_cli, running.session)]
    caused = [str(tmp_path / f"in-{group.name}") for group in (wanted, below)]
    check_found(running.session, opened, caused * 3)
