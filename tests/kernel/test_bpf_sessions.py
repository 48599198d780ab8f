# SPDX-License-Identifier: Apache-2.0
"""BPF sessions of a daemon: memory, metrics, cost, other sessions beside them, and a kill."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from collectord.kernel.bpf import bpf_calls
from tests.support import bpf, daemons
from tests.support.daemons import EVENT, FILTER, NUMBER, wait_for
from tests.support.patience import patient
from tests.support.recording import recording

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.generator import Generator

    Run = Callable[..., subprocess.CompletedProcess[str]]
    Start = Callable[..., subprocess.Popen[str]]

pytestmark = pytest.mark.usefixtures("tracefs", "bcc")

BURST: Final = 2_000
MIB: Final = 1 << 20
RSS_LIMIT_BYTES: Final = 8 * MIB
# Without these, what glibc keeps of freed memory differs by megabytes from run to run.
GIVES_BACK: Final = (
    "env",
    "MALLOC_ARENA_MAX=1",
    "MALLOC_MMAP_THRESHOLD_=65536",
    "MALLOC_TRIM_THRESHOLD_=65536",
)
PASSES: Final = 20
THREE: Final = ("execsnoop", "opensnoop", "syscall_stream")


def _config(directory: Path, programs: tuple[str, ...], *, more: str = "") -> Path:
    """Configure a session for each program, and `calls` of this run's marked system calls."""
    sessions = "".join(
        f'[[session]]\nname = "{name}"\n[[session.source]]\nkind = "bpf"\nprogram = "{name}"\n'
        'ring = "64KiB"\nsideband_ring = "64KiB"\n'
        for name in programs
    )
    path = directory / "collectord.toml"
    path.write_text(
        f"""
[daemon]
state_dir = "{directory}/state"
flush_interval = "100ms"
[metrics]
listen = "127.0.0.1:0"
[control]
socket = "{directory}/control.sock"
{more}
{sessions}
[[session]]
name = "calls"
[[session.source]]
kind = "perf"
events = ["{EVENT}"]
filter = "{FILTER}"
"""
    )
    return path


def _more_sealed(state: Path, than: int) -> bool:
    return len(daemons.sealed(state)) > than


def _burst(generator: Generator, count: int) -> int:
    """Make so many marked calls; returns the pid that made them."""
    with generator.start("count", cpu=0, count=count, nr=NUMBER) as running:
        assert running.run()["events"] == count
        return running.pid


def _read_events(follower: subprocess.Popen[str], into: list[dict[str, Any]]) -> None:
    """Take what `events -f --json` prints, until it ends."""
    assert follower.stdout is not None
    into.extend(map(json.loads, follower.stdout))


def _let_it_work(daemon: daemons.Daemon) -> None:
    """Let it flush a while: what it needs at work is not yet there when it has begun."""
    begun = daemon.status()["core"]["passes"]
    wait_for(lambda: daemon.status()["core"]["passes"] > begun + PASSES, "passes")


def _memory(daemon: daemons.Daemon) -> int:
    """Resident bytes that are nobody else's: rings, which are mapped, are not among them."""
    text = Path(f"/proc/{daemon.pid}/smaps_rollup").read_text()
    found = re.search(r"^Anonymous: +(\d+) kB", text, re.MULTILINE)
    assert found
    return int(found[1]) << 10


def test_programs_cost_the_daemon_little_memory(tmp_path: Path, start_cli: Start) -> None:
    """Three programs attached: what the compiler needed is gone with the worker."""
    used = []
    for name, programs in (("without", ()), ("with", THREE)):
        folder = tmp_path / name
        folder.mkdir()
        config = _config(folder, programs)
        with daemons.running(start_cli, config, prefix=GIVES_BACK) as daemon:
            wait_for(lambda: daemon.session()["state"] == "running", "a session")
            _let_it_work(daemon)
            used.append(_memory(daemon))
            children = subprocess.run(
                ["pgrep", "-P", str(daemon.pid)], capture_output=True, text=True, check=False
            )
            assert children.stdout == ""
            reasons = [reason for s in daemon.status()["sessions"] for reason in s["degraded"]]
            # The rings are small, and all of a busy host's calls may be more than they take.
            assert [reason for reason in reasons if not reason.startswith("losing ")] == []
            assert daemon.stop().status == 0
    assert used[1] - used[0] <= RSS_LIMIT_BYTES


@pytest.mark.alone
def test_a_kill_detaches_everything(tmp_path: Path, start_cli: Start) -> None:
    """Kill -9: the kernel has no program, map or link of the daemon's any more."""
    lists = (bpf_calls.program_ids, bpf.map_ids, bpf.link_ids)
    before = [set(ids()) for ids in lists]
    with daemons.running(start_cli, _config(tmp_path, (*THREE, "biolatency"))) as daemon:
        held = [set(ids()) - known for ids, known in zip(lists, before, strict=True)]
        assert len(held[0]) >= 4
        assert held[1]
        daemon.kill()
        wait_for(
            lambda: not any(set(ids()) - known for ids, known in zip(lists, before, strict=True)),
            "the end of all programs, maps and links",
        )


