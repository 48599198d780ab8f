# SPDX-License-Identifier: Apache-2.0
"""Sessions that are wanted and do not record yet: a task of its own brings each to its begin.

None waits for the disk of another one. The others begin without one whose disk does not answer,
which joins them when it does.
"""

from __future__ import annotations

import asyncio
import enum
import math
import time
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from collectord.daemon.leaving import taken
from collectord.daemon.session_set import SessionSet
from collectord.errors import CollectordError, PlanError
from collectord.session.ringless_session import RinglessSession

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from collectord.daemon.claims import Places
    from collectord.daemon.leaving import Leaving
    from collectord.ledger.record_ledger import SessionBalance
    from collectord.plan.session_plan import SessionPlan
    from collectord.session.session_factory import Contains, SessionContext

    Join = Callable[["Arrival"], None]

_LOG: Final = structlog.get_logger()
# A disk takes milliseconds for what a beginning needs, and seconds if it is slow and busy.
_GRACE_S: Final = 10.0
# It hangs if a thread has waited for it so long without a break.
_BLOCKED_S: Final = 3.0
# So long a session waits for the one in front of it, to be opened in the order of the plan.
_ORDER_PART: Final = 0.05  # of _GRACE_S
# So long a stop waits for disks, before the process ends without these sessions.
_END_S: Final = 5.0


class Stage(enum.Enum):
    """How far a session is; see `_ON_DISK` for those that wait for its disk."""

    CLAIMING = enum.auto()
    OPENING = enum.auto()
    LOADING = enum.auto()
    OPEN = enum.auto()
    BEGINNING = enum.auto()
    OVER = enum.auto()


_ON_DISK: Final = frozenset({Stage.CLAIMING, Stage.LOADING, Stage.BEGINNING})


@dataclass(frozen=True, slots=True)
class Way:
    """How sessions are opened.

    Attributes:
        context: opens them.
        places: their folders are claimed there.
        contains: tells whether a placeholder takes the place of one that fails.
        blamed: names a session's file in errors.
        told: called when a session's source is opened.
    """

    context: SessionContext
    places: Places
    contains: Contains
    blamed: Callable[[SessionPlan], AbstractContextManager[None]]
    told: Callable[[SessionPlan], None]


