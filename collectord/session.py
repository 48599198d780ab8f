# SPDX-License-Identifier: Apache-2.0
"""A running session: its rings in the core, its segments in the sink, its state.

The core drains and writes without this module. What happens here is slow or rare: preparing the
next segment beside the running one, sealing, making room, and once per flush interval a reading.
"""

from __future__ import annotations

import asyncio
import errno
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from collectord.errors import KernelError, SinkError
from collectord.health import Health
from collectord.ledger import SessionBalance, SinkStats, balance_session, cut
from collectord.plan.session import FLIGHT_RECORDER
from collectord.sink.base import Closing, Opening
from collectord.sink.manifest import RingEntry

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from concurrent.futures import Executor
    from typing import Any, TypeVar

    from collectord._native import _core
    from collectord.drain.loop import Drain
    from collectord.kernel.port import Kernel
    from collectord.meter import Drained, Meter
    from collectord.model import ClockReading
    from collectord.plan.session import SessionPlan
    from collectord.sink.base import OpenSegment, SegmentInfo, Sink
    from collectord.sink.store import Store
    from collectord.source.base import OpenSource

    T = TypeVar("T")

_LOG: Final = structlog.get_logger()
# What a writer that met a full disk asks for: some seconds of a busy stream.
_ROOM_BYTES: Final = 64 << 20
# A virtual CPU may be off for some time while it holds the last record.
_LAST_PASSES: Final = 5
_LAST_PAUSE_S: Final = 0.01


