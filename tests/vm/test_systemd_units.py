# SPDX-License-Identifier: Apache-2.0
"""The files that `make install` installs, under a real systemd."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from collectord.kernel.tracefs.instance_note import remove_note, write_note
from collectord.kernel.values.left_instance import InstanceNote
from tests.support import daemons
from tests.support.daemons import wait_for
from tests.vm.service import (
    CONFIG,
    OPENER,
    RUNTIME,
    SHIPPER,
    SOCKETS,
    STATE,
    TRACEFS,
    UNIT,
    is_again,
    journal,
    scrape,
    session,
    shown,
    status_of,
    systemctl,
    without_sys_admin,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.perf_tools import Perf

PROGRAM: Final = "/usr/local/bin/collectord"
SESSIONS: Final = ("profile", "exec", "blackbox")
STAGES: Final = (
    "looking at the host",
    "sealing what earlier runs left",
    "opening rings (perf, tracefs)",
)
RECORDING: Final = "recording: 3 sessions, 0 degraded, 0 losing"
STATUS_CONFIG: Final = 6
# An event of another session than the installed ones: what a user puts into collectord.d.
KPROBED: Final = """
[[session]]
name = "forks"

[[session.source]]
kind = "tracefs"
events = []
probes = [{ kind = "kprobe", name = "forked", place = "kernel_clone" }]
"""
# A device that the kernel has, and the unit's own /dev has not.
HIDDEN: Final = """
[[session]]
name = "disk"

