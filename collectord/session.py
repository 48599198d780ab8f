# SPDX-License-Identifier: Apache-2.0
"""A running session: its rings in the core, its segments in the sink, its state.

The core drains and writes without this module. What happens here is slow or rare: preparing the
next segment beside the running one, sealing, making room, and once per flush interval a reading.
"""

from __future__ import annotations

import asyncio
import errno
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from collectord.aux_meter import AuxMeter
from collectord.errors import CollectordError, KernelError, SinkError, UsageError
from collectord.health import Health
from collectord.ledger import SessionBalance, SinkStats, balance_session, cut
from collectord.plan.session import FLIGHT_RECORDER
from collectord.sink.base import Closing, Opening
from collectord.sink.manifest import RingEntry, SnapshotNote
from collectord.source.aux import AuxFlush
from collectord.windows import Trigger, Windows, summarise

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from concurrent.futures import Executor
    from typing import Any, TypeVar

    from collectord._native import _core
    from collectord.drain.loop import Drain
    from collectord.kernel.port import Kernel
    from collectord.meter import Drained, Meter
    from collectord.model import ClockReading, Geometry, RingLabel
    from collectord.plan.aux import AuxPlan
    from collectord.plan.session import SessionPlan
    from collectord.sink.base import OpenSegment, SegmentInfo, Sink
    from collectord.sink.store import Store
    from collectord.source.base import OpenSource
    from collectord.windows import Snapshot

    T = TypeVar("T")

