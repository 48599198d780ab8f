# SPDX-License-Identifier: Apache-2.0
"""A daemon that records 100,000 events a second, with and without the shipper beside it."""

from __future__ import annotations

import statistics
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from collectord.sink import ship_note
from tests.bench.daemons import start_cli
from tests.bench.measure import NS_PER_S, cpu_seconds_of
from tests.bench.row import Row
from tests.support import daemons
from tests.support.daemons import EVENT, FILTER, NUMBER, wait_for

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    from tests.bench.row import Settings
    from tests.support.daemons import Daemon

_RATE: Final = 100_000
_CPU: Final = 0
_FIRST: Final = 1_000
_ROWS: Final = 10_000
# The share of a core, for so many rows a second.
_SHARE: Final = 0.02
_DELAY: Final = 1.25
# The priority that the unit has.
_LOWEST: Final = ("chrt", "--idle", "0", "nice", "-n", "19")
_SESSIONS: Final = """
[ship]
store = "{folder}/store"
directory = "{folder}/ship"
host_file = "{folder}/none"
interval = "1s"
cpu = "100%"
rate = "0"

[[session]]
name = "calls"
ship = "columns"
segment_age = "2s"

[[session.source]]
kind = "perf"
events = ["{event}"]
filter = "{filter}"
ring = "16MiB"
"""


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The figures of one run.

    Attributes:
        wait_us: for which a drain thread waits for a processor, for each time that it runs.
        fill: the highest of its rings.
        shipper_s: processor time of the shipper, for `rows`.
    """

    wait_us: float
    fill: float
    events: int
    seconds: float
    lost: int
    shipper_s: float = 0.0
    rows: int = 0


def _waited(daemon: Daemon) -> tuple[int, int]:
    """Return {ns that the drain threads have waited for a processor, times that they ran}."""
    tids = [thread["tid"] for thread in daemon.status()["drain"]["threads"]]
    told = [Path(f"/proc/{daemon.pid}/task/{tid}/schedstat").read_text().split() for tid in tids]
    return sum(int(one[1]) for one in told), sum(int(one[2]) for one in told)


def _rows(folder: Path) -> int:
    note = ship_note.read(folder / "ship")
    return sum(one.rows for one in note.streams) if note is not None else 0


def _run(settings: Settings, *, ships: bool) -> _Outcome:
    """Record the calls of a generator for some seconds."""
    with ExitStack() as stack:
        # Where a socket's name fits, and on a disk.
        sockets, name = (
            stack.enter_context(tempfile.TemporaryDirectory(dir=place, prefix="ship-"))
            for place in ("/run", settings.directory.parent)
        )
        folder = Path(name)
        sessions = _SESSIONS.format(folder=folder, event=EVENT, filter=FILTER)
        config = daemons.write_sessions(
            Path(sockets), sessions, state=folder / "state", flush="1s", chunk="1MiB"
        )
        daemon = stack.enter_context(daemons.running(start_cli, config))
        shipper = _shipper(stack, config, folder) if ships else None
        # Modules and files that are opened once are no cost of a row.
        _call(settings, _FIRST)
        daemon.await_told(_FIRST)
        daemon.post("/v1/rotate", {})
        if shipper:
            wait_for(lambda: _rows(folder) >= _FIRST, "the first rows in the store")
        used_s = cpu_seconds_of(shipper.pid) if shipper else 0.0
        waited_ns, ran = _waited(daemon)
        count = round(_RATE * settings.seconds)
        made = _call(settings, count)
        after_ns, after = _waited(daemon)
        daemon.await_told(_FIRST + count)
        told = daemon.session()
        fill = daemon.metric(
            'collectord_buffer_fill_high_watermark_ratio{session="calls",source="perf"}'
        )
        rows = 0
        if shipper:
            daemon.post("/v1/rotate", {})
            wait_for(lambda: _rows(folder) >= told["stored"], "all rows in the store")
            used_s = cpu_seconds_of(shipper.pid) - used_s
            rows = _rows(folder) - _FIRST
        return _Outcome(
            (after_ns - waited_ns) / max(after - ran, 1) / 1e3,
            fill,
            made["events"],
            made["seconds"],
            sum(told["lost"].values()) + (told["unaccounted"] or 0),
            used_s,
            rows,
        )


def _call(settings: Settings, count: int) -> dict[str, Any]:
    with settings.generator.start(
        "count", nr=NUMBER, cpu=_CPU, rate=_RATE, count=count
    ) as running:
        return running.run()


def _shipper(stack: ExitStack, config: Path, folder: Path) -> subprocess.Popen[str]:
    """Start the shipper, and return when it has begun."""
    process = start_cli("ship", "--config", config, prefix=_LOWEST)
    stack.callback(process.communicate)
    stack.callback(process.terminate)
    wait_for((folder / "ship" / ship_note.NAME).exists, "the shipper")
    return process


def _figure(runs: list[_Outcome], of: Callable[[_Outcome], float], form: str) -> str:
    found = [of(one) for one in runs]
    return f"{statistics.median(found):{form}} ({min(found):{form}}-{max(found):{form}})"


def shipping(settings: Settings) -> list[Row]:
    """Record 100,000 events a second with and without the shipper beside the daemon."""
    settings.directory.mkdir(parents=True, exist_ok=True)
    beside: list[_Outcome] = []
    alone: list[_Outcome] = []
    for _ in range(settings.repeats):
        alone.append(_run(settings, ships=False))
        beside.append(_run(settings, ships=True))
    rate = statistics.median(one.events / one.seconds for one in beside)
    work = f"{rate:,.0f} events/s"
    ours = statistics.median(one.wait_us for one in beside)
    peer = statistics.median(one.wait_us for one in alone)
    costs = [one.shipper_s / one.rows for one in beside]
    share = statistics.median(costs) * _ROWS
    fills = f"fullest ring {max(one.fill for one in beside):.0%} beside the shipper, "
    lost = sum(one.lost for one in beside)
    return [
        Row(
            f"ship: of a core for {_ROWS:,} rows/s, {work}",
            f"{share:.2%}, {statistics.median(costs) * NS_PER_S:.0f} ns/row",
            "-",
            share,
            _SHARE,
            "x",
        ),
        Row(
            f"ship: a drain thread waits for a processor, {work}",
            f"{_figure(beside, lambda one: one.wait_us, '.1f')} us",
            f"{_figure(alone, lambda one: one.wait_us, '.1f')} us without the shipper",
            ours / peer if peer else 1.0,
            _DELAY,
            "x",
            (f"ship: {fills}{max(one.fill for one in alone):.0%} without it",),
        ),
        Row(
            f"ship: lost beside the shipper, {work}",
            f"{lost} of {sum(one.events for one in beside):,}",
            f"{sum(one.lost for one in alone)} without the shipper",
            lost,
            0,
            "records",
        ),
    ]
