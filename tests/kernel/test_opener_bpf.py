# SPDX-License-Identifier: Apache-2.0
"""The opener holds BPF programs with their rings: they count while no daemon runs."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import pytest

from collectord.kernel.bpf import bpf_calls
from tests.support import bpf, cpus, daemons, openers
from tests.support.daemons import NUMBER, wait_for
from tests.support.features import require
from tests.support.openers import all_counted, allowed, lost, opening, stored, with_opener

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.daemons import Daemon
    from tests.support.generator import Generator
    from tests.support.perf_tools import Perf
    from tests.support.recording import Start

pytestmark = pytest.mark.usefixtures("tracefs", "bcc")

CALLS: Final = 80_000
RATE: Final = 100_000.0
RING_FULL: Final = "kernel_ring/ring_full"
LISTS: Final = (bpf_calls.program_ids, bpf.map_ids, bpf.link_ids)
# Such a process loads no program, and opens no event of a whole CPU.
BARE: Final = ("setpriv", "--bounding-set=-sys_admin,-perfmon,-bpf")
SERVED: Final = (BARE,)  # several starts have this prefix
TRANSPORTS: Final = ("perf", "ringbuf")


def configured(directory: Path, transport: str, ring: str) -> Path:
    """Write a configuration of a program whose submissions go through rings of this kind."""
    session = f"""
[[session]]
name = "calls"

[[session.source]]
kind = "bpf"
program = "syscall_stream"
arguments = {{ nr = {NUMBER} }}
transport = "{transport}"
ring = "{ring}"
sideband_ring = "4MiB"
"""
    return with_opener(daemons.write_sessions(directory, session))


def objects() -> list[set[int]]:
    """Return the numbers of all programs, maps and links of the host."""
    return [set(ids()) for ids in LISTS]


def left(before: list[set[int]]) -> set[int]:
    """Return the numbers of what was made since then."""
    return set().union(*(now - known for now, known in zip(objects(), before, strict=True)))


def loaded(before: list[set[int]]) -> set[int]:
    """Return the numbers of the programs that were loaded since then."""
    return objects()[0] - before[0]


def exact(balance: dict[str, Any]) -> bool:
    """Whether the kernel and the program say how much was produced, and all of it is known."""
    return (balance["ledger_basis"], balance["unaccounted"]) == ("exact", 0)


@pytest.mark.alone
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_kill_and_a_stop_lose_nothing_that_is_not_counted(
    tmp_path: Path,
    start_cli: Start,
    *,
    transport: str,
    generator: Generator,
    perfs: tuple[Perf, ...],
) -> None:
    """The next daemon has the same program, and the events that came meanwhile."""
    config = configured(tmp_path, transport, "16MiB")
    state = tmp_path / "state"
    before = objects()
    with opening(start_cli, config):
        with generator.start("count", count=CALLS, rate=RATE, nr=NUMBER) as running:
            with daemons.running(start_cli, config, prefix=BARE) as daemon:
                ids = loaded(before)
                running.go()
                daemon.await_stored(CALLS // 10)
                assert exact(daemon.session())
                daemon.kill()
            made = running.result()["events"]  # the rest comes while no daemon runs
        with daemons.running(start_cli, config, prefix=BARE) as daemon:
            assert loaded(before) == ids
            wait_for(lambda: all_counted(daemon, made, state), "all events")
            killed = daemon.session()
            ended = daemon.stop()
        assert exact(killed)
        assert set(lost(killed)) <= {"staging/dropped", *allowed(ended)}
        with generator.start("count", count=CALLS // 10, nr=NUMBER) as running:
            more = running.run()["events"]
        with daemons.running(start_cli, config, prefix=BARE) as daemon:
            assert loaded(before) == ids
            wait_for(lambda: daemon.session()["stored"] == more, "all events")
            stopped = daemon.session()
            assert stopped["degraded"] == []
            assert daemon.stop().status == 0
        assert exact(stopped)
        assert lost(stopped) == {}
    assert stored(state, perfs) + sum(lost(killed).values()) == made + more
    wait_for(lambda: not left(before), "the end of programs, maps and links")


@pytest.mark.alone
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_full_ring_is_counted_by_the_next_daemon(
    tmp_path: Path,
    start_cli: Start,
    *,
    transport: str,
    generator: Generator,
    perfs: tuple[Perf, ...],
) -> None:
    """While no daemon runs, the program counts what its rings refuse, and it is told once."""
    config = configured(tmp_path, transport, "64KiB")
    with opening(start_cli, config):
        with daemons.running(start_cli, config) as daemon:
            daemon.stop()
        with generator.start("count", count=20_000, nr=NUMBER) as running:
            made = running.run()["events"]
        with daemons.running(start_cli, config) as daemon:
            daemon.await_told(made)
            balance = daemon.session()
            daemon.stop()
        with daemons.running(start_cli, config) as daemon:
            again = daemon.session()
    full = balance["lost"][RING_FULL]
    assert full > 0
    assert exact(balance)
    assert lost(balance) == {RING_FULL: full}
    assert (lost(again), again["stored"]) == ({}, 0)
    assert stored(tmp_path / "state", perfs) == made - full


@pytest.mark.alone
def test_a_daemon_goes_on_until_its_end_without_the_opener(
    tmp_path: Path, start_cli: Start, generator: Generator
) -> None:
    """It says that its programs end with it now, and closes their gates at its stop."""
    config = configured(tmp_path, "perf", "4MiB")
    before = objects()
    with ExitStack() as stack:
        opener = stack.enter_context(opening(start_cli, config))
        daemon = stack.enter_context(daemons.running(start_cli, config))
        opener.kill()
        with generator.start("count", count=CALLS // 10, nr=NUMBER) as running:
            made = running.run()["events"]
        wait_for(lambda: daemon.session()["stored"] == made, "all events")
        wait_for(lambda: daemon.session()["degraded"], "the reason why a restart loses something")
        assert daemon.stop().status == 0
    (segment,) = daemons.sealed(tmp_path / "state")
    ledger = daemons.manifest(segment)["ledger"]
    assert (ledger["produced"], ledger["stored"], ledger["unaccounted"]) == (made, made, 0)
    wait_for(lambda: not left(before), "the end of programs, maps and links")


@pytest.mark.alone
def test_counts_of_programs_go_on(tmp_path: Path, start_cli: Start) -> None:
    """A program that only fills maps is neither compiled nor counted anew by the next daemon."""
    session = """
