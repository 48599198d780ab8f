# SPDX-License-Identifier: Apache-2.0
"""A daemon that is loaded and disturbed in cycles, and looked at when it is at rest after each.

A cycle is a burst at full speed, some seconds at a moderate rate, and short processes; then the
segments are rotated, a snapshot is taken, a CPU goes and comes, and the configuration is loaded
again, if there is a verb for that. What a look finds is alike in all cycles, unless it grows.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from collectord.cli import VERBS
from tests.soak.totals import totals
from tests.support import cpus, daemons, kills, overload
from tests.support.daemons import EVENT, FILTER, NUMBER, wait_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.soak.totals import Total
    from tests.support.daemons import Daemon, Ended
    from tests.support.generator import Generator

GROWTH_BYTES: Final = 2 << 20
RETAINED_BYTES: Final = 64 << 20
SEGMENT_BYTES: Final = 4 << 20
# Until the staging memory was used once, all paths were, and the allocator has its arenas.
WARM_UP: Final = 1 / 3
RECORDER: Final = "recorder"
_FEWEST_LOOKS: Final = 3
_BURST: Final = 200_000
_RATE: Final = 10_000.0
_AT_RATE: Final = 20_000
_EXECS: Final = 200
_RELOAD: Final = "reload"
_SESSIONS: Final = f"""
[[session]]
name = "calls"
segment_bytes = "{SEGMENT_BYTES}B"
segment_age = "{{age}}s"

[[session.source]]
kind = "perf"
events = ["{EVENT}"]
filter = "{FILTER}"

[[session]]
name = "processes"
segment_age = "3s"

[[session.source]]
kind = "tracefs"
events = ["sched:sched_process_exec", "sched:sched_process_exit"]

[[session]]
name = "{RECORDER}"
mode = "flight-recorder"

