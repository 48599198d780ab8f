# SPDX-License-Identifier: Apache-2.0
"""Sink stage: the interface of all sinks, and the values that pass through it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from collectord.codec.perf_features import Features

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from collectord._native._core import SegmentClosed
    from collectord.folders.folder import Folder
    from collectord.model import ClockReading
    from collectord.sink.manifest import (
        Gap,
        Identity,
        Manifest,
        OpenManifest,
        RingEntry,
        SnapshotNote,
    )
    from collectord.sink.segment import SegmentPaths
    from collectord.sink.series import SeriesText


@dataclass(frozen=True, slots=True)
class Opening:
    """The facts known when a segment is created.

    Attributes:
        clock: reading at the creation.
        rings: the rings that will feed it.
        run: of an earlier process, whose segments this one continues; "" for the sink's own.
        stored_before: events in the segments of that process.
        gap: the gap before the run; None if no earlier run is known.
    """

    clock: ClockReading
    rings: tuple[RingEntry, ...]
    run: str = ""
    stored_before: int = 0
    gap: Gap | None = None


@dataclass(frozen=True, slots=True)
class Closing:
    """The facts known when a segment has received its last byte.

    Attributes:
        clock: reading at the close.
        rings: the rings that fed it; `samples` and `bytes` come from SegmentClosed.
        ledger: the balance over the segment. Its "produced" goes to the manifest's top level.
        flushes: readings at flushes since the segment was created, in order.
        lost_samples: event id to samples lost in this segment; zeros are left out.
        build_ids: path to build-id (hex), where known.
        features: contents of the file's feature sections that were not known at its start.
        ring_stats: CPU to the kernel's counters of its ring, as text for people.
        recovered: the data were left by a killed process and found by a later one.
        recut: makes the balance anew from the events that the seal found of each ring, by its id:
            for data that nobody has counted before.
        snapshot: the snapshot that a flight recorder's segment belongs to; None for a stream's.
        balances: at flush intervals since the segment before was sealed.
    """

    clock: ClockReading
    rings: tuple[RingEntry, ...]
    ledger: Mapping[str, Any]
    flushes: tuple[ClockReading, ...] = ()
    lost_samples: Mapping[int, int] = field(default_factory=dict)
    build_ids: Mapping[str, str] = field(default_factory=dict)
    features: Features = field(default_factory=Features)
    ring_stats: Mapping[int, str] = field(default_factory=dict)
    recovered: bool = False
    recut: Callable[[Mapping[int, int]], Mapping[str, Any]] | None = None
    snapshot: SnapshotNote | None = None
    balances: SeriesText | None = None


@dataclass(frozen=True, slots=True)
class OpenSegment:
    """A file that is ready for data, or receives them. The sink owns both fds.

    Attributes:
        token: passed to `Stream.prepare` or `prepare_pages`, and returned in SegmentClosed.
        fd: for the data; O_DIRECT unless the filesystem refuses it.
        meta_fd: buffered, for head and tail; holds the lock that keeps repairs away.
        data_offset: where data begin, in bytes, a multiple of 4096.
        limit_bytes: data after which the stream moves on to the next segment.
        step_bytes: space that the writer allocates ahead.
        tail_bytes: room that the seal needs behind the data, beside an index of AUX pieces.
        folder: the folder of its files.
        offsets: ring id to the offset of its sub-buffers, for formats that keep the rings apart.
        capacity_bytes: room for each ring, from its offset.
        files: ring id to the descriptor of its file, for segments that are sets of files.
        table: the beginning of each padding between records, see `Stream.prepare`.
        size_word: of its `size`: where the word is, and the offset from which it counts.
    """

    token: int
    fd: int
    meta_fd: int
    data_offset: int
    limit_bytes: int
    step_bytes: int
    folder: Folder
    paths: SegmentPaths
    manifest: OpenManifest
    offsets: Mapping[int, int] = field(default_factory=dict)
    capacity_bytes: int = 0
    tail_bytes: int = 0
    files: Mapping[int, int] = field(default_factory=dict)
    table: bytes = b""
    size_word: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """A sealed segment; `more` are other files of a set, whose rings are also in the manifest."""

    token: int
    path: Path
    manifest: Manifest
    more: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A segment that was closed without a seal.

    Attributes:
        left: files that stay unchanged, for a repair.
        events: ring id to the events that its file held, even if the file is gone.
        lost_events: ring id to the events whose file cannot be found any more.
        lost_aux_bytes: AUX ring id to the bytes that were lost with such a file.
        infos: the files of a set that were sealed nevertheless.
    """

    left: tuple[Path, ...] = ()
    events: Mapping[int, int] = field(default_factory=dict)
    lost_events: Mapping[int, int] = field(default_factory=dict)
    lost_aux_bytes: Mapping[int, int] = field(default_factory=dict)
    infos: tuple[SegmentInfo, ...] = ()


class SoFar(NamedTuple):
    """The segments that a sink has sealed: their session, their run, and their events in total."""

    identity: Identity
    run: str
    stored: int


class Sink(Protocol):
    """Files for one stream: prepared before they are needed, sealed after their last byte."""

    @property
    def so_far(self) -> SoFar:
        """The segments sealed so far, for a sink that continues them."""

    def next_segment(self, token: int, opening: Opening) -> OpenSegment:
        """Create the next file. Raises SinkError, also for ENOSPC; nothing is left behind."""

    def add_ring(self, ring: int, cpu: int) -> bool:
        """Take the data of one more ring, while no segment is created; called on the event loop.

        Returns:
            whether only segments that are created from now on have a place for it.
        """

    def catch_up(self) -> None:
        """Continue behind segments that a repair has sealed since this sink was opened.

        Raises SinkError.
        """

    def lead(self, segment: OpenSegment) -> None:
        """Let a link of a fixed name lead to the segment, which is the running one from now on.

        Does nothing for a segment that was sealed meanwhile, and for one that has a name of the
        user's. Raises SinkError.
        """

    def seal(
        self, segment: OpenSegment, closed: SegmentClosed, closing: Closing
    ) -> SegmentInfo | None:
        """Make the segment final; return None if it was empty and dropped. Raises SinkError."""

    def give_up(self, segment: OpenSegment, closed: SegmentClosed) -> GivenUp:
        """Close a segment that cannot be sealed, and leave its data for a repair."""

    def flush(
        self,
        segment: OpenSegment,
        track_bytes: Mapping[int, int],
        stats: Mapping[int, str] | None = None,
    ) -> None:
        """Show in the running file, and in any copy of it, what it holds by now.

        Does nothing for a segment that was sealed meanwhile, or if the format shows its data
        anyway. Raises SinkError; the next call makes up for it.

        Args:
            segment: the running one.
            track_bytes: ring id to bytes in the file, as `Stream.track_bytes` returns them.
            stats: CPU to the kernel's counters of its ring, as text for people.
        """

    def discard(self, segment: OpenSegment) -> None:
        """Delete a segment that never received data. Raises SinkError."""

    def close(self) -> None:
        """Discard what is still open."""
