# SPDX-License-Identifier: Apache-2.0
"""A CPU that goes offline and comes back while sessions run."""

from __future__ import annotations

import os
import random
import subprocess
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.kernel.test_ftrace_record import CORE, final_session
from tests.kernel.test_ledger_verb import at, told_by
from tests.support import daemons
from tests.support.block_traces import bases, disk, events, parsed, written
from tests.support.cpus import (
    COVERED,
    CPUS,
    ONLINE,
    UNCOVERED,
    bounce,
    offline,
    open_events,
    switch_of,
    with_switch,
)
from tests.support.daemons import EVENT, FILTER, NUMBER, wait_for
from tests.support.recording import daemon_config, daemon_result, result_of
from tests.vm import test_aux
from tests.vm.support_modules import WORD_BYTES, loaded_pmu
from tests.vm.test_relay import REQUESTS, write_config

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.aux_words import Checker
    from tests.support.daemons import Daemon
    from tests.support.generator import Generator
    from tests.support.perf_tools import Perf
    from tests.support.recording import Start
    from tests.support.trace_cmds import TraceCmd

    Run = Callable[..., subprocess.CompletedProcess[str]]
    Perfs = tuple[Perf, ...]
    TraceCmds = tuple[TraceCmd, ...]

pytestmark = pytest.mark.usefixtures("tracefs")

CPU: Final = CPUS - 1
BURST: Final = 2_000
# An emulated machine takes some ten seconds for each; the variable is for the long form.
RANDOM_CYCLES: Final = int(os.environ.get("COLLECTORD_HOTPLUG_CYCLES", "3"))
CYCLES: Final = (RANDOM_CYCLES + 2) // 3
# The calls a second of each thread that makes them all the time.
RATE: Final = 300
ENDLESS: Final = 10**9
WORDS: Final = test_aux.MIB // WORD_BYTES
checker = test_aux.checker
ALSO_PERF: Final = (
    f'[[session.source]]\nkind = "perf"\nevents = ["{EVENT}"]\nfilter = "{FILTER}"\n'
)


def produced_on(session: dict[str, Any], cpu: int) -> int:
    """Return how many records a CPU has made since the session began."""
    return sum(ring["produced"] for ring in session["rings"] if ring["cpu"] == cpu)


def make(generator: Generator, cpu: int, count: int = BURST) -> int:
    """Make so many calls on one CPU."""
    with generator.start("count", cpu=cpu, count=count, nr=NUMBER) as running:
        assert running.run()["events"] == count
    return count


def test_a_cpu_that_leaves_is_uncovered_and_nothing_is_lost(
    tmp_path: Path, start_cli: Start, generator: Generator, perfs: Perfs, trace_cmds: TraceCmds
) -> None:
    """The contents of its rings are stored, the others go on, and its offline time is counted."""
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


def test_a_cpu_that_comes_back_is_recorded_again(
    tmp_path: Path, start_cli: Start, generator: Generator, perfs: Perfs
) -> None:
    """Each time, by new rings of new events, whose records are in the file that is open."""
    config = daemon_config(tmp_path, log_level="info", core=CORE)
    with daemons.running(start_cli, config) as daemon:
        made = make(generator, CPU) + make(generator, 0)
        held = open_events(daemon)
        for _ in range(CYCLES):
            with offline(CPU):
                wait_for(lambda: daemon.metric(ONLINE) == CPUS - 1, "the CPU's end")
                made += make(generator, 0)
            wait_for(lambda: daemon.metric(COVERED) == CPUS, "the CPU's new rings")
            made += make(generator, CPU)
        assert daemon.session()["degraded"] == []
        wait_for(lambda: open_events(daemon) == held, "as many descriptors and mappings")
        ended = daemon.stop()
    assert ended.status == 0, ended.log
    joined = [line for line in ended.events() if line["event"] == "cpu_joined"]
    assert [line["cpu"] for line in joined] == [CPU] * CYCLES
    session = daemon_result(tmp_path)
    assert (session["produced"], session["stored"], session["unaccounted"]) == (made, made, 0)
    (data,) = (tmp_path / "state").rglob("*.perf.data")
    places = [(ring["role"], ring["cpu"]) for ring in daemons.manifest(data)["rings"]]
    assert len(places) == len(set(places))
    for perf in perfs:
        assert len(perf.script(data)) == made


