# SPDX-License-Identifier: Apache-2.0
"""The units need no capability to make instances: collectord-tracefs.service gives files away."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from collectord.kernel.host.capabilities import effective_capabilities
from collectord.kernel.tracefs.control_files import NEED
from tests.support import daemons, probed
from tests.support.daemons import EVENT, FILTER, NUMBER, wait_for
from tests.support.openers import answers
from tests.support.somebody import SOMEBODY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.daemons import Daemon
    from tests.support.generator import Generator
    from tests.support.probed import Probed
    from tests.support.recording import Start

pytestmark = pytest.mark.alone  # who owns tracefs is the same for all

ROOT: Final = Path(__file__).resolve().parents[2]
USER: Final = "nobody"
CALLS: Final = 2_000
MISSING_PRIVILEGE: Final = 4
RUNTIME: Final = Path("/run/collectord")
# With a probe, which is made through `dynamic_events`.
SESSIONS: Final = """
[[session]]
name = "traced"

[[session.source]]
kind = "tracefs"
events = [{{ event = "{event}", filter = "{filter}" }}]
probes = [{{ kind = "uprobe", name = "hit", place = "{place}" }}]

[[session]]
name = "calls"

[[session.source]]
kind = "perf"
events = ["{event}"]
filter = "{filter}"
"""


def lines(unit: str, key: str) -> list[str]:
    """Return the values of a setting of a unit."""
    text = (ROOT / "systemd" / unit).read_text().replace("\\\n", "")
    return re.findall(rf"^{key}=(.*)$", text, re.MULTILINE)


def limited(unit: str, uid: int = 0) -> tuple[str, ...]:
    """Return the start of a command that gives it what a unit may have, and no more."""
    named = " ".join(lines(unit, "CapabilityBoundingSet")).split()
    # A container may lack some, and setpriv refuses these.
    names = [name for name in named if name in effective_capabilities(Path("/proc"))]
    allowed = ",".join(["-all", *(f"+{name.removeprefix('CAP_').lower()}" for name in names)])
    had = ("setpriv", f"--inh-caps={allowed}", f"--bounding-set={allowed}", "--clear-groups")
    if not uid:
        return (*had, f"--regid={SOMEBODY}")
    # Its notes are in a folder of its own, as the unit's are.
    own = f'mount -t tmpfs -o uid={uid},mode=755 none {RUNTIME} && exec "$@"'
    ids = (f"--reuid={uid}", f"--regid={uid}", f"--ambient-caps={allowed}")
    return ("unshare", "--mount", "sh", "-c", own, "sh", *had, *ids)


@contextmanager
def given_away(tracefs: Path) -> Iterator[None]:
    """Run what the unit runs when it starts, and at the end what it runs when it stops."""
    unit = "collectord-tracefs.service"

    def run(key: str) -> None:
        for line in lines(unit, key):
            assert str(tracefs) in line
            words = shlex.split(line.replace("collectord ", f"{USER} ").removeprefix("-"))
            subprocess.run([*limited(unit), *words], check=True)

    run("ExecStart")
    try:
        yield
    finally:
        run("ExecStop")


def configured(stage: Path, sessions: str) -> Path:
    """Write the configuration of a daemon of another user, whose files are in a folder of his."""
    RUNTIME.mkdir(exist_ok=True)
    own = stage / "own"
    own.mkdir()
    config = daemons.write_sessions(own, sessions)
    os.chown(own, SOMEBODY, SOMEBODY)
    return config


def check(daemon: Daemon, tracefs: Path, built: Probed, generator: Generator) -> None:
    """Both sessions record all that is made."""
    assert Path(f"/proc/{daemon.pid}").owner() == USER
    instance = tracefs / "instances/collectord-traced"
    assert instance.owner() == (instance / "trace_marker").owner() == USER
    with generator.start("count", count=CALLS, nr=NUMBER) as running:
        assert running.run()["events"] == CALLS
    assert built.loaded.probed(1) == 2
    made = {"traced": CALLS + 1, "calls": CALLS}

    def stored() -> dict[str, int]:
        return {name: daemon.session(name)["stored"] for name in made}

    wait_for(lambda: stored() == made, "all records")
    for name in made:
        told = daemon.session(name)
        assert (told["degraded"], told["unaccounted"]) == ([], 0)


def test_daemon_and_opener_without_dac_override(
    tracefs: Path, stage: Path, start_cli: Start, generator: Generator
) -> None:
    """Both record with the units' capabilities: an instance, a probe, and the opener's rings."""
    built = probed.build(stage)
    sessions = SESSIONS.format(event=EVENT, filter=FILTER, place=built.place)
    config = configured(stage, sessions)
    # The opener's is root's, as that of its unit.
    place = stage / "opener.sock"
    config.write_text(config.read_text().replace("[daemon]", f'[daemon]\nopener = "{place}"'))
    daemon_prefix = limited("collectord.service", SOMEBODY)
    opener_prefix = limited("collectord-opener.service")
    assert not any("dac_override" in word for word in (*daemon_prefix, *opener_prefix))
    words = ("opener", "--config", config, "--user", USER)
    with given_away(tracefs), start_cli(*words, prefix=opener_prefix) as opener:
        try:
            wait_for(lambda: answers(place), "the opener's answer")
            with daemons.running(start_cli, config, prefix=daemon_prefix) as daemon:
                check(daemon, tracefs, built, generator)
                assert daemon.stop().status == 0
        finally:
            opener.terminate()
    assert not list((tracefs / "instances").iterdir())
    assert {(tracefs / name).owner() for name in ("instances", "dynamic_events")} == {"root"}


def test_what_another_user_left_is_given_away_too(tracefs: Path) -> None:
    """An instance of root's that a crash left can be salvaged, and others keep their owner."""
    own, other = (tracefs / "instances" / name for name in ("collectord-x", "other"))
    own.mkdir()
    try:
        with given_away(tracefs):
            assert (own / "events/enable").owner() == (own / "tracing_on").owner() == USER
            other.mkdir()
            other.rmdir()
    finally:
        own.rmdir()


def test_without_the_unit_the_reason_names_it(
    stage: Path, start_cli: Start, tracefs: Path
) -> None:
    """A daemon that owns nothing in tracefs ends with the status of a missing privilege."""
    sessions = SESSIONS.format(event=EVENT, filter=FILTER, place="/nothing:0x0")
    config = configured(stage, sessions)
    prefix = limited("collectord.service", SOMEBODY)
    with start_cli("run", "--config", config, prefix=prefix) as daemon:
        _, log = daemon.communicate()
    assert daemon.returncode == MISSING_PRIVILEGE, log
    assert NEED in log
    assert str(tracefs) in log
