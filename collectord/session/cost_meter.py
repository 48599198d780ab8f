# SPDX-License-Identifier: Apache-2.0
"""The cost of a daemon to its machine: its own CPU time, and what its probes take from others.

The probes' part is an estimate: the kernel's count of events times the expected cost of one, or
the run time of BPF programs where the kernel counts it.
"""

from __future__ import annotations

import re
import resource
import time
from collections import defaultdict, deque
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from collectord.model import sum_known
from collectord.text.units import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from collectord.session.maps.program_status import BpfStatus
    from collectord.session.session_factory import AnySession

_WINDOW_NS: Final = 60 * NS_PER_SECOND
_STATUS: Final = Path("/proc/self/status")
_RSS_ANON: Final = re.compile(r"^RssAnon:\s+(\d+) kB$", re.MULTILINE)
# A reading in so many flush intervals: it reads kernel counters that nothing else reads.
_FLUSHES: Final = 5


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost as of the last reading.

    Attributes:
        own_ns: CPU time of the process with all its threads, and of the processes it has run.
        imposed_ns: by name and source of each session, the CPU time that its probes have taken in
            the threads that they record; without the sessions of which it is unknown.
        ratio: both together as a share of all CPUs, over the last minute.
        budget: the share that they may have, 0 for no limit.
        private_bytes: memory of the process that it shares with no other, staging included.
        memory_limit_bytes: the most that it and the rings are to take, 0 for no limit.
    """

    own_ns: int = 0
    imposed_ns: Mapping[tuple[str, str], int] = field(default_factory=dict)
    ratio: float = 0.0
    budget: float = 0.0
    private_bytes: int = 0
    memory_limit_bytes: int = 0


class Reading(NamedTuple):
    """The whole cost, the own and the imposed, at one time; and the imposed of each session."""

    at_ns: int
    cost_ns: int
    imposed_ns: Mapping[tuple[str, str], int]


class CostMeter:
    """Adds up the cost, and relates that of the last minute to the machine.

    Args:
        budget: see `Cost`.
        flush_ns: the flush interval, by which the readings go.
        memory_limit_bytes: see `Cost`.
    """

    def __init__(self, budget: float, flush_ns: int, memory_limit_bytes: int = 0) -> None:
        self._every_ns = _FLUSHES * flush_ns
        self._window: deque[Reading] = deque()
        self._last: dict[tuple[str, str], int] = {}  # of each session as it is now
        self._imposed: dict[tuple[str, str], int] = {}
        self._gone_ns = 0  # of sessions that have ended
        self._excused_ns = 0
        self.cost = Cost(budget=budget, memory_limit_bytes=memory_limit_bytes)

    def excuse(self, taken_ns: int) -> None:
        """Leave CPU time of processes of the lowest priority out of the ratio.

        The answers of an incident are rare and take seconds: no session is to be paused for them.
        """
        self._excused_ns += taken_ns

    def limit(self, budget: float, memory_limit_bytes: int) -> None:
        """Set other limits."""
        self.cost = replace(self.cost, budget=budget, memory_limit_bytes=memory_limit_bytes)

    def poll(
        self, sessions: Iterable[AnySession], programs: Iterable[BpfStatus], cpus: int
    ) -> bool:
        """Take a reading if it is time; return whether it was.

        Args:
            sessions: all of the daemon.
            programs: the last status of their BPF programs.
            cpus: the number of CPUs that the machine has now.
        """
        now_ns = time.monotonic_ns()
        if self._window and now_ns - self._window[-1].at_ns < self._every_ns:
            return False
        run_ns = run_times(programs)
        live = set()
        for session in sessions:
            self._count(session, run_ns)
            live.add(session.plan.key)
        own_ns = _own_ns()
        whole_ns = own_ns - self._excused_ns + self._gone_ns + sum(self._imposed.values())
        imposed = {key: ns for key, ns in self._imposed.items() if key in live}
        self._window.append(Reading(now_ns, whole_ns, imposed))
        self.cost = replace(
            self.cost,
            own_ns=own_ns,
            imposed_ns=imposed,
            ratio=share_of(self._window, cpus),
            private_bytes=_private_bytes(),
        )
        return True

    def lately_ns(self, session: AnySession) -> int:
        """Return what a session's probes have taken over the last minute, 0 if that is unknown."""
        key = session.plan.key
        first, last = self._window[0], self._window[-1]
        return last.imposed_ns.get(key, 0) - first.imposed_ns.get(key, 0)

    def forget(self, session: AnySession) -> None:
        """Keep what a session that has ended has cost in the sum alone."""
        key = session.plan.key
        self._last.pop(key, None)
        self._gone_ns += self._imposed.pop(key, 0)
        self.cost = replace(self.cost, imposed_ns=dict(self._imposed))

    def _count(self, session: AnySession, run_ns: Mapping[str, int | None]) -> None:
        """Add what a session has cost since the last reading; a replaced one begins at 0."""
        imposed_ns = _imposed_ns(session, run_ns)
        if imposed_ns is not None:
            key = session.plan.key
            grown_ns = max(0, imposed_ns - self._last.get(key, 0))
            self._imposed[key] = self._imposed.get(key, 0) + grown_ns
            self._last[key] = imposed_ns


def share_of(window: deque[Reading], cpus: int) -> float:
    """Return the cost as a share of the CPUs, and drop readings that are older than needed."""
    last = window[-1]
    while len(window) > 1 and window[1].at_ns <= last.at_ns - _WINDOW_NS:
        window.popleft()
    first = window[0]
    elapsed_ns = (last.at_ns - first.at_ns) * cpus
    return (last.cost_ns - first.cost_ns) / elapsed_ns if elapsed_ns else 0.0


def run_times(programs: Iterable[BpfStatus]) -> dict[str, int | None]:
    """Return the run time of each session's BPF programs, None where the kernel counts none."""
    times: dict[str, list[int | None]] = defaultdict(list)
    for program in programs:
        times[program.session] += (function.run_time_ns for function in program.functions)
    return {session: sum_known(taken) if taken else None for session, taken in times.items()}


def _imposed_ns(session: AnySession, run_ns: Mapping[str, int | None]) -> int | None:
    """Return what a session's probes have taken so far, None if that is unknown."""
    plan = session.plan
    if plan.payload.programs_run and run_ns.get(plan.name) is not None:
        return run_ns[plan.name]
    cost = plan.imposed
    return cost.event_ns * session.events() if cost is not None else None


def _own_ns() -> int:
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time_ns() + int((ended.ru_utime + ended.ru_stime) * NS_PER_SECOND)


def _private_bytes() -> int:
    found = _RSS_ANON.search(_STATUS.read_text())
    return int(found[1]) << 10 if found else 0
