# SPDX-License-Identifier: Apache-2.0
"""CPUs that come and go at random, while sessions of each kind record a load."""

from __future__ import annotations

import json
import os
import random
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.kernel.test_ftrace_record import CORE
from tests.support import daemons
from tests.support.cpus import (
    COVERED,
    CPUS,
    ONLINE,
    await_holdings,
    bounce,
    holdings,
    offline,
    with_switch,
)
from tests.support.daemons import EVENT, FILTER, NUMBER, wait_for
from tests.support.features import require
from tests.support.recording import daemon_config

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.support.daemons import Daemon
    from tests.support.generator import Generator
    from tests.support.perf_tools import Perf
    from tests.support.recording import Start
    from tests.support.trace_cmds import TraceCmd

# The variable is for the long form.
CYCLES: Final = int(os.environ.get("COLLECTORD_HOTPLUG_CYCLES", "10"))

pytestmark = [
    pytest.mark.usefixtures("tracefs", "bcc"),
    pytest.mark.timeout(300 + 5 * CYCLES),
]

WARM_UP: Final = 2  # after so many nothing grows any more
# The calls a second of each thread that makes them all the time.
RATE: Final = 300
ENDLESS: Final = 10**9
BURST: Final = 500
TRACED: Final = f"pages{os.getpid()}"  # names an instance, which others may have
STREAMS: Final = ("calls", "program", TRACED)
OTHERS: Final = f"""
[[session]]
name = "box"
mode = "flight-recorder"
[[session.source]]
kind = "perf"
events = ["{EVENT}"]
filter = "{FILTER}"
ring = "256KiB"
[[session]]
name = "program"
[[session.source]]
kind = "bpf"
program = "syscall_stream"
arguments = {{ nr = {NUMBER} }}
"""
PAGES: Final = f"""
[[session]]
name = "{TRACED}"
[[session.source]]
kind = "tracefs"
events = ["{EVENT}"]
filter = "{FILTER}"
"""


def make(generator: Generator, cpu: int, count: int) -> None:
    """Make so many calls on one CPU."""
    with generator.start("count", cpu=cpu, count=count, nr=NUMBER) as running:
        assert running.run()["events"] == count


def produced_on(session: dict[str, Any], cpu: int) -> int:
    """Return how many records a CPU has made since the session began."""
    return sum(ring["produced"] for ring in session["rings"] if ring["cpu"] == cpu)


def last_ledger(directory: Path, session: str) -> dict[str, Any]:
    """Return the final balance of a session that has ended."""
    last = max((directory / "state" / session).rglob("*.json"))
    ledger: dict[str, Any] = json.loads(last.read_text())["ledger"]
    assert ledger["closed"]
    return ledger


def check(daemon: Daemon) -> None:
    """Check that all CPUs are covered, and no record is unexplained.

    What a BPF program submits on a CPU that has no ring yet is lost, and counted as that.
    """
    assert daemon.metric(COVERED) == daemon.metric(ONLINE) == CPUS
    for session in daemon.status()["sessions"]:
        assert [why for why in session["degraded"] if not why.startswith("losing ")] == []
        assert not session["unaccounted"]


def await_recorded(
    daemon: Daemon, cpu: int, generator: Generator, names: Sequence[str] = STREAMS
) -> None:
    """Make calls on a CPU until each of these streams has some of them."""
    before = [produced_on(daemon.session(name), cpu) for name in names]

    def are_recorded() -> bool:
        make(generator, cpu, BURST)
        now = [produced_on(daemon.session(name), cpu) for name in names]
        return all(more > less for more, less in zip(now, before, strict=True))

    wait_for(are_recorded, f"records of CPU {cpu}")


