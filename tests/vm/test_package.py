# SPDX-License-Identifier: Apache-2.0
"""The Debian package in the release that it was built for: it is installed, upgraded and purged.

What `make install` has installed in the guest is away meanwhile: systemd would take its units. It
is on the project's disk, from where the guest got it at its start (guest/init).
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.support import daemons
from tests.support.daemons import wait_for
from tests.vm.service import CONFIG, SOCKETS, STATE, UNIT, journal, scrape, shown, systemctl

if TYPE_CHECKING:
    from collections.abc import Iterator

DIST: Final = Path(__file__).parents[2] / "dist"
INSTALLED: Final = Path("/project")
ETC: Final = Path("/etc/collectord")
RUNTIME: Final = Path("/run/collectord")
USER: Final = "collectord"
# What the manual says is installed; the program answers for the modules below /usr/lib.
FILES: Final = (
    "/usr/bin/collectord",
    "/usr/lib/sysusers.d/collectord.conf",
    "/usr/lib/tmpfiles.d/collectord.conf",
    "/usr/share/bash-completion/completions/collectord",
    "/usr/share/collectord/grafana/collectord.json",
    "/usr/share/collectord/prometheus/collectord.rules.yml",
    "/usr/share/fish/vendor_completions.d/collectord.fish",
    "/usr/share/man/man1/collectord.1.gz",
    "/usr/share/man/man5/collectord.toml.5.gz",
    "/usr/share/zsh/vendor-completions/_collectord",
)
# Where scripts of a package, debhelper's and systemd put files besides those that it contains.
WRITTEN_TO: Final = (Path("/etc"), Path("/run"), Path("/var/lib"))
# The list of dpkg and the user stay.
KEPT: Final = "/var/lib/dpkg"
SESSION: Final = """
[[session]]
name = "traced"

[[session.source]]
kind = "tracefs"
events = ["sched:sched_process_exec"]
transport = "read"
"""
TRACED: Final = '{session="traced",source="tracefs"}'
CALLED: Final = '{session="exec",source="perf"}'
GAP: Final = 'collectord_gap_seconds_total{cause="stop",session="exec",source="perf"}'


def run(*words: str | Path) -> str:
    """Run a command that must succeed; returns what it prints."""
    done = subprocess.run(
        words,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}{journal()}"
    return done.stdout


def packages() -> tuple[Path, Path]:
    """Return the package, and the one of a later version."""
    found = {"+later" in path.name: path for path in DIST.glob("*.deb")}
    return found[False], found[True]


def version_of(package: Path) -> str:
    """Return the version that a package has."""
    return run("dpkg-deb", "--field", package, "Version").strip()


def dpkg_status() -> str:
    """Return dpkg's state and version of the package."""
    shape = "${db:Status-Status} ${Version}"
    return run("dpkg-query", "--show", f"--showformat={shape}", "collectord")


def contained() -> set[Path]:
    """Return the files of the installed package, and the folders that nothing else has."""
    paths = {Path(line) for line in run("dpkg-query", "--listfiles", "collectord").splitlines()}
    return {path for path in paths if not path.is_dir() or "collectord" in path.name}


def written() -> set[Path]:
    """Return what else has its name."""
    found = {path for folder in WRITTEN_TO for path in folder.rglob("*collectord*")}
    return {path for path in found if not path.is_relative_to(KEPT)}


@pytest.fixture
def bare() -> Iterator[None]:
    """Provide a system without what `make install` installed; it is back afterwards."""
    assert shown("ActiveState") == ("inactive",)
    copied = [*(INSTALLED / "usr/local").rglob("*collectord*"), INSTALLED / "etc/collectord"]
    for path in copied:
        here = Path("/") / path.relative_to(INSTALLED)
        if here.is_dir():
            shutil.rmtree(here)
        else:
            here.unlink(missing_ok=True)
    try:
        for folder in (STATE, RUNTIME):
            if folder.exists():  # the service has run before
                shutil.rmtree(folder)
        run("userdel", USER)
        systemctl("daemon-reload")
        yield
    finally:
        _install_again()


def _install_again() -> None:
    """Purge the package, and bring back what `make install` installed."""
    run("dpkg", "--purge", "collectord")
    run("cp", "-a", INSTALLED / "usr/local", "/usr")
    run("cp", "-a", INSTALLED / "etc/collectord", "/etc")
    run("systemd-sysusers", "collectord.conf")
    run("systemd-tmpfiles", "--create", "collectord.conf")
    systemctl("daemon-reload")
    run("journalctl", "--rotate", "--vacuum-size=1", "--quiet")


def await_stored(labels: str) -> None:
    """Wait until a session has stored something."""
    run("true")
    wait_for(
        lambda: scrape().value(f"collectord_stored_records_total{labels}") > 0,
        f"records of {labels}",
    )


def segments() -> list[Path]:
    """Return the sealed segments of the two streaming sessions."""
    return [*(STATE / "exec").glob("*.perf.data"), *(STATE / "traced").glob("*.trace.dat")]


@pytest.mark.usefixtures("bare", "tracefs")
def test_a_package_from_its_installation_to_its_purge() -> None:
    """It needs no network, and records; configuration and data outlive upgrade and removal."""
    first, later = packages()
    before = written()
    run("apt-get", "-y", "install", first)
    assert dpkg_status() == f"installed {version_of(first)}"
    assert shown("ActiveState", "UnitFileState", "User") == ("active", "enabled", USER)
    for unit in SOCKETS:
        assert shown("ActiveState", unit=unit) == ("active",)
    assert [path for path in FILES if not Path(path).is_file()] == []
    owned = {
        path: (path.owner(), path.group(), path.stat().st_mode & 0o777)
        for path in (STATE, RUNTIME, ETC / "collectord.d")
    }
    assert owned == {
        STATE: (USER, USER, 0o750),
        RUNTIME: (USER, USER, 0o755),
        ETC / "collectord.d": ("root", "root", 0o755),
    }
    run("bash", "-c", f"source {FILES[3]} && complete -p collectord")
    await_stored(CALLED)

    CONFIG.write_text(SESSION)
    systemctl("restart", UNIT)
    await_stored(TRACED)
    stopped = scrape().value(GAP)
    assert stopped > 0
    (kept,) = (STATE / "exec").glob("*.perf.data")

    (pid,) = shown("MainPID")
    run("apt-get", "-y", "install", later)
    assert dpkg_status() == f"installed {version_of(later)}"
    assert shown("ActiveState", "NRestarts") == ("active", "0")
    assert shown("MainPID") != (pid,)
    after = scrape()
    assert after.value("collectord_unclean_stops_total") == 0
    assert after.value(GAP) > stopped
    assert kept.exists()
    await_stored(TRACED)

    run("collectord", "segments", "verify", STATE)
    own = contained()
    run("apt-get", "-y", "remove", "collectord")
    assert dpkg_status() == f"config-files {version_of(later)}"
    assert CONFIG.read_text() == SESSION
    assert shown("LoadState", "ActiveState") == ("not-found", "inactive")
    assert {path.parent.name for path in segments()} == {"exec", "traced"}
    for path in segments():
        ledger = daemons.manifest(path)["ledger"]
        assert (ledger["basis"], ledger["closed"], ledger["unaccounted"]) == ("exact", True, 0)
        assert ledger["stored"] == ledger["produced"] > 0

    run("apt-get", "-y", "purge", "collectord")
    assert {path for path in own if path.exists()} == set()
    assert written() - before == set()
