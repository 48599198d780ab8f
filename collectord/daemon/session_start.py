# SPDX-License-Identifier: Apache-2.0
"""The start of one session: a task of its own claims, opens and begins it."""

from __future__ import annotations

import asyncio
import enum
import math
import time
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from collectord.errors import CollectordError
from collectord.session.ringless_session import RinglessSession

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractContextManager

    from collectord.daemon.claims import Places
    from collectord.daemon.session_set import SessionSet
    from collectord.ledger.record_ledger import SessionBalance
    from collectord.plan.session_plan import SessionPlan
    from collectord.session.session_factory import Contains, SessionContext

    Join = Callable[["Arrival"], None]

# A disk takes milliseconds for what a beginning needs, and seconds if it is slow and busy.
_GRACE_S: Final = 10.0
# It hangs if a thread has waited for it so long without a break.
BLOCKED_S: Final = 3.0
# How long a session waits for the one in front of it, to be opened in the order of the plan.
_ORDER_PART: Final = 0.05  # of _GRACE_S


class Stage(enum.Enum):
    """How far a session is; `_ON_DISK` lists the stages that wait for its disk."""

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
        plan: the plan of the session.
        way: how the session is opened.
        aside: gets the session.
        advanced: set whenever the session is further.
        previous: the session in front of it.

    Attributes:
        stage: how far it is.
        task: claims, opens and begins the session.
        dropped: it is not wanted any more.
        joins: called when the session is over, if nobody waits for it any more.
    """

    def __init__(
        self,
        plan: SessionPlan,
        way: Way,
        aside: SessionSet,
        advanced: asyncio.Event,
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
        self._advanced = advanced
        self._previous = previous

    def enter(self, stage: Stage) -> None:
        """Note the stage that the session has reached."""
        self.stage = stage
        self._since_s = time.monotonic()
        self._advanced.set()
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
        """Note that opening the session's source starts (session_factory.Progress)."""
        self.enter(Stage.OPENING)
        self.way.told(self.plan)

    def loading(self) -> None:
        """Note that the session's source is open (session_factory.Progress)."""
        self.enter(Stage.LOADING)

    def let_begin(self) -> None:
        """Allow the session to begin once it is open."""
        self._may_begin.set()

    async def go(self, before: Callable[[], Awaitable[None]]) -> None:
        """Claim, open and begin the session, unless it is dropped before it begins.

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
        """End the session: at once if it has nothing on the disk, else when the disk answers."""
        self.dropped = True
        self._may_begin.set()
        if self.stage in {Stage.CLAIMING, Stage.OPENING}:
            self.task.cancel()
        self._advanced.set()

    def allow_more_time(self) -> None:
        """Give the session's disk some more time: it may be slow."""
        self._since_s = time.monotonic() - _GRACE_S + BLOCKED_S

    @property
    def stuck_in_s(self) -> float:
        """The seconds until the session's disk counts as hung; infinite if it waits for none."""
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
        """Return why the session has failed; None if it has not, or if it is dropped."""
        if self.dropped or not self.task.done() or self.task.cancelled():
            return None
        error = self.task.exception()
        if error is not None and not isinstance(error, CollectordError):
            raise error
        return error
