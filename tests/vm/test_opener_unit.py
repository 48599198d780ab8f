# SPDX-License-Identifier: Apache-2.0
"""The opener's unit under a real systemd; test_package has what becomes of its rings."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.support import daemons
from tests.support.block_traces import disk, traces_of
from tests.support.daemons import EVENT, FILTER, NUMBER, wait_for
from tests.vm.service import (
    CONFIG,
    OPENER,
    STATE,
    UNIT,
    WITHOUT_BPF,
    block_devices_let_in,
    hung_drain_thread,
    is_again,
    journal,
    session,
    shown,
    status_of,
    systemctl,
    without_sys_admin,
)
from tests.vm.test_lasting_relay import await_all, check_ledger, check_once, loaded, written

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.generator import Generator

NAME: Final = "held"
PROGRAM: Final = "program"
INSTALLED: Final = ("profile", "exec", "blackbox")
CLOSED: Final = 3
CALLS: Final = 600
HELD: Final = f"""
[daemon]
opener = "/run/collectord-opener/opener.sock"

[[session]]
name = "{NAME}"

[[session.source]]
kind = "perf"
events = ["{EVENT}"]
filter = "{FILTER}"
ring = "4MiB"
"""
TRACED: Final = """
[[session]]
name = "disk"

[[session.source]]
kind = "relay"
device = "{device}"
subbuf = "16KiB"
subbufs = 2048
"""
COMPILED: Final = f"""
[bpf]
compile_time = "5m"

[[session]]
name = "{PROGRAM}"

[[session.source]]
kind = "bpf"
program = "syscall_stream"
arguments = {{ nr = {NUMBER} }}
when = "always"
"""


@pytest.fixture
def opener() -> Iterator[None]:
    """Provide an opener, started before the service, and stop it."""
    CONFIG.write_text(HELD)
    systemctl("start", OPENER)
    yield
    systemctl("stop", OPENER)
    if shown("ActiveState", unit=OPENER) == ("failed",):
        systemctl("reset-failed", OPENER)


def all_counted(made: int) -> bool:
    """Whether all events are in sealed segments, or stored or lost by this daemon."""
    sealed = sum(daemons.manifest(path)["samples"] for path in daemons.sealed(STATE / NAME))
    said = session(NAME)
    return bool(sealed + said["stored"] + sum(said["lost"].values()) == made)


@pytest.mark.usefixtures("service", "opener")
def test_a_killed_opener_costs_no_event(generator: Generator) -> None:
    """It is started again; the daemon goes on with its rings, and says what a restart costs.

    What a kill of the daemon costs is in test_package.
    """
    systemctl("start", UNIT)
    assert session(NAME)["degraded"] == []
    systemctl("kill", "--kill-whom=main", "--signal=KILL", OPENER)
    wait_for(lambda: is_again(OPENER), "a restart of the opener")
    with generator.start("count", count=CALLS, nr=NUMBER) as running:
        made = running.run()["events"]
    wait_for(lambda: all_counted(made), "what came without the opener")
    assert session(NAME)["unaccounted"] == 0
    wait_for(lambda: session(NAME)["degraded"], "the reason why a restart would lose something")

    systemctl("restart", UNIT)
    assert (session(NAME)["state"], session(NAME)["degraded"]) == ("running", [])
    systemctl("stop", UNIT)
    assert shown("Result", "ExecMainStatus") == ("success", "0"), journal()
    assert shown("ActiveState", unit=OPENER) == ("active",)


@pytest.mark.usefixtures("service", "opener")
def test_a_hung_drain_thread_ends_in_a_restart(generator: Generator) -> None:
    """The watchdog sees it, and the journal has the thread and the stacks.

    The next daemon has all that came meanwhile, from the opener's rings.
    """
    with hung_drain_thread(generator):
        with generator.start("count", count=CALLS, nr=NUMBER) as running:
            made = running.run()["events"]
        wait_for(lambda: is_again(UNIT), "a service that runs again")
    wait_for(lambda: all_counted(made), "all events")
    assert session(NAME)["unaccounted"] == 0
    told = journal()
    assert '"event": "drain_thread_silent"' in told
    assert "Fatal Python error: Aborted" in told
    systemctl("stop", UNIT)
    assert shown("Result", "ExecMainStatus") == ("success", "0"), journal()


def compilers() -> list[int]:
    """Return the opener's processes that compile now."""
    (group,) = shown("ControlGroup", unit=OPENER)
    found = []
    for pid in Path(f"/sys/fs/cgroup{group}/cgroup.procs").read_text().split():
        with suppress(FileNotFoundError, ProcessLookupError):  # ended since it was listed
            if "libbcc" in Path(f"/proc/{pid}/maps").read_text():
                found.append(int(pid))
    return found


