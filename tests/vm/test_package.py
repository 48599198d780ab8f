# SPDX-License-Identifier: Apache-2.0
"""The Debian package in the release that it was built for: it is installed, upgraded and purged.

What `make install` has installed in the guest is away meanwhile: systemd would take its units. It
is on the project's disk, from where the guest got it at its start (guest/init). A real Prometheus
scrapes the service, and the opener holds its rings.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

from tests.support import daemons
from tests.support.daemons import EVENT, FILTER, NUMBER, wait_for
from tests.support.prometheus import prometheus
from tests.vm.service import (
    CONFIG,
    OPENER,
    SOCKETS,
    STATE,
    UNIT,
    is_again,
    journal,
    scrape,
    session,
    shown,
    systemctl,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from collections.abc import Set as AbstractSet

    from tests.support.generator import Generator
    from tests.support.prometheus import Prometheus

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
EXAMPLES: Final = Path("/usr/share/collectord/prometheus")
PORT: Final = 9590
# A call that the session `small` records, in rings that hold some hundred.
OTHER: Final = NUMBER + 1
TOO_MANY: Final = 20_000
# Of the calls that `calls` records. An emulated processor makes fewer: see what is printed.
RATE: Final = 100_000
LOAD: Final = 5_000  # calls before and after each disturbance
SESSIONS: Final = f"""
[daemon]
opener = "/run/collectord-opener/opener.sock"

[[session]]
name = "traced"

[[session.source]]
kind = "tracefs"
events = ["sched:sched_process_exec"]
transport = "read"

[[session]]
name = "calls"
segment_bytes = "1GiB"

[[session.source]]
kind = "perf"
events = ["{EVENT}"]
filter = "{FILTER}"
ring = "128MiB"

[[session]]
name = "small"
class = "must-not-lose"

