# SPDX-License-Identifier: Apache-2.0
"""Debian's Alertmanager tells the installed service of alerts, by a certificate or in vain."""

from __future__ import annotations

import json
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.support.alertmanager import alertmanager
from tests.support.certificates import Authority
from tests.support.daemons import wait_for
from tests.vm.service import CONFIG, STATE, UNIT, journal, shown, status_of, systemctl

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAM: Final = "prometheus-alertmanager"
URL: Final = "https://127.0.0.1:9591/v1/alerts"
KEYS: Final = {"certificate": "alerts.pem", "key": "alerts.key", "client_ca": "alerts-ca.pem"}
LISTENER: Final = """
[alertmanager]
listen = "127.0.0.1:9591"
{files}
[[trigger]]
name = "disk"
kind = "alert"
labels = {{ alertname = "Disk*" }}
cooldown = "0"
answers = []
"""
DROP_IN: Final = Path("/run/systemd/system") / f"{UNIT}.d" / "alerts.conf"
REPEATED: Final = 3


@contextmanager
def listening(folder: Path) -> Iterator[Authority]:
    """Start the service with a listener, whose key root alone can read."""
    authority = Authority.made(folder / "authority")
    server = authority.sign("server", usage="serverAuth")
    sources = {
        "certificate": server.certificate,
        "key": server.key,
        "client_ca": authority.own.certificate,
    }
    given = Path("/run/credentials") / UNIT
    files = "".join(f'{key} = "{given / name}"\n' for key, name in KEYS.items())
    CONFIG.write_text(LISTENER.format(files=files))
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


def notes() -> list[dict[str, Any]]:
    """Return the notes of the incidents of alerts, the oldest first."""
    found = sorted((STATE / "incidents").glob("*-disk-*/incident.json"))
    return [json.loads(path.read_text()) for path in found]


@pytest.mark.usefixtures("service")
def test_an_alert_makes_an_incident(tmp_path: Path) -> None:
    """One for all repetitions, with the fingerprint in its name; none without a certificate."""
    with listening(tmp_path) as authority:
        known, unknown = tmp_path / "known", tmp_path / "unknown"
        known.mkdir()
        unknown.mkdir()
        ca = authority.own.certificate
        with alertmanager(PROGRAM, unknown, URL, ca, None) as stranger:
            stranger.fire(alertname="DiskStranger")
            wait_for(lambda: stranger.count("notification_requests_failed_total"), "a refusal")
        assert notes() == []
        wait_for(lambda: "handshake_refused" in journal(), "a line about it")
        client = authority.sign("client", usage="clientAuth")
        with alertmanager(PROGRAM, known, URL, ca, client) as known_one:
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
