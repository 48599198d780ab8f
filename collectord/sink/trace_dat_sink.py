# SPDX-License-Identifier: Apache-2.0
"""Sink stage: trace.dat segments, an extent for each CPU, readable at every moment."""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from collectord.codec.file_formats import TRACE_DAT
from collectord.codec.trace_dat import PAGE_BYTES, build_head
from collectord.sink.file_sink import UNLIMITED_BYTES, Contents, FileSink, Place
from collectord.sink.manifest import with_counts
from collectord.sink.scan import widest
from collectord.sink.segment import sink_errors
from collectord.sink.stored_file import Track
from collectord.sink.trace_file import (
    Recount,
    event_names,
    finish,
    holds_data,
    read_head,
    recount,
    standing,
    write_head,
    write_patches,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping

    from collectord._native._core import SegmentClosed
    from collectord.codec.trace_dat_head import Head, Metadata, Patch
    from collectord.plan.sink_plan import SinkPlan
    from collectord.sink.base import Closing, OpenSegment
    from collectord.sink.manifest import Identity
    from collectord.sink.stored_file import FinishedFile

# Room for each CPU if a segment has no limit: sparse, and within ext4's largest file.
_EXTENT_BYTES: Final = 64 << 30
_EXTENT_MIN_BYTES: Final = 1 << 20
# A segment without a successor continues in the rest of its extents: as far again, and if it is
# small much farther, since the next one waits while seals take longer than segments fill.
_EXTENT_PER_LIMIT: Final = 2
_EXTENT_PER_SMALL_LIMIT: Final = 32
_SMALL_EXTENT_BYTES: Final = 256 << 20
# Space that the writer allocates ahead for each CPU: for all CPUs together it is no more than this
# part of a segment's limit.
_STEP_BYTES: Final = 4 << 20
_AHEAD_PER_LIMIT: Final = 4
_NO_COMMS: Final = hash(())


class _Held(NamedTuple):
    """The contents of a closed file: tracks by ring, times of its first and last event."""

    tracks: Mapping[int, Track]
    first_ns: int
    last_ns: int


@dataclass(slots=True)
class _Shown:
    """The head of an open file, and the values last written over it."""

    head: Head
    sizes: Mapping[int, int] = field(default_factory=dict)
    stats: dict[int, str] = field(default_factory=dict)
    comms_hash: int = _NO_COMMS
    names: bytes = b""
    closing: bool = False
    held: _Held | None = None


class TraceDatSink(FileSink):
    """The trace.dat files of one page stream."""

    FORMAT = TRACE_DAT

    def __init__(
        self,
        plan: SinkPlan,
        identity: Identity,
        *,
        metadata: Metadata,
        cpus: Mapping[int, int],
        make_room: Callable[[int], bool] = lambda _need_bytes: False,
        comms: Callable[[], Mapping[int, bytes]] = dict,
        recount: bool = False,
    ) -> None:
        """Make the directory ready.

        Args:
            plan: says where the files go and when they end.
            identity: host and session of the files.
            metadata: formats of the events and whatever else readers need; has the size of a
                sub-buffer too.
            cpus: ring id to CPU.
            make_room: called with the bytes needed when the disk is full; True if some were freed.
            comms: returns the names of tasks known so far, by pid. Called from any thread.
            recount: sub-buffers go to the files unseen; the seal reads them once to count and hash
                them.

        Raises:
            SinkError: the directory cannot be made, read or written.
            CodecError: readers would refuse the metadata.
        """
        self._metadata = metadata
        self._cpus = dict(cpus)
        self._comms = comms
        self._recount = recount
        limit_bytes = plan.segment_bytes
        self._head = self._build(_extent_bytes(limit_bytes))
        self._shown: dict[int, _Shown] = {}
        super().__init__(plan, identity, events=event_names(metadata), make_room=make_room)

    def add_ring(self, ring: int, cpu: int) -> bool:
        """Give a ring an extent in later files; it has none in those that are open."""
        self._cpus[ring] = cpu
        self._head = self._build(self._capacity_bytes)
        return True

    def flush(
        self,
        segment: OpenSegment,
        track_bytes: Mapping[int, int],
        stats: Mapping[int, str] | None = None,
    ) -> None:
        """Claim what the file holds by now, and update the names of tasks and the statistics.

        Raises:
            SinkError: the file cannot be written.
        """
        # A seal has the last word on a file, and closes it: it sets its mark under the lock.
        with self._lock, sink_errors("cannot update the segment", segment.paths.partial):
            shown = self._shown.get(segment.token)
            if shown is None or shown.closing or segment.token not in self._open:
                return
            sizes = {self._cpus[ring]: size for ring, size in track_bytes.items()}
            write_patches(segment.meta_fd, self._changes(shown, stats or {}))
            if sizes != shown.sizes:
                write_patches(segment.meta_fd, [shown.head.sizes_patch(sizes)])
                shown.sizes = sizes

    def _changes(self, shown: _Shown, stats: Mapping[int, str]) -> Iterator[Patch]:
        """Yield patches for what the head lacks, except the sizes."""
        for cpu, text in stats.items():
            if cpu in shown.head.extents and shown.stats.get(cpu) != text:
                yield shown.head.cpustat_patch(cpu, text)
                shown.stats[cpu] = text
        comms = tuple(self._comms().items())
        comms_hash = hash(comms)  # a copy for each open file would be half a megabyte
        if comms_hash != shown.comms_hash:
            patch = shown.head.cmdlines_patch(comms)
            for at in range(0, len(patch.data), PAGE_BYTES):
                part = patch.data[at : at + PAGE_BYTES]
                if part != shown.names[at : at + PAGE_BYTES]:
                    yield patch._replace(offset=patch.offset + at, data=part)
            shown.names, shown.comms_hash = patch.data, comms_hash

    def _build(self, extent_bytes: int) -> Head:
        return build_head(self._metadata, sorted(set(self._cpus.values())), extent_bytes)

    def _begin(self, token: int, fd: int) -> Place:
        while True:
            shown = _Shown(self._head)
            try:
                write_head(fd, self._head, self._changes(shown, {}))
            except OSError as error:
                smaller = self._capacity_bytes // 2
                if error.errno != errno.EFBIG or smaller < _EXTENT_MIN_BYTES:
                    raise
                self._head = self._build(smaller)
            else:
                break
        self._shown[token] = shown
        extents = shown.head.extents
        limit_bytes = self._plan.segment_bytes or UNLIMITED_BYTES
        ahead_bytes = limit_bytes // _AHEAD_PER_LIMIT // len(extents)
        align = max(PAGE_BYTES, shown.head.sub_buffer_bytes)
        return Place(
            data_offset=len(shown.head.image),
            step_bytes=max(min(_STEP_BYTES, ahead_bytes) // align, 1) * align,
            offsets={ring: extents[cpu].offset for ring, cpu in self._cpus.items()},
            capacity_bytes=self._capacity_bytes,
        )

    @property
    def _capacity_bytes(self) -> int:
        return min(extent.capacity_bytes for extent in self._head.extents.values())

    def _finish(
        self, segment: OpenSegment, closed: SegmentClosed, closing: Closing
    ) -> Generator[str, None, tuple[FinishedFile, Contents]]:
        shown = self._shown[segment.token]
        with self._lock:
            again, shown.closing = shown.closing, True
        head, places = shown.head, None
        if again:  # a full disk interrupted it
            head = read_head(segment.meta_fd)
            places = standing(segment.meta_fd, head)
        held = self._hold(segment, closed)
        # The writes of a seal that was interrupted are not known.
        patches = self._changes(_Shown(head) if again else shown, closing.ring_stats)
        tracks = {self._cpus[ring]: track for ring, track in held.tracks.items()}
        file = yield from finish(segment.meta_fd, head, tracks, patches, places=places)
        counts = {ring: (track.samples, track.bytes) for ring, track in held.tracks.items()}
        samples = sum(track.samples for track in held.tracks.values())
        return file, Contents(
            rings=tuple(
                msgspec.structs.replace(
                    entry, offset=file.offsets.get(self._cpus.get(entry.ring, -1), 0)
                )
                for entry in with_counts(closing.rings, counts)
            ),
            first_ns=held.first_ns,
            last_ns=held.last_ns,
            records=samples,
            samples=samples,
            replayed=0,
        )

    def _hold(self, segment: OpenSegment, closed: SegmentClosed) -> _Held:
        """Return each ring's data in the file, as first found: the seal may move them later."""
        shown = self._shown[segment.token]
        if shown.held is None:
            seen = all(sums for _, size, sums in closed.tracks if size)
            recount = self._recount or not seen
            shown.held = self._recounted(segment, closed) if recount else _held_of(closed)
        return shown.held

    def _recounted(self, segment: OpenSegment, closed: SegmentClosed) -> _Held:
        counts = {}
        for ring, size, _ in closed.tracks:
            if ring not in segment.offsets:  # it has joined since
                continue
            counts[ring] = Recount(self._head.sub_buffer_bytes)
            recount(segment.meta_fd, segment.offsets[ring], size, counts[ring])
        times = widest((count.first_ns, count.last_ns) for count in counts.values())
        return _Held({ring: count.track for ring, count in counts.items()}, *times)

    def _held(self, segment: OpenSegment, closed: SegmentClosed) -> Mapping[int, int]:
        held = self._hold(segment, closed)
        return {ring: track.samples for ring, track in held.tracks.items()}

    def _is_empty(self, closed: SegmentClosed) -> bool:
        return not any(size for _, size, _ in closed.tracks)

    def _may_hold_data(self, segment: OpenSegment) -> bool:
        return holds_data(segment.meta_fd, self._shown[segment.token].head)

    def _forget(self, segment: OpenSegment) -> None:
        super()._forget(segment)
        self._shown.pop(segment.token, None)


def _held_of(closed: SegmentClosed) -> _Held:
    """Return the contents of a file whose pages the writer saw, as it reported them."""
    samples = {ring: count for ring, count, _ in closed.rings}
    tracks = {ring: Track(size, samples.get(ring, 0), sums) for ring, size, sums in closed.tracks}
    return _Held(tracks, closed.first_ns, closed.last_ns)


def _extent_bytes(limit_bytes: int) -> int:
    """Return the room for one CPU in a file that is to end at a limit, 0 for none."""
    most_bytes = max(_EXTENT_PER_LIMIT * limit_bytes, _SMALL_EXTENT_BYTES)
    return min(_EXTENT_PER_SMALL_LIMIT * limit_bytes, most_bytes) or _EXTENT_BYTES
