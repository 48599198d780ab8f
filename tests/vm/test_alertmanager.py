# SPDX-License-Identifier: Apache-2.0
"""Debian's Alertmanager tells daemons of alerts: the installed service, and two hosts of one."""

from __future__ import annotations

import json
import re
import shutil
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from collectord.fleet.incident_files import SETTLED_NS
from collectord.text.units import NS_PER_SECOND
from tests.support import daemons
from tests.support.alertmanager import alertmanager
from tests.support.certificates import Authority
from tests.support.daemons import wait_for
from tests.vm.service import CONFIG, STATE, UNIT, journal, shown, status_of, systemctl

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator, Mapping

    from tests.support.certificates import Pair

    Start = Callable[..., subprocess.Popen[str]]
    Cli = Callable[..., subprocess.CompletedProcess[str]]

PROGRAM: Final = "prometheus-alertmanager"
URL: Final = "https://127.0.0.1:9591/v1/alerts"
KEYS: Final = {"certificate": "alerts.pem", "key": "alerts.key", "client_ca": "alerts-ca.pem"}
LISTENER: Final = """
[alertmanager]
listen = "127.0.0.1:{port}"
{files}
[[trigger]]
name = "disk"
kind = "alert"
labels = {{ alertname = "Disk*" }}
cooldown = "0"
answers = []
"""
# A host beside the service, which has a flight recorder alone.
HOST: Final = """
[ship]
host = "{name}"
directory = "{folder}/ship"
incidents = true

[[session]]
name = "box"
mode = "flight-recorder"
ship = "ledger"

[[session.source]]
kind = "perf"
events = ["sched:sched_process_exec"]
ring = "64KiB"
"""
DROP_IN: Final = Path("/run/systemd/system") / f"{UNIT}.d" / "alerts.conf"
REPEATED: Final = 3


def listener(port: int, files: Mapping[str, Path]) -> str:
    """Return a configuration of the listener, with the files of these keys, and its trigger."""
    lines = "".join(f'{key} = "{path}"\n' for key, path in files.items())
    return LISTENER.format(port=port, files=lines)


def files_of(authority: Authority, server: Pair) -> dict[str, Path]:
    """Return the files of a listener by the keys that name them."""
    return {
        "certificate": server.certificate,
        "key": server.key,
        "client_ca": authority.own.certificate,
    }


@contextmanager
def listening(folder: Path) -> Iterator[Authority]:
    """Start the service with a listener, whose key root alone can read."""
    authority = Authority.made(folder / "authority")
    sources = files_of(authority, authority.sign("server", usage="serverAuth"))
    given = Path("/run/credentials") / UNIT
    CONFIG.write_text(listener(9591, {key: given / name for key, name in KEYS.items()}))
    DROP_IN.parent.mkdir()
    try:
        lines = (f"LoadCredential={KEYS[key]}:{path}\n" for key, path in sources.items())
        DROP_IN.write_text("[Service]\n" + "".join(lines))
        systemctl("daemon-reload")
        systemctl("start", UNIT)
        assert shown("User") == ("collectord",)
        assert status_of()["sessions"]  # its servers take longer to load than the rest
        yield authority
        systemctl("stop", UNIT)
        assert shown("Result", "ExecMainStatus") == ("success", "0"), journal()
    finally:
        shutil.rmtree(DROP_IN.parent)
        systemctl("daemon-reload")


def notes(state: Path = STATE) -> list[dict[str, Any]]:
    """Return the notes of the incidents of alerts, the oldest first."""
    found = sorted((state / "incidents").glob("*-disk-*/incident.json"))
    return [json.loads(path.read_text()) for path in found]


@contextmanager
def host(start_cli: Start, folder: Path, authority: Authority) -> Iterator[str]:
    """Run the daemon of a host of the folder's name; yield the address of its listener."""
    folder.mkdir()
    files = files_of(authority, authority.sign(folder.name, usage="serverAuth"))
    text = HOST.format(name=folder.name, folder=folder)
    config = daemons.write_sessions(folder, text + listener(0, files))
    with daemons.running(start_cli, config) as daemon:
        found = re.search(r"^alerts +(https://\S+)", daemon.announced, re.MULTILINE)
        assert found, daemon.announced
        yield found[1]
        ended = daemon.stop()
        assert ended.status == 0, ended.log


