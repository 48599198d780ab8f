# SPDX-License-Identifier: Apache-2.0
"""Sink stage: the parts of a perf.data file around its data section, as one open file has them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from collectord.codec.perf_attr import EventType, SoftwareId, sample_time_offset
from collectord.codec.perf_data import (
    HEADER_BYTES,
    AttrSection,
    Head,
    build_tail,
    parse_head,
    parse_header,
)
from collectord.codec.perf_features import Features
from collectord.sink.manifest import Span
from collectord.sink.scan import xxh3
from collectord.sink.segment import write_all

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

T = TypeVar("T")

BLOCK_BYTES: Final = 512  # unit of st_blocks, whatever the filesystem's own is


@dataclass(frozen=True, slots=True)
class DataSection:
    """What a data section holds, when no more comes.

    Attributes:
        written_bytes: what the writer wrote, `xxh3` its hash.
        appended: records that the close adds behind it.
    """

    written_bytes: int
    xxh3: str
    appended: bytes
    first_ns: int
    last_ns: int


@dataclass(frozen=True, slots=True)
class FinishedFile:
    """Sizes and spans of a file that only lacks its name."""

    bytes: int
    allocated_bytes: int
    data_bytes: int
    spans: tuple[Span, ...]


def write_head(fd: int, head: Head) -> None:
    """Write all that precedes the data, wait for the disk, and free its cache."""
    write_all(fd, head.image, 0)
    os.fdatasync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def read_head(fd: int) -> Head:
    """Read back what `write_head` wrote, the header as it is by now.

    Raises:
        CodecError: the file does not begin with a whole head.
    """
    header = parse_header(os.pread(fd, HEADER_BYTES, 0))
    return parse_head(os.pread(fd, header.data.offset, 0))


def finish(fd: int, head: Head, data: DataSection) -> Generator[str, None, FinishedFile]:
    """Write the tail behind the data, cut the file there, write the header, wait for the disk.

    The tail goes into room that the writer has kept for it: cut first, and on a full disk another
    file takes that room.

    Yields after each step, and may be run again after any: nothing of the data is touched, and
    what follows the data never passes for a record (a feature table's entry has record size 0).
    """
    end = head.data_offset + data.written_bytes
    data_bytes = data.written_bytes + len(data.appended)
    times = (data.first_ns, data.last_ns) if data.last_ns else None
    sections, header = build_tail(head, data_bytes, Features(sample_time=times))
    tail = data.appended + sections
    write_all(fd, tail, end)
    yield "tail written"
    os.ftruncate(fd, end + len(tail))
    yield "cut"
    write_all(fd, header, 0)
    yield "header written"
    os.fdatasync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    yield "file synced"
    spans = (
        Span(
            part="head",
            offset=0,
            bytes=head.data_offset,
            xxh3=xxh3(header + head.image[len(header) :]),
        ),
        Span(part="data", offset=head.data_offset, bytes=data.written_bytes, xxh3=data.xxh3),
        Span(part="tail", offset=end, bytes=len(tail), xxh3=xxh3(tail)),
    )
    status = os.fstat(fd)
    return FinishedFile(
        bytes=status.st_size,
        allocated_bytes=status.st_blocks * BLOCK_BYTES,
        data_bytes=data_bytes,
        spans=spans,
    )


def run(steps: Generator[str, None, T]) -> T:
    """Do all steps and give their result."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result


def time_offset(attrs: Sequence[AttrSection]) -> int:
    """Where samples carry their time: 0 if nowhere, or if the events do not agree on it.

    A dummy event writes no samples, so its own layout does not matter.
    """
    offsets = {sample_time_offset(section.attr) for section in attrs if not _is_dummy(section)}
    return offsets.pop() if len(offsets) == 1 else 0


def _is_dummy(section: AttrSection) -> bool:
    attr = section.attr
    return attr.type == EventType.SOFTWARE and attr.config == SoftwareId.DUMMY