class Arrival:
    """A session on its way.

    Args:
        plan: of the session.
        way: how it is opened.
        aside: gets the session.
        news: set whenever it is further.
        previous: the session in front of it.

    Attributes:
        stage: how far it is.
        task: does all that.
        dropped: it is not wanted any more.
        joins: called when it is over, if nobody waits for that any more.
    """

    def __init__(
        self,
        plan: SessionPlan,
        way: Way,
        aside: SessionSet,
        news: asyncio.Event,
        previous: Arrival | None = None,
    ) -> None:
        self.plan = plan
        self.way = way
        self.aside = aside
        self.stage = Stage.CLAIMING
        self.task: asyncio.Task[None]
        self.dropped = False
        self.joins: Join | None = None
        self._since_s = time.monotonic()
        self._may_begin = asyncio.Event()
        self._claimed = asyncio.Event()
        self._news = news
        self._previous = previous

    def enter(self, stage: Stage) -> None:
        """Note that it is so far now."""
        self.stage = stage
        self._since_s = time.monotonic()
        self._news.set()
        if stage is not Stage.CLAIMING:
            self._claimed.set()

    async def _in_order(self) -> None:
        """Wait for the turn to be opened, unless the disk of the session in front is slow."""
        previous, self._previous = self._previous, None
        if previous is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_GRACE_S * _ORDER_PART):
                    await previous._claimed.wait()  # noqa: SLF001

    def opening(self) -> None:
        """Note that its source is opened (session_factory.Progress)."""
        self.enter(Stage.OPENING)
        self.way.told(self.plan)

    def loading(self) -> None:
        """Note that its source is open (session_factory.Progress)."""
        self.enter(Stage.LOADING)

    def let_begin(self) -> None:
        """Let it begin once it is open."""
        self._may_begin.set()

    async def go(self, before: Callable[[], Awaitable[None]]) -> None:
        """Go all the way, unless it is dropped before it begins.

        Args:
            before: awaited right before it begins.

        Raises:
            CollectordError: it cannot be claimed, opened or begun; nothing of it is left.
        """
        plan, context = self.plan, self.way.context
        device = await self.way.places.claim(plan)
        if device is not None:
            context.use_disk(plan.name, device)
        await self._in_order()
        self.enter(Stage.OPENING)
        async with AsyncExitStack() as undo:
            undo.callback(self.aside.pop_all)  # what is undone is not in there
            await undo.enter_async_context(self.aside)
            async with AsyncExitStack() as own:
                with self.way.blamed(plan):
                    session = await context.open(plan, own, self.way.contains, self)
                self.aside.add(session, own.pop_all())
            self.enter(Stage.OPEN)
            await self._may_begin.wait()
            if self.dropped:
                return
            self.enter(Stage.BEGINNING)
            await before()
            try:
                with self.way.blamed(plan):
                    await self.aside.begin(session)
            except CollectordError as error:
                if not self.way.contains(plan, error):
                    raise
                await self.aside.replace(context.failed(plan, error))
            undo.pop_all()

    def drop(self) -> None:
        """Have it end: at once while nothing of it is on the disk, else when the disk answers."""
        self.dropped = True
        self._may_begin.set()
        if self.stage in {Stage.CLAIMING, Stage.OPENING}:
            self.task.cancel()
        self._news.set()

    def look_again(self) -> None:
        """Give its disk some more time: it may be slow."""
        self._since_s = time.monotonic() - _GRACE_S + _BLOCKED_S

    @property
    def stuck_in_s(self) -> float:
        """In how many seconds its disk counts as hung; infinite while it waits for no disk."""
        if self.stage not in _ON_DISK or self.task.cancelling():
            return math.inf
        return self._since_s + _GRACE_S - time.monotonic()

    def balance(self, state: str) -> SessionBalance:
        """Return a balance without records."""
        directory = self.plan.sink.directory
        hung = (f"its disk does not answer: {directory}",) if self.stuck_in_s <= 0 else ()
        balance = RinglessSession(self.plan, None).balance()
        reasons = (*hung, *balance.degraded_reasons)
        return replace(balance, state=state, directory=directory, degraded_reasons=reasons)

    def error(self) -> CollectordError | None:
        """Return why it has failed; None if it has not, or if nobody wants it any more."""
        if self.dropped or not self.task.done() or self.task.cancelled():
            return None
        error = self.task.exception()
        if error is not None and not isinstance(error, CollectordError):
            raise error
        return error


