# SPDX-License-Identifier: Apache-2.0
"""Opens the sessions that the configuration names, until they record.

No session waits for the disk of another one. If the disk of a session does not answer, the other
sessions begin without it; it joins them when its disk answers.
"""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from collectord.daemon.ending_sessions import refuse_taken, taken
from collectord.daemon.session_set import SessionSet
from collectord.daemon.session_start import BLOCKED_S, Arrival, Stage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from collectord.daemon.ending_sessions import EndingSessions
    from collectord.daemon.session_start import Join, Way
    from collectord.ledger.record_ledger import SessionBalance
    from collectord.plan.session_plan import SessionPlan

_LOG: Final = structlog.get_logger()
# How long a stop waits for disks before the process ends without these sessions.
_END_S: Final = 5.0


class StartingSessions:
    """The sessions that are being opened, and do not record yet.

    Args:
        sessions: the live sessions.
        ending: ends sessions that have begun in vain.

    Attributes:
        abandoned: the plans of sessions whose disks did not answer before the process ended.
    """

    def __init__(self, sessions: SessionSet, ending: EndingSessions) -> None:
        self._sessions = sessions
        self._ending = ending
        self._ones: list[Arrival] = []
        self._advanced = asyncio.Event()
        self._patient = False
        self._blocked_s: dict[tuple[str, str], float] = {}  # threads, and since when
        self.abandoned: tuple[SessionPlan, ...] = ()

    def be_patient(self) -> None:
        """Wait for each disk, however long it takes, until `hurry`."""
        self._patient = True

    def set_out(self, plan: SessionPlan, way: Way) -> Arrival:
        """Start claiming and opening a session; it begins only after `Arrival.let_begin`."""
        previous = self._ones[-1] if self._ones else None
        one = Arrival(plan, way, SessionSet(way.context.watch), self._advanced, previous)
        one.task = asyncio.create_task(one.go(lambda: self._note_covered(plan)))
        one.task.add_done_callback(lambda _: self._on_over(one))
        self._ones.append(one)
        return one

    async def _note_covered(self, plan: SessionPlan) -> None:
        for before in self._sessions.of(plan):
            await before.note_covered()  # the new one goes on from there

    def _on_over(self, one: Arrival) -> None:
        self._ones.remove(one)
        one.enter(Stage.OVER)
        failed = one.task.cancelled() or one.task.exception() is not None
        if one.dropped and not failed:
            self._ending.begin(one.aside.pop_all())
        elif one.joins is not None and not one.task.cancelled():
            one.joins(one)
        self._ending.left()

    async def opened(self, ones: Sequence[Arrival]) -> None:
        """Wait until all sessions are open whose disks answer. Raises the sessions' errors."""
        await self._until(ones, Stage.OPEN)

    async def begun(self, ones: Sequence[Arrival], joins: Join | None = None) -> list[Arrival]:
        """Begin all sessions, wait as in `opened`, and return the sessions that have begun.

        Args:
            ones: the sessions.
            joins: called for each other session when its disk has answered, unless it is dropped.

        Raises:
            CollectordError: a session cannot begin.
        """
        for one in ones:
            one.let_begin()
        await self._until(ones, Stage.OVER)
        for one in ones:
            one.joins = joins
        return [one for one in ones if one.stage is Stage.OVER and not one.dropped]

    async def _until(self, ones: Sequence[Arrival], stage: Stage) -> None:
        """Wait until each session has reached a stage, has ended, or is stuck on its disk."""
        while True:
            for one in ones:
                error = one.error()
                if error is not None:
                    raise error
            waiting = [one for one in ones if one.stage.value < stage.value]
            left_s = [math.inf if self._patient else one.stuck_in_s for one in waiting]
            if any(s <= 0 for s in left_s) and not self._hangs():
                for one in waiting:
                    one.allow_more_time()
                continue
            soonest_s = min((s for s in left_s if s > 0), default=0.0)
            if not soonest_s:
                return
            self._advanced.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(soonest_s if soonest_s < math.inf else None):
                    await self._advanced.wait()

    def _hangs(self) -> bool:
        """Whether a thread has waited for a disk without a break; if not, the machine is slow."""
        now_s = time.monotonic()
        self._blocked_s = {one: self._blocked_s.get(one, now_s) for one in _blocked()}
        return any(now_s - since_s >= BLOCKED_S for since_s in self._blocked_s.values())

    async def drop(self, ones: Iterable[Arrival]) -> None:
        """End sessions that are not wanted any more; wait for them, but not for hung disks."""
        dropped = [*ones]
        for one in dropped:
            one.drop()
            if one.stage is Stage.OVER:
                self._ending.begin(one.aside.pop_all())
        await self._until(dropped, Stage.OVER)

    async def drop_late(self, keys: Iterable[tuple[str, str]]) -> None:
        """Drop sessions by name and source, if they are on their way."""
        wanted = {*keys}
        await self.drop(one for one in self._ones if one.plan.key in wanted)

    def hurry(self) -> None:
        """Open nothing more and wait for no hung disk, since the process is about to stop."""
        self._patient = False
        for one in self._ones:
            if one.stage is not Stage.BEGINNING:
                one.drop()
        self._advanced.set()

    @property
    def plans(self) -> list[SessionPlan]:
        """The plans of all sessions on their way, including the dropped sessions."""
        return [one.plan for one in self._ones]

    @property
    def names(self) -> list[str]:
        """The names of the configured sessions that are being opened."""
        wanted = (one.plan for one in self._ones if not one.dropped)
        return sorted({plan.name for plan in wanted if not plan.ends_ns})

    def balances(self) -> tuple[SessionBalance, ...]:
        """Return the balances of the sessions that are not dropped; they record nothing yet."""
        return tuple(one.balance("beginning") for one in self._ones if not one.dropped)

    def ending(self) -> tuple[SessionBalance, ...]:
        """Return the balances of the dropped sessions."""
        return tuple(one.balance("ending") for one in self._ones if one.dropped)

    async def check(self, plans: Iterable[SessionPlan]) -> None:
        """Wait for sessions that have the name or the folder of a session to be opened.

        Raises:
            PlanError: the disk of such a session does not answer.
        """
        wanted = tuple(plans)
        await self._until([one for one in self._ones if taken([one.plan], wanted)], Stage.OVER)
        refuse_taken(self.plans, wanted, "beginning")

    async def end(self) -> None:
        """Drop all sessions, wait a few seconds for their disks, and abandon the rest.

        No record is lost with abandoned sessions: their events were never enabled.
        """
        for one in self._ones:
            one.drop()
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_S):
                while self._not_abandoned():
                    self._advanced.clear()
                    await self._advanced.wait()
        left = self._not_abandoned()
        for plan in left:
            _LOG.error("session_abandoned", session=plan.name, directory=plan.sink.directory)
        self.abandoned += left

    def _not_abandoned(self) -> tuple[SessionPlan, ...]:
        """Return the plans of sessions on their way that are not abandoned yet."""
        return tuple(plan for plan in self.plans if plan not in self.abandoned)


def _blocked() -> Iterator[tuple[str, str]]:
    """Yield {id, switches so far} of this process's threads that wait for a disk."""
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it has ended since it was listed
            told = (task / "status").read_text()
            if "\nState:\tD" in told:
                yield task.name, told.partition("\nvoluntary_ctxt_switches:")[2]
