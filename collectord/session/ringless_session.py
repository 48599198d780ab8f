# SPDX-License-Identifier: Apache-2.0
"""A session without rings: BPF programs that only fill maps, or a session that failed to open."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from collectord.errors import UsageError
from collectord.ledger.record_ledger import balance_session
from collectord.plan.payload import Payload
from collectord.source.base import Abilities

if TYPE_CHECKING:
    from collections.abc import Callable

    from collectord.ledger.record_ledger import SessionBalance
    from collectord.model import ClockReading
    from collectord.plan.session_plan import SessionPlan
    from collectord.session.maps.map_watch import FirstReading
    from collectord.session.program_watch import ListPrograms
    from collectord.sink.base import SegmentInfo
    from collectord.source.base import OpenSource


class RinglessSession:
    """A session with nothing to drain or store: a state, and the abilities of its source.

    Args:
        plan: of the session.
        source: the opened source; None if it could not be opened.
        failure: why it could not be opened, "" if it is open or the plan says why.
        absent: the host lacks what the session needs, which is no failure.
    """

    def __init__(
        self,
        plan: SessionPlan,
        source: OpenSource | None,
        failure: str = "",
        *,
        absent: bool = False,
    ) -> None:
        # A session that failed covers no CPU.
        self.plan = plan if source is not None else replace(plan, rings=(), payload=Payload())
        self.source = source
        self.abilities = source.abilities if source is not None else Abilities()
        self.recorder = None
        self.is_losing = False
        self.heart = None
        self.pause = None
        self.followers = ()
        self.readers: tuple[FirstReading, ...] = ()
        self._failure = failure
        self._troubles: dict[str, str] = {}
        if source is None:
            self._state = "degraded" if absent else "failed"
        else:
            self._state = "degraded" if plan.degraded else "running"

    async def begin(self) -> None:
        """Let the programs fill their maps."""
        if self.source is not None:
            self.source.enable()

    def tick(self, clocks: Callable[[], ClockReading], programs: ListPrograms) -> bool:
        """Do nothing: there is no ring to measure and no segment to rotate."""
        del clocks, programs
        return True

    async def note_covered(self) -> None:
        """Do nothing: its time is not noted."""

    def hand_over(self, plan: SessionPlan) -> None:
        """Do nothing: its time is not noted."""

    async def rotate(self) -> list[SegmentInfo]:
        """Raise UsageError: there is no segment to rotate."""
        raise UsageError(f"session {self.plan.name} writes no segments")

    def note(self, about: str, trouble: str) -> None:
        """Set the trouble about a subject, "" for none."""
        self._troubles[about] = trouble

    async def close(self) -> None:
        """Stop filling maps. A failed session keeps its state."""
        if self.source is not None and self._state != "stopped":
            self._state = "stopped"
            self.source.disable()

    @property
    def _reasons(self) -> tuple[str, ...]:
        return tuple(filter(None, (self._failure, *self._troubles.values())))

    @property
    def state(self) -> str:
        """The state that `/v1/status` shows."""
        return "degraded" if self._state == "running" and self._reasons else self._state

    def events(self) -> int:
        """Return how many events were to be recorded."""
        return 0

    def balance(self) -> SessionBalance:
        """Return a balance without rings: nothing was produced that could be stored."""
        plan = self.plan
        return replace(
            balance_session(plan.name, plan.source, plan.scope.describe(), ()),
            state=self.state,
            degraded_reasons=(*self._reasons, *plan.degraded),
            loss_class=plan.loss_class,
        )
