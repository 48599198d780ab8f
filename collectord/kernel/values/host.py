# SPDX-License-Identifier: Apache-2.0
"""Facts of the kernel about its host, and about processes and threads there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

_UNSEEN: Final = "the kernel, or a process that cannot be seen from here, keeps it"


@dataclass(frozen=True, slots=True)
class Host:
    """A host and its kernel; None for what is unknown.

    Attributes:
        cpus_configured: CPUs that are plugged in, counted up to the last one.
        cpuid: the CPU's maker and model, as perf tells models apart.
    """

    hostname: str
    boot_id: str
    release: str
    machine: str
    cpus_online: int
    cpus_configured: int
    cpudesc: str | None
    cpuid: str | None
    total_mem_kib: int | None


@dataclass(frozen=True, slots=True)
class Holder:
    """A process and its name; the process chooses the name itself, made visible here."""

    pid: int
    comm: str

    def __str__(self) -> str:
        return f"{self.comm} (pid {self.pid})"


def kept_by(holders: Iterable[Holder]) -> str:
    """Return in words which processes keep a file; without any, that they cannot be seen."""
    found = ", ".join(map(str, holders))
    return f"kept by {found}" if found else _UNSEEN


@dataclass(frozen=True, slots=True)
class Scheduling:
    """The scheduling of a thread as the kernel reports it.

    Attributes:
        policy: "normal", "batch", "idle", "fifo" or "rr".
        priority: the real-time priority, 0 under other policies.
        nice: its nice value, which real-time policies ignore.
        cpus: CPUs where it may run.
    """

    policy: str
    priority: int
    nice: int
    cpus: tuple[int, ...]


class Origin(NamedTuple):
    """The parent of a process, and its start by CLOCK_MONOTONIC, to a tick of 10 ms."""

    parent: int
    started_ns: int


class CpuNews(NamedTuple):
    """Descriptors that tell which CPUs come and go.

    Attributes:
        online: the kernel's list of online CPUs, made anew for each read at offset 0.
        uevents: a netlink socket with the kernel's messages about devices, which does not block;
            -1 where there is none.
    """

    online: int
    uevents: int


class Discipline(NamedTuple):
    """The state of the wall clock.

    Attributes:
        synchronized: a time service keeps it.
        max_error_us: the most by which it may be wrong.
        est_error_us: by which it is probably wrong.
    """

    synchronized: bool
    max_error_us: int
    est_error_us: int
