# SPDX-License-Identifier: Apache-2.0
"""The service in the guest, under its systemd: commands, properties, journal, metrics, status."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.request
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.support.patience import patient

UNIT: Final = "collectord.service"
OPENER: Final = "collectord-opener.service"
SOCKETS: Final = ("collectord-control.socket", "collectord-metrics.socket")
METRICS: Final = "http://127.0.0.1:9590/metrics"
STATE: Final = Path("/var/lib/collectord")
CONFIG: Final = Path("/etc/collectord/collectord.d/test.toml")


def systemctl(*words: str, status: int = 0) -> str:
    """Run `systemctl WORDS...`, which must end with this status; returns what it prints."""
    done = subprocess.run(
        ["systemctl", "--no-pager", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == status, done.stdout + done.stderr + journal()
    return done.stdout


def shown(*properties: str, unit: str = UNIT) -> tuple[str, ...]:
    """Return properties of a unit."""
    text = systemctl("show", unit, *(f"--property={name}" for name in properties))
    found = dict(line.split("=", 1) for line in text.splitlines())
    return tuple(found[name] for name in properties)


def journal(*words: str) -> str:
    """Return the text of the service's lines in the journal."""
    return subprocess.run(
        ["journalctl", "--no-pager", "--output=cat", f"--unit={UNIT}", *words],
        capture_output=True,
        text=True,
        check=True,
    ).stdout


class Scrape(NamedTuple):
    """An answer of the metrics endpoint."""

    content_type: str
    text: str

    def value(self, series: str) -> float:
        """Return the value of one series."""
        found = re.search(rf"^{re.escape(series)} (\S+)$", self.text, re.MULTILINE)
        assert found, f"no series {series}"
        return float(found[1])


def scrape() -> Scrape:
    """Fetch the metrics as Prometheus does."""
    request = urllib.request.Request(
        METRICS,
        headers={
            "Accept": "application/openmetrics-text;version=1.0.0;q=0.5,"
            "application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.2",
            "X-Prometheus-Scrape-Timeout-Seconds": "10",
        },
    )
    with urllib.request.urlopen(request, timeout=patient(10)) as answer:  # noqa: S310  # ours
        assert answer.status == 200
        return Scrape(answer.headers["Content-Type"], answer.read().decode())


def status_of() -> dict[str, Any]:
    """Return the service's `/v1/status`."""
    words = ["curl", "--silent", "--show-error", "--fail", "--unix-socket"]
    where = ["/run/collectord/control.sock", "http://localhost/v1/status"]
    found = json.loads(subprocess.check_output([*words, *where], text=True))
    assert isinstance(found, dict)
    return found