[[session]]
name = "waits"

[[session.source]]
kind = "bpf"
program = "runqlat"
"""
    config = with_opener(daemons.write_sessions(tmp_path, session))
    before = objects()
    with opening(start_cli, config):
        with daemons.running(start_cli, config, prefix=BARE) as daemon:
            ids = loaded(before)
            wait_for(lambda: waits(daemon), "a wait")
            counted = waits(daemon)
            assert daemon.session("waits")["degraded"] == []
            daemon.kill()
        with daemons.running(start_cli, config, prefix=BARE) as daemon:
            assert loaded(before) == ids != set()
            assert waits(daemon) >= counted
            daemon.stop()


def waits(daemon: Daemon) -> float:
    """Return how many waits a daemon's metrics have."""
    name = "collectord_bpf_run_queue_wait_seconds_count"
    lines = [line for line in daemon.metrics().splitlines() if line.startswith(name)]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


@pytest.mark.parametrize("kind", ["events", "programs"])
def test_a_cpu_that_comes_back_gets_rings_of_the_opener(
    tmp_path: Path, start_cli: Start, *, kind: str, generator: Generator, perfs: tuple[Perf, ...]
) -> None:
    """A daemon without privilege goes on there, and so does the next one after a kill."""
    require("CPU hotplug")
    events = kind == "events"
    config = openers.configured(tmp_path) if events else configured(tmp_path, "perf", "8MiB")
    state = tmp_path / "state"
    cpu = cpus.with_switch()[-1]
    before = objects()

    def make(count: int) -> int:
        with generator.start("count", cpu=cpu, count=count, nr=NUMBER) as running:
            return int(running.run()["events"])

    with opening(start_cli, config):
        with daemons.running(start_cli, config, prefix=BARE) as daemon:
            made = make(3_000)
            wait_for(lambda: daemon.session()["stored"] == made, "all events")
            for _ in range(2):
                cpus.bounce(daemon, cpu, [lambda: None])
                made += make(3_000)
            wait_for(lambda: daemon.session()["stored"] == made, "those of the new rings")
            balance = daemon.session()
            assert (balance["degraded"], lost(balance)) == ([], {})
            assert exact(balance)
            daemon.kill()
        made += make(2_000)
        with daemons.running(start_cli, config, prefix=BARE) as daemon:
            wait_for(lambda: all_counted(daemon, made, state), "all events")
            killed = daemon.session()
            ended = daemon.stop()
        assert exact(killed)
        assert set(lost(killed)) <= {"staging/dropped"}
        assert not ended.named("gap_before")
    assert stored(state, perfs) + sum(lost(killed).values()) == made
    wait_for(lambda: not left(before), "the end of programs, maps and links")
