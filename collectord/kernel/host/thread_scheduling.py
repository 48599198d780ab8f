# SPDX-License-Identifier: Apache-2.0
"""Scheduling of this process's threads: what is permitted, and what is in effect."""

from __future__ import annotations

import os
import resource
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from collectord.config.scheduling import FIFO, FIFO_RANGE, NICE, NICE_RANGE
from collectord.errors import KernelError
from collectord.kernel.host.errno_mapping import DENIED, Meaning, refused
from collectord.kernel.values.host import Scheduling
from collectord.text import cpu_list

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from collectord.config.scheduling import DrainPriority

CAP_SYS_NICE: Final = "CAP_SYS_NICE"
# RLIMIT_NICE n allows nice values down to 20 - n (getrlimit(2)).
_NICE_ZERO: Final = 20
_POLICIES: Final = {
    os.SCHED_OTHER: "normal",
    os.SCHED_BATCH: "batch",
    os.SCHED_IDLE: "idle",
    os.SCHED_FIFO: "fifo",
    os.SCHED_RR: "rr",
}
_REALTIME: Final = (os.SCHED_FIFO, os.SCHED_RR)


@dataclass(frozen=True, slots=True)
class Permitted:
    """The scheduling that this process may give its threads; see `KernelFacts`."""

    nice: int
    nice_min: int
    realtime: bool
    realtime_max: int


def permitted(capabilities: Collection[str]) -> Permitted:
    """Check limits, and try SCHED_FIFO: seccomp and the cgroup may refuse it too."""
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    free = CAP_SYS_NICE in capabilities
    limit = resource.getrlimit(resource.RLIMIT_NICE)[0]
    unlimited = free or limit == resource.RLIM_INFINITY
    lowest = NICE_RANGE[0] if unlimited else max(NICE_RANGE[0], _NICE_ZERO - limit)
    return Permitted(
        nice=nice,
        nice_min=min(nice, lowest),
        realtime=os.sched_getscheduler(0) in _REALTIME,
        realtime_max=_realtime_max(unlimited=free),
    )


def _realtime_max(*, unlimited: bool) -> int:
    limit = resource.getrlimit(resource.RLIMIT_RTPRIO)[0]
    if unlimited or limit == resource.RLIM_INFINITY:
        limit = FIFO_RANGE[1]
    return min(limit, FIFO_RANGE[1]) if limit > 0 and _takes_fifo() else 0


def _takes_fifo() -> bool:
    """Try SCHED_FIFO in a thread that ends, so that the caller's thread stays as it is."""
    taken = []

    def attempt() -> None:
        try:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        except OSError:
            return
        taken.append(True)

    thread = threading.Thread(target=attempt, name="fifo-trial")
    thread.start()
    thread.join()
    return bool(taken)


def prioritise(tid: int, priority: DrainPriority) -> None:
    """Give a thread a real-time or nice priority.

    Raises:
        MissingPrivilege: it is not permitted.
        KernelError: the kernel refuses it for another reason.
    """
    call = ""
    try:
        if priority.policy == NICE:
            call = "setpriority"
            os.setpriority(os.PRIO_PROCESS, tid, priority.level)
        elif priority.policy == FIFO:
            call = "sched_setscheduler"
            os.sched_setscheduler(tid, os.SCHED_FIFO, os.sched_param(priority.level))
    except OSError as error:
        message = f"drain_priority {priority} was refused"
        denied = Meaning(DENIED, CAP_SYS_NICE)
        raise refused(error.errno or 0, message, call, denied) from error


def confine(tid: int, cpus: Iterable[int]) -> None:
    """Restrict a thread to these CPUs.

    Raises:
        KernelError: the process may use none of them.
    """
    cpus = tuple(cpus)
    try:
        os.sched_setaffinity(tid, cpus)
    except OSError as error:
        raise KernelError(
            f"a drain thread cannot run on CPUs {cpu_list.render(cpus)}",
            syscall="sched_setaffinity",
            errno=error.errno or 0,
            hint="the cpuset of its cgroup does not permit it",
        ) from error


def scheduling(tid: int) -> Scheduling | None:
    """Read the scheduling in effect; None for a thread that has ended."""
    try:
        policy = os.sched_getscheduler(tid)
        return Scheduling(
            policy=_POLICIES.get(policy, str(policy)),
            priority=os.sched_getparam(tid).sched_priority,
            nice=os.getpriority(os.PRIO_PROCESS, tid),
            cpus=tuple(sorted(os.sched_getaffinity(tid))),
        )
    except ProcessLookupError:
        return None