class Arriving:
    """All sessions that are on their way.

    Args:
        sessions: the live ones.
        leaving: ends those that have begun in vain.

    Attributes:
        abandoned: the plans of those whose disks did not answer before the end of the process.
    """

    def __init__(self, sessions: SessionSet, leaving: Leaving) -> None:
        self._sessions = sessions
        self._leaving = leaving
        self._ones: list[Arrival] = []
        self._news = asyncio.Event()
        self._patient = False
        self._blocked_s: dict[tuple[str, str], float] = {}  # threads, and since when
        self.abandoned: tuple[SessionPlan, ...] = ()

    def be_patient(self) -> None:
        """Wait for each disk, however long it takes, until `hurry`."""
        self._patient = True

    def set_out(self, plan: SessionPlan, way: Way) -> Arrival:
        """Let a session be claimed and opened; it does not begin before it is told to."""
        previous = self._ones[-1] if self._ones else None
        one = Arrival(plan, way, SessionSet(way.context.watch), self._news, previous)
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
            self._leaving.begin(one.aside.pop_all())
        elif one.joins is not None and not one.task.cancelled():
            one.joins(one)
        self._leaving.left()

    async def opened(self, ones: Sequence[Arrival]) -> None:
        """Wait until all are open, except those whose disks do not answer. Raises their errors."""
        await self._until(ones, Stage.OPEN)

    async def begun(self, ones: Sequence[Arrival], joins: Join | None = None) -> list[Arrival]:
        """Let all begin, and wait for them likewise; return those that have begun.

        Args:
            ones: the sessions.
            joins: called for each of the others when its disk has answered, unless it is dropped.

        Raises:
            CollectordError: one cannot begin.
        """
        for one in ones:
            one.let_begin()
        await self._until(ones, Stage.OVER)
        for one in ones:
            one.joins = joins
        return [one for one in ones if one.stage is Stage.OVER and not one.dropped]

    async def _until(self, ones: Sequence[Arrival], stage: Stage) -> None:
        """Wait until all have come so far, or have ended, or are stuck."""
        while True:
            for one in ones:
                error = one.error()
                if error is not None:
                    raise error
            waiting = [one for one in ones if one.stage.value < stage.value]
            left_s = [math.inf if self._patient else one.stuck_in_s for one in waiting]
            if any(s <= 0 for s in left_s) and not self._hangs():
                for one in waiting:
                    one.look_again()
                continue
            soonest_s = min((s for s in left_s if s > 0), default=0.0)
            if not soonest_s:
                return
            self._news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(soonest_s if soonest_s < math.inf else None):
                    await self._news.wait()

    def _hangs(self) -> bool:
        """Whether a thread has waited for a disk without a break; else the machine is slow."""
        now_s = time.monotonic()
        self._blocked_s = {one: self._blocked_s.get(one, now_s) for one in _blocked()}
        return any(now_s - since_s >= _BLOCKED_S for since_s in self._blocked_s.values())

    async def drop(self, ones: Iterable[Arrival]) -> None:
        """Have sessions end that are not wanted, and wait for them, but not for hung disks."""
        dropped = [*ones]
        for one in dropped:
            one.drop()
            if one.stage is Stage.OVER:
                self._leaving.begin(one.aside.pop_all())
        await self._until(dropped, Stage.OVER)

    async def drop_late(self, keys: Iterable[tuple[str, str]]) -> None:
        """Drop sessions by name and source, if they are on their way."""
        wanted = {*keys}
        await self.drop(one for one in self._ones if (one.plan.name, one.plan.source) in wanted)

    def hurry(self) -> None:
        """Open nothing more and wait for no hung disk, since the process is about to stop."""
        self._patient = False
        for one in self._ones:
            if one.stage is not Stage.BEGINNING:
                one.drop()
        self._news.set()

    @property
    def plans(self) -> list[SessionPlan]:
        """The plans of all sessions on their way, those included that are not wanted any more."""
        return [one.plan for one in self._ones]

    @property
    def names(self) -> list[str]:
        """The names of those that are wanted and configured."""
        wanted = (one.plan for one in self._ones if not one.dropped)
        return sorted({plan.name for plan in wanted if not plan.ends_ns})

    def balances(self) -> tuple[SessionBalance, ...]:
        """Return the balances of those that are wanted: nothing is recorded yet."""
        return tuple(one.balance("beginning") for one in self._ones if not one.dropped)

    def ending(self) -> tuple[SessionBalance, ...]:
        """Return the balances of the others."""
        return tuple(one.balance("ending") for one in self._ones if one.dropped)

    async def check(self, plans: Iterable[SessionPlan]) -> None:
        """Wait for sessions with the name or the folder of one that is to be opened.

        Raises:
            PlanError: the disk of such a session does not answer.
        """
        wanted = tuple(plans)
        await self._until([one for one in self._ones if taken([one.plan], wanted)], Stage.OVER)
        found = taken(self.plans, wanted)
        if found:
            raise PlanError(
                f"session {found[0].name!r} is still beginning: it writes to "
                f"{found[0].sink.directory}, whose disk does not answer",
                what=found[0].name,
                hint="try again when `collectord status` does not show it any more",
            )

    async def end(self) -> None:
        """Drop all, and wait for their disks for a few seconds; the others are abandoned.

        Nothing is lost with those: their events were never enabled.
        """
        for one in self._ones:
            one.drop()
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_S):
                while self._left():
                    self._news.clear()
                    await self._news.wait()
        left = self._left()
        for plan in left:
            _LOG.error("session_abandoned", session=plan.name, directory=plan.sink.directory)
        self.abandoned += left

    def _left(self) -> tuple[SessionPlan, ...]:
        """Return the plans of those that are not abandoned yet."""
        return tuple(plan for plan in self.plans if plan not in self.abandoned)


def _blocked() -> Iterator[tuple[str, str]]:
    """Yield {id, switches so far} of this process's threads that wait for a disk."""
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it has ended since it was listed
            told = (task / "status").read_text()
            if "\nState:\tD" in told:
                yield task.name, told.partition("\nvoluntary_ctxt_switches:")[2]
