# SPDX-License-Identifier: Apache-2.0
"""Sink stage: what the daemon needs of every sink, and the values that pass between them."""

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
    from collectord.sink.manifest import Identity, Manifest, OpenManifest, RingEntry, SnapshotNote
    from collectord.sink.segment import SegmentPaths


@dataclass(frozen=True, slots=True)
class Opening:
    """What is known when a segment is created.

    Attributes:
        clock: reading at the creation.
        rings: the rings that will feed it.
        run: of an earlier process, whose segments this one goes on with; "" for the sink's own.
        stored_before: events in the segments of that process.
    """

    clock: ClockReading
    rings: tuple[RingEntry, ...]
    run: str = ""
    stored_before: int = 0


@dataclass(frozen=True, slots=True)
class Closing:
    """What is known when a segment has got its last byte.

    Attributes:
        clock: reading at the close.
        rings: the rings that fed it; `samples` and `bytes` come from SegmentClosed.
        ledger: the balance over the segment. Its "produced" goes to the manifest's top level.
        flushes: readings at flushes since the segment was created, in order.
        lost_samples: event id to samples lost in this segment; zeros are left out.
        build_ids: path to build-id (hex), where known.
        features: what a file's feature sections say that was not known at its start.
        ring_stats: CPU to what the kernel counted of its ring, as text for people.
        recovered: the data are what a killed process left, found by a later one.
        recut: given what the seal found of each ring, by its id, makes the balance anew: for
            data that nobody has counted before.
        snapshot: what asked for a flight recorder's segment; None of a stream's.
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


@dataclass(frozen=True, slots=True)
class OpenSegment:
    """A file that is ready for, or receives, data. The sink owns both fds.

    Attributes:
        token: as `Stream.prepare` or `prepare_pages` takes it and SegmentClosed returns it.
        fd: for the data; O_DIRECT if `direct`.
        meta_fd: buffered, for head and tail; holds the lock that keeps repairs away.
        data_offset: where data begins, in bytes, a multiple of 4096.
        limit_bytes: data after which the stream moves on to the next segment.
        step_bytes: space that the writer allocates ahead.
        tail_bytes: room that the seal takes behind the data, beside an index of AUX pieces.
        direct: False where the filesystem refuses O_DIRECT.
        folder: where its names are.
        offsets: ring id to where its sub-buffers go, for formats that keep the rings apart.
        capacity_bytes: room for each ring from its offset on.
        files: ring id to the descriptor of its file, for segments that are sets of files.
    """

    token: int
    fd: int
    meta_fd: int
    data_offset: int
    limit_bytes: int
    step_bytes: int
    direct: bool
    folder: Folder
    paths: SegmentPaths
    manifest: OpenManifest
    offsets: Mapping[int, int] = field(default_factory=dict)
    capacity_bytes: int = 0
    tail_bytes: int = 0
    files: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """A sealed segment; `more` are other files of a set, whose rings the manifest tells too."""

    token: int
    path: Path
    manifest: Manifest
    more: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A segment that was closed without a seal.

    Attributes:
        left: files that are there as they were, for a repair.
        events: ring id to the events that its file held, gone or not.
        lost_events: the same of rings whose file nobody can find any more.
        lost_aux_bytes: AUX ring id to the bytes that went with such a file.
        infos: of files of a set that were sealed all the same.
    """

    left: tuple[Path, ...] = ()
    events: Mapping[int, int] = field(default_factory=dict)
    lost_events: Mapping[int, int] = field(default_factory=dict)
    lost_aux_bytes: Mapping[int, int] = field(default_factory=dict)
    infos: tuple[SegmentInfo, ...] = ()


class SoFar(NamedTuple):
    """The segments that a sink has sealed: their session, their run, their events together."""

    identity: Identity
    run: str
    stored: int


class Sink(Protocol):
    """Files for one stream: prepared before they are needed, sealed after their last byte."""

    @property
    def so_far(self) -> SoFar:
        """What is sealed by now, for whoever goes on with it."""

    def next_segment(self, token: int, opening: Opening) -> OpenSegment:
        """Create the next file. Raises SinkError, ENOSPC included; nothing is left behind."""

    def seal(
        self, segment: OpenSegment, closed: SegmentClosed, closing: Closing
    ) -> SegmentInfo | None:
        """Make the segment final; None if it held nothing and was dropped. Raises SinkError."""

    def give_up(self, segment: OpenSegment, closed: SegmentClosed) -> GivenUp:
        """Close a segment that cannot be sealed, and leave its data for a repair."""

    def flush(
        self,
        segment: OpenSegment,
        track_bytes: Mapping[int, int],
        stats: Mapping[int, str] | None = None,
    ) -> None:
        """Have the running file, and any copy of it, show what it holds by now.

        Does nothing for a segment that was sealed meanwhile, and where a format shows its data
        anyway. Raises SinkError; the next call makes up for it.

        Args:
            segment: the running one.
            track_bytes: ring id to bytes on the file, as `Stream.track_bytes` gives them.
            stats: CPU to what the kernel counts of its ring, as text for people.
        """

    def discard(self, segment: OpenSegment) -> None:
        """Delete a segment that never received data. Raises SinkError."""

    def close(self) -> None:
        """Discard what is still open."""
