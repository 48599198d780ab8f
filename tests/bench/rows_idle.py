# SPDX-License-Identifier: Apache-2.0
"""The rows of the table about a daemon on a host where nothing happens."""

from __future__ import annotations

import time
from itertools import cycle, islice
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.bench.daemons import daemon, default_config, with_sessions
from tests.bench.measure import cpu_seconds_of, own_memory_bytes, voluntary_switches
from tests.bench.row import Row

if TYPE_CHECKING:
    from tests.bench.row import Settings

MIB: Final = 1 << 20
_SHARE: Final = 0.0015
_WAKEUPS: Final = 6.0
_MEMORY_MIB: Final = 72.0
_SESSIONS: Final = 10


class _Cost(NamedTuple):
    share: float
    wakeups: float
    memory: float


def _cost(settings: Settings, text: str) -> _Cost:
    with daemon(settings, text) as pid:
        time.sleep(settings.seconds / 2)  # what opening touched has settled
        cpu, switches, begun = cpu_seconds_of(pid), voluntary_switches(pid), time.monotonic()
        time.sleep(settings.seconds)
        elapsed = time.monotonic() - begun
        share = (cpu_seconds_of(pid) - cpu) / elapsed
        wakeups = (voluntary_switches(pid) - switches) / elapsed
        return _Cost(share, wakeups, own_memory_bytes(pid) / MIB)


def idle_daemon(settings: Settings) -> list[Row]:
    """Measure the default configuration, and ten sessions of its kinds, on an idle host."""
    text = default_config()
    ours = _cost(settings, text)
    names = ("profile", "exec", "blackbox")
    many = _cost(settings, with_sessions(text, islice(cycle(names), _SESSIONS)))
    rows = []
    for who, cost, times in (("default config", ours, 1), ("ten sessions", many, 2)):
        share, wakeups = cost.share, cost.wakeups
        work = f"idle daemon, {who}"
        rows += [
            Row(f"{work}: CPU", f"{share:.3%}", "-", share, times * _SHARE, "x"),
            Row(f"{work}: wake-ups", f"{wakeups:.1f}/s", "-", wakeups, times * _WAKEUPS, "1/s"),
        ]
    work = "idle daemon, default config: memory without rings and staging"
    rows.append(Row(work, f"{ours.memory:.0f} MiB", "-", ours.memory, _MEMORY_MIB, "MiB"))
    return rows
