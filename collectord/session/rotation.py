# SPDX-License-Identifier: Apache-2.0
"""The segments of a running session: each is prepared beside the running one, which goes on there.

The core writes without this module; it gives notice when it needs a file, filled one, or cannot
write.
"""

from __future__ import annotations

import asyncio
import errno
import os
import time
from typing import TYPE_CHECKING, Final

import structlog

from collectord.errors import SinkError
from collectord.session.kept_segments import KeptSegments
from collectord.session.running_file import RunningFile
from collectord.session.seals import Seals
from collectord.session.segment_ends import SegmentEnds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from collectord._native import _core
    from collectord.codec.perf_features import Features
    from collectord.plan.sink_plan import SinkPlan
    from collectord.session.accounting import Accounting
    from collectord.session.session_parts import SessionParts
    from collectord.sink.base import OpenSegment, SegmentInfo, Sink
    from collectord.sink.state_dir import StateDir

_LOG: Final = structlog.get_logger()
# The room to make for a writer that met a full disk: some seconds of a busy stream.
_ROOM_BYTES: Final = 64 << 20
# A writer that has no room left waits for seals so long, and gives its data up long after.
_SEALS_S: Final = 2.0
# A disk that is busy for that long will not be waited for.
_TURN_S: Final = 5.0


class Rotation:
    """The files of one stream, from their creation to their end. See `drain_loop.StreamListener`.

    Args:
        parts: the stream, the sink of its files, and what the session shares.
        accounting: supplies the figures of a manifest.
        describe: returns what the end of a file says about what was recorded; called in a thread.

    Attributes:
        kept: the sealed segments.
        seals: the closed ones, until they are sealed.
    """

    def __init__(
        self, parts: SessionParts, accounting: Accounting, describe: Callable[[], Features]
    ) -> None:
        self._plan = parts.plan.sink
        self._stream = parts.stream
        self._sink = parts.sink
        self._state_dir = parts.state_dir
        self._drain = parts.drain
        self._health = parts.health
        self._tasks = parts.tasks
        self._accounting = accounting
        self._log = _LOG.bind(session=parts.plan.name)
        self._open: dict[int, OpenSegment] = {}  # the running and the prepared one
        self._running = RunningFile(parts, self._open)
        self.kept = KeptSegments(parts)
        self.seals = Seals(
            parts,
            accounting,
            describe,
            running=self._running,
            kept=self.kept,
            fewer=self._prepare_in_time,
        )
        self._token = 0
        self._reserved: OpenSegment | None = None  # by `reserve`
        self._wanted = False
        self._has_next = False
        self._since_ns = 0
        self._preparing = asyncio.Lock()
        self._continued = asyncio.Event()
        self._ending = False
        self._finished = asyncio.Event()

    # Life: begin, tick .. tick, end, finish, close.

    async def reserve(self) -> None:
        """Create the first segment, for what is drained before `begin` prepares it.

        A successor finds the chunks that wait for it by its file.

        Raises:
            SinkError: it cannot be created.
        """
        async with self._preparing:
            self._reserved = await self._create()
            status = os.fstat(self._reserved.fd)
            self._stream.reserve(status.st_dev, status.st_ino)

    async def begin(self) -> None:
        """Create the first segment, if it is not reserved. Raises SinkError."""
        await self._prepare()
        self._since_ns = time.monotonic_ns()

    async def use_reserved(self) -> None:
        """Write what was drained to the reserved segment, if `begin` has not come to it."""
        if self._reserved is not None:
            await self._prepare()

    def tick(self) -> None:
        """Show what has been written, retry what failed, rotate by age."""
        self._leave_removed()
        self._running.show()
        self.kept.poll()
        self.seals.poll()
        self._prepare_in_time()
        self._repeat_requests()
        age_ns = self._plan.segment_age_ns
        if age_ns and time.monotonic_ns() - self._since_ns >= age_ns:
            self.rotate()

    @property
    def is_quiet(self) -> bool:
        """Whether nothing that failed waits for a tick."""
        return not self._wanted and self.seals.are_done

    def _leave_removed(self) -> None:
        """Continue in another file if somebody has deleted the one that is written."""
        token, _ = self._stream.track_bytes()
        running = self._open.get(token)
        if running is None or self._plan.single_file is not None:
            return
        if not all(os.fstat(fd).st_nlink for fd in (running.fd, *running.files.values())):
            self.rotate()

    def rotate(self) -> None:
        """Continue in a new segment once the running one has the records that name its samples."""
        self._since_ns = time.monotonic_ns()
        self._stream.rotate()

    def end(self) -> None:
        """Prepare no new segment; from now on the session drains and measures before seals."""
        self._ending = True
        self.seals.end()

    async def finish(self) -> None:
        """End the stream, and wait for its last segment to be closed."""
        if self._open:
            self._stream.finish()
            await self._finished.wait()

    async def add_last(self, make: Callable[[Sink, StateDir], SegmentInfo | None]) -> None:
        """Add a last segment beside those of the stream, if there is anything for it."""
        info = await self._tasks.in_worker(make, self._sink, self._state_dir)
        if info is not None:
            self.kept.add(info)

    async def close(self) -> None:
        """Give up what is still open; the next start repairs what could not be sealed."""
        try:
            # Before the sink closes: a sink that sealed nothing removes its directory.
            await self.seals.close()
            await self.kept.refresh()
            await self._tasks.in_worker(self._sink.close)
        except SinkError as error:  # all records are stored or counted
            self._log.error("segments_left_open", error=str(error))

    @property
    def has_pages(self) -> bool:
        """Whether there are sub-buffers in the segment that is written."""
        return any(self._stream.track_bytes()[1].values())

    async def make_next(self) -> None:
        """Create the next segment to continue in. Raises SinkError."""
        await self._prepare_or_degrade()
        if self._wanted:
            raise _no_next(self._plan)

    async def rotate_now(self) -> list[SegmentInfo]:
        """Continue in a new segment; return what was sealed, nothing if nothing was written.

        Everything that was in the rings before the call is in the sealed segments, or lost.

        Raises:
            SinkError: a segment cannot be created or sealed now; it will be, once there is room.
            ShardSilent: a drain thread does not respond.
        """
        requested = SegmentEnds()
        self.seals.requested.append(requested)
        try:
            await self._drain.written_pass()
            if not self._ending:
                await self.make_next()
            if not self._ending:
                self.rotate_for(requested)
            return await requested.ends()
        finally:
            self.seals.requested.remove(requested)

    async def take_in(self, ring: int, cpu: int) -> None:
        """Continue in a segment with a place for one more ring, by its id.

        Raises:
            SinkError: there is none; the running one goes on.
        """
        async with self._preparing:
            if not self._sink.add_ring(ring, cpu):
                return
            first = self._token + 1
        while self._stream.track_bytes()[0] < first:
            if not self._ending:
                await self.make_next()
            if self._ending:
                raise _no_next(self._plan)
            self._continued.clear()
            self._stream.turn()
            try:
                async with asyncio.timeout(_TURN_S):
                    await self._continued.wait()
            except TimeoutError:
                path = self._plan.directory
                raise SinkError("the running segment does not end", path=path) from None

    def rotate_for(self, collected: SegmentEnds) -> None:
        """Wait there for the end of what was written until now, and continue in another segment.

        Call it when all that was drained is written. A segment that reached its limit has been
        closed by then, though its notice may be on the way. The running segment may be empty, and
        an empty one is not closed before something is written to it.
        """
        token, sizes = self._stream.track_bytes()
        for closed in self._open:
            if closed < token:
                collected.expect(closed)
        if self._is_written(token, sizes):
            collected.expect(token)
            self._since_ns = time.monotonic_ns()
            self._stream.rotate_from(token)

    def _repeat_requests(self) -> None:
        """Ask again for rotations; a segment that is empty since a failed write does not end."""
        token, sizes = self._stream.track_bytes()
        for ends in self.seals.requested:
            if token in ends.under_way():
                if self._is_written(token, sizes):
                    self._stream.rotate_from(token)
                else:
                    ends.notify(token, None)

    def _is_written(self, token: int, sizes: Mapping[int, int]) -> bool:
        """Whether there is anything in a segment of this token and these pages."""
        running = self._open.get(token)
        return running is not None and (any(sizes.values()) or _has_grown(running))

    # Notices of the core.

    def segment_closed(self, closed: _core.SegmentClosed) -> None:
        """Seal the segment."""
        segment = self._open.pop(closed.token)
        self._running.end(segment, closed)
        self.seals.add(segment, closed)
        if closed.final:
            self._finished.set()

    def segment_wanted(self) -> None:
        """Prepare the next segment beside the running one."""
        self._has_next = False
        self._continued.set()
        self._since_ns = time.monotonic_ns()
        self._running.lead()
        if not self._ending and self._plan.single_file is None:
            self._wanted = True
            self._prepare_in_time()

    def space_wanted(self, error: int) -> None:
        """Make room, then let the writer try again, or give up the chunk."""
        full = error == errno.EXFULL
        self._tasks.start(self._make_segment() if full else self._make_room(error))

    def write_failed(self, error: int) -> None:
        """Count the error, and try another file; the records are in the ledger as sink/dropped."""
        self.kept.write_errors += 1
        self.rotate()
        self._health.note("write", f"writes fail: {errno.errorcode.get(error, error)}")
        self._log.error("write_failed", error=errno.errorcode.get(error, error))

    # Prepare.

    def _prepare_in_time(self) -> None:
        """Prepare the next segment if one is wanted and not too many wait for their seals."""
        if self._wanted and not self.seals.backlog.is_full:
            self._tasks.start(self._prepare_or_degrade())

    async def _prepare(self) -> None:
        async with self._preparing:
            if self._has_next:  # another task was quicker, and the stream takes only one
                return
            segment, self._reserved = self._reserved or await self._create(), None
            try:
                self._hand_over(segment)
            except BrokenPipeError:
                return  # the stream has ended meanwhile: the sink removes the file
            self._has_next = True

    async def _create(self) -> OpenSegment:
        self._token += 1
        opening = self._accounting.opening()
        segment = await self._tasks.in_worker(self._sink.next_segment, self._token, opening)
        self._open[segment.token] = segment
        return segment

    def _hand_over(self, segment: OpenSegment) -> None:
        """Give the stream its next file, as its format requires."""
        if segment.files:
            self._stream.prepare_files(
                segment.token, files=segment.files, limit_bytes=segment.limit_bytes
            )
        elif segment.offsets:
            self._stream.prepare_pages(
                segment.token,
                segment.fd,
                offsets=segment.offsets,
                capacity_bytes=segment.capacity_bytes,
                limit_bytes=segment.limit_bytes,
                step_bytes=segment.step_bytes,
            )
        else:
            self._stream.prepare(
                segment.token,
                segment.fd,
                segment.data_offset,
                segment.limit_bytes,
                segment.step_bytes,
                segment.tail_bytes,
                segment.table,
                (segment.meta_fd, *segment.size_word),
            )

    async def _prepare_or_degrade(self) -> None:
        """Create the next segment; if that fails the running one goes on until a later try."""
        if not self._wanted:  # another task was quicker, and the stream takes only one
            return
        self._wanted = False
        try:
            await self._prepare()
        except SinkError as error:
            self._wanted = True
            if not self._health.has("segment"):
                self._log.error("segment_not_created", error=str(error))
            self._health.note("segment", str(error))
        else:
            self._health.note("segment", "")

    async def _make_segment(self) -> None:
        """Create a segment if the running one is full without a successor, or let the data go."""
        await self.seals.backlog.wait(_SEALS_S)
        async with self._preparing:
            pass  # one may be in preparation
        if not self._has_next and self._plan.single_file is None:
            self._wanted = True
            await self._prepare_or_degrade()
        self._stream.space(self._has_next)

    async def _make_room(self, error: int) -> None:
        made = False
        try:
            made = await self.kept.make_room(_ROOM_BYTES)
        except SinkError as failure:
            self._log.error("no_room_made", error=str(failure))
        if made and not self.seals.backlog.is_full:
            await self._prepare_or_degrade()
        if not made and not self._health.has("disk"):
            self._log.warning("disk_full", directory=self._plan.directory)
        name = errno.errorcode.get(error, error)
        self._health.note("disk", "" if made else f"disk full ({name})")
        self._stream.space(made)


def _no_next(plan: SinkPlan) -> SinkError:
    return SinkError("there is no next segment to continue in", path=plan.directory)


def _has_grown(running: OpenSegment) -> bool:
    """Whether there is anything behind a segment's head; a file of pages has its full length."""
    if running.offsets:
        return False
    fds = (*running.files.values(),) or (running.fd,)
    return any(os.fstat(fd).st_size > running.data_offset for fd in fds)
