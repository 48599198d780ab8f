# SPDX-License-Identifier: Apache-2.0
"""Sink stage: a data file of any format, as repair and verify use it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping

    from collectord._native._core import Sum
    from collectord.sink.manifest import Manifest, Span

# Stands where a repair has cut damage out: no piece of AUX data begins with it.
CUT: Final = b"CUT OUT\0"


class Check(StrEnum):
    """The subject of a check, in this order; a segment's first finding ends its checks."""

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
    """The offset and length of some bytes of a file."""

    offset: int
    bytes: int

    @property
    def end(self) -> int:
        """The offset behind the last byte."""
        return self.offset + self.bytes


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault; `detail` is one line for the user, `chunks` are the unsound parts."""

    check: Check
    detail: str
    chunks: tuple[Part, ...] = ()


class Track(NamedTuple):
    """A part of a file's data that was written on its own, from its beginning.

    Attributes:
        bytes: size of the whole records or sub-buffers.
        samples: events in them.
        sums: their checksums.
    """

    bytes: int
    samples: int
    sums: tuple[Sum, ...]


@dataclass(frozen=True, slots=True)
class Survey:
    """The data that can be kept of a file whose writer died.

    Attributes:
        tracks: by CPU if the CPUs have data of their own, else one with key -1.
        first_ns, last_ns: lowest and highest time of an event, 0 if there is none.
        cuts: damage between them, to be replaced in place by bytes that readers skip.
        cut_bytes: bytes behind them, to be given up.
        reason: why the kept data end there, "" if the data simply end.
        areas: bytes of trace by the CPU and the thread of the AUX area.
    """

    tracks: Mapping[int, Track] = field(default_factory=dict)
    first_ns: int = 0
    last_ns: int = 0
    cuts: tuple[Part, ...] = ()
    cut_bytes: int = 0
    reason: str = ""
    areas: Mapping[tuple[int, int], int] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """The size of the data that are kept."""
        return sum(track.bytes for track in self.tracks.values())

    @property
    def samples(self) -> int:
        """The number of events that are kept."""
        return sum(track.samples for track in self.tracks.values())


class Shown(NamedTuple):
    """The events that a file shows to readers; lowest and highest time are 0 if none has one."""

    samples: int
    first_ns: int
    last_ns: int


@dataclass(frozen=True, slots=True)
class FinishedFile:
    """Sizes and spans of a file that only lacks its name.

    Attributes:
        bytes: its length.
        allocated_bytes: size of its blocks.
        data_bytes: size of its spans of data.
        spans: its parts.
        offsets: CPU to the present offset of its data, for CPUs that have a part of their own.
        cuts: damaged parts, which readers skip.
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
        data_offset: offset of its data.
        data_bytes: size of its data according to its head.
        events: names of its events.
        offsets: CPU to the offset of its data, for CPUs that have a part of their own.
    """

    format: str
    source: str
    sparse: bool
    data_offset: int
    data_bytes: int
    events: tuple[str, ...]
    offsets: Mapping[int, int]

    def survey(self, sealed: Manifest | None = None) -> Survey:
        """Find all sound data, whether the head claims them or not.

        Args:
            sealed: the manifest of a file that was damaged since its seal; None if a writer was
                killed.
        """

    def shown(self) -> Shown | None:
        """Count the events that readers find in it now, also if it is written or was left open.

        None while it is being sealed, if data move meanwhile.
        """

    def finish(self, found: Survey) -> Generator[str, None, FinishedFile]:
        """Claim what is kept, give up the rest, wait for the disk; yields after each step."""

    def findings(self, view: memoryview, manifest: Manifest) -> Iterator[Finding]:
        """Yield the differences between the data of a sealed file and its manifest."""