def test_each_cpu_that_comes_back_is_recorded_again(
    tmp_path: Path, start_cli: Start, generator: Generator
) -> None:
    """No record is unexplained, and nothing of the rings that are gone is left open or mapped."""
    require("CPU hotplug")
    choose = random.Random(CYCLES)  # noqa: S311  # no secret
    config = daemon_config(tmp_path, log_level="error", core=CORE, source=OTHERS + PAGES)
    with (
        daemons.running(start_cli, config) as daemon,
        generator.start("count", nr=NUMBER, count=ENDLESS, rate=RATE * CPUS, threads=CPUS) as load,
    ):
        load.go()
        for cycle in range(CYCLES + WARM_UP):
            if cycle == WARM_UP:
                held = holdings(daemon)
            cpu = choose.choice(with_switch())
            bounce(daemon, cpu, [partial(make, generator, 0, choose.randint(1, BURST))])
            check(daemon)
        await_recorded(daemon, cpu, generator)
        check(daemon)
        await_holdings(daemon, held)
        load.kill()
        ended = daemon.stop()
    assert (ended.status, ended.complaints()) == (0, [])
    for name in (*STREAMS, "box"):
        assert not last_ledger(tmp_path, name)["unaccounted"], name


def test_a_cpu_that_was_offline_at_the_start_is_recorded_when_it_comes(
    tmp_path: Path,
    start_cli: Start,
    generator: Generator,
    perfs: tuple[Perf, ...],
    trace_cmds: tuple[TraceCmd, ...],
) -> None:
    """It gets rings as those of the others have them, and new ones after each absence."""
    require("CPU hotplug")
    cpu = with_switch()[-1]
    config = daemon_config(tmp_path, log_level="error", core=CORE, source=OTHERS + PAGES)
    with ExitStack() as stack:
        with offline(cpu):
            daemon = stack.enter_context(daemons.running(start_cli, config))
        wait_for(lambda: daemon.metric(COVERED) == CPUS, "the CPU's rings")
        for _ in range(2):
            check(daemon)
            make(generator, 0, BURST)
            await_recorded(daemon, cpu, generator)
            bounce(daemon, cpu, [partial(make, generator, 0, BURST)])
        (taken,) = daemon.post("/v1/snapshot", {"sessions": ["box"]})["snapshots"]
        gone = daemon.session("box")["overwritten"]
        assert taken["samples"] + gone == daemon.session()["produced"]
        ended = daemon.stop()
    assert (ended.status, ended.complaints()) == (0, [])
    ledger = last_ledger(tmp_path, TRACED)
    assert (ledger["produced"], ledger["unaccounted"]) == (ledger["stored"], 0)
    traces = sorted((tmp_path / "state" / TRACED).rglob("*.trace.dat"))
    for trace_cmd in trace_cmds:
        lines = [line for trace in traces for line in trace_cmd.report(trace)]
        assert len(lines) == ledger["stored"]
        assert any(f"[{cpu:03d}]" in line for line in lines)
    ledger = last_ledger(tmp_path, "calls")
    assert (ledger["produced"], ledger["unaccounted"]) == (ledger["stored"], 0)
    (data,) = (tmp_path / "state" / "calls").rglob("*.perf.data")
    for perf in perfs:
        assert len(perf.script(data)) == ledger["stored"]


def test_a_reload_while_a_cpu_is_offline_changes_sessions(
    tmp_path: Path, start_cli: Start, generator: Generator
) -> None:
    """They record the other CPUs at once, and this one when it is back."""
    require("CPU hotplug")
    cpu = with_switch()[-1]
    write = partial(daemon_config, tmp_path, log_level="error", core=CORE)
    changed = f'{OTHERS.replace("256KiB", "512KiB")}{PAGES}ring = "1MiB"\n'
    config = write(source=OTHERS + PAGES)
    with daemons.running(start_cli, config) as daemon:
        with offline(cpu):
            write(session='segment_age = "2h"', source=changed)
            sessions = daemon.post("/v1/reload", {})["sessions"]
            assert {one["name"]: one["kind"] for one in sessions} == {
                **dict.fromkeys(("calls", "box", TRACED), "changed"),
                "program": "unchanged",
            }
            await_recorded(daemon, 0, generator)
        wait_for(lambda: daemon.metric(COVERED) == CPUS, "the CPU's rings")
        await_recorded(daemon, cpu, generator)
        check(daemon)
        ended = daemon.stop()
    assert (ended.status, ended.complaints()) == (0, [])
    for name in (*STREAMS, "box"):
        assert not last_ledger(tmp_path, name)["unaccounted"], name
