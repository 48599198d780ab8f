# SPDX-License-Identifier: Apache-2.0
r"""Layout of a trace.dat file of version 7, whose metadata all stand before the data.

    0    magic 17 08 44 "tracing", "7\0", u8 big-endian?, u8 long size, u32 page size,
         compression "none\0" "\0", u64 offset of the OPTIONS section: right behind
         sections, each {u16 id, u16 flags, u32 description in STRINGS, u64 size, contents}:
           OPTIONS (0): VERSION, BUFFER, CPUCOUNT, TRACECLOCK, UNAME, a CPUSTAT with reserved room
             for each CPU, an offset for each section below, DONE
           HEADER_INFO, FTRACE_EVENTS, EVENT_FORMATS, KALLSYMS, PRINTK,
           CMDLINES (with reserved room), STRINGS
           BUFFER: the rest of the file: an extent for each CPU, aligned, of equal size while the
             file is written, and of the size of what is in it once it is sealed

The layout is that of trace-cmd's Documentation/trace-cmd/trace-cmd.dat.v7.5.txt. A file that has
its head and its full length is whole at every moment: readers see as much of each extent as the
size in the BUFFER option claims, pages of zeros are empty to them, and later facts are written
into rooms in place.

Readers take the page size of an unnamed buffer from the file's beginning, so that is the
sub-buffer size of the instance, whatever the machine's page size. They look for STRINGS from
section to section, so the last one must claim the extents: bytes that no section claims, zeros
above all, would be read as millions of section headers.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from collectord.codec.cursor import U32, U64, Cursor
from collectord.codec.ftrace_format import parse_header_page
from collectord.codec.trace_dat_head import (
    CPU_SIZE_AT,
    Extent,
    Head,
    Metadata,
    Room,
    stat_patch,
)
from collectord.codec.tracing_data import (
    MAGIC,
    build_formats,
    build_header_files,
    build_systems,
    read_formats,
    read_header_files,
    read_systems,
)
from collectord.errors import CodecError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PAGE_BYTES: Final = 4096
SUB_BUFFER_MAX_BYTES: Final = 1 << 20
CMDLINES_BYTES: Final = 256 * 1024
CPUSTAT_BYTES: Final = 512
# The bytes of a file's beginning that head_bytes() needs.
FIRST_BYTES: Final = 4096

VERSION: Final = b"7\0"
UNCOMPRESSED: Final = b"none\0\0"
SECTION: Final = struct.Struct("<HHIQ")
OPTION: Final = struct.Struct("<HI")
CPU_EXTENT: Final = struct.Struct("<IQQ")  # in the BUFFER option: CPU, offset, size
_WORD_BYTES: Final = 4
_FILE_MAX_BYTES: Final = 1 << 62


class OptionId(IntEnum):
    """The subject of an option, or of the section that it points to."""

    DONE = 0
    CPUSTAT = 2
    BUFFER = 3
    TRACECLOCK = 4
    UNAME = 5
    CPUCOUNT = 8
    VERSION = 9
    STRINGS = 15
    HEADER_INFO = 16
    FTRACE_EVENTS = 17
    EVENT_FORMATS = 18
    KALLSYMS = 19
    PRINTK = 20
    CMDLINES = 21
    BUFFER_TEXT = 22


# The names of sections that `trace-cmd dump` prints.
_DESCRIPTIONS: Final = {
    OptionId.DONE: b"options",
    OptionId.HEADER_INFO: b"headers",
    OptionId.FTRACE_EVENTS: b"ftrace events",
    OptionId.EVENT_FORMATS: b"events format",
    OptionId.KALLSYMS: b"kallsyms",
    OptionId.PRINTK: b"printk",
    OptionId.CMDLINES: b"command lines",
    OptionId.STRINGS: b"strings",
    OptionId.BUFFER: b"buffer flyrecord",
}


def build_head(
    metadata: Metadata,
    cpus: Sequence[int],
    extent_bytes: int,
    *,
    cmdlines_bytes: int = CMDLINES_BYTES,
    cpustat_bytes: int = CPUSTAT_BYTES,
) -> Head:
    """Lay out the head of a new file, which claims no data.

    Args:
        metadata: facts known when the file is opened.
        cpus: CPUs that get an extent.
        extent_bytes: room for each CPU's sub-buffers; rounded up to a multiple of their size and
            of 4096. Below 4 GiB, see `Extent.size_at`.
        cmdlines_bytes: room for names of tasks.
        cpustat_bytes: room for the statistics of each CPU.

    Raises:
        CodecError: readers would refuse the file for its CPUs, sizes or formats.
    """
    sub_buffer = parse_header_page(metadata.header_page).sub_buffer_bytes
    _check_sub_buffer(sub_buffer, offset=0)
    if not cpus or len(set(cpus)) != len(cpus) or min(cpus) < 0:
        raise CodecError(f"CPUs {cpus}", offset=0, reason="cpus")
    capacity = -(-extent_bytes // sub_buffer) * sub_buffer
    if not 0 < capacity * len(cpus) < _FILE_MAX_BYTES:
        raise CodecError(f"extents of {extent_bytes} bytes", offset=0, reason="size")
    first = MAGIC + VERSION + bytes((0, metadata.long_size_bytes))
    first += U32.pack(sub_buffer) + UNCOMPRESSED
    first += U64.pack(len(first) + U64.size)
    texts, described = strings()

    def section(kind: OptionId, contents: bytes) -> bytes:
        return SECTION.pack(kind, 0, described[kind], len(contents)) + contents

    contents = {
        OptionId.HEADER_INFO: build_header_files(metadata.header_page, metadata.header_event),
        OptionId.FTRACE_EVENTS: build_formats("ftrace", metadata.ftrace_events),
        OptionId.EVENT_FORMATS: build_systems(metadata.events),
        OptionId.KALLSYMS: U32.pack(len(metadata.kallsyms)) + metadata.kallsyms,
        OptionId.PRINTK: U32.pack(len(metadata.printk_formats)) + metadata.printk_formats,
        OptionId.CMDLINES: U64.pack(cmdlines_bytes) + b"\n" * cmdlines_bytes,
    }
    sections = {kind: section(kind, body) for kind, body in contents.items()}

    def place(starts: Mapping[OptionId, int], extents: Mapping[int, int]) -> bytes:
        before = len(first) + SECTION.size
        body = _options(
            metadata,
            before,
            starts=starts,
            extents=extents,
            sub_buffer_bytes=sub_buffer,
            cpustat_bytes=cpustat_bytes,
        )
        return section(OptionId.DONE, body)

    kinds = (*sections, OptionId.BUFFER)
    at = len(first) + len(place(dict.fromkeys(kinds, 0), dict.fromkeys(cpus, 0)))
    starts = {}
    for kind, body in sections.items():
        starts[kind] = at
        at += len(body)
    last = section(OptionId.STRINGS, texts)
    starts[OptionId.BUFFER] = at + len(last)
    data_from = starts[OptionId.BUFFER] + SECTION.size
    data_at = -(-data_from // sub_buffer) * sub_buffer
    extents = {cpu: data_at + capacity * index for index, cpu in enumerate(cpus)}
    rest = data_at - data_from + capacity * len(cpus)
    buffer = SECTION.pack(OptionId.BUFFER, 0, described[OptionId.BUFFER], rest)
    parts = (first, place(starts, extents), *sections.values(), last, buffer)
    return parse_head(b"".join(parts).ljust(data_at, b"\0"))


def strings() -> tuple[bytes, dict[OptionId, int]]:
    """Return the contents of the STRINGS section, and the offset of each description in it."""
    contents, places = b"", {}
    for kind, text in _DESCRIPTIONS.items():
        places[kind] = len(contents)
        contents += text + b"\0"
    return contents, places


def _options(
    metadata: Metadata,
    at: int,
    *,
    starts: Mapping[OptionId, int],
    extents: Mapping[int, int],
    sub_buffer_bytes: int,
    cpustat_bytes: int,
) -> bytes:
    """Return the contents of the OPTIONS section, which begin at `at`."""
    clock = metadata.clock.encode() + b"\0"
    buffer = U64.pack(starts[OptionId.BUFFER]) + b"\0" + clock
    buffer += U32.pack(sub_buffer_bytes) + U32.pack(len(extents))
    version = metadata.version.encode() + b"\0"
    version += bytes(-(at + 2 * OPTION.size + len(version) + len(buffer)) % _WORD_BYTES)
    buffer += b"".join(CPU_EXTENT.pack(cpu, offset, 0) for cpu, offset in extents.items())
    stat = Room(0, cpustat_bytes)
    options: list[tuple[OptionId, bytes]] = [
        (OptionId.VERSION, version),
        (OptionId.BUFFER, buffer),
        (OptionId.CPUCOUNT, U32.pack(max(extents) + 1)),
        (OptionId.TRACECLOCK, b"[" + clock[:-1] + b"]\0"),
        (OptionId.UNAME, metadata.uname.encode() + b"\0"),
        *((OptionId.CPUSTAT, stat_patch(stat, f"CPU: {cpu}\n").data) for cpu in extents),
        *((kind, U64.pack(start)) for kind, start in starts.items() if kind != OptionId.BUFFER),
        (OptionId.DONE, U64.pack(0)),
    ]
    return b"".join(OPTION.pack(kind, len(data)) + data for kind, data in options)


class _Start(NamedTuple):
    """The fields of the file before its first section."""

    long_size_bytes: int
    page_bytes: int
    options_at: int


class _Buffer(NamedTuple):
    """A BUFFER option: the section's offset, the clock, and the table of CPUs."""

    section_at: int
    clock: str
    table_at: int
    cpus: Sequence[tuple[int, int, int]]


