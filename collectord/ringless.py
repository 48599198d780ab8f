# SPDX-License-Identifier: Apache-2.0
"""A session without rings: BPF programs that only fill maps, or one that could not be opened."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from collectord.ledger import balance_session

if TYPE_CHECKING:
    from collectord.ledger import SessionBalance
    from collectord.plan.session import SessionPlan
    from collectord.source.base import OpenSource
    from collectord.windows import Snapshot


class RinglessSession:
    """Nothing to drain, nothing to store: a state, and what the source can tell.

    Args:
        plan: what was to be opened.
        source: what was opened; None if nothing could be.
        failure: why nothing could be, "" if it is open or the plan says it.
    """

    def __init__(self, plan: SessionPlan, source: OpenSource | None, failure: str = "") -> None:
        # A session that failed covers no CPU.
        self.plan = plan if source is not None else replace(plan, rings=(), bpf=None)
        self.source = source
        self.ftrace = None
        self.snapshots: tuple[Snapshot, ...] = ()
        self._failure = failure
        self._troubles: dict[str, str] = {}
        if source is None:
            self._state = "failed"
        else:
            self._state = "degraded" if plan.degraded else "running"

    async def begin(self) -> None:
        """Let the programs fill their maps."""
        if self.source is not None:
            self.source.enable()

    def tick(self) -> None:
        """Nothing: there is no ring to measure and no segment to rotate."""

    def note(self, about: str, trouble: str) -> None:
        """Say what is wrong from now on, "" when nothing is."""
        self._troubles[about] = trouble

    async def snapshot(self, trigger: str) -> Snapshot | None:  # noqa: ARG002 - the sessions' call
        """Nothing: it is no flight recorder."""
        return None

    async def close(self) -> None:
        """Stop to fill maps. What failed stays what it was."""
        if self.source is not None:
            self.source.disable()
            self._state = "stopped"

    def balance(self) -> SessionBalance:
        """A balance without rings: nothing was produced that could be stored."""
        reasons = tuple(filter(None, (self._failure, *self._troubles.values())))
        degraded = self._state == "running" and bool(reasons)
        return balance_session(
            self.plan.name,
            self.plan.source,
            self.plan.scope.describe(),
            (),
            state="degraded" if degraded else self._state,
            degraded_reasons=(*reasons, *self.plan.degraded),
        )
