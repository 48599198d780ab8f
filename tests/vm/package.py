# SPDX-License-Identifier: Apache-2.0
"""The Debian packages that the guest has: they are installed, looked at, and purged.

What `make install` has installed in the guest is away meanwhile: systemd would take its units. It
is on the project's disk, from where the guest got it at its start (guest/init).
"""

from __future__ import annotations

import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.vm.service import OPENER, RUNTIME, STATE, UNIT, journal, shown, systemctl

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME: Final = "collectord"
USER: Final = "collectord"
_DIST: Final = Path(__file__).parents[2] / "dist"
_INSTALLED: Final = Path("/project")
# Where scripts of a package, debhelper's and systemd put files besides those that it contains.
_WRITTEN_TO: Final = (Path("/etc"), Path("/run"), Path("/var/lib"))
# The list of dpkg and the user stay.
_KEPT: Final = "/var/lib/dpkg"


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


def built() -> tuple[Path, Path]:
    """Return the package, and the one of a later version."""
    found = {"+later" in path.name: path for path in _DIST.glob("*.deb")}
    return found[False], found[True]


def version_of(package: Path) -> str:
    """Return the version that a package has."""
    return run("dpkg-deb", "--field", package, "Version").strip()


def dpkg_status() -> str:
    """Return dpkg's state and version of the package."""
    shape = "${db:Status-Status} ${Version}"
    return run("dpkg-query", "--show", f"--showformat={shape}", NAME)


def contained() -> set[Path]:
    """Return the files of the installed package, and the folders that nothing else has."""
    paths = {Path(line) for line in run("dpkg-query", "--listfiles", NAME).splitlines()}
    return {path for path in paths if not path.is_dir() or NAME in path.name}


def written() -> set[Path]:
    """Return what else has its name."""
    found = {path for folder in _WRITTEN_TO for path in folder.rglob(f"*{NAME}*")}
    return {path for path in found if not path.is_relative_to(_KEPT)}


@contextmanager
def bare() -> Iterator[None]:
    """Provide a system without what `make install` installed; it is back afterwards."""
    for unit in (UNIT, OPENER):
        assert shown("ActiveState", unit=unit) == ("inactive",)
    copied = [*(_INSTALLED / "usr/local").rglob(f"*{NAME}*"), _INSTALLED / "etc" / NAME]
    for path in copied:
        here = Path("/") / path.relative_to(_INSTALLED)
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
    run("dpkg", "--purge", NAME)
    run("cp", "-a", _INSTALLED / "usr/local", "/usr")
    run("cp", "-a", _INSTALLED / "etc" / NAME, "/etc")
    run("systemd-sysusers", f"{NAME}.conf")
    run("systemd-tmpfiles", "--create", f"{NAME}.conf")
    systemctl("daemon-reload")
    run("journalctl", "--rotate", "--vacuum-size=1", "--quiet")
