# SPDX-License-Identifier: Apache-2.0
"""A session's flight recorder: windows taken on request, on a freeze and at the end."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import structlog

from collectord.errors import CollectordError, KernelError, UsageError
from collectord.session.ring_snapshot import LAST_PAUSE_S, RingSnapshot, Trigger, summarise
from collectord.session.segment_ends import SnapshotSegments
from collectord.sink.manifest import SnapshotNote

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence

    from collectord.session.accounting import Accounting
    from collectord.session.counter_reader import Drained
    from collectord.session.ring_snapshot import Snapshot
    from collectord.session.rotation import Rotation
    from collectord.session.session_parts import SessionParts
    from collectord.sink.base import SegmentInfo

_LOG: Final = structlog.get_logger()
SNAPSHOTS_KEPT: Final = 1000


class FlightRecorder:
    """Stores the contents of a flight recorder's rings in segments of their own.

    Args:
        parts: the source that stops the rings, and what the session shares.
        rotation: makes the files that the windows go to.
        accounting: is read once a window has been drained.

    Attributes:
        snapshots: the last ones that nobody waited for: of freezes, and of the end.
        stored: how many were stored, including those that added nothing to the one before.
        failed: how many were not stored, or not at once.
    """

    def __init__(self, parts: SessionParts, rotation: Rotation, accounting: Accounting) -> None:
        self._plan = parts.plan
        self._source = parts.source
        (self._recording,) = parts.source.abilities.recording
        self._windows = RingSnapshot(parts)
        self._rotation = rotation
        self._seals = rotation.seals
        self._accounting = accounting
        self._drain = parts.drain
        self._stream = parts.stream
        self._health = parts.health
        self._tasks = parts.tasks
        self._log = _LOG.bind(session=parts.plan.name)
        self._one = asyncio.Lock()
        self._freezing = False
        self._watched: set[int] = set()
        self._ended = False
        self._given = 0
        self._lost = self._windows.lost()  # as the snapshot in progress began
        self.snapshots: deque[Snapshot] = deque(maxlen=SNAPSHOTS_KEPT)
        self.stored = 0
        self.failed = 0

    @property
    def paused_ns(self) -> int:
        """The time during which the rings were stopped for snapshots."""
        return self._windows.paused_ns

    @property
    def looks_for_freeze(self) -> bool:
        """Whether only `poll` can find out that the kernel has stopped a ring."""
        return self._plan.freezes and not self._recording.freeze_fds

    # Life: begin, poll .. poll, end, take_last, notify_last.

    def begin(self) -> None:
        """Watch for rings that the kernel stops."""
        self._watch(self._recording.freeze_fds)

    def _watch(self, fds: Iterable[int]) -> None:
        """Watch these descriptors from now on, and no others."""
        before, self._watched = self._watched, set(fds)
        for fd in before - self._watched:
            asyncio.get_running_loop().remove_reader(fd)
        for fd in self._watched - before:
            asyncio.get_running_loop().add_reader(fd, self.poll)

    def poll(self) -> None:
        """If the kernel has stopped a ring, stop the others and store what they hold."""
        if not self._plan.freezes or self._freezing or self._ended:
            return
        try:
            if not self._recording.frozen():
                return
            if self._plan.sink.single_file is None:
                self._recording.pause()
            else:
                self._source.disable()  # later records have no place in the single file
        except KernelError as error:
            self._log.error("freeze_not_seen", error=str(error))
            return
        self._freezing = True
        self._log.warning("ring_frozen")
        if self._plan.sink.single_file is None:
            self._tasks.start(self._store_frozen())

    async def _store_frozen(self) -> None:
        try:
            made = await self.snapshot(Trigger.FREEZE)
        except CollectordError as error:
            self._health.note("freeze", f"a frozen ring was not stored: {error}")
            self._log.error("snapshot_failed", error=str(error))
            return
        finally:
            self._freezing = False
        self._health.note("freeze", "")
        if made is not None:
            self.snapshots.append(made)
        self.poll()  # a ring that froze meanwhile would have to wait for the next tick

    async def stop(self) -> None:
        """Complete a snapshot in progress, and make no other: the next process has the rings."""
        async with self._one:
            self._ended = True
        self._watch(())

    def end(self) -> None:
        """Prepare for the final stop of the source: stopped rings are not started again."""
        self._ended = True
        self._windows.end()
        self._watch(())

    async def take_last(self) -> None:
        """Store all that the rings hold, now that no records arrive. Raises ShardSilent."""
        # A record that was begun when its event was disabled becomes visible a moment later.
        await asyncio.sleep(LAST_PAUSE_S)
        # A snapshot in progress goes into the same segments, and waits for them.
        before = self._seals.collected
        if before is None:
            self._lost = self._windows.lost()
        under_way = before.under_way() if before is not None else None
        self._seals.collected = SnapshotSegments(await self._windows.take_last(), under_way)

    def notify_last(self) -> None:
        """Record the result of the last windows, once all segments are sealed or cannot be."""
        collected = self._seals.collected
        if collected is None:
            return
        infos, well = collected.told()
        self._count(well=well)
        self.snapshots.append(self._summarise(collected, infos))

    # CPUs that leave and return.

    @asynccontextmanager
    async def removing(
        self, rings: Sequence[Drained], stop: Callable[[], None]
    ) -> AsyncIterator[None]:
        """Stop the events of rings, and take their windows; the block removes the rings.

        They go to the running segment, which the next snapshot ends: if one of the rings is
        frozen, that is the snapshot of its freeze.

        Args:
            rings: the rings.
            stop: stops their events, which a snapshot in progress would start again.

        Raises:
            KernelError: the events cannot be stopped; all stays as it is.
            ShardSilent: a drain thread does not respond.
        """
        async with self._one:
            self.poll()
            stop()
            await self._windows.take_of(rings)
            self._watch(self._watched.difference(c.fd for r in rings for c in r.handle.counters))
            yield
            self._windows.remove(rings)

    async def add(self, drained: Drained) -> None:
        """Take the windows of a ring that joins the session, before its events are enabled."""
        async with self._one:
            self._windows.add(drained)
            if not self._ended:
                self._watch(self._recording.freeze_fds)

    def renew(self) -> None:
        """Stop the events that were added since a freeze has ended the recording.

        Raises:
            KernelError: they cannot be stopped.
        """
        if self._freezing and self._plan.sink.single_file is not None:
            self._source.disable()

    # Snapshots.

    async def snapshot(self, trigger: str) -> Snapshot | None:
        """Store what the rings hold now.

        Args:
            trigger: one of `ring_snapshot.Trigger`, for the manifests.

        Returns:
            None if the session is ending, which stores everything.

        Raises:
            SinkError: a segment cannot be created or sealed now; it will be, once there is room.
            KernelError: the rings cannot be stopped, or not started again.
            ShardSilent: a drain thread does not respond.
            UsageError: the session writes a single file, at its end.
        """
        async with self._one:
            if self._ended:
                return None
            if self._plan.sink.single_file is not None:
                raise UsageError(
                    f"session {self._plan.name} writes one file, at its end",
                    hint="with --output-dir DIR each snapshot gets a file of its own",
                )
            # Segments may close while the windows are taken, so this comes first.
            note = SnapshotNote(trigger=trigger, taken_ns=time.monotonic_ns())
            self._seals.collected = collected = SnapshotSegments(note)
            self._lost = self._windows.lost()
            try:
                collected.note = await self._windows.take(trigger)
                made = await self._store(collected)
            except CollectordError:
                self._count(well=False)
                raise
            finally:
                if not self._ended:
                    self._seals.collected = None
                    await self._windows.hold()
            if made is not None:
                self._count(well=True)
            return made

    async def _store(self, collected: SnapshotSegments) -> Snapshot | None:
        """Write the windows that were taken to segments, and end these.

        Somebody waits: the last of it, and the seal, wait for no other session's writes.
        """
        self._stream.hurry(on=True)
        try:
            return await self._write(collected)
        finally:
            self._stream.hurry(on=False)

    async def _write(self, collected: SnapshotSegments) -> Snapshot | None:
        if self._ended:  # the end of the session takes all windows
            return None
        await self._windows.hold()
        # A pass in progress may continue to drain: this one begins after it.
        await self._drain.written_pass()
        self._accounting.measure()
        given = self._windows.given()
        if self._rotation.has_pages or given > self._given:
            await self._rotation.make_next()
            if self._ended:
                return None
            self._rotation.rotate_for(collected)
            self._given = given
        infos = await collected.ends()
        return self._summarise(collected, infos)

    def _summarise(self, collected: SnapshotSegments, infos: Sequence[SegmentInfo]) -> Snapshot:
        """Return the snapshot of windows, all of which are written or given up."""
        lost = self._windows.lost().since(self._lost)
        return summarise(self._plan.name, self._plan.source, collected.note, infos, lost)

    def _count(self, *, well: bool) -> None:
        if well:
            self.stored += 1
        else:
            self.failed += 1
