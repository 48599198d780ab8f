# SPDX-License-Identifier: Apache-2.0
"""The change from some sessions to others, at the start and at each reload.

New ones are opened beside those that run, and take their place once all of them record: so nothing
is missed in between, and a failure changes nothing. What cannot be open twice is closed first; if
the new one fails it is opened again, and the time between is a gap.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, nullcontext
from typing import TYPE_CHECKING, Final

from collectord.daemon.opening import Opening
from collectord.daemon.session_set import SessionSet
from collectord.errors import CollectordError, MissingFeature, PlanError
from collectord.plan.build import blame, check_streams
from collectord.plan.difference import Kind
from collectord.session.session_factory import contained

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from collections.abc import Set as AbstractSet
    from contextlib import AbstractContextManager

    from collectord.config.schema import Config
    from collectord.control.service import Service
    from collectord.daemon.claims import Places
    from collectord.daemon.hotplug import Hotplug
    from collectord.daemon.leaving import Leaving
    from collectord.plan.difference import Difference
    from collectord.plan.session_plan import Plan, SessionPlan
    from collectord.session.session_factory import Contains, SessionContext

    Key = tuple[str, str]

# How long a session that has to be closed first may take: as long as writing full staging does.
_CLOSE_S: Final = 30.0


class Changeover:
    """Opens, exchanges and closes the sessions of a daemon.

    Args:
        context: opens sessions.
        sessions: the live ones.
        leaving: ends those that are not needed any more.
        places: the directories of segments.
        service: is told of what is opened.
        hotplug: follows the CPUs, in the sessions as well.
        told: called when other sessions are live.

    Attributes:
        under_way: sessions that are to be live have begun, which must not be interrupted.
    """

    def __init__(
        self,
        context: SessionContext,
        sessions: SessionSet,
        leaving: Leaving,
        places: Places,
        *,
        service: Service,
        hotplug: Hotplug,
        told: Callable[[], None],
    ) -> None:
        self._context = context
        self._sessions = sessions
        self._leaving = leaving
        self._places = places
        self._plan: Plan | None = None  # what the last reload has left; None during one
        leaving.left = self._keep_places
        self._service = service
        self._hotplug = hotplug
        self._told = told
        self.under_way = False
        self._stops = False

    def stop(self) -> None:
        """Exchange no sessions from now on: those that are live are about to be closed."""
        self._stops = True

    async def start(self, config: Config, plan: Plan, plans: Sequence[SessionPlan]) -> None:
        """Open and begin planned sessions, beside those that were begun before.

        One that may fail is replaced by a placeholder with the reason.

        Raises:
            CollectordError: a session cannot be opened or begun; none of these is left open.
        """
        async with SessionSet(self._context.watch) as aside:
            await self._open(aside, config, plans, contained)
            self.under_way = True  # what has begun has records
            try:
                await self._begin(aside, config, contained)
                self._exchange(aside, plan)
            finally:
                self.under_way = False

    async def change(self, old: Plan, config: Config, new: Plan, found: Difference) -> None:
        """Let the sessions of one plan be followed by those of another.

        Those that are not needed any more are ended beside them: their disks may not answer.

        Args:
            old: the plan that runs.
            config: what the new one was made of.
            new: the plan that is to run.
            found: the difference between the two.

        Raises:
            CollectordError: a session cannot be opened or begun, or a directory not be claimed, or
                too many would be open at a time; the old ones go on.
            PlanError: one with the name or the directory of a new one has not ended yet.
        """
        wanted = found.of(Kind.CHANGED) | found.of(Kind.ADDED)
        self._check_names(found)
        plans = [plan for plan in new.sessions if _key(plan) in wanted]
        await self._leaving.check(plans)
        lone = {_key(plan) for plan in (*old.sessions, *new.sessions) if plan.is_exclusive}
        lone &= wanted | found.of(Kind.REMOVED) if lone & wanted else set()
        beside = [plan for plan in plans if _key(plan) not in lone]
        check_streams((*self._sessions.plans, *self._leaving.plans, *beside))
        self._context.kernel.reserve_files(sum(plan.files for plan in plans) + new.reserved_files)
        closed: set[Key] = set()
        self._plan = None
        try:
            self._claim(new)
            async with SessionSet(self._context.watch) as aside:
                await self._open(aside, config, beside, _absent)
                self.under_way = True
                closed |= lone
                await self._close(lone)
                after = [plan for plan in plans if _key(plan) in lone]
                await self._open(aside, config, after, _absent)
                await self._begin(aside, config, _absent)
                async with self._hotplug.one_at_a_time:
                    if self._stops:
                        raise asyncio.CancelledError  # noqa: TRY301 - as if not under way
                    self._exchange(aside, new, found.of(Kind.REMOVED))
                    self._leaving.begin(aside.pop_all())
        except BaseException:
            if not self._stops:
                await self._reopen(old, config, closed)
            self._plan = old
            raise
        else:
            self._plan = new
        finally:
            self.under_way = False
            self._keep_places()

    def _keep_places(self) -> None:
        """Keep the directories of those sessions alone that are live, or have not ended yet."""
        if self._plan is not None:
            self._places.keep((*self._plan.sessions, *self._leaving.plans))

    def _check_names(self, found: Difference) -> None:
        """Raise PlanError if somebody has started a session that has the name of a new one."""
        timed = {plan.name for plan in self._sessions.plans if plan.ends_ns}
        for name, _ in sorted(found.of(Kind.ADDED)):
            if name in timed:
                hint = f"collectord sessions stop {name}"
                raise PlanError(f"a user has started a session {name!r}", what=name, hint=hint)

    def _claim(self, plan: Plan) -> None:
        devices = self._places.claim(plan)
        self._context.workers.add(devices)
        for device in devices.values():
            self._context.drain.core.add_disk(device)

    async def _open(
        self, aside: SessionSet, config: Config, plans: Sequence[SessionPlan], contains: Contains
    ) -> None:
        opening = Opening(self._service, plans, config)
        for plan in plans:
            opening.begin(plan)
            async with AsyncExitStack() as own:
                with _blamed(config, plan):
                    session = await self._context.open(plan, own, contains)
                aside.add(session, own.pop_all())

    async def _begin(self, aside: SessionSet, config: Config, contains: Contains) -> None:
        for session in aside:
            for before in self._sessions.of(session):
                await before.note_covered()  # the new one goes on from there
            try:
                with _blamed(config, session.plan):
                    await aside.begin(session)
            except CollectordError as error:
                if not contains(session.plan, error):
                    raise
                await aside.replace(self._context.failed(session.plan, error))

    def _exchange(
        self, aside: SessionSet, plan: Plan, gone: AbstractSet[Key] = frozenset()
    ) -> None:
        self._sessions.exchange(aside, map(_key, plan.sessions), gone)
        for before in aside:
            for after in self._sessions.of(before):
                before.hand_over(after.plan)
        self._told()

    async def _close(self, keys: set[Key]) -> None:
        """Close sessions whose places are needed before others can be opened.

        Raises:
            PlanError: they do not end.
        """
        if not keys:
            return
        async with self._hotplug.one_at_a_time:
            out = self._sessions.take_out(keys)
        plans = out.plans
        await asyncio.wait([self._leaving.begin(out)], timeout=_CLOSE_S)
        await self._leaving.check(plans)

    async def _reopen(self, old: Plan, config: Config, closed: set[Key]) -> None:
        """Open sessions again that were closed in vain."""
        plans = [plan for plan in old.sessions if _key(plan) in closed]
        if plans:
            async with SessionSet(self._context.watch) as again:
                await self._open(again, config, plans, _any)
                await self._begin(again, config, _any)
                self._exchange(again, old)


def _key(plan: SessionPlan) -> Key:
    return plan.name, plan.source


def _blamed(config: Config, plan: SessionPlan) -> AbstractContextManager[None]:
    """Name a session's file in errors; a session that is opened again may not be in the file."""
    found = [one for one in config.session if one.name == plan.name]
    return blame(found[0]) if found else nullcontext()


def _absent(plan: SessionPlan, error: CollectordError) -> bool:
    """Whether a reload goes on without a session, because the host lacks what it may lack."""
    return plan.contains(error) and isinstance(error, MissingFeature)


def _any(_plan: SessionPlan, _error: CollectordError) -> bool:
    """Say that the others go on in any case."""
    return True
