# SPDX-License-Identifier: Apache-2.0
"""The segments of a running session: the next one prepared beside the running one, then sealed.

The core writes without this module; it tells when it wants a file, filled one, or cannot write.
"""

from __future__ import annotations

import asyncio
import errno
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from collectord.errors import SinkError
from collectord.ledger import SinkStats

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from collectord._native import _core
    from collectord.accounts import Accounts
    from collectord.drain.loop import Drain
    from collectord.health import Health
    from collectord.jobs import Jobs
    from collectord.plan.session import SinkPlan
    from collectord.sink.base import Closing, OpenSegment, SegmentInfo, Sink
    from collectord.sink.manifest import SnapshotNote
    from collectord.sink.store import Store

    End = asyncio.Future[SegmentInfo | None]

_LOG: Final = structlog.get_logger()
# What a writer that met a full disk asks for: some seconds of a busy stream.
_ROOM_BYTES: Final = 64 << 20


class Collected:
    """The segments that one snapshot goes into, whose ends it waits for.

    Args:
        note: for their manifests.
        ends: of segments that an earlier one, which is taken over, still waits for.
    """

    def __init__(self, note: SnapshotNote, ends: Mapping[int, End] | None = None) -> None:
        self.note = note
        self._ends = dict(ends or {})

    def expect(self, token: int) -> None:
        """This segment belongs to it."""
        if token not in self._ends:
            self._ends[token] = asyncio.get_running_loop().create_future()

    def tell(self, token: int, end: SegmentInfo | SinkError | None) -> None:
        """A segment was sealed, dropped as it was empty, or can be neither."""
        waiting = self._ends.get(token)
        if waiting is None or waiting.done():
            return
        if isinstance(end, SinkError):
            waiting.set_exception(end)
        else:
            waiting.set_result(end)

    async def ends(self) -> list[SegmentInfo]:
        """Wait for all of them; gives those that hold something. Raises SinkError."""
        return _sealed(await asyncio.gather(*self._ends.values()))

    def told(self) -> tuple[list[SegmentInfo], bool]:
        """Those that have ended by now, and whether all were expected to and did."""
        told = [end for end in self._ends.values() if end.done()]
        well = [end for end in told if end.exception() is None]
        return _sealed(end.result() for end in well), len(well) == len(self._ends)

    def under_way(self) -> dict[int, End]:
        """Of those that have not."""
        return {token: end for token, end in self._ends.items() if not end.done()}


def _sealed(ends: Iterable[SegmentInfo | None]) -> list[SegmentInfo]:
    return [info for info in ends if info is not None]


