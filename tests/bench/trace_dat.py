# SPDX-License-Identifier: Apache-2.0
"""Contents of an uncompressed trace.dat file of version 7, by trace-cmd or collectord."""

from __future__ import annotations

import mmap
import re
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from collectord._native import _core

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAGIC: Final = b"\x17\x08\x44tracing"
# trace.dat.5: what follows the magic, section headers, and the options that count here.
_ENDIAN_BYTES: Final = 2
_SECTION: Final = struct.Struct("=HHIQ")
_OPTION: Final = struct.Struct("=HI")
_DONE: Final = 0
_CPUSTAT: Final = 2
_BUFFER: Final = 3
_COMPRESSED: Final = 1
# A sub-buffer: timestamp, commit word; an event begins with a header of one word.
_PAGE: Final = struct.Struct("=QI4x")
_LENGTH_MASK: Final = (1 << 27) - 1
_DATA_TYPES: Final = range(1, 29)
# The events among them that the kernel refused or overwrote.
_LOST: Final = re.compile(r"^(?:overrun|commit overrun|dropped events): (\d+)$", re.MULTILINE)


class Pages(NamedTuple):
    """Contents of the sub-buffers of a file.

    Attributes:
        data_bytes: size of events with their headers and time stamps, without unused space.
        lost: loss by the kernel's statistics of the rings.
        types: ids of the kinds of events that begin a sub-buffer.
    """

    events: int
    data_bytes: int
    lost: int
    types: frozenset[int]


class _Extent(NamedTuple):
    page_bytes: int
    offset: int
    size_bytes: int


def _string(data: mmap.mmap, at: int) -> tuple[str, int]:
    end = data.find(b"\0", at)
    return data[at:end].decode(), end + 1


def _options(data: mmap.mmap) -> Iterator[tuple[int, int, int]]:
    """Yield kind, place and size of each option, over the chain of their sections."""
    _, at = _string(data, len(MAGIC))
    at += _ENDIAN_BYTES + 4
    for _ in ("compressor", "its version"):
        _, at = _string(data, at)
    (section,) = struct.unpack_from("=Q", data, at)
    while section:
        _, flags, _, _ = _SECTION.unpack_from(data, section)
        if flags & _COMPRESSED:
            raise ValueError("compressed options")
        at = section + _SECTION.size
        section = 0
        while True:
            kind, size = _OPTION.unpack_from(data, at)
            at += _OPTION.size
            if kind == _DONE:
                (section,) = struct.unpack_from("=Q", data, at)
                break
            yield kind, at, size
            at += size


def _extents(data: mmap.mmap, option: int) -> Iterator[_Extent]:
    (section,) = struct.unpack_from("=Q", data, option)
    _, flags, _, _ = _SECTION.unpack_from(data, section)
    if flags & _COMPRESSED:
        raise ValueError("compressed pages")
    _, at = _string(data, option + 8)
    _, at = _string(data, at)
    page_bytes, cpus = struct.unpack_from("=II", data, at)
    for row in range(cpus):
        _, offset, size = struct.unpack_from("=IQQ", data, at + 8 + 20 * row)
        yield _Extent(page_bytes, offset, size)


def pages_in(path: Path) -> Pages:
    """Count what a file holds."""
    events = data_bytes = lost = 0
    types = set()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        extents: list[_Extent] = []
        for kind, at, size in _options(data):
            if kind == _BUFFER:
                extents += _extents(data, at)
            elif kind == _CPUSTAT:
                text = data[at : at + size].decode(errors="replace")
                lost += sum(int(number) for number in _LOST.findall(text))
        for extent in extents:
            pages = data[extent.offset : extent.offset + extent.size_bytes]
            scan = _core.scan_pages(pages, extent.page_bytes)
            if scan.fault != "ok":
                message = f"{path}: {scan.fault} at {extent.offset + scan.end}"
                raise ValueError(message)
            events += scan.events
            for start in range(0, scan.end, extent.page_bytes):
                _, commit = _PAGE.unpack_from(pages, start)
                data_bytes += commit & _LENGTH_MASK
                word, kind = struct.unpack_from("=IH", pages, start + _PAGE.size)
                if word & 31 in _DATA_TYPES:
                    types.add(kind)
    return Pages(events, data_bytes, lost, frozenset(types))
