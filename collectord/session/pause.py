# SPDX-License-Identifier: Apache-2.0
"""Pauses of a session: its events are disabled for a time, and nobody counts what happens then.

The rings stay open and are drained; names and mappings are recorded on. The time is a gap with a
cause, and no balance that includes a part of it is exact. A pause with several causes ends with
the last of them.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from collectord.errors import KernelError
from collectord.model import FOLLOWING, ScopeKind
from collectord.session.recent_windows import RecentWindows
from collectord.text.foreign import plain

if TYPE_CHECKING:
    from collectord.model import GapCause
    from collectord.plan.session_plan import SessionPlan
    from collectord.session.coverage_file import Unnoted
    from collectord.source.base import Abilities


@dataclass(slots=True)
class PauseWindow:
    """A pause; `until_ns` is None while it lasts. Times are CLOCK_MONOTONIC."""

    cause: GapCause
    since_ns: int
    until_ns: int | None = None


class Pauses:
    """The pauses of one session, as `RecentWindows`."""

    def __init__(self) -> None:
        self._windows = RecentWindows[PauseWindow]()
        self._ever = False

    @property
    def running(self) -> PauseWindow | None:
        """The present pause; None while the session records."""
        last = self._windows.last
        return last if last is not None and last.until_ns is None else None

    def begin(self, cause: GapCause) -> None:
        """Note that the session is about to pause."""
        self._ever = True
        self._windows.add(PauseWindow(cause, time.monotonic_ns()))

    def end(self) -> None:
        """Note that the present pause is over."""
        if self.running is not None:
            self.running.until_ns = time.monotonic_ns()

    def were(self, since_ns: int | None) -> bool:
        """Whether there was a pause since then, with 0 ever; None: whether there is one now."""
        if since_ns is None:
            return self.running is not None
        return bool(self._windows.since(since_ns)) if since_ns else self._ever

    def to_json(self, since_ns: int) -> list[dict[str, Any]]:
        """Return the pauses that did not end before then, for manifests."""
        return [plain(window) for window in self._windows.since(since_ns)]


class Pause:
    """Pauses and resumes one session.

    Args:
        plan: of the session.
        abilities: of its source.
        pauses: where the pauses are noted.
        covered: where their time is added up.
    """

    def __init__(
        self, plan: SessionPlan, abilities: Abilities, pauses: Pauses, covered: Unnoted
    ) -> None:
        self._pausable = abilities.pausable
        aux = any(ring.aux is not None for ring in plan.rings)
        # Events that freeze or wait for an exec would be armed again; areas have a stop of their
        # own; and processes that are attached meanwhile would count.
        followed = plan.scope.kind in (ScopeKind.COMMAND, *FOLLOWING)
        lone = plan.freezes or aux or followed
        self.possible = bool(self._pausable) and not lone
        self._pauses = pauses
        self._covered = covered
        self._counted_ns = 0
        self.causes: tuple[GapCause, ...] = ()  # why it is paused; the first counts the time

    @property
    def lasts(self) -> bool:
        """Whether the session is paused."""
        return bool(self.causes)

    def begin(self, cause: GapCause) -> None:
        """Disable the events, if no other cause has. Raises KernelError, and the session goes on.

        Args:
            cause: one of `model.PAUSES`.
        """
        if self.lasts:
            self.causes = tuple(dict.fromkeys((*self.causes, cause)))
            return
        self._note((cause,))
        try:
            self.renew()
        except KernelError:
            with suppress(KernelError):
                self._enable()
            self.close()
            raise

    def end(self, cause: GapCause) -> None:
        """Enable the events if no cause but this one is left. Raises KernelError: still paused."""
        if self.causes == (cause,):
            self._enable()
        left = tuple(one for one in self.causes if one is not cause)
        if left[:1] == self.causes[:1]:
            self.causes = left
        else:
            self.close()
            self._note(left)

    def _note(self, causes: tuple[GapCause, ...]) -> None:
        """Note that the session is paused from now on, if there is a cause."""
        self.causes = causes
        if causes:
            self._pauses.begin(causes[0])
            self._counted_ns = time.monotonic_ns()

    def renew(self) -> None:
        """Disable the events that were added while the session is paused. Raises KernelError."""
        if self.lasts:
            for one in self._pausable:
                one.disable_events()

    def _enable(self) -> None:
        for one in self._pausable:
            one.enable()

    def poll(self) -> None:
        """Add up the time of the present pause."""
        running = self._pauses.running
        if running is not None:
            now_ns = time.monotonic_ns()
            self._covered.add_gap(running.cause, now_ns - self._counted_ns)
            self._counted_ns = now_ns

    def close(self) -> None:
        """End the present pause with the session, which stays disabled."""
        self.poll()
        self._pauses.end()
        self.causes = ()
