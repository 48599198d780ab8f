# SPDX-License-Identifier: Apache-2.0
"""Sessions of ftrace record on while the daemon restarts: their instance stays in the kernel."""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.kernel.test_ftrace_record import CORE
from tests.support import daemons, openers
from tests.support.recording import daemon_config

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator

    from tests.support.generator import Generator
    from tests.support.recording import Start
    from tests.support.trace_cmds import TraceCmd

    Run = Callable[..., subprocess.CompletedProcess[str]]
    TraceCmds = tuple[TraceCmd, ...]

pytestmark = [pytest.mark.usefixtures("tracefs"), pytest.mark.alone]

INSTANCES: Final = Path("/sys/kernel/tracing/instances")
CALLS: Final = 300_000
RING: Final = "32MiB"
RATE: Final = 100_000.0


def configured(directory: Path, transport: str, *, ring: str = RING) -> Path:
    """Write a configuration of one session of ftrace that goes on in the next daemon."""
    more = f'ring = "{ring}"\ntransport = "{transport}"\n'
    config = daemon_config(directory, log_level="info", core=CORE, kind="tracefs", source=more)
    return openers.with_opener(config)


def reported(trace_cmds: TraceCmds, state: Path) -> list[str]:
    """Return the events that trace-cmd reads in all segments."""
    files = sorted(state.rglob("*.trace.dat"))
    return [line for path in files for line in trace_cmds[0].report(path)]


def manifests(state: Path) -> list[dict[str, Any]]:
    """Return the manifests of all segments, oldest first."""
    return [daemons.manifest(path) for path in sorted(state.rglob("*.trace.dat"))]


@contextmanager
def opening(start_cli: Start, run_cli: Run, config: Path) -> Iterator[None]:
    """Have an opener listen, and end with it what the daemons have left."""
    with openers.opening_and_ending(start_cli, run_cli, config):
        yield
    assert not any(INSTANCES.glob("collectord-calls*"))


@pytest.fixture
def config(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Configure one session of ftrace that goes on in the next daemon, of the given transport."""
    return configured(tmp_path, getattr(request, "param", "read"))


@pytest.mark.parametrize("config", ["read", "mmap", "splice"], indirect=True)
def test_a_restart_loses_nothing(
    config: Path, start_cli: Start, run_cli: Run, generator: Generator, trace_cmds: TraceCmds
) -> None:
    """Events between a stop and the next start are in the files of the next daemon, each once."""
    state = config.parent / "state"
    with opening(start_cli, run_cli, config):
        with generator.start("count", count=CALLS, rate=RATE, nr=daemons.NUMBER) as running:
            for _ in range(2):
                with daemons.running(start_cli, config) as daemon:
                    if not state.exists() or not manifests(state):
                        running.go()
                    daemon.await_stored(CALLS // 20)
                    assert daemon.stop().status == 0
            made = running.result()["events"]  # the rest comes while no daemon runs
        before = sum(one["samples"] for one in manifests(state))
        with daemons.running(start_cli, config) as daemon:
            daemon.await_stored(made - before)
            last = daemon.stop()
    assert not last.named("gap_before")
    for one in manifests(state):
        ledger = one["ledger"]
        assert (ledger["basis"], sum(ledger["lost"].values())) == ("exact", 0)
        assert ledger["unaccounted"] == ledger["in_flight"] == 0
        assert not one["recovered"]
    lines = reported(trace_cmds, state)
    assert len(lines) == len(set(lines)) == made


@pytest.mark.parametrize("config", ["mmap"], indirect=True)
def test_a_kill_after_a_restart_is_counted(
    config: Path, start_cli: Start, run_cli: Run, generator: Generator, trace_cmds: TraceCmds
) -> None:
    """Events that it has not stored are salvaged or lost; those that others stored are neither."""
    state = config.parent / "state"
    with opening(start_cli, run_cli, config):
        with generator.start("count", count=CALLS, rate=RATE, nr=daemons.NUMBER) as running:
            with daemons.running(start_cli, config) as daemon:
                running.go()
                daemon.await_stored(CALLS // 20)
                assert daemon.stop().status == 0
            with daemons.running(start_cli, config) as daemon:
                daemon.await_stored(CALLS // 20)
                daemon.kill()
            made = running.result()["events"]
        with daemons.running(start_cli, config) as daemon:
            (salvaged,) = daemon.stop().named("instance_salvaged")
    assert set(openers.lost(salvaged)) <= {"staging/dropped"}
    assert (salvaged["basis"], salvaged["unaccounted"]) == ("exact", 0)
    lines = reported(trace_cmds, state)
    assert len(lines) == len(set(lines)) == made - sum(salvaged["lost"].values())


def test_a_changed_session_begins_anew(
    config: Path, start_cli: Start, run_cli: Run, generator: Generator, trace_cmds: TraceCmds
) -> None:
    """The contents of its rings are salvaged, and the time until it records is a gap."""
    with opening(start_cli, run_cli, config):
        with daemons.running(start_cli, config) as daemon:
            assert daemon.stop().status == 0
        with generator.start("count", count=CALLS // 10, nr=daemons.NUMBER) as running:
            made = running.run()["events"]
        config.write_text(config.read_text().replace(RING, "1MiB"))
        with daemons.running(start_cli, config) as daemon:
            ended = daemon.stop()
    assert len(ended.named("instance_salvaged")) == len(ended.named("gap_before")) == 1
    assert len(reported(trace_cmds, config.parent / "state")) == made


def test_without_an_opener_it_ends(
    config: Path, start_cli: Start, generator: Generator, trace_cmds: TraceCmds
) -> None:
    """An instance that nobody would end is removed, with all that it had in the files."""
    with daemons.running(start_cli, config) as daemon:
        with generator.start("count", count=CALLS // 10, nr=daemons.NUMBER) as running:
            made = running.run()["events"]
        daemon.stop()
    assert not any(INSTANCES.glob("collectord-calls*"))
    assert len(reported(trace_cmds, config.parent / "state")) == made


def test_its_end_tells_what_is_unread(
    config: Path, start_cli: Start, run_cli: Run, generator: Generator
) -> None:
    """The opener's end removes what a daemon has left, and says how many events that were."""
    with opening(start_cli, run_cli, config):
        with daemons.running(start_cli, config) as daemon:
            daemon.stop()
        with generator.start("count", count=CALLS // 10, nr=daemons.NUMBER) as running:
            made = running.run()["events"]
        ended = run_cli("opener", "--end")
    told = [json.loads(line) for line in ended.stderr.splitlines()]
    assert [(line["event"], line["unread"]) for line in told] == [("instance_ended", made)]


def test_a_paused_session_ends(config: Path, start_cli: Start, run_cli: Run) -> None:
    """The next process would take its silence for a time without events."""
    with opening(start_cli, run_cli, config), daemons.running(start_cli, config) as daemon:
        daemon.post("/v1/sessions/calls/pause", {})
        assert daemon.stop().status == 0
        assert not any(INSTANCES.glob("collectord-calls*"))
