# SPDX-License-Identifier: Apache-2.0
"""The opener's unit under a real systemd: rings outlive a service that is killed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from tests.support import daemons
from tests.support.daemons import EVENT, FILTER, NUMBER, wait_for
from tests.vm.service import (
    CONFIG,
    OPENER,
    STATE,
    UNIT,
    is_again,
    journal,
    session,
    shown,
    status_of,
    systemctl,
    without_sys_admin,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.generator import Generator

NAME: Final = "held"
PROGRAM: Final = "program"
INSTALLED: Final = ("profile", "exec", "blackbox")
CLOSED: Final = 3
CALLS: Final = 6_000
RATE: Final = 200
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
def test_either_may_be_killed(generator: Generator) -> None:
    """The events between a kill and the restart are stored; a killed opener costs no event."""
    systemctl("start", UNIT)
    assert session(NAME)["degraded"] == []
    with generator.start("count", count=CALLS, rate=RATE, nr=NUMBER) as running:
        running.go()
        wait_for(lambda: session(NAME)["stored"] >= CALLS // 20, "events on disk")
        systemctl("kill", "--kill-whom=main", "--signal=KILL", UNIT)
        wait_for(lambda: is_again(UNIT), "a restart of the service")
        made = running.result()["events"]
    wait_for(lambda: all_counted(made), "all events")
    said = session(NAME)
    assert said["unaccounted"] == 0
    assert {name for name, count in said["lost"].items() if count} <= {"staging/dropped"}
    assert not said["gaps_ns"].get("kill"), said["gaps_ns"]

    systemctl("kill", "--kill-whom=main", "--signal=KILL", OPENER)
    wait_for(lambda: is_again(OPENER), "a restart of the opener")
    with generator.start("count", count=CALLS // 10, nr=NUMBER) as running:
        more = running.run()["events"]
    wait_for(lambda: all_counted(made + more), "what came without the opener")
    assert session(NAME)["unaccounted"] == 0
    wait_for(lambda: session(NAME)["degraded"], "the reason why a restart would lose something")

    systemctl("restart", UNIT)
    assert (session(NAME)["state"], session(NAME)["degraded"]) == ("running", [])
    systemctl("stop", UNIT)
    assert shown("Result", "ExecMainStatus") == ("success", "0"), journal()
    assert shown("ActiveState", unit=OPENER) == ("active",)


@pytest.mark.usefixtures("service", "opener")
def test_the_daemon_needs_no_privilege_of_perf_and_bpf(generator: Generator) -> None:
    """With the opener sessions of events and programs run at Debian's closed level of perf."""
    CONFIG.write_text(HELD + COMPILED)
    with without_sys_admin("CAP_PERFMON", "CAP_BPF", paranoid=CLOSED):
        systemctl("start", UNIT)
        had = set(shown("CapabilityBoundingSet")[0].split())
        assert had.isdisjoint({"cap_sys_admin", "cap_perfmon", "cap_bpf"})
        sessions = {
            one["name"]: (one["state"], one["degraded"]) for one in status_of()["sessions"]
        }
        assert sessions == dict.fromkeys((NAME, PROGRAM, *INSTALLED), ("running", []))
        with generator.start("count", count=CALLS // 10, nr=NUMBER) as running:
            made = running.run()["events"]
        wait_for(lambda: all_counted(made), "all events")
        wait_for(lambda: session(PROGRAM)["stored"] == made, "all submissions")
        assert session(PROGRAM)["unaccounted"] == 0
        systemctl("stop", UNIT)
        assert shown("Result", "ExecMainStatus") == ("success", "0"), journal()
