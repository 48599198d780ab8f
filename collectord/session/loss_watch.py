# SPDX-License-Identifier: Apache-2.0
"""Losses while they happen: where a session loses records, why, and how many a second.

The ledger says what was lost; this says that losses are going on. A loss begins with the first
reading that has more losses than the one before, and is over after several without any.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import structlog

from collectord.ledger.present_loss import PresentLoss
from collectord.model import Reason, Stage, loss_name
from collectord.text.units import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from collectord.ledger.present_loss import LossReading
    from collectord.model import LossKey
    from collectord.session.health import Health

LOSING_BEGAN: Final = "losing_began"
LOSING_ENDED: Final = "losing_ended"
_LOG: Final = structlog.get_logger()
# Polls without a loss after which it is over: a ring that fills up every other second is one
# trouble, and reported once.
_LOOKS_WITHOUT: Final = 5
_FULL: Final = {Reason.RING_FULL, Reason.OVERRUN, Reason.COMMIT_OVERRUN}
_CAUSES: Final = {
    Stage.PROGRAM: "its BPF programs cannot submit the records",
    Stage.STAGING: "the contents of its rings are invalid",
    Stage.SINK: "the records cannot be written",
}


class LossWatch:
    """Compares readings of a session's losses, once per flush interval.

    Args:
        session: the session's name.
        read: returns the sums as of the last reading of the counters.
        health: notes while records are lost.
    """

    def __init__(self, session: str, read: Callable[[], LossReading], health: Health) -> None:
        self._read = read
        self._health = health
        self._log = _LOG.bind(session=session)
        self._last = read()
        self._looked_ns = time.monotonic_ns()
        self._losing: dict[LossKey, PresentLoss] = {}
        self._without: dict[LossKey, int] = {}  # polls since the last loss

    @property
    def losing(self) -> tuple[PresentLoss, ...]:
        """The losses that are going on."""
        return tuple(self._losing.values())

    def poll(self, *, new: bool) -> None:
        """Compare the readings, unless nothing has changed and no loss is going on.

        Args:
            new: counters may have changed since the last poll.
        """
        now_ns = time.monotonic_ns()
        began_ns, self._looked_ns = self._looked_ns, now_ns
        if not new and not self._losing:
            return
        before, self._last = self._last, self._read()
        seconds = max(now_ns - began_ns, 1) / NS_PER_SECOND
        for key, total in self._last.lost.items():
            lost = total - before.lost.get(key, 0)
            # A snapshot's pause is over when it is seen, and is reported with the snapshot.
            if key[1] is Reason.PAUSED or not (lost or key in self._losing):
                continue
            self._without[key] = 0 if lost else self._without[key] + 1
            if self._without[key] == _LOOKS_WITHOUT:
                self._over(key)
            else:
                self._note(key, lost, seconds, began_ns, before)

    def end(self) -> None:
        """End all losses: the session is closed and cannot lose more."""
        for key in tuple(self._losing):
            self._over(key)

    def _note(
        self, key: LossKey, lost: int, seconds: float, began_ns: int, before: LossReading
    ) -> None:
        known = self._losing.get(key) or PresentLoss(key, self._last.unit, began_ns)
        per_second = round(lost / seconds)
        cause = self._cause(key, per_second, before) if lost else known.cause
        now = replace(known, cause=cause, per_second=per_second, lost=known.lost + lost)
        self._health.note(_about(key), now.describe())
        if key not in self._losing:
            stage, reason = map(str, key)
            self._log.warning(
                LOSING_BEGAN, stage=stage, reason=reason, cause=cause, per_second=per_second
            )
        self._losing[key] = now

    def _over(self, key: LossKey) -> None:
        over = self._losing.pop(key)
        self._without.pop(key)
        self._health.note(_about(key), "")
        stage, reason = map(str, key)
        seconds = (self._looked_ns - over.began_ns) / NS_PER_SECOND
        self._log.warning(
            LOSING_ENDED, stage=stage, reason=reason, lost=over.lost, seconds=round(seconds, 1)
        )

    def _cause(self, key: LossKey, per_second: int, before: LossReading) -> str:
        """Return the cause of a loss, as far as the counters tell."""
        stage, reason = key
        if reason is Reason.DISK_FULL:
            return "the disk is full"
        if stage is not Stage.KERNEL_RING:
            return _CAUSES[stage]
        if self._last.starved != before.starved:
            return f"the disk takes{self._size(per_second)} less than is recorded"
        if reason in _FULL:
            return (
                "the rings fill before they are drained: they are too small, or drained too late"
            )
        return "the kernel refuses the records"

    def _size(self, per_second: int) -> str:
        """Return the data rate of that many records a second, by the mean size of records read."""
        if not self._last.records:
            return ""
        return f" {per_second * self._last.bytes / self._last.records / 1e6:.1f} MB/s"


def _about(key: LossKey) -> str:
    return f"losing/{loss_name(key)}"
