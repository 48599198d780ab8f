# SPDX-License-Identifier: Apache-2.0
"""The closed segments of a session, which are sealed in the order in which they ended."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import structlog

from collectord.errors import SinkError
from collectord.session.seal_backlog import WAITING_MAX, SealBacklog
from collectord.session.symbol_keeping import SymbolKeeping
from collectord.sink.segment import PASSING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from collectord._native import _core
    from collectord.codec.perf_features import Features
    from collectord.session.accounting import Accounting
    from collectord.session.kept_segments import KeptSegments
    from collectord.session.running_file import RunningFile
    from collectord.session.segment_ends import SegmentEnds, SnapshotSegments
    from collectord.session.session_parts import SessionParts
    from collectord.sink.base import Closing, OpenSegment, SegmentInfo

_LOG: Final = structlog.get_logger()


class Seals:
    """The segments that the core has closed, until they are sealed or given up.

    Args:
        parts: the stream, the sink of its files, and what the session shares.
        accounting: supplies the figures of a manifest.
        describe: returns what the end of a file says about what was recorded; called in a thread.
        running: the file that is written; its link leads on before a segment is renamed.
        kept: is told of what was sealed.
        fewer: is called when a segment less waits for its seal.

    Attributes:
        backlog: counts the segments that wait.
        collected: the snapshot that consists of the segments that end now.
        requested: rotations that somebody waits for.
    """

    def __init__(
        self,
        parts: SessionParts,
        accounting: Accounting,
        describe: Callable[[], Features],
        *,
        running: RunningFile,
        kept: KeptSegments,
        fewer: Callable[[], None],
    ) -> None:
        self._directory = parts.plan.sink.directory
        self._sink = parts.sink
        self._state_dir = parts.state_dir
        self._drain = parts.drain
        self._health = parts.health
        self._tasks = parts.tasks
        self._accounting = accounting
        self._describe = describe
        self._running = running
        self._kept = kept
        self._fewer = fewer
        self._log = _LOG.bind(session=parts.plan.name)
        self._symbols = SymbolKeeping(parts.plan, parts.stream)
        self._waiting: list[tuple[OpenSegment, _core.SegmentClosed, Closing]] = []
        self._sealing = asyncio.Lock()
        self._ending = False
        self.backlog = SealBacklog(parts.plan.name, parts.health)
        self.collected: SnapshotSegments | None = None
        self.requested: list[SegmentEnds] = []

    @property
    def are_done(self) -> bool:
        """Whether no closed segment waits to be sealed."""
        return not self._waiting

    def poll(self) -> None:
        """Try again what a full disk has prevented, and report a backlog that lasts."""
        self.backlog.poll()
        if self._waiting and not self._sealing.locked():
            self._tasks.start(self._seal_waiting())

    def end(self) -> None:
        """Stop measuring before a seal: from now on the session does."""
        self._ending = True

    async def close(self) -> None:
        """Give up what waits still; the next start repairs it. Raises SinkError."""
        self._kept.given_up += len(self._waiting)
        await self._symbols.finish()

    def add(self, segment: OpenSegment, closed: _core.SegmentClosed) -> None:
        """Seal a segment that was closed."""
        if self.collected is not None:
            self.collected.expect(closed.token)
        self._kept.early += closed.early
        self._symbols.note(closed.token)
        self.backlog.add()
        self._tasks.start(self._seal(segment, closed))

    async def _seal(self, segment: OpenSegment, closed: _core.SegmentClosed) -> None:
        with self._waiters_told():
            await self._await_turn(segment, closed)
            await self._seal_next()
        await self._kept.keep_limits()

    async def _await_turn(self, segment: OpenSegment, closed: _core.SegmentClosed) -> None:
        """Gather what the manifest says, and let the segment wait behind those before it."""
        async with self._sealing:
            features = await self._tasks.in_worker(self._describe)
            if not self._ending:
                # A pass may need memory that a writer holds which waits for seals.
                await self.backlog.unless_awaited(self._health.heard(self._drain.full_pass()))
                self._accounting.measure()
            closed = self._accounting.by_place(closed)
            closing = self._accounting.closing(
                recount=closed.final and not self._waiting,
                snapshot=self.collected.note if self.collected is not None else None,
            )
            self._waiting.append((segment, closed, replace(closing, features=features)))

    async def _seal_waiting(self) -> None:
        """Seal the waiting segments; what a full disk prevents is tried again at each tick."""
        with self._waiters_told():
            await self._seal_next()
        await self._kept.keep_limits()

    async def _seal_next(self) -> None:
        # A link leads to the next segment before this one has another name.
        async with self._sealing, self._running.lock:
            failed = ""
            while self._waiting and not failed:
                segment, closed, closing = self._waiting[0]
                try:
                    info = await self._tasks.in_worker(self._sink.seal, segment, closed, closing)
                except SinkError as error:
                    if error.errno not in PASSING or len(self._waiting) > WAITING_MAX:
                        await self._give_up(error)
                        continue
                    failed = str(error)
                    # Seals follow one another: each manifest counts on from the last.
                    for behind, _, _ in self._waiting:
                        self._notify_waiters(behind.token, error)
                else:
                    self._leave_backlog()
                    self._notify_waiters(segment.token, info)
                    if info is not None:
                        self._sealed(info)
                        self._symbols.begin(segment.token, info.path.name)
                    self._symbols.forget(segment.token)
            if self._health.note("seal", failed) and failed:
                self._log.error("segment_not_sealed", error=failed)

    def _leave_backlog(self) -> None:
        del self._waiting[0]
        self.backlog.remove()
        self._fewer()

    def _sealed(self, info: SegmentInfo) -> None:
        self._accounting.found(info)
        self._kept.add(info)

    async def _give_up(self, error: SinkError) -> None:
        """Give up the first waiting segment, and count its events by where they are now."""
        segment, closed, _ = self._waiting[0]
        self._leave_backlog()
        self._notify_waiters(segment.token, error)
        self._kept.given_up += 1
        self._symbols.forget(segment.token)
        left = end = None
        try:
            end = await self._tasks.in_worker(self._sink.give_up, segment, closed)
        except SinkError as failure:
            self._log.error("segment_not_left", error=str(failure))
        else:
            self._accounting.given_up(end)
            self._state_dir.leave(end.left)
            for info in end.infos:
                self._sealed(info)
            left = [str(path) for path in end.left]
        lost = sum(end.lost_events.values()) if end is not None else None
        self._log.error("segment_given_up", error=str(error), left=left, lost=lost)
        given_up = self._kept.given_up
        times = f"{given_up} segments were" if given_up > 1 else "a segment was"
        self._health.note("given_up", f"{times} not sealed: {error}")

    def _notify_waiters(self, token: int, end: SegmentInfo | SinkError | None) -> None:
        for ends in self._waiters():
            ends.notify(token, end)

    def _waiters(self) -> list[SegmentEnds]:
        return [*self.requested, *([self.collected] if self.collected is not None else [])]

    @contextmanager
    def _waiters_told(self) -> Iterator[None]:
        """Tell of an end that nobody has foreseen too: nobody waits for a seal for ever."""
        try:
            yield
        except BaseException as error:
            failure = SinkError(f"a seal ended with {error!r}", path=self._directory)
            for ends in self._waiters():
                ends.fail(failure)
            raise
