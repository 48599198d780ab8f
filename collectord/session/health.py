# SPDX-License-Identifier: Apache-2.0
"""The troubles of a session: found at each tick, reported by others, and cleared when over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from collectord.errors import KernelError, ShardSilent
from collectord.model import Reason, Stage, loss_name
from collectord.text.units import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence
    from collections.abc import Set as AbstractSet

    from collectord.ledger.record_ledger import RingBalance
    from collectord.plan.session_plan import SessionPlan
    from collectord.session.counter_reader import CounterReader
    from collectord.source.base import Tracing

_LOG: Final = structlog.get_logger()
_GIVEN_UP: Final = tuple(
    loss_name((Stage.SINK, reason)) for reason in (Reason.DISK_FULL, Reason.DROPPED)
)
_WRITE_TROUBLES: Final = {"disk", "write"}
# A window that is shorter than wanted changes with what comes: more polls do not find it sooner.
_LASTING: Final = {"window"}
# A disk that makes records wait for longer hangs, or is far too slow for the data rate.
_WAIT_LIMIT_NS: Final = 10_000_000_000


class Health:
    """The reasons for which a session is degraded, by subject.

    Args:
        plan: lists what is missing from the beginning.
        tracing: ftrace instances, which know other readers of their rings.
        counter_reader: its readings show losses, and that records are stored again.
    """

    def __init__(
        self, plan: SessionPlan, tracing: Sequence[Tracing], counter_reader: CounterReader
    ) -> None:
        self._reasons = {f"plan/{n}": reason for n, reason in enumerate(plan.degraded)}
        self._planned = len(self._reasons)
        self._tracing = tracing
        self._counter_reader = counter_reader
        self._directory = plan.sink.directory
        self._log = _LOG.bind(session=plan.name)
        self._stolen = 0  # as of the last poll
        self._progress: tuple[int, int] | None = None  # stored and given up, while writes fail

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons why the session is degraded, as sentences; empty while it is well."""
        return tuple(self._reasons.values())

    @property
    def is_well(self) -> bool:
        """Whether there is no trouble that a poll may find to be over, or to have consequences."""
        return len(self._reasons) == self._planned + len(_LASTING & self._reasons.keys())

    def has(self, about: str) -> bool:
        """Whether a problem of this subject is noted."""
        return about in self._reasons

    def note(self, about: str, trouble: str) -> bool:
        """Set the trouble about a subject, "" for none; return whether that is a change."""
        before = self._reasons.get(about, "")
        if trouble:
            self._reasons[about] = trouble
        else:
            self._reasons.pop(about, None)
        return trouble != before

    async def heard(self, answer: Awaitable[object]) -> bool:
        """Wait for drain threads, but not for one that does not respond.

        Returns:
            False if there is such a thread. It is named, and may carry out the request later.
        """
        try:
            await answer
        except ShardSilent as error:
            if self.note("drain", str(error)):
                self._log.error("drain_thread_silent", shard=error.shard, error=str(error))
            return False
        self.note("drain", "")
        return True

    def poll(self) -> None:
        """Check a new reading for troubles that nobody reports."""
        if self._tracing:
            self._look_for_foreign_readers()
            self._look_for_resets()
        troubles = _WRITE_TROUBLES & self._reasons.keys()
        if troubles:
            self._look_for_recovery(self._counter_reader.balances(), troubles)
        else:
            self._progress = None

    def look_at_disk(self, waits_ns: int) -> None:
        """Report writes that do not end; they lose nothing as long as staging has room.

        Args:
            waits_ns: how long the oldest pending write has waited; 0 without one.
        """
        told = self.has("wait")
        if waits_ns >= _WAIT_LIMIT_NS and not _WRITE_TROUBLES & self._reasons.keys():
            seconds = round(waits_ns / NS_PER_SECOND)
            self.note("wait", f"records have waited {seconds} s for the disk of {self._directory}")
            if not told:
                self._log.warning("writes_wait", directory=self._directory, seconds=seconds)
        elif told:
            self.note("wait", "")
            self._log.info("writes_go_on", directory=self._directory)

    def _look_for_recovery(self, rings: Sequence[RingBalance], troubles: AbstractSet[str]) -> None:
        """Clear write troubles once records are stored and none is given up any more.

        The first call has nothing to compare with.
        """
        stored = sum(ring.stored for ring in rings)
        given_up = sum(ring.lost[key] for ring in rings for key in _GIVEN_UP)
        before = self._progress
        if before is not None and stored > before[0] and given_up == before[1]:
            for trouble in troubles:
                del self._reasons[trouble]
            self._log.info("writes_go_on", directory=self._directory)
        self._progress = (stored, given_up)

    def _look_for_foreign_readers(self) -> None:
        """Report another reader of the same ftrace rings, which takes events away."""
        stolen = self._counter_reader.foreign_reads()
        if stolen > self._stolen:
            who = "".join(one.other_readers() for one in self._tracing) or "unknown"
            self.note("foreign", f"another reader took {stolen} events: {who}")
            self._log.warning("foreign_reader", events=stolen, readers=who)
        self._stolen = stolen

    def _look_for_resets(self) -> None:
        """Report that somebody emptied an ftrace ring, maybe by a change of its clock."""
        resets = self._counter_reader.resets()
        if resets and self.note("reset", f"another process emptied the rings {resets} times"):
            self._log.warning("rings_reset", times=resets)

    def look_for_suppression(self) -> None:
        """Look for foreign programs, whose effect no balance shows."""
        try:
            changed = self._counter_reader.suppression.poll()
        except KernelError as error:  # for example too many programs
            if self.note("programs", f"BPF programs on its events cannot be listed: {error}"):
                self._log.error("programs_not_seen", error=str(error))
            return
        self.note("programs", "")
        for event, programs in changed:
            about = f"suppression/{event.index}"
            if not programs:
                self.note(about, "")
                self._log.info("suppression_over", tracepoint=event.name)
                continue
            ids = ", ".join(map(str, programs))
            self.note(about, f"BPF programs on {event.name} may hide its events (id {ids})")
            self._log.warning("suppression_possible", tracepoint=event.name, programs=programs)