def test_the_aux_area_of_a_cpu_that_comes_back(
    tmp_path: Path, start_cli: Start, checker: Checker
) -> None:
    """A new area follows the old one: each byte of both is stored or truncated."""
    with loaded_pmu(test_aux.PMU) as pmu:
        with daemons.running(start_cli, test_aux.write_config(tmp_path)) as daemon:
            test_aux.await_traced(pmu)
            held = open_events(daemon)
            for _ in range(CYCLES):
                test_aux.await_words(pmu, WORDS)
                with offline(CPU):
                    wait_for(lambda: daemon.metric(ONLINE) == CPUS - 1, "the CPU's end")
                wait_for(lambda: daemon.metric(COVERED) == CPUS, "the CPU's new area")
                test_aux.await_traced(pmu)
            test_aux.await_words(pmu, WORDS)
            session = daemon.session("trace")
            assert session["degraded"] == []
            assert [area["cpu"] for area in session["aux"]] == list(range(CPUS))
            wait_for(lambda: open_events(daemon) == held, "as many descriptors and mappings")
            ended = daemon.stop()
        assert ended.status == 0, ended.log
        now = pmu.counters()
    segments = daemons.sealed(tmp_path / "state")
    found = checker(segments)
    test_aux.check_words(found, now)
    for area in daemons.manifest(segments[-1])["ledger"]["aux"]:
        assert area["produced_bytes"] == now[area["cpu"]].produced_bytes
        assert (area["unaccounted_bytes"], area["in_flight_bytes"]) == (0, 0)


def test_a_recorder_has_the_aux_area_of_a_cpu_that_comes_back(
    tmp_path: Path, start_cli: Start, checker: Checker
) -> None:
    """The next snapshot has the last bytes of its old area, and those of the new one."""
    mode = f'mode = "flight-recorder"\nfreeze_on = "{test_aux.FREEZE}"'
    with (
        loaded_pmu(test_aux.PMU) as pmu,
        daemons.running(start_cli, test_aux.write_config(tmp_path, mode)) as daemon,
    ):
        test_aux.await_traced(pmu)
        held = open_events(daemon)
        for _ in range(CYCLES):
            test_aux.await_words(pmu, 2 * WORDS)
            with offline(CPU):
                wait_for(lambda: daemon.metric(ONLINE) == CPUS - 1, "the CPU's end")
                left = pmu.counters()[CPU].next_word
            wait_for(lambda: daemon.metric(COVERED) == CPUS, "the CPU's new area")
            test_aux.await_words(pmu, 2 * WORDS)
            pmu.freeze()
            (taken,) = daemon.post("/v1/snapshot", {})["snapshots"]
            found = checker([Path(path) for path in taken["segments"]])
            now = pmu.counters()
            whole = WORDS - 4096 // WORD_BYTES
            assert sorted(found.of_cpu()) == list(range(CPUS))
            for words in found.words:
                returned = words.of == CPU  # what its new area has overwritten is missing between
                assert (words.gaps, words.disorder) == (int(returned), 0)
                assert words.last == now[words.of].next_word - 1
                assert words.words >= (2 * whole if returned else whole)
                assert not returned or words.first <= left - whole
            pmu.thaw()
        _, segments = test_aux.freeze(daemon, pmu, tmp_path, CPU)
        assert daemons.manifest(segments[-1])["snapshot"]["trigger"] == "freeze"
        session = daemon.session("trace")
        assert session["degraded"] == []
        assert sorted(area["cpu"] for area in session["aux"]) == list(range(CPUS))
        wait_for(lambda: open_events(daemon) == held, "as many descriptors and mappings")
        ended = daemon.stop()
    assert ended.status == 0, ended.log


