# SPDX-License-Identifier: Apache-2.0
"""Drain stage: the native core, and its notices on the event loop.

The core drains and writes by itself, whether or not this thread runs. Its notices are about work
that only the controlling thread can do: prepare and seal files, make room, count.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from collectord._native import _core
from collectord.errors import KernelError, ShardSilent
from collectord.session.counter_reader import DrainedArea
from collectord.session.running_threads import Placement, RunningThreads

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator
    from typing import Self

    from collectord.kernel.port import Kernel
    from collectord.plan.plan import CorePlan
    from collectord.source.base import OpenSource
    from collectord.source.ring import RingHandle

# A pass takes milliseconds. A ring that is removed may wait two seconds for a chunk.
_ANSWER_S: Final = 5.0
_LEAVE_S: Final = 2.0 + _ANSWER_S
# The core does not notify of passes: most end within a millisecond.
_LOOK_S: Final = 0.005


class StreamListener(Protocol):
    """The receiver of notices about a stream and its segments. Called on the event loop."""

    def segment_closed(self, closed: _core.SegmentClosed) -> None:
        """Handle the end of the stream's segment: its last byte is written."""

    def segment_wanted(self) -> None:
        """Handle that the stream has no segment to continue in."""

    def space_wanted(self, errno: int) -> None:
        """Handle a full disk: the writer waits."""

    def write_failed(self, errno: int) -> None:
        """Handle that a chunk was given up; its records are counted as lost."""


class RingListener(Protocol):
    """The receiver of notices about rings. Called on the event loop."""

    def ring_faulty(self, ring: int, reason: str, position: int, *, quarantined: bool) -> None:
        """Handle refused contents of a ring, which is read on behind them or quarantined."""

    def ring_hung_up(self, ring: int) -> None:
        """Handle that a ring's task, or its channel, is gone."""


@dataclass(frozen=True, slots=True)
class Heard:
    """The receivers of notices about a stream, and about those of its rings that are listed."""

    files: StreamListener
    listener: RingListener
    rings: frozenset[int]

    def notify(self, event: _core.Event) -> None:
        """Pass an event on to the receiver it is for."""
        match event:
            case _core.SegmentClosed():
                self.files.segment_closed(event)
            case _core.SegmentWanted():
                self.files.segment_wanted()
            case _core.SpaceWanted():
                self.files.space_wanted(event.errno)
            case _core.WriteFailed():
                self.files.write_failed(event.errno)
            case _core.RingFault() if event.ring in self.rings:
                self.listener.ring_faulty(
                    event.ring,
                    _core.QUARANTINE_REASONS[event.reason],
                    event.position,
                    quarantined=event.quarantined,
                )
            case _core.RingHungUp() if event.ring in self.rings:
                self.listener.ring_hung_up(event.ring)


@contextmanager
def _refusals(part: str = "ring") -> Iterator[None]:
    """Turn an error of the core, which lacks memory, descriptors or places, into a KernelError."""
    try:
        yield
    except OSError as error:
        message = f"the core cannot drain another {part}"
        raise KernelError(message, errno=error.errno or 0) from error