class Segments:
    """The files of one stream, from their creation to their seal. See `drain.loop.StreamListener`.

    Args:
        plan: where the files go, and when the next one begins.
        stream: writes them.
        sink: makes and seals them.
        store: makes room when the disk is full.
        drain: empties the rings before a cut.
        accounts: tell what a manifest says.
        health: told what goes wrong.
        jobs: where file work is done.
        shown: readers of the running file are to see what was written until the last tick.
        session: its name, for the log.
    """

    def __init__(
        self,
        plan: SinkPlan,
        *,
        stream: _core.Stream,
        sink: Sink,
        store: Store,
        drain: Drain,
        accounts: Accounts,
        health: Health,
        jobs: Jobs,
        shown: bool,
        session: str,
    ) -> None:
        self._plan = plan
        self._stream = stream
        self._sink = sink
        self._store = store
        self._drain = drain
        self._accounts = accounts
        self._health = health
        self._jobs = jobs
        self._shown = shown
        self._log = _LOG.bind(session=session)
        self._open: dict[int, OpenSegment] = {}  # the running and the prepared one
        self._unsealed: list[tuple[OpenSegment, _core.SegmentClosed, Closing]] = []
        self._token = 0
        self._wanted = False
        self._has_next = False
        self._since_ns = 0
        self._sealing = asyncio.Lock()
        self._showing = asyncio.Lock()
        self._preparing = asyncio.Lock()
        self._ending = False
        self._finished = asyncio.Event()
        self._write_errors = 0
        self.collected: Collected | None = None  # what the segments that end now belong to
        self.stats = SinkStats()
        self.sealed: tuple[str, ...] = ()  # paths, without what retention has deleted

    # Life: begin, tick .. tick, end, finish, close.

    async def begin(self) -> None:
        """Have the first segment there. Raises SinkError."""
        await self._prepare()
        self._since_ns = time.monotonic_ns()

    def tick(self) -> None:
        """Once per flush interval: show what is there, try again what failed, rotate by age."""
        if self._shown:
            self._show_running()
        if self._wanted:
            self._jobs.start(self._prepare_or_degrade())
        if self._unsealed and not self._sealing.locked():
            self._jobs.start(self._seal_waiting())
        age_ns = self._plan.segment_age_ns
        if age_ns and time.monotonic_ns() - self._since_ns >= age_ns:
            self.rotate()

    def rotate(self) -> None:
        """Go on in a new segment from the next chunk on."""
        self._since_ns = time.monotonic_ns()
        self._stream.rotate()

    def end(self) -> None:
        """The session ends: no new segment is prepared, and who cuts has drained and measured."""
        self._ending = True

    async def finish(self) -> None:
        """Have the stream end, and wait for its last segment to be closed."""
        if self._open:
            self._stream.finish()
            await self._finished.wait()

    @property
    def all_sealed(self) -> bool:
        """Nothing that was closed waits to be sealed."""
        return not self._unsealed

    async def close(self) -> None:
        """Give up what is open still; the next start repairs what could not be sealed."""
        try:
            # First: a sink that sealed nothing takes its directory away.
            await self._refresh_stats()
            await self._jobs.in_worker(self._sink.close)
        except SinkError as error:  # all records are stored or counted
            self._log.error("segments_left_open", error=str(error))

    @property
    def has_pages(self) -> bool:
        """There are sub-buffers in the segment that is written."""
        return any(self._stream.track_bytes()[1].values())

    async def make_next(self) -> None:
        """Have a segment there to go on in. Raises SinkError."""
        await self._prepare_or_degrade()
        if self._wanted:
            path = self._plan.directory
            raise SinkError("no segment to go on in: the snapshot is not closed", path=path)

    def turn(self, collected: Collected) -> None:
        """Have a snapshot wait for all that was written until now, and the rest go elsewhere.

        Call it when all that was drained is written. A segment that reached its limit has been
        closed by then, though its notice may be on the way; the one that runs now may be empty,
        and an empty one is not closed before something is written to it.
        """
        token, sizes = self._stream.track_bytes()
        for closed in self._open:
            if closed < token:
                collected.expect(closed)
        running = self._open.get(token)
        if running is None:
            return
        end = os.fstat(running.fd).st_size
        if any(sizes.values()) if running.offsets else end > running.data_offset:
            collected.expect(token)
            self.rotate()

    # What the core tells.

    def segment_closed(self, closed: _core.SegmentClosed) -> None:
        """Seal it."""
        if self.collected is not None:
            self.collected.expect(closed.token)
        self._jobs.start(self._seal(self._open.pop(closed.token), closed))
        if closed.final:
            self._finished.set()

    def segment_wanted(self) -> None:
        """Prepare the next segment beside the running one."""
        self._has_next = False
        self._since_ns = time.monotonic_ns()
        if not self._ending and self._plan.single_file is None:
            self._wanted = True
            self._jobs.start(self._prepare_or_degrade())

    def space_wanted(self, error: int) -> None:
        """Make room, then let the writer try again, or give the chunk up."""
        full = error == errno.EXFULL
        self._jobs.start(self._make_segment() if full else self._make_room(error))

    def write_failed(self, error: int) -> None:
        """Count it, and try another file; the records are in the ledger as sink/dropped."""
        self._write_errors += 1
        self.rotate()
        self._health.note("write", f"writes fail: {errno.errorcode.get(error, error)}")
        self._log.error("write_failed", error=errno.errorcode.get(error, error))

    # Prepare.

    async def _prepare(self) -> None:
        async with self._preparing:
            self._token += 1
            opening = self._accounts.opening()
            segment = await self._jobs.in_worker(self._sink.next_segment, self._token, opening)
            self._open[segment.token] = segment
            self._hand_over(segment)
            self._has_next = True

    def _hand_over(self, segment: OpenSegment) -> None:
        """Give the stream its next file, by the kind of its format."""
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
            )

    async def _prepare_or_degrade(self) -> None:
        """Without a next segment the running one goes on; each tick tries again."""
        if not self._wanted:  # another job was quicker, and the stream takes only one
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
        """The running segment has no room and no successor: have one, or let the data go."""
        async with self._preparing:
            pass  # one may be in work
        if not self._has_next and self._plan.single_file is None:
            self._wanted = True
            await self._prepare_or_degrade()
        self._stream.space(self._has_next)

    async def _make_room(self, error: int) -> None:
        made = False
        try:
            made = await self._jobs.in_worker(self._store.make_room, _ROOM_BYTES)
        except SinkError as failure:
            self._log.error("no_room_made", error=str(failure))
        if made and self._wanted:
            await self._prepare_or_degrade()
        if not made and not self._health.has("disk"):
            self._log.warning("disk_full", directory=self._plan.directory)
        name = errno.errorcode.get(error, error)
        self._health.note("disk", "" if made else f"disk full ({name})")
        self._stream.space(made)

    # Seal.

    async def _seal(self, segment: OpenSegment, closed: _core.SegmentClosed) -> None:
        async with self._sealing:
            if not self._ending:
                await self._drain.full_pass()
                self._accounts.measure()
            closing = self._accounts.closing(
                recount=closed.final and not self._unsealed,
                snapshot=self.collected.note if self.collected is not None else None,
            )
            self._unsealed.append((segment, closed, closing))
        await self._seal_waiting()

    async def _seal_waiting(self) -> None:
        """Seal what waits for it; what a full disk keeps from it is tried again at each tick."""
        async with self._sealing, self._showing:
            failed = ""
            for waiting in self._unsealed.copy():
                segment, closed, closing = waiting
                try:
                    info = await self._jobs.in_worker(self._sink.seal, segment, closed, closing)
                except SinkError as error:
                    failed = str(error)
                    # Seals follow one another: each manifest counts on from the last.
                    for behind, _, _ in self._unsealed:
                        self._tell(behind.token, error)
                    break
                self._unsealed.remove(waiting)
                self._tell(segment.token, info)
                if info is not None:
                    self._accounts.found(info)
                    self.sealed += (str(info.path), *map(str, info.more))
                    self._log.info("segment_sealed", path=str(info.path), samples=closed.samples)
            if self._health.note("seal", failed) and failed:
                self._log.error("segment_not_sealed", error=failed)
        try:
            await self._jobs.in_worker(self._store.make_room)
            await self._refresh_stats()
        except SinkError as error:
            self._log.error("limits_not_kept", error=str(error))

    def _tell(self, token: int, end: SegmentInfo | SinkError | None) -> None:
        if self.collected is not None:
            self.collected.tell(token, end)

    async def _refresh_stats(self) -> None:
        self.stats = await self._jobs.in_worker(
            self._store.stats, Path(self._plan.directory), self._write_errors
        )
        gone = await self._jobs.in_worker(_missing, self.sealed)
        self.sealed = tuple(path for path in self.sealed if path not in gone)

    # Show.

    def _show_running(self) -> None:
        """Have readers of the running trace.dat see what was written to it until now."""
        token, sizes = self._stream.track_bytes()
        segment = self._open.get(token)
        if segment is not None and not self._showing.locked():
            self._jobs.start(self._show(segment, sizes))

    async def _show(self, segment: OpenSegment, sizes: Mapping[int, int]) -> None:
        async with self._showing:
            if segment.token not in self._open:
                return  # it closed meanwhile, and its seal writes the same
            try:
                await self._jobs.in_worker(self._sink.flush, segment, sizes)
            except SinkError as error:
                self._health.note("show", str(error))
            else:
                self._health.note("show", "")


def _missing(paths: Iterable[str]) -> set[str]:
    """Those that retention has deleted: the list stays as short as the directory."""
    return {path for path in paths if not Path(path).exists()}
