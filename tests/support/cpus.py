# SPDX-License-Identifier: Apache-2.0
"""CPUs of this machine that a test takes offline, and what a daemon has of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter, deque
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.support import sharing
from tests.support.daemons import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.support.daemons import Daemon

CPUS: Final = os.sysconf("SC_NPROCESSORS_CONF")
UNCOVERED: Final = "collectord_uncovered_seconds_total"
ONLINE: Final = "collectord_cpus_online"
COVERED: Final = "collectord_cpus_covered"
_NUMBER: Final = re.compile(r":\[\d+\]$")  # of a socket or a pipe
_LOOKS: Final = 20
_EVENT: Final = "anon_inode:[perf_event]"
_IDLER: Final = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
print(flush=True)
while True:
    pass
"""


def switch_of(cpu: int) -> Path:
    """Return the file that takes a CPU offline; the first CPU has none on most machines."""
    return Path(f"/sys/devices/system/cpu/cpu{cpu}/online")


def with_switch() -> list[int]:
    """Return the CPUs that can be taken offline."""
    return [cpu for cpu in range(CPUS) if switch_of(cpu).exists()]


@contextmanager
def offline(cpu: int) -> Iterator[None]:
    """Take the CPU offline for the length of a block, when no other test needs all of them."""
    switch = switch_of(cpu)
    with sharing.alone():
        switch.write_text("0")
        try:
            yield
        finally:
            switch.write_text("1")


@contextmanager
def never_idle() -> Iterator[None]:
    """Have each CPU run a program of the lowest priority whenever it has nothing else to do.

    Some kernels, in virtual machines, count the samples that perf events raise while a CPU is idle
    but write no record of them. A thread that comes back to an idle CPU then seems to stay away.
    """
    with ExitStack() as stack:
        for cpu in os.sched_getaffinity(0):
            words = [sys.executable, "-c", _IDLER, str(cpu)]
            idler = stack.enter_context(subprocess.Popen(words, stdout=subprocess.PIPE))
            stack.callback(idler.kill)
            assert idler.stdout is not None
            assert idler.stdout.readline()
        yield


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


class Holdings(NamedTuple):
    """A daemon's descriptors, and its mappings of files and rings, each by what they are of.

    How many its heap has is its allocator's matter.
    """

    fds: Counter[str]
    mappings: Counter[str]


def _look(daemon: Daemon) -> Holdings:
    lines = Path(f"/proc/{daemon.pid}/maps").read_text().splitlines()
    named = (line.split(maxsplit=5)[5:] for line in lines)
    return Holdings(
        Counter(_NUMBER.sub("", target) for target in daemon.fds()),
        Counter(name for names in named for name in names),
    )


def holdings(daemon: Daemon) -> Holdings:
    """Return what a daemon holds for longer than it has a note open that it writes now."""
    looks: deque[Holdings] = deque(maxlen=_LOOKS)

    def is_settled() -> bool:
        looks.append(_look(daemon))
        return looks.count(looks[-1]) == _LOOKS

    wait_for(is_settled, f"{_LOOKS} times the same descriptors and mappings")
    return looks[-1]


def await_holdings(daemon: Daemon, before: Holdings) -> None:
    """Wait until a daemon holds what it did before; an error tells what else it does."""
    now = before

    def are_equal() -> bool:
        nonlocal now
        now = _look(daemon)
        return now == before

    try:
        wait_for(are_equal, "as many descriptors and mappings")
    except AssertionError as error:
        for kind, new, old in zip(Holdings._fields, now, before, strict=True):
            error.add_note(f"{kind}: more {new - old}, fewer {old - new}")
        raise