class Drain:
    """The owner of the core. Enter it on the event loop; leaving stops the core's threads.

    Args:
        plan: of the core and its threads.
        kernel: gives the threads their scheduling.
    """

    def __init__(self, plan: CorePlan, kernel: Kernel) -> None:
        self._kernel = kernel
        self.core = _core.Core(
            shards=plan.shards,
            chunks=plan.chunks,
            chunk_bytes=plan.chunk_bytes,
            flush_ns=plan.flush_ns,
            floor_bytes=plan.floor_bytes,
        )
        self._plan = plan
        self._shard_of: dict[tuple[int, int], int] = {}  # by CPU, else by thread
        self._places: dict[int, tuple[int, int]] = {}  # of rings that were dealt to shards
        self._dealt = 0
        self._placement: Placement | None = None
        self._heard: dict[int, Heard | None] = {}  # by stream; None: nobody listens yet
        self._early: dict[tuple[object, ...], _core.Event] = {}  # of streams nobody listens to yet
        self._followed = 0  # the generation that was waited for last
        self._notified = asyncio.Event()

    def __enter__(self) -> Self:
        asyncio.get_running_loop().add_reader(self.core.notify_fd, self._on_notify)
        self.core.start()
        self._placement = Placement(self._kernel, self._plan.drain, self.core.drain_tids())
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_reader(self.core.notify_fd)
        self.core.stop()

    @_refusals("stream")
    def add_stream(self, source: OpenSource) -> _core.Stream:
        """Create a stream for a source's rings; its notices are kept until somebody listens.

        Raises:
            KernelError: the core lacks memory, or has no place left: some streams that were closed
                still wait for their disk.
        """
        stream = source.add_stream(self.core)
        self._heard[stream.id] = None
        return stream

    def forget(self, stream: _core.Stream) -> None:
        """Send no more notices about a stream whose rings have been removed."""
        del self._heard[stream.id]
        self._early = {key: e for key, e in self._early.items() if e.stream != stream.id}

    @_refusals()
    def add_ring(self, stream: _core.Stream, handle: RingHandle) -> _core.Ring:
        """Begin to drain a ring, on the shard of its CPU, or of its thread if it has no CPU.

        So the records that name a sample are read with it, and before it. The shard of a planned
        CPU is on the CPU's memory node.

        Raises:
            KernelError: the core lacks memory or descriptors.
        """
        label = handle.label
        shard = self._plan.drain.shard_of(label.cpu)
        if shard is not None:
            return handle.register(self.core, shard, stream)
        place = (label.cpu, label.tid if label.cpu < 0 else -1)
        if place not in self._shard_of:
            self._shard_of[place] = self._dealt % self._plan.shards
            self._dealt += 1
        ring = handle.register(self.core, self._shard_of[place], stream)
        self._places[ring.id] = place
        return ring

    @_refusals()
    def add_areas(self, ring: _core.Ring, handle: RingHandle) -> tuple[DrainedArea, ...]:
        """Begin to drain the AUX areas behind a ring that is drained.

        Raises:
            KernelError: as `add_ring`.
        """
        return tuple(DrainedArea(area, area.register(self.core, ring)) for area in handle.areas)

    def threads(self) -> RunningThreads:
        """Return how the drain threads are scheduled, and how that falls short of the plan."""
        return self._placement.read() if self._placement is not None else RunningThreads()

    def listen(
        self,
        files: StreamListener,
        stream: _core.Stream,
        listener: RingListener,
        rings: Iterable[int],
    ) -> None:
        """Notify `files` about this stream, and `listener` about rings of these ids.

        Earlier notices are passed on now: the last one of each kind.
        """
        self._heard[stream.id] = Heard(files, listener, frozenset(rings))
        early, self._early = self._early, {}
        for event in early.values():
            self._dispatch(event)

    def of(self, stream: _core.Stream) -> StreamDrain:
        """Return the drain of one stream."""
        return StreamDrain(self, stream)

    async def next_pass(self, stop: asyncio.Event, *, passes: int = 1) -> bool:
        """Wait for the next full pass that the flush timer begins, or for a later one to begin.

        Args:
            stop: whoever sets it calls `wake`.
            passes: which pass, counted from the last; those between wake nobody.

        Returns:
            False if `stop` was set.
        """
        issued = self.core.issued_generation()
        followed = max(self._followed or issued, issued - 1)
        self._followed = followed + passes
        self.core.follow(self._followed)
        while not stop.is_set() and (
            max(self.core.drained_generation(), self.core.issued_generation() - 1) < self._followed
        ):
            self._notified.clear()
            await self._notified.wait()
        return not stop.is_set()

    async def silent_shards(self) -> tuple[int, ...]:
        """Ask all drain threads for a pass; return those that make none within `_ANSWER_S`."""
        generation = self.core.request_flush()
        with suppress(TimeoutError):
            async with asyncio.timeout(_ANSWER_S):
                while self.core.silent_shards(generation):  # noqa: ASYNC110 - see _LOOK_S
                    await asyncio.sleep(_LOOK_S)
        return self.core.silent_shards(generation)

    def wake(self) -> None:
        """Make waiting coroutines check their conditions again."""
        self._notified.set()

    async def reached(self, read: Callable[[], int], generation: int) -> None:
        """Wait until a generation that the core reports has reached `generation`."""
        while read() < generation:
            self._notified.clear()
            if read() < generation:
                await self._notified.wait()

    async def answered(self, rings: Iterable[_core.Ring | _core.AuxRing]) -> None:
        """Wait until shards have carried out all requests for these rings. Raises ShardSilent."""
        for ring in rings:
            await self._until(partial(getattr, ring, "answered"), ring.shard, _ANSWER_S)

    async def remove(self, rings: Collection[_core.Ring]) -> None:
        """Drain rings a last time and remove them: then their maps may be closed.

        Raises:
            ShardSilent: a ring was not released; its drain thread may be reading it still.
        """
        for ring in rings:
            self.core.remove_ring(ring)
        for ring in rings:
            await self._until(partial(self.core.remove_ring, ring), ring.shard, _LEAVE_S)
            place = self._places.pop(ring.id, None)
            if place is not None and place not in self._places.values():
                del self._shard_of[place]

    async def _until(self, is_so: Callable[[], bool], shard: int, limit_s: float) -> None:
        try:
            async with asyncio.timeout(limit_s):
                await self.reached(is_so, True)  # noqa: FBT003 - a number as others
        except TimeoutError:
            raise ShardSilent(shard, limit_s) from None

    def _on_notify(self) -> None:
        os.eventfd_read(self.core.notify_fd)
        for event in self.core.events():
            self._dispatch(event)
        self._notified.set()

    def _dispatch(self, event: _core.Event) -> None:
        heard = self._heard.get(event.stream)
        if heard is not None:
            heard.notify(event)
        elif event.stream in self._heard:
            about = getattr(event, "ring", None), getattr(event, "token", None)
            self._early[(type(event), event.stream, *about)] = event


class StreamDrain:
    """One stream's part of the drain: only its own rings are waited for.

    Args:
        drain: the drain of the core.
        stream: the stream whose rings are drained.
    """

    def __init__(self, drain: Drain, stream: _core.Stream) -> None:
        self._drain = drain
        self._stream = stream

    async def full_pass(self) -> int:
        """Drain every ring up to its present head; return the pass's generation.

        It may take as long as chunks are short, provided that the drain threads make passes.

        Raises:
            ShardSilent: a drain thread makes no passes.
        """
        generation = asked = self._drain.core.request_flush()
        while True:
            try:
                async with asyncio.timeout(_ANSWER_S):
                    await self._drain.reached(self._stream.drained_generation, generation)
            except TimeoutError:
                silent = self._stream.silent_shard(asked)
                if silent >= 0:
                    raise ShardSilent(silent, _ANSWER_S) from None
                asked = self._drain.core.request_flush()
            else:
                return generation

    async def written_pass(self) -> None:
        """Wait until all that is in the rings now is on disk, or lost. Raises ShardSilent."""
        await self.written(await self.full_pass())

    async def answered(self, rings: Iterable[_core.Ring | _core.AuxRing]) -> None:
        """Wait as `Drain.answered` does."""
        await self._drain.answered(rings)

    async def written(self, generation: int) -> None:
        """Wait until all that was drained up to this generation is on disk, or lost."""
        await self._drain.reached(self._stream.written_generation, generation)
