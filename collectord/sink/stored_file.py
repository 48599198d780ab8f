# SPDX-License-Identifier: Apache-2.0
"""Sink stage: a data file as repair and verify take it, whatever its format is."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping

    from collectord._native._core import Sum
    from collectord.sink.manifest import Manifest, Span


class Check(StrEnum):
    """What was looked at, in this order; a segment's first finding ends its checks."""

    FILE = "file"
    MANIFEST = "manifest"
    VERSION = "version"
    SIZE = "size"
    HEAD = "head"
    CHECKSUM = "checksum"
    RECORDS = "records"
    COUNT = "count"
    CHAIN = "chain"


@dataclass(frozen=True, slots=True, order=True)
class Part:
    """Where some bytes of a file stand."""

    offset: int
    bytes: int

    @property
    def end(self) -> int:
        """What follows them."""
        return self.offset + self.bytes


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong; `detail` is one line for the user, `chunks` are what is not sound."""

    check: Check
    detail: str
    chunks: tuple[Part, ...] = ()


class Track(NamedTuple):
    """A part of a file's data that was written on its own, from its beginning.

    Attributes:
        bytes: of whole records or sub-buffers.
        samples: events in them.
        sums: their checksums.
    """

    bytes: int
    samples: int
    sums: tuple[Sum, ...]


@dataclass(frozen=True, slots=True)
class Survey:
    """What can be kept of a file whose writer died.

    Attributes:
        tracks: by CPU where the CPUs have data of their own, else one with key -1.
        first_ns, last_ns: lowest and highest time of an event, 0 where there is none.
        cuts: damage between them, to be made into what readers pass over, in place.
        cut_bytes: behind them, to be given up.
        reason: why the data end there, "" if they just do.
    """

    tracks: Mapping[int, Track] = field(default_factory=dict)
    first_ns: int = 0
    last_ns: int = 0
    cuts: tuple[Part, ...] = ()
    cut_bytes: int = 0
    reason: str = ""

    @property
    def bytes(self) -> int:
        """Data that are kept."""
        return sum(track.bytes for track in self.tracks.values())

    @property
    def samples(self) -> int:
        """Events that are kept."""
        return sum(track.samples for track in self.tracks.values())


@dataclass(frozen=True, slots=True)
class FinishedFile:
    """Sizes and spans of a file that only lacks its name.

    Attributes:
        bytes: its length.
        allocated_bytes: of its blocks.
        data_bytes: of its spans of data.
        spans: its parts.
        offsets: CPU to where its data begin by now, for CPUs that have a part of their own.
        cuts: what was damaged, and is passed over by readers.
    """

    bytes: int
    allocated_bytes: int
    data_bytes: int
    spans: tuple[Span, ...]
    offsets: Mapping[int, int] = field(default_factory=dict)
    cuts: tuple[Part, ...] = ()


class StoredFile(Protocol):
    """An open data file whose head was read.

    Attributes:
        format: of the file, as manifests name it.
        source: kind of the source that such files come from.
        sparse: there may be holes, and nothing else, between the spans of its manifest.
        data_offset: where its data begin.
        data_bytes: as it claims itself.
        events: names of its events.
        offsets: CPU to where its data begin, for CPUs that have a part of their own.
    """

    format: str
    source: str
    sparse: bool
    data_offset: int
    data_bytes: int
    events: tuple[str, ...]
    offsets: Mapping[int, int]

    def survey(self, sealed: Manifest | None = None) -> Survey:
        """Look for all that is sound, claimed or not.

        Args:
            sealed: of a file that was damaged since its seal; of others a killed writer left them.
        """

    def finish(self, found: Survey) -> Generator[str, None, FinishedFile]:
        """Claim what is kept, give up the rest, wait for the disk; yields after each step."""

    def findings(self, view: memoryview, manifest: Manifest) -> Iterator[Finding]:
        """Compare the data of a sealed file with its manifest."""