[[session.source]]
kind = "tracefs"
events = ["{EVENT}"]
filter = "{FILTER}"
ring = "1MiB"
max = "4MiB"
"""


class Look(NamedTuple):
    """The daemon at rest.

    Records are those before the reload, after which a session that it changed counts anew.
    """

    second: float
    rss_bytes: int
    fds: int
    mappings: int
    disk_bytes: int
    produced: int
    lost: int
    unaccounted: int


@dataclass(frozen=True, slots=True)
class Soaked:
    """The looks, in their order, and the end.

    Attributes:
        retained_bytes: the limit of retention.
    """

    looks: Sequence[Look]
    ended: Ended
    state: Path
    retained_bytes: int
    totals: Sequence[Total]

    def problems(self, growth_bytes: int = GROWTH_BYTES) -> list[str]:
        """Return what grew, what is over its limit, and what the ledgers miss."""
        found = grown(self.looks, growth_bytes, self.retained_bytes)
        for segment in kills.sealed(self.state):
            ledger = daemons.manifest(segment)["ledger"]
            if ledger.get("unaccounted"):
                found.append(f"{segment.name}: {ledger['unaccounted']} records unaccounted")
        if self.ended.status:
            found.append(f"it ended with status {self.ended.status}")
        return found + [
            f"{one.session}: {one.rows} rows, {one.stored} stored"
            for one in self.totals
            if not one.is_equal
        ]


def grown(
    looks: Sequence[Look],
    growth_bytes: int = GROWTH_BYTES,
    retained_bytes: int = RETAINED_BYTES,
) -> list[str]:
    """Return what is not flat behind the warm-up, or over its limit in one look."""
    found = []
    warm = looks[int(len(looks) * WARM_UP) :]
    part = max(len(warm) // 3, 1)
    first, last = warm[:part], warm[-part:]
    for name, allowed, of in (
        ("rss_bytes", growth_bytes, min),
        ("fds", 0, statistics.median_low),
        ("mappings", 0, statistics.median_low),
    ):
        # Single looks find what is held for a moment only, or lack what is made anew just then.
        before, after = (of(getattr(one, name) for one in some) for some in (first, last))
        if after - before > allowed:
            found.append(f"{name} grew by {after - before} to {after}")
    # Each session may have sealed one since the limit was looked after, and has one open.
    limit = retained_bytes + 6 * SEGMENT_BYTES
    if (most := max(one.disk_bytes for one in looks)) > limit:
        found.append(f"disk: {most} bytes, {limit} are allowed")
    return found + [f"{one.unaccounted} unaccounted" for one in looks if one.unaccounted]


def soak(
    directory: Path,
    generator: Generator,
    seconds: float,
    retained_bytes: int = RETAINED_BYTES,
) -> Soaked:
    """Run a daemon in `directory` for that long, and some cycles at least."""
    with ExitStack() as stack:
        log = stack.enter_context((directory / "log").open("w+"))

        def start(*words: str | Path, env: dict[str, str]) -> subprocess.Popen[str]:
            process = subprocess.Popen(
                [sys.executable, "-m", "collectord", *words],
                cwd=directory,
                env={**os.environ, **_unit_environment(), **env},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
            return stack.enter_context(process)

        config = _write_config(directory, 0, retained_bytes)
        daemon = stack.enter_context(daemons.running(start, config))
        looks: list[Look] = []
        began = time.monotonic()
        while len(looks) < _FEWEST_LOOKS or time.monotonic() - began < seconds:
            _load(generator)
            _disturb(daemon)
            sessions = _at_rest(daemon)
            _reload(directory, len(looks), retained_bytes)
            second = time.monotonic() - began
            looks.append(_look(daemon, directory / "state", second, sessions))
        ended, state = daemon.stop(), directory / "state"
        return Soaked(looks, ended, state, retained_bytes, totals(state))


def _unit_environment() -> dict[str, str]:
    """Return the variables that the unit sets."""
    unit = Path(__file__).parents[2] / "systemd/collectord.service"
    lines = unit.read_text().splitlines()
    found = [
        line.removeprefix("Environment=") for line in lines if line.startswith("Environment=")
    ]
    return dict(word.split("=", 1) for words in found for word in words.split())


def _write_config(directory: Path, cycle: int, retained_bytes: int) -> Path:
    """Write a configuration that differs from that of the cycle before."""
    sessions = _SESSIONS.format(age=3 + cycle % 2)
    retention = {"bytes": f"{retained_bytes}B"}
    return daemons.write_sessions(directory, sessions, retention=retention)


def _load(generator: Generator) -> None:
    with ExitStack() as stack:
        running = [
            stack.enter_context(generator.start("count", nr=NUMBER, count=_BURST, threads=2)),
            stack.enter_context(
                generator.start("count", nr=NUMBER, count=_AT_RATE, rate=_RATE, cpu=0)
            ),
            stack.enter_context(generator.start("exec", count=_EXECS)),
        ]
        for one in running:
            one.go()
        for one in running:
            one.result()


def _disturb(daemon: Daemon) -> None:
    daemon.post("/v1/rotate", {})
    daemon.post("/v1/snapshot", {"sessions": [RECORDER]})
    for cpu in cpus.with_switch()[-1:]:
        cpus.bounce(daemon, cpu, [lambda: wait_for(lambda: _misses_a_cpu(daemon), "its end")])


def _reload(directory: Path, cycle: int, retained_bytes: int) -> None:
    if _RELOAD in VERBS:
        _write_config(directory, cycle + 1, retained_bytes)
        words = (sys.executable, "-m", "collectord", _RELOAD)
        subprocess.run([*words, "--socket", directory / "control.sock"], check=True)


def _misses_a_cpu(daemon: Daemon) -> bool:
    return daemon.metric(cpus.ONLINE) < cpus.CPUS


def _at_rest(daemon: Daemon) -> list[dict[str, Any]]:
    """Wait until nothing is in flight; return what is told of the sessions then."""
    told: list[dict[str, Any]] = []

    def is_at_rest() -> bool:
        told[:] = daemon.status()["sessions"]
        # The content of a recorder's rings is in flight.
        return not any(one["in_flight"] for one in told if one["name"] != RECORDER)

    wait_for(is_at_rest, "a daemon at rest")
    return told


def _look(daemon: Daemon, state: Path, second: float, sessions: Sequence[dict[str, Any]]) -> Look:
    _at_rest(daemon)
    pages = int(Path(f"/proc/{daemon.pid}/statm").read_text().split()[1])
    held = cpus.holdings(daemon)
    return Look(
        second=second,
        rss_bytes=pages * os.sysconf("SC_PAGE_SIZE"),
        fds=held.fds.total(),
        mappings=held.mappings.total(),
        disk_bytes=overload.retained_bytes(state),
        produced=sum(one["produced"] or 0 for one in sessions),
        lost=sum(sum(one["lost"].values()) for one in sessions),
        unaccounted=sum(one["unaccounted"] or 0 for one in sessions),
    )
