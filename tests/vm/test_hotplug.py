# SPDX-License-Identifier: Apache-2.0
"""A CPU that goes and comes back while sessions run."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.kernel.test_ftrace_record import CORE, final_session
from tests.support import daemons
from tests.support.daemons import EVENT, FILTER, NUMBER, wait_for
from tests.support.recording import daemon_config, daemon_result

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.generator import Generator
    from tests.support.perf_tools import Perf
    from tests.support.recording import Start
    from tests.support.trace_cmds import TraceCmd

    Perfs = tuple[Perf, ...]
    TraceCmds = tuple[TraceCmd, ...]

pytestmark = pytest.mark.usefixtures("tracefs")

CPU: Final = 3
CPUS: Final = os.sysconf("SC_NPROCESSORS_CONF")
BURST: Final = 2_000
UNCOVERED: Final = "collectord_uncovered_seconds_total"
ONLINE: Final = "collectord_cpus_online"
COVERED: Final = "collectord_cpus_covered"
ALSO_PERF: Final = (
    f'[[session.source]]\nkind = "perf"\nevents = ["{EVENT}"]\nfilter = "{FILTER}"\n'
)


@contextmanager
def offline(cpu: int) -> Iterator[None]:
    """The CPU is not there for the length of a block."""
    switch = Path(f"/sys/devices/system/cpu/cpu{cpu}/online")
    switch.write_text("0")
    try:
        yield
    finally:
        switch.write_text("1")


def make(generator: Generator, cpu: int) -> int:
    """Make so many calls on one CPU."""
    with generator.start("count", cpu=cpu, count=BURST, nr=NUMBER) as running:
        assert running.run()["events"] == BURST
    return BURST


def test_a_cpu_that_leaves_is_uncovered_and_nothing_is_lost(
    tmp_path: Path, start_cli: Start, generator: Generator, perfs: Perfs, trace_cmds: TraceCmds
) -> None:
    """What its rings held is stored, the others go on, and the time without it is counted."""
    config = daemon_config(tmp_path, log_level="info", core=CORE, kind="tracefs", source=ALSO_PERF)
    with daemons.running(start_cli, config) as daemon:
        assert (daemon.metric(ONLINE), daemon.metric(COVERED)) == (CPUS, CPUS)
        assert daemon.metric(UNCOVERED) == 0
        made = make(generator, CPU) + make(generator, 0)
        with offline(CPU):
            wait_for(lambda: daemon.metric(ONLINE) == CPUS - 1, "the CPU's end")
            wait_for(lambda: daemon.metric(UNCOVERED) > 0, "uncovered seconds")
            made += make(generator, 0)
        wait_for(lambda: daemon.metric(ONLINE) == CPUS, "the CPU's return")
        made += make(generator, 0)
        ended = daemon.stop()
    assert ended.status == 0, ended.log
    assert {line["event"] for line in ended.events() if line["level"] != "info"} <= {
        "cpus_changed"
    }
    for session in (final_session(tmp_path / "state"), daemon_result(tmp_path)):
        assert (session["produced"], session["stored"]) == (made, made)
        assert session["unaccounted"] == 0
    (trace,) = (tmp_path / "state").rglob("*.trace.dat")
    (data,) = (tmp_path / "state").rglob("*.perf.data")
    for trace_cmd in trace_cmds:
        assert len(trace_cmd.report(trace)) == made
    for perf in perfs:
        assert len(perf.script(data)) == made
