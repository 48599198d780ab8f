# SPDX-License-Identifier: Apache-2.0
"""The Debian package in the release that it was built for, installed once for all these tests.

It is scraped by a real Prometheus, disturbed under load while the opener holds its rings, and in
the end removed and purged.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from collectord.control import client
from tests.support import daemons
from tests.support.daemons import EVENT, FILTER, NUMBER, wait_for
from tests.support.prometheus import prometheus
from tests.vm import package
from tests.vm.package import USER, dpkg_status, run, version_of
from tests.vm.service import (
    CONFIG,
    CONTROL,
    OPENER,
    RUNTIME,
    SHIPPER,
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

    from tests.support.generator import Generator

ETC: Final = Path("/etc/collectord")
COMPLETION: Final = "/usr/share/bash-completion/completions/collectord"
# The files that the manual says are installed; the program answers for the modules below /usr/lib.
FILES: Final = (
    "/usr/bin/collectord",
    "/usr/lib/sysusers.d/collectord.conf",
    "/usr/lib/tmpfiles.d/collectord.conf",
    COMPLETION,
    "/usr/share/collectord/grafana/collectord.json",
    "/usr/share/collectord/prometheus/collectord.rules.yml",
    "/usr/share/fish/vendor_completions.d/collectord.fish",
    "/usr/share/man/man1/collectord.1.gz",
    "/usr/share/man/man5/collectord.toml.5.gz",
    "/usr/share/zsh/vendor-completions/_collectord",
)
EXAMPLES: Final = Path("/usr/share/collectord/prometheus")
PORT: Final = 9590
# A call that the session `small` records, in rings that hold some hundred.
OTHER: Final = NUMBER + 1
TOO_MANY: Final = 20_000
# The rate of the calls that `calls` records; an emulated processor makes some fewer.
RATE: Final = 100_000
CPU: Final = 0  # all on one, whose ring has room for those of 90 seconds
LOAD: Final = 5_000  # calls before and after each disturbance
SESSIONS: Final = f"""
[daemon]
opener = "/run/collectord-opener/opener.sock"

# The installed flight recorder is ftrace's then: a BPF program would be compiled at each start.
[bpf]
python = "/bin/false"

# The default limit is a share of the disk: a guest's is smaller than the load. "0" is no limit.
[retention]
bytes = "0"

[[session]]
name = "traced"

[[session.source]]
kind = "tracefs"
events = ["sched:sched_process_exec"]
transport = "read"

[[session]]
name = "calls"
segment_bytes = "2GiB"

[session.target]
scope = "cpus"
cpus = "{CPU}"

[[session.source]]
kind = "perf"
events = ["{EVENT}"]
filter = "{FILTER}"
ring = "1GiB"

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
UNCLEAN: Final = "collectord_unclean_stops_total"


@pytest.fixture(scope="module")
def installed(tracefs: Path) -> Iterator[set[Path]]:
    """Install the package; yields what had its name before."""
    del tracefs
    first, _ = package.built()
    with package.bare():
        before = package.written()
        run("apt-get", "-y", "install", first)
        yield before


@pytest.fixture(scope="module")
def held(installed: set[Path]) -> float:
    """Let the opener hold the rings, with some more sessions; returns the gap that it cost."""
    del installed
    await_stored(CALLED)
    CONFIG.write_text(SESSIONS)
    systemctl("enable", "--now", "--quiet", OPENER)
    systemctl("restart", UNIT)
    gap_s = scrape().value(GAP)
    assert gap_s > 0
    return gap_s


@pytest.fixture
def check_load(
    held: float, generator: Generator, record_property: Callable[[str, object], None]
) -> Callable[..., None]:
    """Return what disturbs the service under load, and checks that all calls are stored."""

    def check(disturb: Callable[[], None]) -> None:
        """Neither a call nor any time may be missing."""
        before = counted()
        with generator.start("count", nr=NUMBER, cpu=CPU, rate=RATE, endless=1) as running:
            running.go()
            await_load()
            disturb()
            await_load()
            made = running.end()
        record_property("calls", made["events"])
        record_property("calls per second", round(made["events"] / made["seconds"]))
        wait_for(lambda: counted() == before + made["events"], "all calls")
        told = session("calls")
        assert (told["ledger_basis"], told["unaccounted"], told["degraded"]) == ("exact", 0, [])
        assert not any(told["lost"].values()), told["lost"]
        assert not any(told["gaps_ns"].values()), told["gaps_ns"]
        assert scrape().value(GAP) == held

    return check


def await_stored(labels: str) -> None:
    """Wait until a session has stored something."""
    run("true")
    wait_for(
        lambda: scrape().value(f"collectord_stored_records_total{labels}") > 0,
        f"records of {labels}",
    )


def await_load() -> None:
    """Wait until this daemon has stored some more calls."""
    before = session("calls")["stored"]
    wait_for(lambda: session("calls")["stored"] >= before + LOAD, "records of the load")


def counted() -> int:
    """Return how many calls are in sealed segments, or stored or lost by this daemon."""
    sealed = sum(daemons.manifest(path)["samples"] for path in daemons.sealed(STATE / "calls"))
    told = session("calls")
    return int(sealed + told["stored"] + sum(told["lost"].values()))


