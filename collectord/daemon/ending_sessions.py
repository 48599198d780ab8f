# SPDX-License-Identifier: Apache-2.0
"""Ends sessions that are not wanted any more, beside the sessions that record.

Each session waits for its own disk only. No other session waits for it, nor does a reload or a
stop.
"""

from __future__ import annotations

import asyncio
import gc
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import structlog

from collectord.errors import CollectordError, PlanError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from collectord.daemon.session_set import SessionSet
    from collectord.ledger.record_ledger import SessionBalance
    from collectord.plan.session_plan import SessionPlan

_LOG: Final = structlog.get_logger()
# An end takes milliseconds, unless the disk is slow.
_GRACE_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class _Part:
    """Sessions that end together, the task that does it, and when it began (CLOCK_MONOTONIC)."""

    out: SessionSet
    task: asyncio.Task[None]
    since_s: float


class EndingSessions:
    """Flushes, seals, balances and undoes sessions, each in its own time.

    Args:
        sessions: the live sessions, which keep the balances of the sessions that they follow.

    Attributes:
        left: called whenever sessions have ended.
    """

    def __init__(self, sessions: SessionSet) -> None:
        self._sessions = sessions
        self._parts: list[_Part] = []
        self.left: Callable[[], None] = lambda: None

    def begin(self, out: SessionSet) -> asyncio.Task[None]:
        """Begin to end the sessions of a set; return the task that does it and logs errors."""
        task = asyncio.create_task(self._end(out))
        if len(out):
            part = _Part(out, task, time.monotonic())
            self._parts.append(part)
            task.add_done_callback(lambda _: self._on_end(part))
        return task

    async def _end(self, out: SessionSet) -> None:
        try:
            async with out:
                await out.end()
                self._sessions.settle(out)
        except CollectordError as error:
            names = [plan.name for plan in out.plans]
            _LOG.error("session_not_closed", session=", ".join(names), error=str(error))

    def _on_end(self, part: _Part) -> None:
        self._parts.remove(part)
        self.left()
        # A session is a cycle of objects, and its stream has megabytes of known tasks. The caller
        # still has them.
        asyncio.get_running_loop().call_soon(gc.collect)

    @property
    def plans(self) -> list[SessionPlan]:
        """The plans of all sessions that have not ended yet."""
        return [plan for part in self._parts for plan in part.out.plans]

    def balances(self) -> tuple[SessionBalance, ...]:
        """Return the balances so far of the sessions that have not ended yet."""
        balances = (balance for part in self._parts for balance in part.out.balances())
        return tuple(replace(balance, state="ending") for balance in balances)

    async def settled(self) -> list[str]:
        """Wait for sessions that end just now; return the names of sessions that have not ended.

        A session whose disk does not answer is waited for once, for two seconds.
        """
        await self._wait(self._parts)
        return sorted({plan.name for plan in self.plans})

    async def check(self, plans: Iterable[SessionPlan]) -> None:
        """Wait, as `settled` does, for sessions with the name or folder of one to be opened.

        Raises:
            PlanError: such a session has not ended yet.
        """
        wanted = tuple(plans)
        await self._wait([part for part in self._parts if taken(part.out.plans, wanted)])
        refuse_taken(self.plans, wanted, "ending")

    async def _wait(self, parts: Iterable[_Part]) -> None:
        now_s = time.monotonic()
        tasks = [(part.task, part.since_s + _GRACE_S - now_s) for part in parts]
        for task, left_s in tasks:
            await asyncio.wait([task], timeout=max(0.0, left_s))

    async def end(self) -> None:
        """Wait until all sessions have ended."""
        while self._parts:
            await asyncio.wait([part.task for part in self._parts])


def taken(ending: Iterable[SessionPlan], wanted: Iterable[SessionPlan]) -> list[SessionPlan]:
    """Return the plans whose name or folder a wanted one has."""
    names = {plan.name for plan in wanted}
    folders = {plan.sink.directory for plan in wanted}
    return [one for one in ending if one.name in names or one.sink.directory in folders]


def refuse_taken(plans: Iterable[SessionPlan], wanted: Iterable[SessionPlan], doing: str) -> None:
    """Refuse wanted sessions of which a name or a folder is that of a session in these plans.

    Args:
        plans: sessions whose disk does not answer.
        wanted: sessions to be opened.
        doing: what the others still do: "ending" or "beginning".

    Raises:
        PlanError: there is such a session.
    """
    found = taken(plans, wanted)
    if found:
        raise PlanError(
            f"session {found[0].name!r} is still {doing}: it writes to "
            f"{found[0].sink.directory}, whose disk does not answer",
            what=found[0].name,
            hint="try again when `collectord status` does not show it any more",
        )
