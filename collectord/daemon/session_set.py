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
from collectord.text.nearest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Self

    from collectord.ledger.record_ledger import SessionBalance
    from collectord.plan.session_plan import SessionPlan
    from collectord.session.maps.map_watch import BpfWatch
    from collectord.session.session_factory import AnySession

_LOG: Final = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Live:
    """A session, and the stack that undoes its opening."""

    session: AnySession
    own: AsyncExitStack


class SessionSet:
    """The sessions in the order of their plans; a name and a source name one.

    On leaving it, all sessions that were begun are closed, and all are undone, the last one first.
    Their balances stay.

    Args:
        watch: reads the BPF programs of the sessions; their descriptors close after its reading.
    """

    def __init__(self, watch: BpfWatch) -> None:
        self._watch = watch
        self._live: dict[tuple[str, str], _Live] = {}
        self._begun: set[tuple[str, str]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        async with AsyncExitStack() as stack:
            for live in self._live.values():
                stack.push_async_callback(live.own.aclose)
            stack.push_async_callback(self._watch.join)
            for key, live in self._live.items():
                if key in self._begun:
                    stack.push_async_callback(live.session.close)

    def __iter__(self) -> Iterator[AnySession]:
        return iter([live.session for live in self._live.values()])

    def __len__(self) -> int:
        return len(self._live)

    @property
    def plans(self) -> list[SessionPlan]:
        """The plans of all sessions, as they were opened."""
        return [session.plan for session in self]

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
        noun = "session" if len(self) == 1 else "sessions"
        return f"{len(self)} {noun}, {states['degraded']} degraded{failed}, {losing} losing"

    def balances(self) -> tuple[SessionBalance, ...]:
        """Return the balance of each session as of its last reading."""
        return tuple(session.balance() for session in self)

    def named(self, names: Sequence[str]) -> list[AnySession]:
        """Return the sessions of these names; all if there are no names. Raises UsageError."""
        known = {plan.name for plan in self.plans}
        for name in names:
            if name not in known:
                raise UsageError(f"no session {name}", hint=did_you_mean(name, known))
        return [session for session in self if not names or session.plan.name in names]

    def add(self, session: AnySession, own: AsyncExitStack) -> None:
        """Add an opened session, which is the set's to close from now on.

        Args:
            session: none of its name and source is in the set.
            own: undoes its opening.
        """
        key = _key(session)
        if key in self._live:
            raise ValueError(f"two sessions {key}")
        self._live[key] = _Live(session, own)

    async def begin(self, session: AnySession) -> None:
        """Begin a session of the set. It is to be closed even if that fails."""
        self._begun.add(_key(session))
        await session.begin()

    async def replace(self, session: AnySession, own: AsyncExitStack) -> None:
        """Put a session in the place of that of its name and source, which is closed and undone.

        Args:
            session: it has begun, so that nothing is lost between the two, or cannot begin.
            own: undoes its opening.
        """
        key = _key(session)
        before, self._live[key] = self._live[key], _Live(session, own)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(before.own.aclose)
            stack.push_async_callback(self._watch.join)
            if key in self._begun:
                stack.push_async_callback(before.session.close)
            self._begun.add(key)

    async def remove(self, name: str) -> list[AnySession]:
        """Flush, seal, balance and undo the sessions of a name, and return them."""
        gone = {key: live for key, live in self._live.items() if key[0] == name}
        for key in gone:
            del self._live[key]
        sessions = [live.session for live in gone.values()]
        async with AsyncExitStack() as stack:
            for live in gone.values():
                stack.push_async_callback(live.own.aclose)
            stack.push_async_callback(self._watch.join)
            begun = [one for one in sessions if _key(one) in self._begun]
            self._begun -= gone.keys()
            await asyncio.gather(*map(_end, begun))
        return sessions

    async def end(self) -> None:
        """Flush, seal and balance all sessions beside each other; their errors are logged."""
        await asyncio.gather(*map(_end, self))


def _key(session: AnySession) -> tuple[str, str]:
    return session.plan.name, session.plan.source


async def _end(session: AnySession) -> None:
    """End a session; log its errors, so that the others are ended too."""
    try:
        await session.close()
    except CollectordError as error:
        session.note("close", f"not closed: {error}")
        _LOG.error("session_not_closed", session=session.plan.name, error=str(error))