def test_an_installed_package_records(installed: set[Path]) -> None:
    """It needs no network: the service runs, the opener does not, all has place and owner."""
    del installed
    first, _ = package.built()
    assert dpkg_status() == f"installed {version_of(first)}"
    assert shown("ActiveState", "UnitFileState", "User") == ("active", "enabled", USER)
    for unit in SOCKETS:
        assert shown("ActiveState", unit=unit) == ("active",)
    for unit in (OPENER, SHIPPER):
        assert shown("ActiveState", "UnitFileState", unit=unit) == ("inactive", "disabled")
    assert USER in run("id", "--name", "--groups", "collectord-ship").split()
    assert [path for path in FILES if not Path(path).is_file()] == []
    owned = {
        path: (path.owner(), path.group(), path.stat().st_mode & 0o777)
        for path in (STATE, RUNTIME, ETC / "collectord.d", ETC / "credentials")
    }
    assert owned == {
        STATE: (USER, USER, 0o750),
        RUNTIME: (USER, USER, 0o755),
        ETC / "collectord.d": ("root", "root", 0o755),
        ETC / "credentials": ("root", "root", 0o700),
    }
    run("bash", "-c", f"source {COMPLETION} && complete -p collectord")
    await_stored(CALLED)


@pytest.mark.usefixtures("held")
def test_the_alert_of_a_loss_fires_and_ends(tmp_path: Path, generator: Generator) -> None:
    """Prometheus scrapes the service, and tells of a session `must-not-lose` that lost calls."""
    with prometheus(Path("/usr/bin/prometheus"), EXAMPLES, tmp_path, PORT) as server:
        wait_for(server.is_up, "a scrape")
        wait_for(lambda: server.get("/api/v1/query", query=LOST)["result"], "its series")
        assert LOSES not in server.firing()
        systemctl("kill", "--kill-whom=main", "--signal=STOP", UNIT)
        try:
            with generator.start("count", nr=OTHER, count=TOO_MANY) as running:
                assert running.run()["events"] == TOO_MANY
        finally:
            systemctl("kill", "--kill-whom=main", "--signal=CONT", UNIT)
        wait_for(lambda: LOSES in server.firing(), "an alert")
        wait_for(has_all_others, "all calls, stored or lost")
        assert session("small")["unaccounted"] == 0
        wait_for(lambda: server.is_up() and LOSES not in server.firing(), "the alert's end")


def has_all_others() -> bool:
    """Whether the session `small` has stored or lost all calls."""
    told = session("small")
    return bool(sum(told["lost"].values()) + told["stored"] == TOO_MANY)


@pytest.mark.parametrize("verb", ["reload", "restart"])
def test_systemctl_costs_no_call(check_load: Callable[..., None], verb: str) -> None:
    """A reload keeps the process, a restart ends it in order; the opener keeps the rings."""
    (pid,) = shown("MainPID")
    check_load(lambda: systemctl(verb, UNIT))
    assert (shown("MainPID") == (pid,)) == (verb == "reload")
    assert scrape().value(UNCLEAN) == 0


def test_an_upgrade_costs_no_call(check_load: Callable[..., None]) -> None:
    """The service is another process then, and the opener is not."""
    _, later = package.built()
    run("dpkg", "--unpack", later)
    service, opener = (shown("MainPID", unit=unit) for unit in (UNIT, OPENER))
    check_load(lambda: run("dpkg", "--configure", package.NAME))
    assert dpkg_status() == f"installed {version_of(later)}"
    assert shown("ActiveState", "NRestarts") == ("active", "0")
    assert shown("MainPID") != service
    assert shown("MainPID", unit=OPENER) == opener
    assert scrape().value(UNCLEAN) == 0


def test_a_killed_daemon_costs_no_call(check_load: Callable[..., None]) -> None:
    """Systemd starts it again, and it writes what the killed one had taken out of a ring."""

    def kill() -> None:
        # The successor repairs the segment first of all: a short one.
        client.post(CONTROL, "/v1/rotate", {"sessions": ["calls"]})
        systemctl("kill", "--kill-whom=main", "--signal=KILL", UNIT)
        wait_for(lambda: is_again(UNIT), "a restart of the service")

    check_load(kill)
    assert scrape().value(UNCLEAN) == 1


@pytest.mark.usefixtures("held")
def test_removal_keeps_configuration_and_data_and_a_purge_keeps_none(
    installed: set[Path], tracefs: Path
) -> None:
    """All that a removal keeps is sound, and nothing records on; a purge leaves but the user."""
    await_stored(TRACED)
    run("collectord", "segments", "verify", STATE)
    assert "cap_dac_override" not in shown("CapabilityBoundingSet")[0].split()
    assert (tracefs / "instances").owner() == USER
    own, had = package.contained(), dpkg_status()
    run("apt-get", "-y", "remove", package.NAME)
    assert dpkg_status() == had.replace("installed", "config-files")
    assert CONFIG.read_text() == SESSIONS
    wait_for(lambda: (tracefs / "instances").owner() == "root", "the return of tracefs")
    for unit in (UNIT, OPENER, SHIPPER):
        assert shown("LoadState", "ActiveState", unit=unit) == ("not-found", "inactive")
    assert not list((tracefs / "instances").glob("collectord*")), journal()
    segments = [*(STATE / "exec").glob("*.perf.data"), *(STATE / "traced").glob("*.trace.dat")]
    assert {path.parent.name for path in segments} == {"exec", "traced"}
    for path in segments:
        told = daemons.manifest(path)
        assert told["recovered"] or told["ledger"]["unaccounted"] == 0
    # That of the daemon that ran without the opener.
    ledger = daemons.manifest(min((STATE / "exec").glob("*.perf.data")))["ledger"]
    assert (ledger["basis"], ledger["closed"], ledger["unaccounted"]) == ("exact", True, 0)
    assert ledger["stored"] == ledger["produced"] > 0

    run("apt-get", "-y", "purge", package.NAME)
    assert {path for path in own if path.exists()} == set()
    assert package.written() - installed == set()