def await_recorded(daemon: Daemon, cpu: int, work: Callable[[], object]) -> None:
    """Wait until what works on a CPU is recorded; what it was before is explained."""
    before = produced_on(daemon.session(), cpu)

    def is_recorded() -> bool:
        work()
        session = daemon.session()
        assert session["unaccounted"] == 0
        return produced_on(session, cpu) > before

    wait_for(is_recorded, f"records of CPU {cpu}")


def test_cpus_that_come_and_go_at_random_under_load(
    tmp_path: Path, start_cli: Start, generator: Generator, perfs: Perfs
) -> None:
    """Each is recorded again; no record is unexplained, and nothing of its rings is left open."""
    choose = random.Random(RANDOM_CYCLES)  # noqa: S311  # no secret
    with (
        daemons.running(start_cli, daemon_config(tmp_path, log_level="info", core=CORE)) as daemon,
        generator.start("count", nr=NUMBER, count=ENDLESS, rate=RATE * CPUS, threads=CPUS) as load,
    ):
        load.go()
        held = open_events(daemon)
        for _ in range(RANDOM_CYCLES):
            cpu, times = choose.choice(with_switch()), choose.randint(1, 3)
            counts = [choose.randint(1, BURST) for _ in range(times)]
            bounce(daemon, cpu, [partial(make, generator, 0, count) for count in counts])
            await_recorded(daemon, cpu, partial(make, generator, cpu))
        assert daemon.session()["degraded"] == []
        wait_for(lambda: open_events(daemon) == held, "as many descriptors and mappings")
        load.kill()
        ended = daemon.stop()
    assert ended.status == 0, ended.log
    assert {line["event"] for line in ended.complaints()} <= {"cpus_changed"}
    session = daemon_result(tmp_path)
    assert session["unaccounted"] == 0
    assert session["produced"] == session["stored"] + sum(session["lost"].values())
    (data,) = (tmp_path / "state").rglob("*.perf.data")
    for perf in perfs:
        assert len(perf.script(data)) == session["stored"]


def test_the_ledger_names_the_time_of_a_cpu_that_was_away(
    tmp_path: Path, start_cli: Start, run_cli: Run, generator: Generator
) -> None:
    """A window with it is not complete, and says when and which; the time before it is."""
    config = daemon_config(tmp_path, log_level="info", core=CORE)
    state = tmp_path / "state"
    with daemons.running(start_cli, config) as daemon:
        made = make(generator, CPU)
        daemon.await_stored(made)
        clean_ns = time.time_ns()
        for _ in range(2):  # balances that are older than the CPU's absence
            made += make(generator, 0)
            daemon.await_stored(made)
        left_ns = time.time_ns()
        bounce(daemon, CPU, [partial(make, generator, 0)])
        made += BURST + make(generator, CPU)
        daemon.await_stored(made)
        back_ns = time.time_ns()
        assert daemon.stop().status == 0
    told = told_by(run_cli, state, status=1)
    assert {found["what"] for found in told["findings"]} == {"uncovered"}
    (figures,) = told["figures"]
    assert (figures["produced"], figures["stored"], figures["lost"]) == (made, made, {})
    for found in told["findings"]:
        assert f"CPU {CPU}" in found["detail"]
        assert left_ns < found["since_ns"] < found["until_ns"] < back_ns
    told_by(run_cli, state, "--until", at(clean_ns), status=0)


def test_what_a_cpu_had_in_a_flight_recorder_is_in_the_next_snapshot(
    tmp_path: Path, start_cli: Start, generator: Generator, perfs: Perfs
) -> None:
    """With what it makes when it is back: its window is taken before its ring is closed."""
    mode = 'mode = "flight-recorder"'
    config = daemon_config(tmp_path, log_level="info", core=CORE, session=mode)
    with daemons.running(start_cli, config) as daemon:
        held = open_events(daemon)
        made = make(generator, CPU) + make(generator, 0)
        bounce(daemon, CPU, [partial(make, generator, 0)])
        made += BURST + make(generator, CPU)
        (taken,) = daemon.post("/v1/snapshot", {})["snapshots"]
        assert taken["samples"] == made
        wait_for(lambda: open_events(daemon) == held, "as many descriptors and mappings")
        assert daemon.session()["degraded"] == []
        ended = daemon.stop()
    assert ended.status == 0, ended.log
    session = daemon_result(tmp_path)
    assert (session["stored"], session["overwritten"]) == (made, 0)
    for perf in perfs:
        assert sum(len(perf.script(Path(path))) for path in taken["segments"]) == made