@pytest.mark.usefixtures("service", "opener")
def test_the_daemon_needs_no_privilege_of_perf_and_bpf(generator: Generator) -> None:
    """With the opener sessions of events and programs run at Debian's closed level of perf.

    Neither does the compiler's successor, if somebody kills one.
    """
    CONFIG.write_text(HELD + COMPILED)
    WITHOUT_BPF.unlink()
    systemctl("restart", OPENER)  # it has looked for a bcc
    with without_sys_admin("CAP_PERFMON", "CAP_BPF", paranoid=CLOSED):
        systemctl("start", "--no-block", UNIT)
        wait_for(compilers, "a process that compiles")
        for pid in compilers():
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: shown("ActiveState") == ("active",), "a start of the service")
        assert '"event": "bcc_worker_killed"' in journal(f"--unit={OPENER}")
        had = set(shown("CapabilityBoundingSet")[0].split())
        assert had.isdisjoint({"cap_sys_admin", "cap_perfmon", "cap_bpf"})
        sessions = {
            one["name"]: (one["state"], one["degraded"]) for one in status_of()["sessions"]
        }
        assert sessions == dict.fromkeys((NAME, PROGRAM, *INSTALLED), ("running", []))
        with generator.start("count", count=CALLS, nr=NUMBER) as running:
            made = running.run()["events"]
        wait_for(lambda: all_counted(made), "all events")
        wait_for(lambda: session(PROGRAM)["stored"] == made, "all submissions")
        assert session(PROGRAM)["unaccounted"] == 0
        systemctl("stop", UNIT)
        assert shown("Result", "ExecMainStatus") == ("success", "0"), journal()


@pytest.mark.usefixtures("service", "opener")
def test_a_block_trace_outlives_the_daemon(tmp_path: Path) -> None:
    """With the drop-in for block devices it goes on over restarts and a kill: each number once."""
    with block_devices_let_in(), disk(tmp_path) as device:
        CONFIG.write_text(HELD + TRACED.format(device=device))
        systemctl("restart", OPENER)
        systemctl("start", UNIT)
        with loaded(device) as load:
            wait_for(lambda: session("disk")["stored"] > CALLS, "records")
            systemctl("restart", UNIT)
            wait_for(lambda: session("disk")["stored"] > CALLS, "records of the next daemon")
            systemctl("kill", "--kill-whom=main", "--signal=KILL", UNIT)
            wait_for(lambda: is_again(UNIT), "a service that runs again")
            made = load.stop()
        await_all(lambda: session("disk"))
        assert session("disk")["degraded"] == []
        systemctl("stop", UNIT)
        assert shown("Result", "ExecMainStatus") == ("success", "0"), journal()
        assert traces_of(device)
        systemctl("stop", OPENER)
        assert traces_of(device) == []
    gaps = [line for line in journal().splitlines() if '"event": "gap_before"' in line]
    assert not [line for line in gaps if '"session": "disk"' in line]
    check_ledger(STATE / "disk")
    check_once(STATE / "disk")
    assert written(STATE / "disk") == made


SHORT: Final = """
[[trigger]]
name = "short"
kind = "pressure"
pressure = "cpu some 20ms/500ms"
answers = []
"""


def trouble_of(trigger: str) -> str:
    """Return why a trigger does not work as it should."""
    (one,) = (t for t in status_of()["incidents"]["triggers"] if t["name"] == trigger)
    return str(one["trouble"])


@pytest.mark.usefixtures("service", "opener")
def test_the_opener_has_short_windows_of_pressure_watched() -> None:
    """The daemon may not, and gets the descriptor; without an opener it looks itself."""
    CONFIG.write_text(HELD + SHORT)
    systemctl("start", UNIT)
    assert trouble_of("short") == ""
    systemctl("stop", UNIT)
    systemctl("stop", OPENER)
    CONFIG.write_text(SHORT)
    systemctl("start", UNIT)
    assert "looked at once per flush interval" in trouble_of("short")
    systemctl("stop", UNIT)
    assert shown("Result", "ExecMainStatus") == ("success", "0"), journal()