[[session.source]]
kind = "relay"
device = "/dev/{device}"
when = "{when}"
"""
STATUS_PRIVILEGE: Final = 4
UNITS: Final = (UNIT, OPENER, SHIPPER, TRACEFS, *SOCKETS, "collectord.slice")
# Ten times what `systemd-analyze security` may say.
EXPOSURES: Final = {UNIT: 33, OPENER: 29, SHIPPER: 12, TRACEFS: 13}


def levels(invocation: str) -> set[str]:
    """Return the levels of all lines that one run of the service logged."""
    lines = journal(f"_SYSTEMD_INVOCATION_ID={invocation}").splitlines()
    logged = [json.loads(line) for line in lines if line.startswith("{")]
    assert logged
    return {line["level"] for line in logged}


@pytest.fixture
def least() -> Iterator[str]:
    """Install a drop-in without CAP_SYS_ADMIN where possible; returns its capabilities."""
    with without_sys_admin(paranoid=2) as capabilities:
        yield capabilities


@pytest.mark.usefixtures("service")
def test_the_service_runs(perf: Perf) -> None:
    """Enabled and started as in the README, it is ready, is scraped, restarts, and stops clean."""
    systemctl("enable", "--now", "--quiet", UNIT)
    state, pid, user, text, restarts = shown(
        "ActiveState", "MainPID", "User", "StatusText", "NRestarts"
    )
    assert (state, user, text, restarts) == ("active", "collectord", RECORDING, "0")
    assert Path(f"/proc/{pid}").owner() == "collectord"
    assert "Active: active (running)" in systemctl("status", UNIT)

    first = scrape()
    assert first.content_type.startswith("application/openmetrics-text; version=1.0.0")
    # a strict parser
    assert list(text_string_to_metric_families(first.text))  # type: ignore[no-untyped-call]
    release = os.uname().release
    assert f'kernel="{release}"' in first.text
    assert first.value("collectord_unclean_stops_total") == 0
    online = os.sysconf("SC_NPROCESSORS_ONLN")
    assert first.value("collectord_cpus_online") == online
    assert first.value("collectord_cpus_covered") == online
    for name in SESSIONS:
        source = "tracefs" if name == "blackbox" else "perf"
        labels = f'session="{name}",source="{source}",state="running"'
        assert first.value(f"collectord_session_state{{{labels}}}") == 1

    stored = 'collectord_stored_records_total{session="exec",source="perf"}'
    subprocess.run(["true"], check=True)  # a fork, an exec and an exit
    wait_for(lambda: scrape().value(stored) > first.value(stored), "stored records")
    wait_for(lambda: scrape().value(stored.replace("exec", "profile")) > 0, "samples")
    runs = [*shown("InvocationID")]

    systemctl("restart", UNIT)
    assert shown("ActiveState", "NRestarts") == ("active", "0")
    runs += shown("InvocationID")
    assert status_of()["pid"] == int(shown("MainPID")[0]) != int(pid)
    assert scrape().value("collectord_unclean_stops_total") == 0

    systemctl("stop", UNIT)
    ended = shown("ActiveState", "Result", "ExecMainStatus", "ExecMainCode")
    assert ended == ("inactive", "success", "0", str(int(os.CLD_EXITED)))
    assert [levels(run) for run in runs] == [{"info"}, {"info"}]
    assert not journal("--priority=warning")
    assert daemons.left_open(STATE) == []
    segments = daemons.sealed(STATE)
    assert {path.parent.name for path in segments} == {"exec", "profile"}
    for path in segments:
        assert path.owner() == "collectord"
        assert len(perf.script(path)) >= daemons.manifest(path)["samples"]
    subprocess.run([PROGRAM, "segments", "verify", STATE], check=True)


@pytest.mark.usefixtures("service")
def test_a_killed_service_comes_back(tracefs: Path) -> None:
    """After a kill systemd starts it again, and it seals and salvages what the first one left."""
    systemctl("start", UNIT)
    subprocess.run(["true"], check=True)  # an exec
    stored = 'collectord_stored_records_total{session="exec",source="perf"}'
    wait_for(lambda: scrape().value(stored) > 0, "an exec on disk")
    (pid,) = shown("MainPID")
    systemctl("kill", "--kill-whom=main", f"--signal={int(signal.SIGKILL)}", UNIT)

    wait_for(lambda: is_again(UNIT), "a restart")
    assert shown("MainPID") != (pid,)
    assert scrape().value("collectord_unclean_stops_total") == 1
    recovered = [path for path in daemons.sealed(STATE) if daemons.manifest(path)["recovered"]]
    assert {path.parent.name for path in recovered} >= {"exec"}
    # Beside what was salvaged there may be snapshots: a busy guest has incidents. One that the
    # kill interrupted has no balance.
    ledgers = [daemons.manifest(one)["ledger"] for one in (STATE / "blackbox").glob("*.trace.dat")]
    assert [one["unaccounted"] for one in ledgers if one.get("closed")] == [0]
    systemctl("stop", UNIT)
    assert shown("Result", "ExecMainStatus") == ("success", "0"), journal()
    assert not [p for p in (tracefs / "instances").iterdir() if p.name.startswith("collectord")]
    subprocess.run([PROGRAM, "segments", "verify", STATE], check=True)


@pytest.mark.usefixtures("service")
def test_sockets_are_there_as_long_as_the_service() -> None:
    """A client waits for a start instead of failing; one of a stopped service starts nothing."""
    systemctl("start", UNIT)
    for unit in SOCKETS:
        assert shown("ActiveState", unit=unit) == ("active",)
    (pid,) = shown("MainPID")
    sock = Path("/run/collectord/control.sock")
    assert (sock.owner(), sock.group(), sock.stat().st_mode & 0o777) == (
        "collectord",
        "collectord",
        0o660,
    )
    restart = subprocess.Popen(["systemctl", "--no-pager", "restart", UNIT])
    wait_for(lambda: shown("ActiveState") == ("activating",), "a start")
    assert scrape().value("collectord_cpus_online") > 0  # it waits until the service is ready
    assert restart.wait() == 0
    assert shown("MainPID") != (pid,)

    systemctl("stop", UNIT)
    for unit in SOCKETS:
        assert shown("ActiveState", unit=unit) == ("inactive",)
    with pytest.raises(urllib.error.URLError):
        scrape()
    assert not sock.exists()
    assert shown("ActiveState", "NRestarts") == ("inactive", "0")


@pytest.mark.usefixtures("service")
def test_a_socket_elsewhere_than_configured_is_an_error() -> None:
    """The journal names both places and the unit."""
    CONFIG.write_text('[metrics]\nlisten = "127.0.0.1:9591"\n')
    systemctl("start", UNIT, status=1)
    assert shown("ActiveState", "ExecMainStatus") == ("failed", str(STATUS_CONFIG))
    assert "listens on 127.0.0.1:9590, and not on 127.0.0.1:9591" in journal()


@pytest.mark.usefixtures("service")
def test_stages_are_shown() -> None:
    """A start has the texts of the manual; the processes have a slice of their own."""
    seen = set()
    start = subprocess.Popen(["systemctl", "--no-pager", "start", UNIT])
    while start.poll() is None:
        seen |= {*shown("StatusText")}
    assert start.returncode == 0
    assert seen <= {"", *STAGES, RECORDING}
    assert shown("StatusText") == (RECORDING,)
    (group,) = shown("ControlGroup")
    assert group == "/collectord.slice/collectord.service"
    systemctl("stop", UNIT)


@pytest.mark.usefixtures("service")
def test_a_bad_configuration_is_not_tried_again() -> None:
    """It ends with its own status, systemd does not restart it, and the journal says why."""
    CONFIG.write_text('[daemon]\nstate_dri = "/tmp"\n')
    systemctl("start", UNIT, status=1)
    ended = shown("ActiveState", "ExecMainStatus", "NRestarts")
    assert ended == ("failed", str(STATUS_CONFIG), "0")
    assert "state_dir" in journal()


@pytest.mark.usefixtures("service")
def test_a_device_that_the_unit_hides() -> None:
    """PrivateDevices costs a session its device, but not the service its other sessions."""
    device = min(path.name for path in Path("/sys/class/block").iterdir())
    CONFIG.write_text(HIDDEN.format(device=device, when="present"))
    systemctl("start", UNIT)
    told = {session["name"]: session for session in status_of()["sessions"]}
    states = {name: session["state"] for name, session in told.items()}
    assert states == dict.fromkeys(SESSIONS, "running") | {"disk": "degraded"}
    assert f"/dev/{device} is hidden" in told["disk"]["degraded"][0]
    assert "PrivateDevices=no" in told["disk"]["degraded"][0]
    systemctl("stop", UNIT)
    assert shown("Result", "ExecMainStatus") == ("success", "0"), journal()

    CONFIG.write_text(HIDDEN.format(device=device, when="always"))
    systemctl("start", UNIT, status=1)
    ended = shown("ActiveState", "ExecMainStatus", "NRestarts")
    assert ended == ("failed", str(STATUS_PRIVILEGE), "0")
    assert "PrivateDevices=no" in journal()


@pytest.mark.usefixtures("service")
def test_kprobes_within_the_sandbox(tracefs: Path) -> None:
    """The unit's privileges suffice for a probe of the session's own, which goes with it."""
    CONFIG.write_text(KPROBED)
    systemctl("start", UNIT)
    produced = 'collectord_produced_records_total{session="forks",source="tracefs"}'
    before = scrape().value(produced)
    subprocess.run(["true"], check=True)
    wait_for(lambda: scrape().value(produced) > before, "a fork")
    systemctl("stop", UNIT)
    assert shown("Result", "ExecMainStatus") == ("success", "0"), journal()
    assert "forked" not in (tracefs / "kprobe_events").read_text()
    (segment,) = (STATE / "forks").glob("*.trace.dat")
    ledger = daemons.manifest(segment)["ledger"]
    assert (ledger["basis"], ledger["unaccounted"]) == ("exact", 0)
    assert ledger["produced"] == ledger["stored"] > 0


@pytest.mark.usefixtures("service")
def test_tracefs_belongs_to_the_service_while_it_runs(tracefs: Path) -> None:
    """The daemon writes there as the owner, over restarts; root has all of it back at the end.

    What root recorded before does not keep the daemon from writing notes beside those of root.
    """
    shutil.rmtree(RUNTIME / "instances", ignore_errors=True)
    write_note("collectord-root", InstanceNote(STATE))
    given = [tracefs / name for name in ("instances", "dynamic_events")]
    (tracefs / "instances/collectord-blackbox").mkdir()  # as a crashed daemon of root leaves it
    systemctl("start", UNIT)
    assert session("blackbox")["state"] == "running"
    for verb in ("restart", "kill"):
        (capabilities,) = shown("CapabilityBoundingSet")
        assert "cap_dac_override" not in capabilities.split()
        assert {path.owner() for path in given} == {"collectord"}
        assert (tracefs / "instances/collectord-blackbox/trace_marker").owner() == "collectord"
        assert {(tracefs / name).owner() for name in ("events", "set_event")} == {"root"}
        systemctl(verb, *(["--signal=KILL"] if verb == "kill" else []), UNIT)
    wait_for(lambda: is_again(UNIT), "a restart")
    wait_for(lambda: session("blackbox")["state"] == "running", "a session")
    systemctl("stop", UNIT)
    assert shown("Result", "ExecMainStatus") == ("success", "0"), journal()
    wait_for(lambda: shown("ActiveState", unit=TRACEFS) == ("inactive",), "the files' return")
    assert {path.owner() for path in given} == {"root"}
    remove_note("collectord-root")


@pytest.mark.usefixtures("service")
def test_without_debians_closed_level(least: str) -> None:
    """At kernel.perf_event_paranoid 2 the unit needs no CAP_SYS_ADMIN: all sessions run."""
    systemctl("start", UNIT)
    (shown_set,) = shown("CapabilityBoundingSet")
    assert set(shown_set.split()) == {word.lower() for word in least.split()}
    states = {session["name"]: session["state"] for session in status_of()["sessions"]}
    assert states == dict.fromkeys(SESSIONS, "running")
    systemctl("stop", UNIT)
    assert shown("Result", "ExecMainStatus") == ("success", "0"), journal()


def test_the_units_are_sound() -> None:
    """systemd-analyze has no complaint about the installed units, and knows them as confined."""
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *UNITS],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    for unit, exposure in EXPOSURES.items():
        words = ["systemd-analyze", "--no-pager", "security", f"--threshold={exposure}", unit]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