class Session:
    """One opened plan.

    Args:
        plan: what was opened.
        source: its events, still disabled.
        rings: its rings, which the core drains already.
        stream: what they feed.
        meter: reads their counters.
        sink: makes and seals the stream's files.
        kernel: reads the clocks.
        drain: the core.
        store: makes room when the disk is full.
        worker: threads for file work, so that the event loop never waits for a disk.
    """

    def __init__(
        self,
        plan: SessionPlan,
        *,
        source: OpenSource,
        rings: tuple[Drained, ...],
        stream: _core.Stream,
        meter: Meter,
        sink: Sink,
        kernel: Kernel,
        drain: Drain,
        store: Store,
        worker: Executor,
    ) -> None:
        self.plan = plan
        self.source = source
        self.ftrace = source.ftrace
        self._rings = {drained.ring.id: drained for drained in rings}
        self._stream = stream
        self._meter = meter
        self._sink = sink
        self._kernel = kernel
        self._drain = drain
        self._store = store
        self._worker = worker
        self._log = _LOG.bind(session=plan.name)
        self._segments: dict[int, OpenSegment] = {}  # the running and the prepared one
        self._unsealed: list[tuple[OpenSegment, _core.SegmentClosed, Closing]] = []
        self._token = 0
        self._wanted = False
        self._segment_since_ns = 0
        self._sealed: list[str] = []
        self._clocks: list[ClockReading] = []
        self._jobs: set[asyncio.Task[None]] = set()
        self._sealing = asyncio.Lock()
        self._showing = asyncio.Lock()
        self._preparing = asyncio.Lock()
        self._has_next = False
        self._snapshot = asyncio.Lock()
        self._awaited: dict[int, asyncio.Future[str | None]] = {}
        self._finished = asyncio.Event()
        self._health = Health(plan, source, meter)
        self._write_errors = 0
        self._stats = SinkStats()
        self._state = ""

    # Life: begin, tick .. tick, close.

    async def begin(self) -> None:
        """Start. What runs already is known before the first segment, and that before any sample.

        Raises:
            SinkError: the first segment cannot be created.
        """
        self._drain.listen(self, self._stream, [drained.ring for drained in self._rings.values()])
        self.source.enable_sideband()
        self._stream.load_sideband(await self._in_worker(self.source.running_state))
        await self._prepare()
        self.source.enable()
        for drained in self._rings.values():
            if drained.handle.relay is not None:
                drained.ring.hold(False)  # noqa: FBT003 - the binding's
        self._segment_since_ns = time.monotonic_ns()

    def tick(self) -> None:
        """Once per flush interval, after a full pass: count, look for suppression, rotate."""
        self._measure()
        self._clocks.append(self._kernel.clocks())
        self._health.look()
        if self.ftrace is not None:
            self._health.note("window", self.ftrace.keep_window(self._meter.balances()))
            self._show_pages()
        if self._wanted:
            self._start(self._prepare_or_degrade())
        if self._unsealed and not self._sealing.locked():
            self._start(self._seal_waiting())
        age_ns = self.plan.sink.segment_age_ns
        if age_ns and time.monotonic_ns() - self._segment_since_ns >= age_ns:
            self.rotate()

    def note(self, about: str, trouble: str) -> None:
        """Say what is wrong with the session from now on, "" when nothing is."""
        self._health.note(about, trouble)

    def rotate(self) -> None:
        """Go on in a new segment from the next chunk on."""
        self._segment_since_ns = time.monotonic_ns()
        self._stream.rotate()

    async def close(self) -> None:
        """Stop, drain, write, count, seal. Afterwards the balance is final."""
        if self._state:
            return
        self._state = "stopped"
        self.source.disable()
        self._hold(held=False)
        for drained in self._rings.values():
            if drained.handle.relay is not None:
                drained.ring.read_all()
        self._health.look()
        await self._drain_to_the_end()
        self._health.look()
        if self._segments:
            self._stream.finish()
            await self._finished.wait()
        while self._jobs:
            await asyncio.gather(*self._jobs)
        if not self._unsealed:
            self._meter.settle({})
        try:
            # First: a sink that sealed nothing takes its directory away.
            await self._refresh_stats()
            await self._in_worker(self._sink.close)
        except SinkError as error:  # all records are stored or counted: the next start repairs
            self._log.error("segments_left_open", error=str(error))

    def _measure(self, *, last: bool = False) -> None:
        """Take a reading; without one the last one stands, and is known to be old."""
        try:
            if last:
                self._meter.close()
            else:
                self._meter.measure()
        except KernelError as error:
            if self._health.note("counters", f"counters not read: {error}"):
                self._log.error("counters_not_read", error=str(error))
        else:
            self._health.note("counters", "")

    async def _drain_to_the_end(self) -> None:
        """Drain until the balance is even, or until nothing more can come.

        DISABLE interrupts the CPU that runs the event, maybe in the middle of a record that is
        counted already: it becomes visible when that CPU goes on, after DISABLE has returned.
        """
        for _ in range(_LAST_PASSES):
            await self._drain.written(await self._drain.full_pass())
            self._measure(last=True)
            if all(ring.unaccounted in (None, 0) for ring in self._meter.balances()):
                return
            await asyncio.sleep(_LAST_PAUSE_S)

    async def snapshot(self) -> tuple[str, ...]:
        """Store what a flight recorder's rings hold now, in segments of its own.

        Returns:
            the segments' paths, more than one where the window is larger than a segment; none
            where there is nothing to store, or the session is no flight recorder or ends.

        Raises:
            SinkError: a segment cannot be created or sealed; it will be, once there is room.
        """
        async with self._snapshot:
            if self.plan.mode != FLIGHT_RECORDER or self._state:
                return ()
            self._awaited = {}
            await self._take_windows()
            if self._state:  # the end takes all
                return ()
            self._hold(held=True)
            # A pass that had begun before may drain on: this one begins after it.
            await self._drain.written(await self._drain.full_pass())
            self._measure()
            token, sizes = self._stream.track_bytes()
            if any(sizes.values()):
                await self._prepare_or_degrade()
                if self._wanted:
                    path = self.plan.sink.directory
                    raise SinkError(
                        "no segment to go on in: the snapshot is not closed", path=path
                    )
                self._await_seal(token)
                self.rotate()
            paths = await asyncio.gather(*self._awaited.values())
            return tuple(path for path in paths if path is not None)

    async def _take_windows(self) -> None:
        """Have what the rings hold now in staging; they stand still no longer than that takes."""
        try:
            self.source.pause()
            self._hold(held=False)
            await self._drain.full_pass()
        finally:
            self.source.resume()

    def _await_seal(self, token: int) -> None:
        """Have a snapshot wait for this segment."""
        if token not in self._awaited:
            self._awaited[token] = asyncio.get_running_loop().create_future()

    def _hold(self, *, held: bool) -> None:
        """Have the rings of a flight recorder left alone, or drained."""
        for drained in self._rings.values():
            if drained.handle.held:
                drained.ring.hold(held)

    def balance(self) -> SessionBalance:
        """The balance as of the last reading; touches neither rings nor kernel counters."""
        return balance_session(
            self.plan.name,
            self.plan.source,
            self.plan.scope.describe(),
            self._meter.balances(),
            state=self._state or ("degraded" if self._health.reasons else "running"),
            directory=self.plan.sink.directory,
            segments=tuple(self._sealed),
            degraded_reasons=self._health.reasons,
            sink=self._stats,
            shared=self._meter.shared_losses,
        )

    # What the core tells (drain.loop.Listener).

    def segment_closed(self, closed: _core.SegmentClosed) -> None:
        """Seal it."""
        if self._snapshot.locked():
            self._await_seal(closed.token)
        self._start(self._seal(self._segments.pop(closed.token), closed))
        if closed.final:
            self._finished.set()

    def segment_wanted(self) -> None:
        """Prepare the next segment beside the running one."""
        self._has_next = False
        self._segment_since_ns = time.monotonic_ns()
        if not self._state and self.plan.sink.single_file is None:
            self._wanted = True
            self._start(self._prepare_or_degrade())

    def space_wanted(self, error: int) -> None:
        """Make room, then let the writer try again, or give the chunk up."""
        self._start(self._make_segment() if error == errno.EXFULL else self._make_room(error))

    def write_failed(self, error: int) -> None:
        """Count it, and try another file; the records are in the ledger as sink/dropped."""
        self._write_errors += 1
        self.rotate()
        self._health.note("write", f"writes fail: {errno.errorcode.get(error, error)}")
        self._log.error("write_failed", error=errno.errorcode.get(error, error))

    def ring_quarantined(self, ring: int, reason: str, position: int) -> None:
        """Say so; the ring fills up and the kernel counts what it refuses."""
        label = str(self._rings[ring].handle.label)
        self._health.note(f"ring/{ring}", f"ring {label} quarantined: {reason}")
        self._log.error("ring_quarantined", ring=label, reason=reason, position=position)

    def ring_hung_up(self, ring: int) -> None:
        """A task ends when it ends; a channel that does is news."""
        handle = self._rings[ring].handle
        if handle.relay is None or self._state:
            return
        label = str(handle.label)
        self._health.note(f"ring/{ring}", f"ring {label}: its channel was closed")
        self._log.warning("channel_closed", ring=label)

    # Work beside the event loop.

    def _start(self, job: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(job)
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)

    async def _in_worker(self, call: Callable[..., T], *args: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._worker, call, *args)

    async def _prepare(self) -> None:
        async with self._preparing:
            self._token += 1
            opening = Opening(clock=self._kernel.clocks(), rings=self._ring_entries())
            segment = await self._in_worker(self._sink.next_segment, self._token, opening)
            self._segments[segment.token] = segment
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

    async def _seal(self, segment: OpenSegment, closed: _core.SegmentClosed) -> None:
        async with self._sealing:
            if not self._state:
                await self._drain.full_pass()
                self._measure()
            closing = Closing(
                clock=self._kernel.clocks(),
                rings=self._ring_entries(),
                ledger=cut(self.balance(), self._meter.brackets, self._meter.shared_bounds),
                flushes=tuple(self._clocks),
                lost_samples=self._meter.take_losses(),
                ring_stats=self._ring_stats(),
                recut=self._recut if closed.final and not self._unsealed else None,
            )
            self._clocks.clear()
            self._unsealed.append((segment, closed, closing))
        await self._seal_waiting()

    def _recut(self, found: Mapping[int, int]) -> Mapping[str, Any]:
        """The final balance, from what the last segment holds too. Called by the seal."""
        self._meter.settle(found)
        return cut(self.balance(), self._meter.brackets, self._meter.shared_bounds)

    def _ring_stats(self) -> Mapping[int, str]:
        if self.ftrace is None:
            return {}
        try:
            return self.ftrace.ring_stats()
        except KernelError as error:
            self._log.error("counters_not_read", error=str(error))
            return {}

    async def _seal_waiting(self) -> None:
        """Seal what waits for it; what a full disk keeps from it is tried again at each tick."""
        async with self._sealing, self._showing:
            failed = ""
            for waiting in self._unsealed.copy():
                segment, closed, closing = waiting
                try:
                    info = await self._in_worker(self._sink.seal, segment, closed, closing)
                except SinkError as error:
                    failed = str(error)
                    self._tell(segment.token, error)
                    break  # seals follow one another: each manifest counts on from the last
                self._unsealed.remove(waiting)
                self._tell(segment.token, info)
                if info is not None:
                    self._meter.found({e.ring: e.samples for e in info.manifest.rings})
                    self._sealed += map(str, (info.path, *info.more))
                    self._log.info("segment_sealed", path=str(info.path), samples=closed.samples)
            if self._health.note("seal", failed) and failed:
                self._log.error("segment_not_sealed", error=failed)
        try:
            await self._in_worker(self._store.make_room)
            await self._refresh_stats()
        except SinkError as error:
            self._log.error("limits_not_kept", error=str(error))

    def _tell(self, token: int, end: SegmentInfo | SinkError | None) -> None:
        """Tell a snapshot that waits for its segment."""
        waiting = self._awaited.get(token)
        if waiting is None or waiting.done():
            return
        if isinstance(end, SinkError):
            waiting.set_exception(end)
        else:
            waiting.set_result(str(end.path) if end is not None else None)

    def _show_pages(self) -> None:
        """Have readers of the running trace.dat see what was written to it until now."""
        token, sizes = self._stream.track_bytes()
        segment = self._segments.get(token)
        if segment is not None and not self._showing.locked():
            self._start(self._show(segment, sizes))

    async def _show(self, segment: OpenSegment, sizes: Mapping[int, int]) -> None:
        async with self._showing:
            if segment.token not in self._segments:
                return  # it closed meanwhile, and its seal writes the same
            try:
                await self._in_worker(self._sink.flush, segment, sizes)
            except SinkError as error:
                self._health.note("show", str(error))
            else:
                self._health.note("show", "")

    async def _make_segment(self) -> None:
        """The running segment has no room and no successor: have one, or let the data go."""
        async with self._preparing:
            pass  # one may be in work
        if not self._has_next and self.plan.sink.single_file is None:
            self._wanted = True
            await self._prepare_or_degrade()
        self._stream.space(self._has_next)

    async def _make_room(self, error: int) -> None:
        made = False
        try:
            made = await self._in_worker(self._store.make_room, _ROOM_BYTES)
        except SinkError as failure:
            self._log.error("no_room_made", error=str(failure))
        if made and self._wanted:
            await self._prepare_or_degrade()
        if not made and not self._health.has("disk"):
            self._log.warning("disk_full", directory=self.plan.sink.directory)
        name = errno.errorcode.get(error, error)
        self._health.note("disk", "" if made else f"disk full ({name})")
        self._stream.space(made)

    async def _refresh_stats(self) -> None:
        self._stats = await self._in_worker(
            self._store.stats, Path(self.plan.sink.directory), self._write_errors
        )
        self._sealed = await self._in_worker(_existing, self._sealed)

    def _ring_entries(self) -> tuple[RingEntry, ...]:
        return tuple(
            RingEntry(
                ring=number,
                role=str(drained.handle.label.role),
                cpu=drained.handle.label.cpu,
                tid=drained.handle.label.tid,
                data_bytes=drained.handle.geometry.data_bytes,
                watermark_bytes=drained.handle.geometry.watermark_bytes,
            )
            for number, drained in self._rings.items()
        )


def _existing(paths: list[str]) -> list[str]:
    """Those that retention has not deleted: the list stays as short as the directory."""
    return [path for path in paths if Path(path).exists()]
