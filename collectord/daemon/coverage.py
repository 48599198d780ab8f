# SPDX-License-Identifier: Apache-2.0
"""The CPUs that are covered, by all sessions together and by each.

On an offline CPU nothing is produced: that is uncovered time, not loss. Events on a CPU that came
online without a ring are not recorded, or only read at the end.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Final

import structlog

from collectord.errors import KernelError
from collectord.model import RingRole
from collectord.text import cpu_list

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from collectord.daemon.cpu_watch import CpuWatch
    from collectord.plan.session_plan import SessionPlan

_LOG: Final = structlog.get_logger()


class Coverage:
    """The online CPUs, and those on which a session lacks rings that it should have.

    Args:
        sessions: the opened sessions.
        online: CPUs that are online.
    """

    def __init__(self, sessions: Sequence[SessionPlan], online: Iterable[int]) -> None:
        self.online = frozenset(online)
        self._sessions: dict[tuple[str, str], _Seen] = {}
        self._planned = frozenset[int]()
        self._uncovered_ns = 0
        self._counted_ns = time.monotonic_ns()
        self._blind = False
        self.follow(sessions)

    def follow(self, sessions: Sequence[SessionPlan]) -> None:
        """Look at these sessions from now on; what is known of those that stay is kept."""
        self.uncovered_ns()
        before, self._sessions = self._sessions, {}
        for plan in sessions:
            key = plan.key
            known = before.get(key)
            if known is None or known.plan is not plan:
                new = _Seen(plan)
                new.uncovered_ns = known.uncovered_ns if known is not None else 0
                new.let_go(new.planned - self.online)
                known = new
            self._sessions[key] = known
        self._planned = frozenset[int]().union(*(one.planned for one in self._sessions.values()))

    @property
    def covered(self) -> frozenset[int]:
        """The CPUs, online or not, on which every session has what it should have."""
        return (self._planned | self.online) - self._uncovered

    @property
    def _uncovered(self) -> frozenset[int]:
        return frozenset[int]().union(*(one.lacks(self.online) for one in self._sessions.values()))

    def uncovered_ns(self) -> int:
        """Return the time so far that CPUs were without what they should have had, added up."""
        now_ns = time.monotonic_ns()
        passed_ns, self._counted_ns = now_ns - self._counted_ns, now_ns
        self._uncovered_ns += len(self._uncovered) * passed_ns
        for one in self._sessions.values():
            one.uncovered_ns += len(one.lacks(self.online)) * passed_ns
        return self._uncovered_ns

    def uncovered_by_session(self) -> Mapping[tuple[str, str], int]:
        """Return the same for each session, by name and source, as of the last `uncovered_ns`."""
        return {key: one.uncovered_ns for key, one in self._sessions.items()}

    def poll(self, watch: CpuWatch) -> bool:
        """Find the CPUs that came and went; if that fails, the next poll finds them.

        Returns:
            whether `trouble` may have changed.
        """
        try:
            change = watch.poll()
        except KernelError as error:  # for example out of descriptors
            if not self._blind:
                _LOG.error("cpus_not_seen", error=str(error))
            self._blind = True
        else:
            self._blind = False
            if change != (self.online, frozenset()):
                self.change(*change)
                return True
        return False

    def change(self, online: Iterable[int], left: Iterable[int] = ()) -> None:
        """Set the online CPUs, and those that went offline, even if they are back."""
        before = self.online, self._uncovered
        self.uncovered_ns()
        self.online = frozenset(online)
        self._let_go(frozenset(left))
        if before != (self.online, self._uncovered):
            uncovered = sorted(self._uncovered)
            _LOG.warning("cpus_changed", online=sorted(self.online), uncovered=uncovered)

    def _let_go(self, left: frozenset[int]) -> None:
        for one in self._sessions.values():
            one.let_go(left | (one.planned - self.online))

    def away(self, plan: SessionPlan) -> frozenset[int]:
        """Return the CPUs that were offline since the session's rings on them were opened.

        Those that came online since the session began are among them.
        """
        seen = self._sessions.get(plan.key)
        return seen.away(self.online) if seen is not None else frozenset()

    def absences(self, plan: SessionPlan, cpu: int) -> int:
        """Return how often a CPU was found to be offline, or to have been."""
        return self._sessions[plan.key].absences[cpu]

    def joined(self, plan: SessionPlan, cpu: int, absences: int) -> None:
        """Note that a CPU has new rings, opened after `absences` absences of it."""
        self.uncovered_ns()
        seen = self._sessions[plan.key]
        if seen.absences[cpu] == absences:
            seen.take_back(cpu)

    def trouble(self, plan: SessionPlan) -> str:
        """Return what a session lacks, with the numbers of the CPUs; "" if nothing."""
        seen = self._sessions.get(plan.key)
        return "; ".join(seen.troubles(self.online)) if seen is not None else ""


class _Seen:
    """One session's coverage of the CPUs."""

    def __init__(self, plan: SessionPlan) -> None:
        self.plan = plan
        rings = [ring.cpu for ring in plan.rings if ring.role is RingRole.DATA and ring.cpu >= 0]
        payload = plan.payload
        cpus = (*rings, *payload.program_cpus)
        self.planned = frozenset(cpus if payload.watches_cpus else ())
        self._all_wanted = bool(self.planned) and not plan.scope.cpus
        self._attached = payload.leaves_with_cpu and not plan.per_task
        # The kernel detaches events of a CPU that goes offline, and does not attach them again. A
        # ring of ftrace or relay belongs to the CPU and stays, as does an event of a task.
        self._detachable = frozenset(rings) if self._attached else frozenset[int]()
        names = [ring.cpu for ring in plan.rings if ring.role is RingRole.SIDEBAND]
        self._naming = frozenset(names) - {-1} if self._attached else frozenset[int]()
        self._read_late = payload.has_instance and plan.sink.single_file is None
        self._detached: frozenset[int] = frozenset()
        self._unnamed: frozenset[int] = frozenset()
        self.absences: Counter[int] = Counter()
        self.uncovered_ns = 0

    def let_go(self, left: frozenset[int]) -> None:
        """Note that these CPUs were offline."""
        self.absences.update(left)
        self._detached |= left & self._detachable
        self._unnamed |= left & self._naming

    def take_back(self, cpu: int) -> None:
        """Note that this CPU has new rings; one that had none before has what the others have."""
        if cpu not in self.planned:
            self.planned |= {cpu}
            self._detachable |= {cpu} if self._detachable else set()
            self._naming |= {cpu} if self._naming else set()
        self._detached -= {cpu}
        self._unnamed -= {cpu}

    def away(self, online: frozenset[int]) -> frozenset[int]:
        """Return the CPUs that were offline, and have had no new rings since."""
        return self._detached | self._unnamed | self._new(online)

    def _new(self, online: frozenset[int]) -> frozenset[int]:
        """Return the CPUs that came online since the start, if the session is to have all."""
        return online - self.planned if self._all_wanted else frozenset()

    def lacks(self, online: frozenset[int]) -> frozenset[int]:
        """Return the CPUs on which the session lacks what it should have."""
        return self._new(online) | self._detached | (self.planned - online)

    def troubles(self, online: frozenset[int]) -> Iterator[str]:
        """Yield what the session lacks, in words."""
        if offline := self.planned - online:
            yield f"{_names(offline)}: offline"
        if back := self._detached & online:
            yield f"{_names(back)}: back online, and not recorded since it was offline"
        if unnamed := (self._unnamed - self._detached) & online:
            yield (
                f"{_names(unnamed)}: back online, but tasks that started or changed their name "
                "there since it was offline are unknown"
            )
        if new := self._new(online):
            late = "its ring is read at the end" if self._read_late else "not recorded"
            yield f"{_names(new)}: online since the start, {late}"


def _names(cpus: Iterable[int]) -> str:
    return f"CPU {cpu_list.render(sorted(cpus))}"