def test_a_cpu_that_comes_late_is_recorded(
    tmp_path: Path, start_cli: Start, generator: Generator, trace_cmds: TraceCmds
) -> None:
    """Offline when the session began, its ring of ftrace is drained once it is there."""
    config = daemon_config(tmp_path, log_level="error", core=CORE, kind="tracefs")
    with ExitStack() as stack:
        with offline(CPU):
            daemon = stack.enter_context(daemons.running(start_cli, config))
        wait_for(lambda: daemon.metric(COVERED) == CPUS, "the CPU's ring")
        made = make(generator, CPU) + make(generator, 0)
        wait_for(lambda: daemon.session()["stored"] == made, "what both have made")
        assert produced_on(daemon.session(), CPU) == BURST
        assert daemon.session()["degraded"] == []
        ended = daemon.stop()
    assert (ended.status, ended.log) == (0, "")
    session = final_session(tmp_path / "state")
    assert (session["produced"], session["stored"], session["unaccounted"]) == (made, made, 0)
    assert sum(session["lost"].values()) == 0
    for trace_cmd in trace_cmds:
        assert sum(len(trace_cmd.report(Path(path))) for path in session["segments"]) == made


def write_on(device: Path, cpu: int) -> None:
    """Make so many requests of a device on one CPU."""
    load = ("dd", "if=/dev/zero", f"of={device}", "bs=4096", f"count={REQUESTS}", "oflag=direct")
    subprocess.run(("taskset", "-c", str(cpu), *load), check=True, capture_output=True)


def test_records_of_a_device_on_a_cpu_that_comes_late_are_stored(
    tmp_path: Path, start_cli: Start
) -> None:
    """The kernel makes a file for it, which is read from then on and has its place in the sets."""
    with disk(tmp_path) as device, ExitStack() as stack:
        with offline(CPU):
            config = write_config(tmp_path, f'device = "{device}"')
            daemon = stack.enter_context(daemons.running(start_cli, config))
            write_on(device, 0)
        write_on(device, CPU)
        wait_for(lambda: daemon.session("disk")["stored"] >= 2 * REQUESTS, "what both have made")
        wait_for(lambda: daemon.session("disk")["degraded"] == [], "the file of the CPU")
        assert produced_on(daemon.session("disk"), CPU) >= REQUESTS
        write_on(device, CPU)
        assert daemon.stop().status == 0
    names = bases(tmp_path / "state")
    ledger = daemons.manifest(names[-1].with_name(f"{names[-1].name}.blktrace.0"))["ledger"]
    assert (ledger["basis"], ledger["closed"]) == ("exact", True)
    assert ledger["produced"] == ledger["stored"]
    assert sum(ledger["lost"].values()) == ledger["unaccounted"] == ledger["in_flight"] == 0
    traces = [parsed(name) for name in names]
    assert sum(map(events, traces)) == ledger["stored"]
    assert sum(map(written, traces)) == 3 * REQUESTS


def test_records_of_a_device_on_a_cpu_that_comes_late_are_counted(
    tmp_path: Path, run_cli: Run
) -> None:
    """A recording's files are those of its start: what other CPUs have made is lost at its end."""
    with disk(tmp_path) as device, offline(CPU):
        load = f"dd if=/dev/zero of={device} bs=4096 count={REQUESTS} oflag=direct"
        command = f"echo 1 >{switch_of(CPU)} && taskset -c {CPU} {load}"
        words = ("record", "--relay", device, "-o", "late", "--json", "--", "sh", "-c", command)
        done = run_cli(*words)
    assert done.returncode == 0, done.stderr
    session = result_of(done.stdout)
    assert session["lost"]["kernel_ring/uncovered"] >= REQUESTS
    assert session["produced"] == session["stored"] + sum(session["lost"].values())
    assert (session["unaccounted"], session["in_flight"]) == (0, 0)