class _Options(NamedTuple):
    """The contents of the OPTIONS section, and the offsets of other sections."""

    buffer: _Buffer
    texts: Mapping[int, str]
    stats: Sequence[Room]
    sections: Mapping[int, int]

    def enter(self, data: bytes, kind: OptionId) -> Cursor:
        """Return a cursor at the contents of a section."""
        if kind not in self.sections:
            raise CodecError(f"no {kind.name}", offset=0, reason="layout")
        cursor = Cursor(data, self.sections[kind])
        _section(cursor, kind)
        return cursor


def head_bytes(first: bytes) -> int:
    """Return the offset of the first extent: parse_head() needs the bytes before it.

    Args:
        first: the first FIRST_BYTES of the file, or all of it.

    Raises:
        CodecError: it is not a trace.dat of version 7 with its BUFFER at the beginning.
    """
    cursor = Cursor(first)
    cursor.at = _start(cursor).options_at
    _section(cursor, OptionId.DONE)
    while True:
        kind, size = OPTION.unpack(cursor.take(OPTION.size))
        if kind == OptionId.BUFFER:
            return _buffer(cursor, cursor.at, rows=1).cpus[0][1]
        if kind == OptionId.DONE:
            raise CodecError("no BUFFER", offset=cursor.at, reason="layout")
        cursor.take(size)


