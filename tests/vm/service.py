# SPDX-License-Identifier: Apache-2.0
"""The service in the guest, under its systemd: commands, properties, journal, metrics, status."""

from __future__ import annotations

import re
import shutil
import subprocess
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from collectord.control import client
from tests.support.daemons import wait_for
from tests.support.manual import DOCS
from tests.support.patience import patient

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.generator import Generator

UNIT: Final = "collectord.service"
OPENER: Final = "collectord-opener.service"
SHIPPER: Final = "collectord-ship.service"
TRACEFS: Final = "collectord-tracefs.service"
SOCKETS: Final = ("collectord-control.socket", "collectord-metrics.socket")
METRICS: Final = "http://127.0.0.1:9590/metrics"
STATE: Final = Path("/var/lib/collectord")
RUNTIME: Final = Path("/run/collectord")
CONTROL: Final = RUNTIME / "control.sock"
CONFIG: Final = Path("/etc/collectord/collectord.d/test.toml")
# The installed flight recorder is a BPF program where there is a bcc, which takes an emulated
# processor long to compile at each start. Without bcc it is ftrace's.
WITHOUT_BPF: Final = CONFIG.with_name("bpf.toml")
NO_BCC: Final = '[bpf]\npython = "/bin/false"\n'
PARANOID: Final = Path("/proc/sys/kernel/perf_event_paranoid")
CAPABILITY_SETS: Final = ("AmbientCapabilities", "CapabilityBoundingSet")


def systemctl(*words: str, status: int = 0) -> str:
    """Run `systemctl WORDS...`, which must end with this status; returns what it prints."""
    done = subprocess.run(
        ["systemctl", "--no-pager", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == status, f"{done}{journal(f'--unit={OPENER}')}"
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
    return client.get(CONTROL, "/v1/status")


def session(name: str) -> dict[str, Any]:
    """Return the balance of a session, once it has begun: on a slow disk READY may come before."""

    def found() -> list[dict[str, Any]]:
        return [one for one in status_of()["sessions"] if one["name"] == name]

    wait_for(found, f"the begin of {name}")
    (one,) = found()
    return one


def is_again(unit: str) -> bool:
    """Whether systemd has started a unit again."""
    return shown("ActiveState", "NRestarts", unit=unit) == ("active", "1")


@contextmanager
def drop_in(name: str, text: str, unit: str = UNIT) -> Iterator[None]:
    """Have some lines more in a unit for a block."""
    file = Path("/run/systemd/system") / f"{unit}.d" / f"{name}.conf"
    file.parent.mkdir()
    try:
        file.write_text(f"[Service]\n{text}")
        systemctl("daemon-reload")
        yield
    finally:
        shutil.rmtree(file.parent)
        systemctl("daemon-reload")


@contextmanager
def block_devices_let_in() -> Iterator[None]:
    """Have the drop-ins for block devices that docs/operations.md shows."""
    manual = (DOCS / "operations.md").read_text()
    section = manual.partition("### Let block devices in")[2].partition("\n## ")[0]
    service, opener = re.findall(r"\[Service\]\n((?:\w+=.*\n)+)", section)
    with drop_in("devices", service), drop_in("devices", opener, OPENER):
        yield


@contextmanager
def hung_drain_thread(generator: Generator) -> Iterator[None]:
    """Start the service, and hold one of its drain threads for a block, with a quick watchdog.

    It is held as a read that never returns would hold it.
    """
    with drop_in("watchdog", f"WatchdogSec={round(patient(3))}\n"):
        systemctl("start", UNIT)
        tid = status_of()["drain"]["threads"][0]["tid"]
        with generator.start("hold-thread", tid=tid):
            yield


@contextmanager
def without_sys_admin(*more: str, paranoid: int) -> Iterator[str]:
    """Install a drop-in without CAP_SYS_ADMIN and some more, and set perf's level.

    It yields the capabilities that are left.
    """
    unit = Path("/usr/local/lib/systemd/system") / UNIT
    words = re.findall(r"^CapabilityBoundingSet=(.*)$", unit.read_text(), re.MULTILINE)
    gone = {"CAP_SYS_ADMIN", *more}
    capabilities = " ".join(word for word in " ".join(words).split() if word not in gone)
    level = PARANOID.read_text()
    lines = "".join(f"{key}=\n{key}={capabilities}\n" for key in CAPABILITY_SETS)
    with drop_in("least", lines):
        PARANOID.write_text(str(paranoid))
        try:
            yield capabilities
        finally:
            PARANOID.write_text(level)
