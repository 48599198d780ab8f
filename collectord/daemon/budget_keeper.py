# SPDX-License-Identifier: Apache-2.0
"""Keeps the cost within the budget: it pauses sessions that may be paused, and resumes them.

A session is paused when the cost of the last minute has been over the budget for a minute, one at
a time, and resumed when it has been well below for some minutes. A session that had to be paused
again waits twice as long.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import structlog

from collectord.errors import KernelError
from collectord.model import GapCause
from collectord.text.units import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Iterable

    from collectord.session.cost_meter import CostMeter
    from collectord.session.session_factory import AnySession

_LOG: Final = structlog.get_logger()
_MINUTE_NS: Final = 60 * NS_PER_SECOND
# Over the budget for so long before a session is paused: as long as the cost is a mean of.
_OVER_NS: Final = _MINUTE_NS
# Below this share of the budget for so long before a session is resumed.
_ROOM: Final = 0.7
_BELOW_NS: Final = 5 * _MINUTE_NS
_BELOW_MAX_NS: Final = 60 * _MINUTE_NS
# The classes that may be paused, by `budget_pauses`: those before are paused first.
_CLASSES: Final = {"none": (), "spare": ("spare",), "normal": ("spare", "normal")}


class BudgetKeeper:
    """Pauses and resumes the sessions of a daemon.

    Args:
        meter: measures the cost, and has the budget.
        pauses: the last class of sessions that may be paused: `budget_pauses` in [daemon].
    """

    def __init__(self, meter: CostMeter, pauses: str) -> None:
        self._meter = meter
        self._classes: tuple[str, ...] = _CLASSES[pauses]
        self._over_since_ns: int | None = None
        self._below_since_ns: int | None = None
        self._paused: list[AnySession] = []  # the last one is resumed first
        self._times: Counter[str] = Counter()  # of pauses, by session

    def may_pause(self, pauses: str) -> None:
        """Set which sessions may be paused; those that are paused are resumed in turn."""
        self._classes = _CLASSES[pauses]

    def poll(self, sessions: Iterable[AnySession], now_ns: int) -> None:
        """Act on a new reading of the cost.

        Args:
            sessions: all of the daemon.
            now_ns: the time on CLOCK_MONOTONIC.
        """
        live = tuple(sessions)
        self._paused = [one for one in self._paused if one in live and _is_shed(one)]
        cost = self._meter.cost
        # Without a budget, or a class, nothing is over it: what is paused is resumed.
        limited = bool(cost.budget and self._classes)
        over = limited and cost.ratio > cost.budget
        below = not limited or cost.ratio < _ROOM * cost.budget
        self._over_since_ns = (self._over_since_ns or now_ns) if over else None
        self._below_since_ns = (self._below_since_ns or now_ns) if below else None
        if self._over_since_ns is not None and now_ns - self._over_since_ns >= _OVER_NS:
            self._pause_one(live)
            self._over_since_ns = now_ns
        elif self._below_since_ns is not None and self._paused:
            wait_ns = min(_BELOW_NS << self._times[_name(self._paused[-1])] - 1, _BELOW_MAX_NS)
            if now_ns - self._below_since_ns >= wait_ns:
                self._resume_one()
                self._below_since_ns = now_ns

    def _pause_one(self, sessions: Iterable[AnySession]) -> None:
        """Pause the costliest session of the class that matters least; one on request first."""
        order = {name: -place for place, name in enumerate(self._classes)}
        lately_ns = self._meter.lately_ns
        found = [
            (order[one.plan.loss_class], bool(one.plan.ends_ns), lately_ns(one), one.pause, one)
            for one in sessions
            if one.plan.loss_class in order
            and one.pause is not None
            and one.pause.possible
            and not one.pause.lasts
        ]
        # Pausing a session that costs nothing saves nothing.
        found = [each for each in found if each[2] > 0]
        if not found:
            return
        _, _, imposed_ns, pause, session = max(found, key=lambda each: each[:3])
        cost = self._meter.cost
        try:
            pause.begin(GapCause.SHED)
        except KernelError as error:
            _LOG.error("session_not_paused", session=session.plan.name, error=str(error))
            return
        self._paused.append(session)
        self._times[_name(session)] += 1
        session.note("pause", f"paused: the cost was over the budget of {cost.budget:.2%}")
        _LOG.warning(
            "session_paused",
            session=session.plan.name,
            source=session.plan.source,
            cost=round(cost.ratio, 5),
            budget=cost.budget,
            imposed_ns=imposed_ns,
        )

    def _resume_one(self) -> None:
        """Resume the session that was paused last."""
        session = self._paused[-1]
        try:
            if session.pause is not None:
                session.pause.end(GapCause.SHED)
        except KernelError as error:
            _LOG.error("session_not_resumed", session=session.plan.name, error=str(error))
            return
        self._paused.pop()
        session.note("pause", "")
        _LOG.info("session_resumed", session=session.plan.name, source=session.plan.source)


def _is_shed(session: AnySession) -> bool:
    return session.pause is not None and GapCause.SHED in session.pause.causes


def _name(session: AnySession) -> str:
    return f"{session.plan.name}/{session.plan.source}"