[[session.source]]
kind = "perf"
events = ["{EVENT}"]
filter = "id == {OTHER}"
ring = "32KiB"
"""
TRACED: Final = '{session="traced",source="tracefs"}'
CALLED: Final = '{session="exec",source="perf"}'
LOST: Final = 'collectord_lost_records_total{session="small"}'
LOSES: Final = ("CollectordMustNotLose", "small")
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
    for unit in (UNIT, OPENER):
        assert shown("ActiveState", unit=unit) == ("inactive",)
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


def check_the_alert_of_a_loss(server: Prometheus, generator: Generator) -> None:
    """It fires when a session of the class `must-not-lose` lost something."""
    wait_for(lambda: server.get("/api/v1/query", query=LOST)["result"], "its series")
    assert LOSES not in server.firing()
    systemctl("kill", "--kill-whom=main", "--signal=STOP", UNIT)
    try:
        with generator.start("count", nr=OTHER, count=TOO_MANY) as running:
            assert running.run()["events"] == TOO_MANY
    finally:
        systemctl("kill", "--kill-whom=main", "--signal=CONT", UNIT)
    wait_for(lambda: LOSES in server.firing(), "an alert")

    def have_all() -> bool:
        told = session("small")
        return bool(sum(told["lost"].values()) + told["stored"] == TOO_MANY)

    wait_for(have_all, "all calls, stored or lost")
    assert session("small")["unaccounted"] == 0


def await_load() -> None:
    """Wait until this daemon has stored some more calls."""
    before = session("calls")["stored"]
    wait_for(lambda: session("calls")["stored"] >= before + LOAD, "records of the load")


def have_all(made: int) -> bool:
    """Whether all calls are in sealed segments, or stored or lost by this daemon."""
    sealed = sum(daemons.manifest(path)["samples"] for path in daemons.sealed(STATE / "calls"))
    told = session("calls")
    return bool(sealed + told["stored"] + sum(told["lost"].values()) == made)


class Load(NamedTuple):
    """Calls that a generator made."""

    calls: int
    seconds: float


def disturbed(generator: Generator, *disturbances: Callable[[], object]) -> Load:
    """Do these while a generator makes calls."""
    with generator.start("count", nr=NUMBER, rate=RATE, endless=1) as running:
        running.go()
        await_load()
        for disturbance in disturbances:
            disturbance()
            await_load()
        done = running.end()
    return Load(done["events"], done["seconds"])


def check_calls(made: int, *, losses: AbstractSet[str] = frozenset()) -> None:
    """All calls are stored but those that were lost in these ways, and no time was missed."""
    wait_for(lambda: have_all(made), "all calls")
    told = session("calls")
    assert (told["ledger_basis"], told["unaccounted"], told["degraded"]) == ("exact", 0, [])
    assert {way for way, count in told["lost"].items() if count} <= losses, told["lost"]
    assert not any(told["gaps_ns"].values()), told["gaps_ns"]


def reload() -> None:
    """Let the service read its configuration anew, which has not changed."""
    systemctl("reload", UNIT)


def restart() -> None:
    """Restart the service."""
    systemctl("restart", UNIT)


def kill() -> None:
    """Kill the daemon, and wait until systemd has started it again."""
    systemctl("kill", "--kill-whom=main", "--signal=KILL", UNIT)
    wait_for(lambda: is_again(UNIT), "a restart of the service")


def upgrade() -> None:
    """Install the later version: the service is another process then, and the opener is not."""
    _, later = packages()
    service, opener = (shown("MainPID", unit=unit) for unit in (UNIT, OPENER))
    run("apt-get", "-y", "install", later)
    assert dpkg_status() == f"installed {version_of(later)}"
    assert shown("ActiveState", "NRestarts") == ("active", "0")
    assert shown("MainPID") != service
    assert shown("MainPID", unit=OPENER) == opener


@pytest.mark.usefixtures("bare", "tracefs")
def test_a_package_from_its_installation_to_its_purge(
    tmp_path: Path, generator: Generator, record_property: Callable[[str, object], None]
) -> None:
    """It needs no network, records, and is scraped; an upgrade loses no event.

    Neither does a reload or a restart, where the opener is enabled. The alert of a loss fires and
    ends. Configuration and data outlive upgrade and removal.
    """
    first, later = packages()
    before = written()
    run("apt-get", "-y", "install", first)
    assert dpkg_status() == f"installed {version_of(first)}"
    assert shown("ActiveState", "UnitFileState", "User") == ("active", "enabled", USER)
    for unit in SOCKETS:
        assert shown("ActiveState", unit=unit) == ("active",)
    assert shown("ActiveState", "UnitFileState", unit=OPENER) == ("inactive", "disabled")
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

    CONFIG.write_text(SESSIONS)
    systemctl("enable", "--now", "--quiet", OPENER)
    with prometheus(Path("/usr/bin/prometheus"), EXAMPLES, tmp_path, PORT) as server:
        systemctl("restart", UNIT)
        await_stored(TRACED)
        stopped = scrape().value(GAP)
        assert stopped > 0
        (kept,) = (STATE / "exec").glob("*.perf.data")
        wait_for(server.is_up, "a scrape")
        check_the_alert_of_a_loss(server, generator)
        load = disturbed(generator, reload, restart, upgrade)
        record_property("calls per second", round(load.calls / load.seconds))
        check_calls(load.calls)
        after = scrape()
        assert after.value("collectord_unclean_stops_total") == 0
        assert after.value(GAP) == stopped
        wait_for(lambda: server.is_up() and LOSES not in server.firing(), "the alert's end")
    assert kept.exists()
    last = disturbed(generator, kill)
    # It had taken these out of a ring and not written them.
    check_calls(load.calls + last.calls, losses={"staging/dropped"})
    assert scrape().value("collectord_unclean_stops_total") == 1
    await_stored(TRACED)

    run("collectord", "segments", "verify", STATE)
    own = contained()
    run("apt-get", "-y", "remove", "collectord")
    assert dpkg_status() == f"config-files {version_of(later)}"
    assert CONFIG.read_text() == SESSIONS
    for unit in (UNIT, OPENER):
        assert shown("LoadState", "ActiveState", unit=unit) == ("not-found", "inactive")
    assert {path.parent.name for path in segments()} == {"exec", "traced"}
    for path in segments():
        told = daemons.manifest(path)
        assert told["recovered"] or told["ledger"]["unaccounted"] == 0
    ledger = daemons.manifest(kept)["ledger"]
    assert (ledger["basis"], ledger["closed"], ledger["unaccounted"]) == ("exact", True, 0)
    assert ledger["stored"] == ledger["produced"] > 0

    run("apt-get", "-y", "purge", "collectord")
    assert {path for path in own if path.exists()} == set()
    assert written() - before == set()