_LOG: Final = structlog.get_logger()
# What a writer that met a full disk asks for: some seconds of a busy stream.
_ROOM_BYTES: Final = 64 << 20
# A virtual CPU may be off for some time while it holds the last record.
_LAST_PASSES: Final = 5
_LAST_PAUSE_S: Final = 0.01
_SNAPSHOTS_KEPT: Final = 1000


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
        self._aux = AuxMeter(kernel, rings)
        self._flush = AuxFlush(kernel, [drained.handle for drained in rings])
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
        self._windows = Windows(source, rings, meter, drain)
        self._snapshot = asyncio.Lock()
        self._note: SnapshotNote | None = None  # of the snapshot that is being stored
        self._awaited: dict[int, asyncio.Future[SegmentInfo | None]] = {}
        self._records = 0
        self._freezing = False
        self.snapshots: deque[Snapshot] = deque(maxlen=_SNAPSHOTS_KEPT)
        self._finished = asyncio.Event()
        self._stopping = asyncio.Event()
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
        rings = list(self._rings.values())
        areas = [drained.aux for drained in rings if drained.aux is not None]
        self._drain.listen(self, self._stream, [*(drained.ring for drained in rings), *areas])
        self.source.enable_sideband()
        self._stream.load_sideband(await self._in_worker(self.source.running_state))
        await self._prepare()
        self.source.enable()
        for drained in self._rings.values():
            if drained.handle.relay is not None:
                drained.ring.hold(False)  # noqa: FBT003 - the binding's
        for fd in self.source.freeze_fds:
            asyncio.get_running_loop().add_reader(fd, self._look_frozen)
        self._segment_since_ns = time.monotonic_ns()
        if self._flush.interval_ns:
            self._start(self._flush_aux())

    async def _flush_aux(self) -> None:
        """Have CoreSight give its trace, which it does when it is stopped, until the end."""
        while not self._state:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), self._flush.interval_ns / 1e9)
                return
            try:
                self._flush.flush()
            except KernelError as error:
                if self._health.note("flush", f"AUX not flushed: {error}"):
                    self._log.error("aux_not_flushed", error=str(error))
            else:
                self._health.note("flush", "")

    def tick(self) -> None:
        """Once per flush interval, after a full pass: count, look for suppression, rotate."""
        self._measure()
        self._clocks.append(self._kernel.clocks())
        self._health.look()
        self._look_frozen()
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
        self._stopping.set()
        self._windows.end()
        self._stop_source()
        await self._take_last_windows()
        self._health.look()
        await self._drain_to_the_end()
        self._health.look()
        if self._segments:
            self._stream.finish()
            await self._finished.wait()
        while self._jobs:
            await asyncio.gather(*self._jobs)
        self._tell_last_snapshot()
        if not self._unsealed:
            self._meter.settle({})
        try:
            # First: a sink that sealed nothing takes its directory away.
            await self._refresh_stats()
            await self._in_worker(self._sink.close)
        except SinkError as error:  # all records are stored or counted: the next start repairs
            self._log.error("segments_left_open", error=str(error))

    def _stop_source(self) -> None:
        """Have nothing more written; what has been is still to be read."""
        for fd in self.source.freeze_fds:
            asyncio.get_running_loop().remove_reader(fd)
        for drained in self._rings.values():
            if drained.aux is not None:
                drained.aux.stop()  # a pass would start the event again
        self.source.disable()
        for drained in self._rings.values():
            if drained.handle.relay is not None:
                drained.ring.read_all()

    def _measure(self, *, last: bool = False) -> None:
        """Take a reading; without one the last one stands, and is known to be old."""
        try:
            if last:
                self._meter.close()
                self._aux.close()
            else:
                self._meter.measure()
                self._aux.measure()
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
            missing = [ring.unaccounted for ring in self._meter.balances()]
            missing += [area.unaccounted for area in self._aux.balances()]
            if not any(missing):
                return
            await asyncio.sleep(_LAST_PAUSE_S)

    async def snapshot(self, trigger: str) -> Snapshot | None:
        """Store what a flight recorder's rings hold now, in segments of its own.

        Args:
            trigger: one of `windows.Trigger`, for the manifests.

        Returns:
            None where the session is no flight recorder, or ends.

        Raises:
            SinkError: a segment cannot be created or sealed; it will be, once there is room.
            KernelError: the rings cannot be stopped, or not started again.
            UsageError: all goes into one file, at the end.
        """
        async with self._snapshot:
            if self.plan.mode != FLIGHT_RECORDER or self._state:
                return None
            if self.plan.sink.single_file is not None:
                raise UsageError(
                    f"session {self.plan.name} writes one file, at its end",
                    text=self.plan.sink.single_file,
                    hint="with --output-dir DIR each snapshot gets a file of its own",
                )
            self._awaited = {}
            # Before the windows are: segments may close while they are taken.
            self._note = SnapshotNote(trigger=trigger, taken_ns=time.monotonic_ns())
            try:
                self._note = await self._windows.take(trigger)
                return await self._store_windows(self._note)
            finally:
                if not self._state:
                    self._windows.hold(held=True)
                    self._note = None

    async def _store_windows(self, note: SnapshotNote) -> Snapshot | None:
        """Bring windows that were taken to segments, and these to an end."""
        if self._state:  # the end takes all
            return None
        self._windows.hold(held=True)
        # A pass that had begun before may drain on: this one begins after it.
        await self._drain.written(await self._drain.full_pass())
        self._measure()
        token, sizes = self._stream.track_bytes()
        records = self._held_records()
        if any(sizes.values()) or records > self._records:
            await self._prepare_or_degrade()
            if self._wanted:
                path = self.plan.sink.directory
                raise SinkError("no segment to go on in: the snapshot is not closed", path=path)
            self._await_seal(token)
            self.rotate()
            self._records = records
        infos = await asyncio.gather(*self._awaited.values())
        sealed = [info for info in infos if info is not None]
        return summarise(self.plan.name, self.plan.source, note, sealed)

    def _held_records(self) -> int:
        """Records, and bytes of AUX areas, that rings with windows have given until now."""
        records = sum(
            drained.ring.counters().records
            for drained in self._rings.values()
            if drained.handle.held and drained.handle.pages is None
        )
        records += sum(
            drained.aux.counters().taken_bytes
            for drained in self._rings.values()
            if drained.aux is not None and drained.handle.held
        )
        return records

    def _look_frozen(self) -> None:
        """If the kernel has stopped a ring, have the others stop, and store what they hold."""
        if not self.plan.freezes or self._freezing or self._state:
            return
        try:
            if not self.source.frozen():
                return
            if self.plan.sink.single_file is None:
                self.source.pause()
            else:
                self.source.disable()  # what comes later has no place in the one file
        except KernelError as error:
            self._log.error("freeze_not_seen", error=str(error))
            return
        self._freezing = True
        self._log.warning("ring_frozen")
        if self.plan.sink.single_file is None:
            self._start(self._store_frozen())

    async def _store_frozen(self) -> None:
        try:
            made = await self.snapshot(Trigger.FREEZE)
        except CollectordError as error:
            self._health.note("freeze", f"a frozen ring was not stored: {error}")
            self._log.error("snapshot_failed", error=str(error))
        else:
            self._health.note("freeze", "")
            if made is not None:
                self.snapshots.append(made)
        finally:
            self._freezing = False

    async def _take_last_windows(self) -> None:
        """Nothing comes any more: have all that a flight recorder's rings hold stored."""
        if self.plan.mode != FLIGHT_RECORDER:
            return
        # A record that was begun when its event was disabled is there a moment later.
        await asyncio.sleep(_LAST_PAUSE_S)
        self._note = self._windows.take_last()
        self._awaited = {t: sealed for t, sealed in self._awaited.items() if not sealed.done()}

    def _tell_last_snapshot(self) -> None:
        if self._note is None:
            return
        told = [future for future in self._awaited.values() if future.done()]
        infos = [future.result() for future in told if future.exception() is None]
        sealed = [info for info in infos if info is not None]
        self.snapshots.append(summarise(self.plan.name, self.plan.source, self._note, sealed))

    def _await_seal(self, token: int) -> None:
        """Have a snapshot wait for this segment."""
        if token not in self._awaited:
            self._awaited[token] = asyncio.get_running_loop().create_future()

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
            snapshots=self._windows.taken,
            paused_ns=self._windows.paused_ns,
            aux=self._aux.balances(),
        )

    # What the core tells (drain.loop.Listener).

    def segment_closed(self, closed: _core.SegmentClosed) -> None:
        """Seal it."""
        if self._note is not None:
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
        label = str(self._labels()[ring])
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
                snapshot=self._note,
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
                    # Seals follow one another: each manifest counts on from the last.
                    for behind, _, _ in self._unsealed:
                        self._tell(behind.token, error)
                    break
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
            waiting.set_result(end)

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

    def _labels(self) -> dict[int, RingLabel]:
        """Of rings and of AUX areas, by the core's number."""
        labels = {number: drained.handle.label for number, drained in self._rings.items()}
        for drained in self._rings.values():
            if drained.aux is not None and drained.handle.aux is not None:
                labels[drained.aux.id] = drained.handle.aux.label
        return labels

    def _ring_entries(self) -> tuple[RingEntry, ...]:
        rings = [
            _entry(number, drained.handle.label, drained.handle.geometry)
            for number, drained in self._rings.items()
        ]
        areas = [
            _entry(drained.aux.id, drained.handle.aux.label, drained.handle.aux.plan)
            for drained in self._rings.values()
            if drained.aux is not None and drained.handle.aux is not None
        ]
        return (*rings, *areas)


def _entry(number: int, label: RingLabel, sizes: Geometry | AuxPlan) -> RingEntry:
    return RingEntry(
        ring=number,
        role=str(label.role),
        cpu=label.cpu,
        tid=label.tid,
        data_bytes=sizes.data_bytes,
        watermark_bytes=sizes.watermark_bytes,
    )


def _existing(paths: list[str]) -> list[str]:
    """Those that retention has not deleted: the list stays as short as the directory."""
    return [path for path in paths if Path(path).exists()]
