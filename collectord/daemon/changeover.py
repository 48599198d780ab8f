# SPDX-License-Identifier: Apache-2.0
"""The change from some sessions to others, at the start and at each reload.

New sessions are opened beside the running ones, and take their place once all of them record: so
nothing is missed in between, and a failure changes nothing. A session that cannot be open twice is
closed first; if its successor fails, it is opened again, and the time between is a gap.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from collectord.daemon.opening_notices import Opening
from collectord.daemon.session_set import SessionSet
from collectord.daemon.session_start import Way
from collectord.errors import CollectordError, MissingFeature, PlanError
from collectord.plan.difference import Kind
from collectord.plan.plan_limits import check_streams
from collectord.plan.session_draft import blame
from collectord.session.session_factory import contained

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from collections.abc import Set as AbstractSet
    from contextlib import AbstractContextManager

    from collectord.config.schema import Config
    from collectord.control.service import Service
    from collectord.daemon.claims import Places
    from collectord.daemon.ending_sessions import EndingSessions
    from collectord.daemon.session_start import Arrival
    from collectord.daemon.starting_sessions import StartingSessions
    from collectord.plan.difference import Difference
    from collectord.plan.plan import Plan
    from collectord.plan.session_plan import SessionPlan
    from collectord.session.session_factory import Contains, SessionContext

    Key = tuple[str, str]

_LOG: Final = structlog.get_logger()
# How long a session that has to be closed first may take: as long as writing full staging does.
_CLOSE_S: Final = 30.0
# For directories that this process has already.
_CLAIM_S: Final = 2.0


class Changeover:
    """Opens, exchanges and closes the sessions of a daemon.

    Args:
        context: opens sessions.
        sessions: the live sessions.
        starting: the sessions that do not record yet.
        ending: ends sessions that are not needed any more.
        places: the directories of segments.
        service: is told of what is opened.
        told: called when other sessions are live.

    """

    def __init__(
        self,
        context: SessionContext,
        sessions: SessionSet,
        starting: StartingSessions,
        ending: EndingSessions,
        places: Places,
        *,
        service: Service,
        told: Callable[[], None],
    ) -> None:
        self._context = context
        self._sessions = sessions
        self._starting = starting
        self._ending = ending
        self._places = places
        self._plan: Plan | None = None  # what runs; None during a reload
        self._order: list[Key] = []  # of the sessions of the last plan
        ending.left = self._keep_places
        self._service = service
        self._told = told
        self._begins = asyncio.Lock()
        self._stops = False

    async def stop(self) -> None:
        """Exchange no sessions from now on: the live sessions are about to be closed.

        Sessions of a start that have begun are live when this method returns.
        """
        self._starting.hurry()
        async with self._begins:
            self._stops = True

    async def start(self, config: Config, plan: Plan, plans: Sequence[SessionPlan]) -> None:
        """Open and begin planned sessions, beside those that were begun before.

        A session that may fail is replaced by a placeholder with the reason. A session whose disk
        does not answer joins the others when the disk does.

        Raises:
            CollectordError: a session cannot be opened or begun; none of these is left open.
        """
        async with self._begins:
            self._plan = plan
            self._order = [plan.key for plan in plan.sessions]
            ones = self._set_out(config, plans, contained)
            try:
                await self._starting.opened(ones)
                begun = await self._starting.begun(ones, self._join)
                self._exchange(begun)
            except BaseException:
                await self._starting.drop(ones)
                raise

    async def change(self, old: Plan, config: Config, new: Plan, found: Difference) -> None:
        """Replace the sessions of one plan by the sessions of another.

        Sessions that are not needed any more end beside the new ones, and sessions whose disks do
        not answer follow later.

        Args:
            old: the plan that runs.
            config: the configuration that the new plan was made of.
            new: the plan that is to run.
            found: the difference between the two.

        Raises:
            CollectordError: a session cannot be opened or begun, or a directory not be claimed, or
                too many would be open at a time; the old ones go on.
            PlanError: a session with the name or the directory of a new one has not ended or begun
                yet.
        """
        gone = found.of(Kind.REMOVED)
        wanted = found.of(Kind.CHANGED) | found.of(Kind.ADDED)
        self._check_names(found)
        plans = [plan for plan in new.sessions if plan.key in wanted]
        await self._ending.check(plans)
        await self._starting.check(plans)
        lone = {plan.key for plan in (*old.sessions, *new.sessions) if plan.is_exclusive}
        lone &= wanted | gone if lone & wanted else set()
        beside = [plan for plan in plans if plan.key not in lone]
        others = (*self._ending.plans, *self._starting.plans)
        check_streams((*self._sessions.plans, *others, *beside))
        self._context.kernel.reserve_files(sum(plan.files for plan in plans) + new.reserved_files)
        closed: set[Key] = set()
        ones: list[Arrival] = []
        self._plan = None
        try:
            await self._claim_again(plan for plan in new.sessions if plan not in plans)
            ones += self._set_out(config, beside, _absent)
            await self._starting.opened(ones)
            closed |= lone
            await self._close(lone)
            ones += self._set_out(config, [p for p in plans if p.key in lone], _absent)
            await self._starting.opened(ones)
            begun = await self._starting.begun(ones, self._join)
            if self._stops:
                raise asyncio.CancelledError  # noqa: TRY301 - as if not under way
            self._order = [plan.key for plan in new.sessions]
            self._exchange(begun, gone)
        except BaseException:
            await self._starting.drop(ones)
            if not self._stops:
                await self._reopen(old, config, closed)
            self._plan = old
            raise
        else:
            self._plan = new
            await self._starting.drop_late(gone)
        finally:
            self._keep_places()

    def _keep_places(self) -> None:
        """Release all directories but those that a session writes to, or will write to."""
        if self._plan is not None:
            others = (*self._sessions.plans, *self._ending.plans, *self._starting.plans)
            self._places.keep((*self._plan.sessions, *others))

    async def _claim_again(self, plans: Iterable[SessionPlan]) -> None:
        """Claim directories that may have been removed; wait only briefly for hung disks.

        Raises:
            SinkError: a directory cannot be claimed.
        """
        claims = self._places.start(plans)
        if claims:
            done, _ = await asyncio.wait(claims, timeout=_CLAIM_S)
            for claim in done:
                claim.result()

    def _check_names(self, found: Difference) -> None:
        """Raise PlanError if somebody has started a session that has the name of a new one."""
        timed = {plan.name for plan in self._sessions.plans if plan.ends_ns}
        for name, _ in sorted(found.of(Kind.ADDED)):
            if name in timed:
                hint = f"collectord sessions stop {name}"
                raise PlanError(f"a user has started a session {name!r}", what=name, hint=hint)

    def _set_out(
        self, config: Config, plans: Sequence[SessionPlan], contains: Contains
    ) -> list[Arrival]:
        way = Way(
            context=self._context,
            places=self._places,
            contains=contains,
            blamed=partial(_blamed, config),
            told=Opening(self._service, plans, config).begin,
        )
        return [self._starting.set_out(plan, way) for plan in plans]

    def _join(self, one: Arrival) -> None:
        """Put a session in its place whose disk has answered later than the others."""
        plan, error = one.plan, one.error()
        if self._stops or plan.key not in self._order:
            self._ending.begin(one.aside.pop_all())
            return
        if error is not None:
            failed = self._context.failed(plan, error)
            for before in self._sessions.of(plan):
                before.note("reload", f"goes on as it was before the reload: {error}")
                return
            one.aside.add(failed, AsyncExitStack())
        self._exchange([one])
        _LOG.info("session_joined", session=plan.name, source=plan.source)
        self._keep_places()

    def _exchange(self, ones: Iterable[Arrival], gone: AbstractSet[Key] = frozenset()) -> None:
        """Put sessions in their places, and end the sessions that they replace or that must go."""
        aside = SessionSet(self._context.watch)
        for one in ones:
            aside.take(one.aside)
        self._sessions.exchange(aside, self._order, gone)
        for before in aside:
            for after in self._sessions.of(before.plan):
                before.hand_over(after.plan)
        self._told()
        self._ending.begin(aside)

    async def _close(self, keys: set[Key]) -> None:
        """Close sessions whose places are needed before others can be opened.

        Raises:
            PlanError: they do not end.
        """
        if not keys:
            return
        out = self._sessions.take_out(keys)
        plans = out.plans
        await asyncio.wait([self._ending.begin(out)], timeout=_CLOSE_S)
        await self._ending.check(plans)

    async def _reopen(self, old: Plan, config: Config, closed: set[Key]) -> None:
        """Open old sessions again that were closed for a change that failed."""
        plans = [plan for plan in old.sessions if plan.key in closed]
        ones = self._set_out(config, plans, _any)
        await self._starting.opened(ones)
        self._exchange(await self._starting.begun(ones, self._join))


def _blamed(config: Config, plan: SessionPlan) -> AbstractContextManager[None]:
    """Name a session's file in errors; a session that is opened again may not be in the file."""
    found = [one for one in config.session if one.name == plan.name]
    return blame(found[0]) if found else nullcontext()


def _absent(plan: SessionPlan, error: CollectordError) -> bool:
    """Whether a reload goes on without a session, because the host lacks what it may lack."""
    return plan.contains(error) and isinstance(error, MissingFeature)


def _any(_plan: SessionPlan, _error: CollectordError) -> bool:
    """Return True: every other session may go on."""
    return True