def parse_head(data: bytes) -> Head:
    """Read the head of a file that build_head() laid out, including later patches.

    Args:
        data: the file's bytes from 0 to at least `head_bytes()`.

    Raises:
        CodecError: it is not such a file, or its parts reach out of the bytes or contradict each
            other.
    """
    start = _start(Cursor(data))
    options = _read_options(Cursor(data, start.options_at))
    metadata = _read_metadata(data, start, options)
    cmdlines = options.enter(data, OptionId.CMDLINES)
    room_bytes = cmdlines.number(U64)
    room = Room(cmdlines.at, len(cmdlines.take(room_bytes)))
    last = Cursor(data, options.buffer.section_at)
    end = _section(last, OptionId.BUFFER) + last.at
    extents = _extents(options.buffer, options.stats, end)
    data_at = min(extent.offset for extent in extents.values())
    if not last.at <= data_at <= len(data):
        raise CodecError(f"data at {data_at}", offset=options.buffer.table_at, reason="layout")
    return Head(
        *(data[:data_at], metadata, start.page_bytes, extents, room, end),
        buffer_at=options.buffer.section_at,
    )


def _read_options(cursor: Cursor) -> _Options:
    """Read the OPTIONS section to its end."""
    start = cursor.at
    _section(cursor, OptionId.DONE)
    buffer = None
    texts: dict[int, str] = {}
    stats: list[Room] = []
    sections: dict[int, int] = {}
    while True:
        kind, size = OPTION.unpack(cursor.take(OPTION.size))
        at = cursor.at
        value = cursor.take(size)
        if kind == OptionId.DONE:
            break
        if kind == OptionId.BUFFER:
            buffer = _buffer(Cursor(value), at)
        elif kind == OptionId.CPUSTAT:
            stats.append(Room(at, size))
        elif kind in {OptionId.VERSION, OptionId.UNAME}:
            texts[kind] = value.partition(b"\0")[0].decode(errors="backslashreplace")
        elif size == U64.size:
            sections[kind] = int.from_bytes(value, "little")
    if buffer is None or len(buffer.cpus) != len(stats) or not all(r.size_bytes for r in stats):
        raise CodecError("no room for each CPU", offset=start, reason="layout")
    return _Options(buffer, texts, stats, sections)