@contextmanager
def later(seconds: float) -> Iterator[None]:
    """Have the guest's wall clock ahead for a block."""

    def step(by: float) -> None:
        time.clock_settime(time.CLOCK_REALTIME, time.clock_gettime(time.CLOCK_REALTIME) + by)

    step(seconds)
    try:
        yield
    finally:
        step(-seconds)


@pytest.mark.usefixtures("service")
def test_an_alert_makes_an_incident(tmp_path: Path) -> None:
    """One for all repetitions, with the fingerprint in its name; none without a certificate."""
    with listening(tmp_path) as authority:
        known, unknown = tmp_path / "known", tmp_path / "unknown"
        known.mkdir()
        unknown.mkdir()
        ca = authority.own.certificate
        with alertmanager(PROGRAM, unknown, [URL], ca, None) as stranger:
            stranger.fire(alertname="DiskStranger")
            wait_for(lambda: stranger.count("notification_requests_failed_total"), "a refusal")
        assert notes() == []
        wait_for(lambda: "handshake_refused" in journal(), "a line about it")
        client = authority.sign("client", usage="clientAuth")
        with alertmanager(PROGRAM, known, [URL], ca, client) as known_one:
            known_one.fire(alertname="DiskSlow", severity="page")
            wait_for(notes, "an incident")
            known_one.fire(alertname="Other")
            sent = "notifications_total"
            wait_for(lambda: known_one.count(sent) > REPEATED, "repetitions")
            assert known_one.count("notifications_failed_total") == 0
            fingerprints = {
                one["labels"]["alertname"]: one["fingerprint"] for one in known_one.alerts()
            }
        (note,) = notes()
        assert note["id"].endswith(f"-disk-{fingerprints['DiskSlow']}")
        assert note["reason"] == "the alert DiskSlow fires"
        assert [one["fingerprint"] for one in note["alerts"]] == [fingerprints["DiskSlow"]]
        assert {one["session"] for one in note["snapshots"]} == {"blackbox"}
        told = {one["name"]: one for one in status_of()["incidents"]["triggers"]}["disk"]
        assert told["made"] == 1


def test_an_alert_of_two_hosts_is_one_incident(
    tmp_path: Path, start_cli: Start, run_cli: Cli
) -> None:
    """Each host makes one of its own by the same fingerprint, and the store has both as one."""
    authority = Authority.made(tmp_path / "authority")
    client = authority.sign("client", usage="clientAuth")
    hosts = [tmp_path / name for name in ("db-1", "web-1")]
    own = tmp_path / "alertmanager"
    own.mkdir()
    with ExitStack() as stack:
        urls = [stack.enter_context(host(start_cli, folder, authority)) for folder in hosts]
        ca = authority.own.certificate
        told = stack.enter_context(alertmanager(PROGRAM, own, urls, ca, client))
        told.fire(alertname="DiskFull", severity="page")
        wait_for(lambda: all(notes(folder / "state") for folder in hosts), "an incident of each")
        assert told.count("notifications_failed_total") == 0
        (fingerprint,) = (one["fingerprint"] for one in told.alerts())
    made = {}
    for folder in hosts:
        (note,) = notes(folder / "state")
        assert note["id"].endswith(f"-disk-{fingerprint}")
        assert {one["session"] for one in note["snapshots"]} == {"box"}
        made[folder.name] = note["id"]
    store = tmp_path / "store"
    with later(SETTLED_NS / NS_PER_SECOND):  # until then an incident may get answers
        for folder in hosts:
            config = folder / "collectord.toml"
            done = run_cli("ship", "--once", "--config", config, "--store", store)
            assert done.returncode == 0, done.stderr
    shown_as = run_cli("fleet", "incidents", "--json", "--store", store)
    assert shown_as.returncode == 0, shown_as.stderr
    (whole,) = json.loads(shown_as.stdout)["incidents"]
    assert whole["id"] == fingerprint
    assert {one["host"]: one["incident"] for one in whole["hosts"]} == made
    _, row = run_cli("fleet", "incidents", "--store", store).stdout.splitlines()
    assert row.startswith(fingerprint)
    assert re.search(r"\b(db-1, web-1|web-1, db-1)\b", row), row
