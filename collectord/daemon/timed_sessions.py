# SPDX-License-Identifier: Apache-2.0
"""Sessions that users of the control socket start: each ends by itself, within limits.

They are planned, opened, drained and balanced as the configured ones are. A session's series and
its place in the status go with it. Its segments stay.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from collectord.config.timed_session import parse
from collectord.daemon.host_facts import host_facts
from collectord.daemon.session_start import Way
from collectord.errors import CollectordError, ConfigError, NotAllowed, PlanError, UsageError
from collectord.plan.build import build
from collectord.plan.plan_limits import check_memory, check_streams
from collectord.text.nearest import did_you_mean
from collectord.text.units import NS_PER_SECOND, show_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from collectord.config.schema import Config
    from collectord.config.schema_session import TimedSessionConfig
    from collectord.daemon.claims import Places
    from collectord.daemon.ending_sessions import EndingSessions
    from collectord.daemon.session_set import SessionSet
    from collectord.daemon.session_start import Arrival
    from collectord.daemon.starting_sessions import StartingSessions
    from collectord.kernel.port import Kernel
    from collectord.ledger.record_ledger import SessionBalance
    from collectord.plan.plan import Plan
    from collectord.plan.session_plan import SessionPlan
    from collectord.session.session_factory import AnySession, SessionContext

_LOG: Final = structlog.get_logger()


@dataclass(slots=True)
class _Timed:
    """A started session.

    Attributes:
        config: of it.
        over: it has ended, or is about to.
        out: it is not one of the live sessions any more.
        why: it ends: "duration", "bytes" or "request".
        task: waits for its end.
        balances: its last ones.
    """

    config: TimedSessionConfig
    over: asyncio.Event = field(default_factory=asyncio.Event)
    out: asyncio.Event = field(default_factory=asyncio.Event)
    why: str = "duration"
    task: asyncio.Task[None] | None = None
    balances: tuple[SessionBalance, ...] = ()

    def end(self, why: str) -> None:
        """Make the session end, unless it ends already."""
        if not self.over.is_set():
            self.why = why
            self.over.set()


@dataclass(frozen=True, slots=True)
class JoinContext:
    """The parts of a running daemon that sessions need to join it.

    Attributes:
        context: they are opened with it.
        places: their folders are claimed there.
        joined: called when sessions have come.
        left: called with sessions that have gone.
    """

    context: SessionContext
    places: Places
    joined: Callable[[], None]
    left: Callable[[Sequence[AnySession]], None]


class TimedSessions:
    """Starts sessions on request, and ends them.

    Args:
        kernel: their rings are opened.
        config: has the limits, and all that a session's own table does not have.
        sessions: all of the daemon.
        starting: opens and begins them.
        ending: ends those whose time is over.
    """

    def __init__(
        self,
        kernel: Kernel,
        config: Config,
        sessions: SessionSet,
        starting: StartingSessions,
        ending: EndingSessions,
    ) -> None:
        self._kernel = kernel
        self._config = config
        self._sessions = sessions
        self._starting = starting
        self._ending = ending
        self._running: dict[str, _Timed] = {}
        self._daemon: JoinContext | None = None
        self._changing = asyncio.Lock()
        self._opening: asyncio.Task[None] | None = None

    def allow(self, daemon: JoinContext) -> None:
        """Let sessions be started from now on."""
        self._daemon = daemon

    async def start(self, document: Mapping[str, object]) -> TimedSessionConfig:
        """Start a session.

        Args:
            document: the table of the session, as plain values, with its `duration`; without a
                name it gets one.

        Raises:
            NotAllowed: the configuration has no place for such sessions.
            UsageError: all places are taken, or the daemon is about to stop.
            ConfigError: the table is wrong, or beyond a limit.
            CollectordError: the session cannot be planned, opened or begun; nothing is left of it.
        """
        limits = self._config.control
        if not limits.max_sessions:
            raise NotAllowed("no session may be started", hint="[control] max_sessions is 0")
        async with self._changing:
            if self._daemon is None:
                raise UsageError("the daemon does not record yet, or not any more")
            if len(self._running) >= limits.max_sessions:
                raise UsageError(
                    f"as many sessions as may be started run: {', '.join(self._running)}",
                    hint="they end by themselves, or by `collectord sessions stop`",
                )
            taken = {plan.name for plan in self._sessions.plans} | self._running.keys()
            taken |= {plan.name for plan in self._starting.plans}
            name = next(n for n in map("timed-{}".format, count(1)) if n not in taken)
            session = parse(document, limits, name)
            if session.name in taken:
                message = f"there is a session {session.name!r}"
                raise ConfigError(message, path="request", key="name", hint="names are unique")
            ends_ns = time.time_ns() + session.duration
            session = msgspec.structs.replace(session, ends_ns=ends_ns)
            daemon = self._daemon
            self._opening = asyncio.create_task(self._open(session, daemon))
            try:
                await self._opening
            except BaseException as error:
                if self._daemon is None:  # `end` has cancelled it
                    raise UsageError("the daemon is about to stop") from error
                raise
            finally:
                self._opening = None
            daemon.joined()
            one = self._running[session.name] = _Timed(session)
            one.task = asyncio.create_task(self._live(one, daemon))
        seconds = session.duration / NS_PER_SECOND
        _LOG.info("timed_session_started", session=session.name, seconds=seconds)
        return session

    async def _open(self, config: TimedSessionConfig, daemon: JoinContext) -> None:
        """Open and begin all sessions of a name. Raises CollectordError."""
        alone = msgspec.structs.replace(self._config, session=(config,))
        facts = host_facts(self._kernel, alone, mount=False)
        plan = build(alone, facts)
        self._check(plan)
        await self._ending.check(plan.sessions)
        self._kernel.reserve_files(plan.files + plan.reserved_files)
        way = Way(
            context=replace(daemon.context, facts=facts, lasting=False),
            places=daemon.places,
            contains=_is_contained,
            blamed=lambda _: nullcontext(),
            told=lambda _: None,
        )
        ones = [self._starting.set_out(one, way) for one in plan.sessions]
        try:
            await self._starting.opened(ones)
            for session in (session for one in ones for session in one.aside):
                if session.source is None:  # hardware that turned out to be absent
                    raise PlanError("; ".join(session.balance().degraded_reasons))  # noqa: TRY301
            _check_all(ones, await self._starting.begun(ones))
        except BaseException:
            await self._starting.drop(ones)
            raise
        for one in ones:
            self._sessions.take(one.aside)
        for session in self._sessions.named([config.name]):
            self._sessions.watch_maps(session)

    def _check(self, plan: Plan) -> None:
        """Raise PlanError if the plan is beyond a limit."""
        limit = self._config.control.max_memory
        for one in plan.sessions:
            if one.is_absent:
                raise PlanError(f"nothing to record: {'; '.join(one.degraded)}", what=one.name)
            if any(ring.aux is not None for ring in one.rings):
                hint = "`collectord record` has some"
                raise PlanError("AUX areas cannot be started", what=one.name, hint=hint)
        needed = sum(one.memory_bytes for one in plan.sessions)
        if needed > limit:
            raise PlanError(
                f"{show_bytes(needed)} of rings, and `max_memory` allows {show_bytes(limit)}",
                what="max_memory",
                hint="a smaller `ring` (-m), or fewer CPUs",
            )
        beside = (*self._sessions.plans, *self._starting.plans, *plan.sessions)
        check_streams((*beside, *self._ending.plans))
        check_memory(beside, self._config.daemon)

    async def stop(self, name: str) -> tuple[SessionBalance, ...]:
        """End a started session now; return its last balances. Raises UsageError."""
        one = self._running.get(name)
        if one is None or one.task is None:
            raise UsageError(
                f"nobody has started session {name}", hint=did_you_mean(name, self._running)
            )
        one.end("request")
        await asyncio.wait([one.task])
        return one.balances

    def poll(self) -> None:
        """End sessions that have recorded as much as they may."""
        for balance in self._sessions.balances() if self._running else ():
            one = self._running.get(balance.name)
            recorded = sum(ring.counters.bytes for ring in balance.rings)
            if one is not None and recorded > self._config.control.max_bytes:
                one.end("bytes")

    async def let_go(self) -> None:
        """Start no more sessions; leave those that live to be ended with all others.

        One that is being opened gives up: a program may compile for a minute.
        """
        self._daemon = None
        if self._opening is not None:
            self._opening.cancel()
        async with self._changing:
            pass
        for one in tuple(self._running.values()):
            if one.over.is_set():
                await one.out.wait()
            elif one.task is not None:
                one.task.cancel()

    async def end(self) -> None:
        """Wait for the sessions whose time was over before."""
        tasks = [one.task for one in self._running.values() if one.task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _live(self, one: _Timed, daemon: JoinContext) -> None:
        """Wait for the end of a session, and seal what it has recorded."""
        with suppress(TimeoutError):
            async with asyncio.timeout(one.config.duration / NS_PER_SECOND):
                await one.over.wait()
        one.over.set()
        name = one.config.name
        out = self._sessions.part(name)
        gone = [*out]
        one.out.set()
        await self._ending.begin(out)
        del self._running[name]
        one.balances = tuple(session.balance() for session in gone)
        daemon.left(gone)
        for balance in one.balances:
            _LOG.info(
                "timed_session_ended",
                session=name,
                source=balance.source,
                why=one.why,
                stored=balance.stored,
                lost=sum(balance.lost.values()),
                segments=len(balance.segments),
            )


def _check_all(ones: Iterable[Arrival], begun: Collection[Arrival]) -> None:
    """Raise PlanError if some of the sessions have not begun."""
    for one in ones:
        if one not in begun:
            raise PlanError(
                f"the disk of {one.plan.sink.directory} does not answer",
                what=one.plan.name,
                hint="try again when it does",
            )


def _is_contained(_plan: SessionPlan, _error: CollectordError) -> bool:
    """Say that a failure is the requester's to be told."""
    return False
