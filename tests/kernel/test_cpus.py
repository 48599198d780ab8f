# SPDX-License-Identifier: Apache-2.0
"""CPUs that come and go at random, while sessions of each kind record a load."""

from __future__ import annotations

import json
import os
import random
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.kernel.test_ftrace_record import CORE
from tests.support import daemons
from tests.support.cpus import COVERED, CPUS, ONLINE, bounce, holdings, with_switch
from tests.support.daemons import EVENT, FILTER, NUMBER, wait_for
from tests.support.features import require
from tests.support.recording import daemon_config

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.daemons import Daemon
    from tests.support.generator import Generator
    from tests.support.recording import Start

pytestmark = pytest.mark.usefixtures("tracefs", "bcc")

# The variable is for the long form.
CYCLES: Final = int(os.environ.get("COLLECTORD_HOTPLUG_CYCLES", "10"))
WARM_UP: Final = 2  # after so many nothing grows any more
# Of the calls of each thread that makes them all the time, in a second.
RATE: Final = 300
ENDLESS: Final = 10**9
BURST: Final = 500
STREAMS: Final = ("calls", "program", "pages")
MORE: Final = f"""
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
[[session]]
name = "pages"
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


def check(daemon: Daemon) -> None:
    """Check that all CPUs are covered, and no record is unexplained.

    What a BPF program submits on a CPU that has no ring yet is lost, and counted as that.
    """
    assert daemon.metric(COVERED) == daemon.metric(ONLINE) == CPUS
    for session in daemon.status()["sessions"]:
        assert [why for why in session["degraded"] if not why.startswith("losing ")] == []
        assert not session["unaccounted"]


def await_recorded(daemon: Daemon, cpu: int, generator: Generator) -> None:
    """Make calls on a CPU until each session that streams has some of them."""
    before = [produced_on(daemon.session(name), cpu) for name in STREAMS]

    def are_recorded() -> bool:
        make(generator, cpu, BURST)
        now = [produced_on(daemon.session(name), cpu) for name in STREAMS]
        return all(more > less for more, less in zip(now, before, strict=True))

    wait_for(are_recorded, f"records of CPU {cpu}")


def test_each_cpu_that_comes_back_is_recorded_again(
    tmp_path: Path, start_cli: Start, generator: Generator
) -> None:
    """No record is unexplained, and nothing of the rings that are gone is left open or mapped."""
    require("CPU hotplug")
    choose = random.Random(CYCLES)  # noqa: S311  # no secret
    config = daemon_config(tmp_path, log_level="info", core=CORE, source=MORE)
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
        wait_for(lambda: holdings(daemon) == held, "as many descriptors and mappings")
        load.kill()
        ended = daemon.stop()
    assert ended.status == 0, ended.log
    assert {line["event"] for line in ended.complaints()} <= {"cpus_changed"}
    for name in (*STREAMS, "box"):
        last = max((tmp_path / "state" / name).rglob("*.json"))
        ledger = json.loads(last.read_text())["ledger"]
        assert ledger["closed"]
        assert not ledger["unaccounted"], name
