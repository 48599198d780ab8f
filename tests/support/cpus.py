# SPDX-License-Identifier: Apache-2.0
"""CPUs of this machine that a test takes offline, and what a daemon has of them."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.support.daemons import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.support.daemons import Daemon

CPUS: Final = os.sysconf("SC_NPROCESSORS_CONF")
UNCOVERED: Final = "collectord_uncovered_seconds_total"
ONLINE: Final = "collectord_cpus_online"
COVERED: Final = "collectord_cpus_covered"
_EVENT: Final = "anon_inode:[perf_event]"


def switch_of(cpu: int) -> Path:
    """Return the file that takes a CPU offline; the first CPU has none on most machines."""
    return Path(f"/sys/devices/system/cpu/cpu{cpu}/online")


def with_switch() -> list[int]:
    """Return the CPUs that can be taken offline."""
    return [cpu for cpu in range(CPUS) if switch_of(cpu).exists()]


@contextmanager
def offline(cpu: int) -> Iterator[None]:
    """Take the CPU offline for the length of a block."""
    switch = switch_of(cpu)
    switch.write_text("0")
    try:
        yield
    finally:
        switch.write_text("1")


def bounce(daemon: Daemon, cpu: int, works: Sequence[Callable[[], object]]) -> None:
    """Take a CPU offline for the length of each work, and wait until it is covered again."""
    before = daemon.metric(UNCOVERED)
    for work in works:
        with offline(cpu):
            work()
    wait_for(lambda: daemon.metric(UNCOVERED) > before, "the CPU's absence")
    wait_for(lambda: daemon.metric(COVERED) == CPUS, "the CPU's new rings")


def open_events(daemon: Daemon) -> tuple[int, int]:
    """Return how many descriptors and mappings of events a daemon has."""
    maps = Path(f"/proc/{daemon.pid}/maps").read_text()
    return daemon.fds().count(_EVENT), maps.count(_EVENT)


def holdings(daemon: Daemon) -> tuple[Counter[str], int]:
    """Return a daemon's descriptors by kind, and how many mappings of files and rings it has.

    How many its heap has is its allocator's matter.
    """
    kinds = Counter(target.partition(":")[0] for target in daemon.fds())
    lines = Path(f"/proc/{daemon.pid}/maps").read_text().splitlines()
    return kinds, sum(len(line.split(maxsplit=5)) > 5 for line in lines)
