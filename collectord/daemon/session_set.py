# SPDX-License-Identifier: Apache-2.0
"""The live sessions of a daemon, with what undoes each of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from collectord.errors import CollectordError, UsageError
from collectord.ledger.counter_sums import sum_balances
from collectord.session.session import Session
from collectord.text.nearest import did_you_mean
from collectord.text.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from collections.abc import Set as AbstractSet
    from typing import Self

    from collectord.ledger.record_ledger import SessionBalance
    from collectord.plan.session_plan import SessionPlan
    from collectord.session.maps.map_watch import BpfWatch
    from collectord.session.maps.program_status import BpfStatus
    from collectord.session.session_factory import AnySession

    Key = tuple[str, str]

_LOG: Final = structlog.get_logger()


@dataclass(slots=True)
class _Live:
    """A session, and the stack that undoes its opening.

    Attributes:
        begun: it has begun, at least in part.
    """

    session: AnySession
    own: AsyncExitStack
    begun: bool = False


class SessionSet:
    """The sessions in the order of their plans; a name and a source name one.

    On leaving it, all sessions that were begun are closed, and all are undone, the last one first.
    Their balances stay.

    Args:
        watch: reads the BPF programs of the sessions; their descriptors close after its reading.
    """

    def __init__(self, watch: BpfWatch) -> None:
        self._watch = watch
        self._live: dict[Key, _Live] = {}
        self._before: dict[Key, SessionBalance] = {}  # of sessions that others have replaced
        self._ending: list[AnySession] = []  # replaced ones that are not closed yet

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        async with AsyncExitStack() as stack:
            for live in self._live.values():
                stack.push_async_callback(live.own.aclose)
            stack.push_async_callback(self._watch.join)
            for session in self.begun:
                stack.push_async_callback(session.close)

    def __iter__(self) -> Iterator[AnySession]:
        return iter([live.session for live in self._live.values()])

    def __len__(self) -> int:
        return len(self._live)

    @property
    def plans(self) -> list[SessionPlan]:
        """The plans of all sessions, as they were opened."""
        return [session.plan for session in self]

    @property
    def begun(self) -> list[AnySession]:
        """The sessions that have begun, at least in part."""
        return [live.session for live in self._live.values() if live.begun]

    @property
    def target_fds(self) -> tuple[int, ...]:
        """The descriptors that become readable once a named process or thread has exited."""
        sources = [session.source for session in self if session.source is not None]
        return tuple(fd for source in sources for fd in source.target_fds)

    def summary(self) -> str:
        """Return how many sessions there are, and how many of them have troubles."""
        states = Counter(session.state for session in self)
        losing = sum(session.is_losing for session in self)
        failed = f", {states['failed']} failed" if states["failed"] else ""
        sessions = counted(len(self), "session")
        return f"{sessions}, {states['degraded']} degraded{failed}, {losing} losing"

    def balances(self) -> tuple[SessionBalance, ...]:
        """Return the balance of each session as of its last reading."""
        return tuple(session.balance() for session in self)

    def programs(self) -> tuple[BpfStatus, ...]:
        """Return the BPF programs of all sessions as of their last reading."""
        return self._watch.status()

    def balances_before(self) -> tuple[SessionBalance, ...]:
        """Return the sums of the balances that the present sessions' predecessors had."""
        sums = dict(self._before)
        for session in self._ending:
            key = session.plan.key
            sums[key] = sum_balances(sums.get(key), session.balance())
        return tuple(balance for key, balance in sums.items() if key in self._live)

    def named(self, names: Sequence[str]) -> list[AnySession]:
        """Return the sessions of these names; all if there are no names. Raises UsageError."""
        known = {plan.name for plan in self.plans}
        for name in names:
            if name not in known:
                raise UsageError(f"no session {name}", hint=did_you_mean(name, known))
        return [session for session in self if not names or session.plan.name in names]

    def of(self, plan: SessionPlan) -> list[AnySession]:
        """Return the session of the set that has the name and source of a plan; one or none."""
        live = self._live.get(plan.key)
        return [live.session] if live is not None else []

    def add(self, session: AnySession, own: AsyncExitStack) -> None:
        """Add an opened session, which is the set's to close from now on.

        Args:
            session: none of its name and source is in the set.
            own: undoes its opening.
        """
        key = session.plan.key
        if key in self._live:
            raise ValueError(f"two sessions {key}")
        self._live[key] = _Live(session, own)

    def take(self, other: SessionSet) -> None:
        """Take all sessions of another set, whose names and sources are not in this one."""
        for live in other._live.values():
            self.add(live.session, live.own)
            self._live[live.session.plan.key] = live
        other._live = {}

    async def begin(self, session: AnySession) -> None:
        """Begin a session of the set. It is to be closed even if that fails."""
        self._live[session.plan.key].begun = True
        await session.begin()

    async def replace(self, session: AnySession) -> None:
        """Put a placeholder in the place of a session that cannot begin, which is undone."""
        key = session.plan.key
        before, self._live[key] = self._live[key], _Live(session, AsyncExitStack())
        async with AsyncExitStack() as stack:
            stack.push_async_callback(before.own.aclose)
            if before.begun:
                stack.push_async_callback(before.session.close)

    def exchange(
        self, aside: SessionSet, order: Iterable[Key], gone: AbstractSet[Key] = frozenset()
    ) -> None:
        """Take the sessions of another set, which gets those that are not needed any more.

        Args:
            aside: its sessions take the place of those of the same name and source.
            order: of the sessions; those that it does not have come behind.
            gone: the sessions that are not needed.
        """
        new = aside._live
        both = {key: one for key, one in (self._live | new).items() if key not in gone}
        ordered = {key: both[key] for key in order if key in both}
        before, self._live = self._live, ordered | both
        aside._live = {
            key: live for key, live in before.items() if self._live.get(key) is not live
        }
        self._before = {key: one for key, one in self._before.items() if key in self._live}
        for (name, _), live in aside._live.items():
            if live.session.readers:
                self._watch.forget(name)
        for key, live in new.items():
            if key in aside._live:
                self._ending.append(aside._live[key].session)
            self.watch_maps(live.session)

    def watch_maps(self, session: AnySession) -> None:
        """Read the maps of a session's BPF programs together with the maps of the others."""
        for reader, first in session.readers:
            self._watch.add(reader, first)

    def take_out(self, keys: AbstractSet[Key]) -> SessionSet:
        """Return some sessions in a set of their own; others may take their place later."""
        out = self._part([key for key in self._live if key in keys])
        self._ending += out
        return out

    def part(self, name: str) -> SessionSet:
        """Return the sessions of a name in a set of their own."""
        return self._part([key for key in self._live if key[0] == name])

    def pop_all(self) -> SessionSet:
        """Return all sessions in another set, which has to be left instead of this one."""
        out = SessionSet(self._watch)
        out._live, self._live = self._live, {}
        return out

    def _part(self, keys: Iterable[Key]) -> SessionSet:
        """Move sessions to a set of their own."""
        out = SessionSet(self._watch)
        for key in keys:
            out._live[key] = live = self._live.pop(key)
            if live.session.readers:
                self._watch.forget(key[0])
        return out

    def outlive(self) -> None:
        """Let each session that can do so record on after this process."""
        for session in self:
            if isinstance(session, Session):
                session.outlive()

    async def end(self) -> None:
        """Flush, seal and balance all sessions beside each other; their errors are logged."""
        await asyncio.gather(*map(_end, self))

    def settle(self, ended: SessionSet) -> None:
        """Keep the final balances of sessions that others have replaced."""
        for session in ended:
            if session in self._ending:
                self._ending.remove(session)
                key = session.plan.key
                self._before[key] = sum_balances(self._before.get(key), session.balance())


async def _end(session: AnySession) -> None:
    """End a session; log its errors, so that the others are ended too."""
    try:
        await session.close()
    except CollectordError as error:
        session.note("close", f"not closed: {error}")
        _LOG.error("session_not_closed", session=session.plan.name, error=str(error))
