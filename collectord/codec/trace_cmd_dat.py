# SPDX-License-Identifier: Apache-2.0
"""Any trace.dat of version 7, also of trace-cmd: what reading its events takes.

`codec.trace_dat` reads the layout that this program writes, strictly; here the options may be in
any order and in several sections, sections may be compressed, and each instance has a buffer of
its own. The format is that of trace-cmd's Documentation/trace-cmd/trace-cmd.dat.v7.5.txt.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Final, NamedTuple

from collectord.codec.cursor import U32, U64, Cursor
from collectord.codec.packed import ZSTD_NAME, Decompressor
from collectord.codec.trace_dat import (
    CPU_EXTENT,
    OPTION,
    PAGE_BYTES,
    SECTION,
    SUB_BUFFER_MAX_BYTES,
    VERSION,
    OptionId,
)
from collectord.codec.trace_dat_head import PID_DIGITS
from collectord.codec.tracing_data import MAGIC, read_formats, read_systems
from collectord.errors import CodecError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    # Returns `size` bytes at an offset, or fewer where the file ends.
    Read = Callable[[int, int], bytes]

_FIRST_BYTES: Final = 256
_SECTION_MAX_BYTES: Final = 1 << 27
_FRAME_MAX_BYTES: Final = 1 << 26
_OPTION_SECTIONS_MAX: Final = 64
_COMPRESSED: Final = 1
_SIZES: Final = struct.Struct("<II")
_ZLIB_NAME: Final = "zlib"
_NO_COMPRESSION: Final = "none"
_NEEDED: Final = (OptionId.HEADER_INFO, OptionId.EVENT_FORMATS, OptionId.FTRACE_EVENTS)
_SECTIONS: Final = range(OptionId.STRINGS, OptionId.CMDLINES + 1)


class Track(NamedTuple):
    """The pages of one CPU, as they are in the file."""

    cpu: int
    offset: int
    bytes: int


class Buffer(NamedTuple):
    """The pages of one instance.

    Attributes:
        name: of the instance, "" for the top one.
        clock: of its stamps.
        page_bytes: size of a sub-buffer.
        tracks: one for each CPU.
        packed: they are compressed; `unpack` yields the pages.
    """

    name: str
    clock: str
    page_bytes: int
    tracks: tuple[Track, ...]
    packed: bool


class TraceDat(NamedTuple):
    """The part of a file that describes its events.

    Attributes:
        events: system to the `format` texts of its events.
        ftrace_events: `format` texts of ftrace's own.
        comms: names of tasks, by thread.
        buffers: of its instances.
        compression: the name of the algorithm, or "none".
    """

    events: Mapping[str, Sequence[bytes]]
    ftrace_events: Sequence[bytes]
    comms: Mapping[int, bytes]
    buffers: tuple[Buffer, ...]
    compression: str


class Parts(NamedTuple):
    """The descriptions in a file: all but its pages.

    Attributes:
        long_size_bytes: of the kernel.
        options: that stand for themselves: {kind, value}.
        sections: contents of those that describe events and tasks, by kind.
    """

    long_size_bytes: int
    options: tuple[tuple[int, bytes], ...]
    sections: Mapping[int, bytes]


class _Start(NamedTuple):
    long_size_bytes: int
    page_bytes: int
    compression: str
    options_at: int


def parse(read: Read) -> TraceDat:
    """Read what describes the events of a file.

    Raises:
        CodecError: it is no trace.dat of version 7, or a part that is needed is damaged.
    """
    start = _start(Cursor(read(0, _FIRST_BYTES)))
    places: dict[int, int] = {}
    buffers = []
    for kind, value in _options(read, start.options_at):
        if kind == OptionId.BUFFER:
            buffers.append(_buffer(read, Cursor(value), start.page_bytes))
        elif len(value) == U64.size:
            places[kind] = int.from_bytes(value, "little")

    def section(kind: OptionId) -> Cursor:
        if kind not in places:
            raise CodecError(f"no {kind.name}", offset=0, reason="layout")
        return Cursor(_contents(read, places[kind], start.compression))

    cmdlines = section(OptionId.CMDLINES)
    return TraceDat(
        events=read_systems(section(OptionId.EVENT_FORMATS)),
        ftrace_events=read_formats(section(OptionId.FTRACE_EVENTS)),
        comms=_comms(cmdlines.take(cmdlines.number(U64))),
        buffers=tuple(buffers),
        compression=start.compression,
    )


def read_buffers(read: Read) -> tuple[Buffer, ...]:
    """Read where the pages of each instance are. Raises CodecError as `parse`."""
    start = _start(Cursor(read(0, _FIRST_BYTES)))
    return tuple(
        _buffer(read, Cursor(value), start.page_bytes)
        for kind, value in _options(read, start.options_at)
        if kind == OptionId.BUFFER
    )


def read_parts(read: Read) -> Parts:
    """Read all that a file says beside its pages. Raises CodecError as `parse`."""
    start = _start(Cursor(read(0, _FIRST_BYTES)))
    options: list[tuple[int, bytes]] = []
    sections: dict[int, bytes] = {}
    for kind, value in _options(read, start.options_at):
        if kind not in _SECTIONS:
            options.append((kind, value))
        elif len(value) == U64.size and kind != OptionId.STRINGS:
            at = int.from_bytes(value, "little")
            sections[kind] = _contents(read, at, start.compression)
    for kind in _NEEDED:
        if kind not in sections:
            raise CodecError(f"no {kind.name}", offset=0, reason="layout")
    return Parts(start.long_size_bytes, tuple(options), sections)


def unpack(read: Read, track: Track, compression: str) -> Iterator[bytes]:
    """Yield the pages of a compressed track, in pieces.

    Raises:
        CodecError: a piece is damaged; those before it were yielded.
    """
    if not track.bytes:
        return
    (count,) = U32.unpack(_exactly(read, track.offset, U32.size))
    # trace-cmd does not count the number itself among the bytes of a track.
    at = track.offset + U32.size
    end = at + track.bytes
    for _ in range(count):
        packed_bytes, size = _SIZES.unpack(_exactly(read, at, _SIZES.size))
        if packed_bytes > end - at - _SIZES.size:
            raise CodecError("a chunk is cut short", offset=at, reason="short")
        yield _inflate(read, at + _SIZES.size, packed_bytes, size, compression)
        at += _SIZES.size + packed_bytes


def _exactly(read: Read, offset: int, size: int) -> bytes:
    found = read(offset, size)
    if len(found) != size:
        raise CodecError(f"{size} bytes reach past the end", offset=offset, reason="short")
    return found


def _start(cursor: Cursor) -> _Start:
    cursor.expect(MAGIC)
    at = cursor.at
    version = cursor.string()
    if version != VERSION.rstrip(b"\0"):
        told = version.decode(errors="backslashreplace")
        raise CodecError(f"version {told} of trace.dat", offset=at, reason="version")
    if cursor.take(1) != b"\0":
        raise CodecError("big-endian data", offset=cursor.at - 1, reason="byte_order")
    (long_size,) = cursor.take(1)
    page_bytes = cursor.number(U32)
    compression = cursor.string().decode(errors="backslashreplace")
    cursor.string()
    return _Start(long_size, page_bytes, compression, cursor.number(U64))


def _options(read: Read, at: int) -> Iterator[tuple[int, bytes]]:
    """Yield all options; a section of them ends with the place of the next, or 0."""
    for _ in range(_OPTION_SECTIONS_MAX):
        cursor = Cursor(_contents(read, at, _NO_COMPRESSION))
        while True:
            kind, size = OPTION.unpack(cursor.take(OPTION.size))
            value = cursor.take(size)
            if kind == OptionId.DONE:
                break
            yield kind, value
        at = int.from_bytes(value, "little")
        if not at:
            return
    raise CodecError("too many sections of options", offset=at, reason="layout")


def _buffer(read: Read, cursor: Cursor, default_page_bytes: int) -> Buffer:
    section_at = cursor.number(U64)
    name = cursor.string().decode(errors="backslashreplace")
    clock = cursor.string().decode(errors="backslashreplace")
    page_bytes = cursor.number(U32)
    if not page_bytes or not name:
        page_bytes = default_page_bytes
    if page_bytes & (page_bytes - 1) or not PAGE_BYTES <= page_bytes <= SUB_BUFFER_MAX_BYTES:
        raise CodecError(f"sub-buffers of {page_bytes} bytes", offset=0, reason="page_size")
    rows = (CPU_EXTENT.unpack(cursor.take(CPU_EXTENT.size)) for _ in range(cursor.number(U32)))
    tracks = tuple(Track(*row) for row in rows)
    _, flags, _, _ = SECTION.unpack(_exactly(read, section_at, SECTION.size))
    return Buffer(name, clock, page_bytes, tracks, bool(flags & _COMPRESSED))


def _contents(read: Read, at: int, compression: str) -> bytes:
    """Return the contents of a section."""
    _, flags, _, size = SECTION.unpack(_exactly(read, at, SECTION.size))
    at += SECTION.size
    if size > _SECTION_MAX_BYTES:
        raise CodecError(f"section of {size} bytes", offset=at, reason="size")
    if not flags & _COMPRESSED:
        return _exactly(read, at, size)
    packed_bytes, plain_bytes = _SIZES.unpack(_exactly(read, at, _SIZES.size))
    if packed_bytes > size:
        raise CodecError("a section is cut short", offset=at, reason="short")
    return _inflate(read, at + _SIZES.size, packed_bytes, plain_bytes, compression)


def _inflate(read: Read, at: int, packed_bytes: int, size: int, compression: str) -> bytes:
    if max(size, packed_bytes) > _FRAME_MAX_BYTES:
        raise CodecError(f"compressed data of {size} bytes", offset=at, reason="size")
    packed = _exactly(read, at, packed_bytes)
    if compression == ZSTD_NAME:
        frames = Decompressor(_FRAME_MAX_BYTES, lenient=False)
        found = frames.contents(memoryview(packed), at, size)
    elif compression == _ZLIB_NAME:
        try:
            found = zlib.decompressobj().decompress(packed, size + 1)
        except zlib.error as error:
            raise CodecError(f"compressed data: {error}", offset=at, reason="zlib") from error
    else:
        raise CodecError(f"compression by {compression}", offset=at, reason="compressed")
    if len(found) != size:
        raise CodecError(f"chunk of {size} bytes", offset=at, reason="size")
    return found


def _comms(lines: bytes) -> dict[int, bytes]:
    found = {}
    for line in filter(None, lines.splitlines()):
        pid, _, comm = line.partition(b" ")
        if pid.isdigit() and len(pid) <= PID_DIGITS:
            found[int(pid)] = comm.rstrip(b"\0")
    return found
