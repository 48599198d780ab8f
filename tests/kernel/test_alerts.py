# SPDX-License-Identifier: Apache-2.0
"""A daemon that is told of alerts: what it makes of them, and who may tell; curl is the peer."""

from __future__ import annotations

import json
import re
import subprocess
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.kernel.test_incidents import BOX, await_incident, burst, incidents, note_of, triggers
from tests.support import daemons
from tests.support.alerts import FINGERPRINT, alert, notification
from tests.support.certificates import Authority, Pair

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.generator import Generator

    Start = Callable[..., subprocess.Popen[str]]
    Cli = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = pytest.mark.usefixtures("tracefs")

LISTENER: Final = """
[alertmanager]
listen = "127.0.0.1:0"
certificate = "{server.certificate}"
key = "{server.key}"
client_ca = "{authority.own.certificate}"

[[trigger]]
name = "alert"
kind = "alert"
labels = {{ alertname = "Disk*" }}
answers = []
"""
# Exit statuses of curl: in the handshake, or as the connection ends behind it without an answer.
REFUSED: Final = (35, 52, 55, 56)


def tell(
    daemon: daemons.Daemon, authority: Authority, client: Pair | None, told: dict[str, Any]
) -> subprocess.CompletedProcess[str]:
    """Send a notification with curl."""
    found = re.search(r"^alerts +(https://\S+)", daemon.announced, re.MULTILINE)
    assert found, daemon.announced
    words = ["curl", "-sS", "--cacert", str(authority.own.certificate), "-d", json.dumps(told)]
    if client is not None:
        words += ["--cert", str(client.certificate), "--key", str(client.key)]
    return subprocess.run([*words, found[1]], capture_output=True, text=True, check=False)


def test_an_alert_makes_an_incident(
    tmp_path: Path, start_cli: Start, run_cli: Cli, generator: Generator
) -> None:
    """It has the recorder's records and the fingerprint; repetitions and strangers make none."""
    authority = Authority.made(tmp_path / "authority")
    server, client = authority.sign("server"), authority.sign("client")
    text = LISTENER.format(server=server, authority=authority)
    config = daemons.write_sessions(tmp_path, BOX + text)
    told = notification(alert(), alert("0" * 16, alertname="Other \x1b[2J"))
    with daemons.running(start_cli, config) as daemon:
        burst(generator, 30)
        refused = tell(daemon, authority, None, told)
        assert refused.returncode in REFUSED, refused
        assert incidents(tmp_path) == []
        answers = json.loads(tell(daemon, authority, client, told).stdout)["alerts"]
        assert [one["result"] for one in answers] == ["accepted", "unmatched"]
        incident = await_incident(tmp_path, "alert")
        again = json.loads(tell(daemon, authority, client, told).stdout)["alerts"]
        assert [one["result"] for one in again] == ["repeated", "unmatched"]
        assert triggers(daemon)["alert"]["made"] == 1
        ended = daemon.stop()
    assert [line["event"] for line in ended.complaints()] == ["handshake_refused"]
    with daemons.running(start_cli, config) as daemon:
        answers = json.loads(tell(daemon, authority, client, told).stdout)["alerts"]
        assert answers[0]["result"] == "repeated"
        assert daemon.stop().status == 0
    assert incidents(tmp_path) == [incident]
    assert incident.name.endswith(f"-alert-{FINGERPRINT}")
    note = note_of(incident)
    assert [one["samples"] for one in note["snapshots"]] == [30]
    assert note["reason"] == "the alert DiskSlow fires: the disk is slow"
    shown = run_cli("incident", "show", FINGERPRINT, "--state-dir", tmp_path / "state")
    assert shown.returncode == 0, shown.stderr
    assert f"incident  {incident.name}" in shown.stdout
    assert f"alert     {FINGERPRINT}, since " in shown.stdout


def test_a_key_that_others_can_read_is_refused(tmp_path: Path, run_cli: Cli) -> None:
    """The daemon does not start, and says which file it is and what to type."""
    authority = Authority.made(tmp_path / "authority")
    server = authority.sign("server")
    server.key.chmod(0o644)
    text = LISTENER.format(server=server, authority=authority)
    done = run_cli("run", "--config", daemons.write_sessions(tmp_path, BOX + text))
    assert done.returncode == 6, done.stderr
    assert "other users may read it" in done.stderr
    assert f"chmod o= {server.key}" in done.stderr