def _read_metadata(data: bytes, start: _Start, options: _Options) -> Metadata:
    header_page, header_event = read_header_files(options.enter(data, OptionId.HEADER_INFO))
    kallsyms = options.enter(data, OptionId.KALLSYMS)
    printk = options.enter(data, OptionId.PRINTK)
    return Metadata(
        header_page=header_page,
        header_event=header_event,
        events=read_systems(options.enter(data, OptionId.EVENT_FORMATS)),
        ftrace_events=read_formats(options.enter(data, OptionId.FTRACE_EVENTS)),
        clock=options.buffer.clock,
        uname=options.texts.get(OptionId.UNAME, ""),
        version=options.texts.get(OptionId.VERSION, ""),
        printk_formats=printk.take(printk.number(U32)),
        kallsyms=kallsyms.take(kallsyms.number(U32)),
        long_size_bytes=start.long_size_bytes,
    )


def _start(cursor: Cursor) -> _Start:
    cursor.expect(MAGIC)
    cursor.expect(VERSION)
    if cursor.take(1) != b"\0":
        raise CodecError("big-endian data", offset=cursor.at - 1, reason="byte_order")
    long_size = cursor.take(1)[0]
    page_bytes = cursor.number(U32)
    _check_sub_buffer(page_bytes, offset=cursor.at - U32.size)
    cursor.expect(UNCOMPRESSED)
    return _Start(long_size, page_bytes, cursor.number(U64))


def _check_sub_buffer(size_bytes: int, offset: int) -> None:
    is_power = size_bytes & (size_bytes - 1) == 0
    if not (is_power and PAGE_BYTES <= size_bytes <= SUB_BUFFER_MAX_BYTES):
        raise CodecError(f"sub-buffers of {size_bytes} bytes", offset=offset, reason="page_size")


def _section(cursor: Cursor, kind: OptionId) -> int:
    """Skip a section's header, and return the size of its contents."""
    at = cursor.at
    found, flags, _, size = SECTION.unpack(cursor.take(SECTION.size))
    if found != kind or flags:
        message = f"section {found} with flags {flags:#x} in place of {kind.name}"
        raise CodecError(message, offset=at, reason="section")
    bytes_: int = size
    return bytes_


def _buffer(cursor: Cursor, at: int, rows: int | None = None) -> _Buffer:
    """Read a BUFFER option that begins at `at`: the first `rows` of its table, or all."""
    start = cursor.at
    section_at = cursor.number(U64)
    cursor.string()
    clock = cursor.string().decode(errors="backslashreplace")
    cursor.number(U32)
    count = cursor.number(U32)
    table_at = at + cursor.at - start
    if not count:
        raise CodecError("no CPU", offset=table_at, reason="cpus")
    rows = min(count, rows or count)
    cpus = tuple(CPU_EXTENT.unpack(cursor.take(CPU_EXTENT.size)) for _ in range(rows))
    return _Buffer(section_at, clock, table_at, cpus)


def _extents(buffer: _Buffer, stats: Sequence[Room], end: int) -> dict[int, Extent]:
    """Return the extents, which lie in the order of their table; the last one reaches to `end`.

    Those of a sealed file are as large as their contents.
    """
    ends = [*(offset for _, offset, _ in buffer.cpus[1:]), end]
    extents = {}
    for index, ((cpu, offset, size), past, stat) in enumerate(
        zip(buffer.cpus, ends, stats, strict=True)
    ):
        at = buffer.table_at + CPU_EXTENT.size * index
        if past < offset or cpu in extents:
            raise CodecError(f"extent of CPU {cpu}", offset=at, reason="extent")
        extents[cpu] = Extent(offset, past - offset, size, at + CPU_SIZE_AT, stat)
    return extents