def test_own_programs_suppress_nothing(tmp_path: Path, start_cli: Start) -> None:
    """A program of ours on a tracepoint lets its events pass, and is not taken for a stranger."""
    config = _config(tmp_path, ("opensnoop",))
    text = config.read_text().replace(EVENT, "syscalls:sys_enter_openat")
    config.write_text(text.replace(FILTER, "flags == 0x7ffffff"))
    with daemons.running(start_cli, config) as daemon:
        wait_for(lambda: daemon.status()["core"], "a status")
        passes = daemon.metric('collectord_suppression_possible{session="calls",source="perf"}')
        assert passes == 0
        session = daemon.session()
        assert (session["state"], session["ledger_basis"]) == ("running", "exact")


def _await_looks(daemon: daemons.Daemon) -> None:
    """Wait until the daemon has looked again which programs there are."""
    passes = daemon.status()["core"]["passes"]
    wait_for(lambda: daemon.status()["core"]["passes"] > passes + 10, "looks at the programs")


def test_programs_of_another_process_are_known(tmp_path: Path, start_cli: Start) -> None:
    """`record --bpf` beside a daemon: its programs let the daemon's events pass, and it knows."""
    config = _config(tmp_path, ())
    text = config.read_text().replace(EVENT, "syscalls:sys_enter_openat")
    config.write_text(text.replace(FILTER, "flags == 0x7ffffff"))
    with daemons.running(start_cli, config) as daemon:
        before = set(bpf_calls.program_ids())
        with recording(start_cli, tmp_path, "--bpf", "opensnoop"):
            assert set(bpf_calls.program_ids()) - before
            _await_looks(daemon)
            during = daemon.session("calls")
        _await_looks(daemon)
        after = daemon.session("calls")
    for session in (during, after):
        assert (session["state"], session["ledger_basis"]) == ("running", "exact")
        assert (session["suppressed"], session["suppression_possible"]) == ([], False)


def test_metrics_and_cost(tmp_path: Path, start_cli: Start, generator: Generator) -> None:
    """With statistics on, runs are counted; a program's maps are metrics."""
    config = _config(tmp_path, ("syscall_stream", "runqlat"), more="[bpf]\nstats = true")
    with daemons.running(start_cli, config) as daemon:
        with generator.start("count", cpu=0, count=BURST, nr=NUMBER) as running:
            assert running.run()["events"] == BURST

        def runs() -> float:
            return sum(
                float(line.rpartition(" ")[2])
                for line in daemon.metrics().splitlines()
                if line.startswith("collectord_bpf_program_runs_total")
                and 'program="syscall_stream"' in line
            )

        wait_for(lambda: runs() >= BURST, "counted runs")
        wait_for(
            lambda: re.search(
                r"^collectord_bpf_run_queue\w*_count\{.*\} [1-9]", daemon.metrics(), re.MULTILINE
            ),
            "a histogram that has waits in it",
        )
        text = daemon.metrics()
        assert "collectord_bpf_program_run_seconds_total" in text
        ended = daemon.stop()
    assert (ended.status, ended.complaints()) == (0, [])


def test_events_are_followed(tmp_path: Path, start_cli: Start, generator: Generator) -> None:
    """`events -f` shows what a running session stores, over a rotation, until the session ends."""
    config = _config(tmp_path, ("syscall_stream",))
    name = 'name = "stream"\nsegment_age = "1s"'
    text = config.read_text().replace('name = "syscall_stream"', name)
    config.write_text(text.replace('\nring = "64KiB"', '\nring = "2MiB"'))
    with ExitStack() as stack:
        daemon = stack.enter_context(daemons.running(start_cli, config))
        follower = start_cli(
            *("events", "-f", "stream", "--socket", tmp_path / "control.sock"),
            *("--json", "--filter", f"nr == {NUMBER}"),
        )
        seen: list[dict[str, Any]] = []
        reader = threading.Thread(target=_read_events, args=(follower, seen))
        reader.start()
        # It shows nothing from before its first look: the bursts wait for a first event of it.
        wait_for(lambda: _burst(generator, 1) and seen, "a follower")
        pids = []
        for _ in range(2):
            files = len(daemons.sealed(tmp_path / "state"))
            pids.append(_burst(generator, BURST))
            sealed = functools.partial(_more_sealed, tmp_path / "state", files)
            wait_for(sealed, "a rotation")
        wait_for(lambda: seen[-1].get("pid") == pids[1], "the last burst")
        assert daemon.stop().status == 0
        reader.join(timeout=patient(30))
        _, complaints = follower.communicate(timeout=patient(30))
    assert (follower.returncode, complaints) == (0, "")
    of_bursts = [event for event in seen if event.get("pid") in pids]
    assert [event["pid"] for event in of_bursts] == [pid for pid in pids for _ in range(BURST)]
    assert {event["fields"]["nr"] for event in seen} == {NUMBER}
