# SPDX-License-Identifier: Apache-2.0
"""The compressed form of trace.dat, as trace-cmd writes it (trace-cmd.dat.v7.5.txt).

The file names its compression at its beginning. A compressed section has flag 1, and {u32 size in
the file, u32 size, frame}; the pages of a CPU are chunks: u32 count, and such a triple for each.
The OPTIONS section is as it was but for the offsets in it, and so is STRINGS. The BUFFER section
ends with what readers need not: where the pages of each CPU were, and how long the file was.
"""

from __future__ import annotations

import struct
from contextlib import closing
from typing import TYPE_CHECKING, Final, NamedTuple

from collectord.codec.cursor import U32, U64, Cursor
from collectord.codec.packed import (
    MARK,
    ZSTD_NAME,
    ZSTD_VERSION,
    Compressor,
    Decompressor,
    Piece,
    Pieces,
)
from collectord.codec.trace_dat import (
    CPU_EXTENT,
    FIRST_BYTES,
    OPTION,
    SECTION,
    UNCOMPRESSED,
    VERSION,
    OptionId,
    head_bytes,
    parse_head,
)
from collectord.codec.trace_dat_head import SECTION_BYTES
from collectord.codec.tracing_data import MAGIC
from collectord.errors import CodecError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping

_START_BYTES: Final = len(MAGIC) + len(VERSION) + 2 + U32.size  # up to the compression
_PACKED: Final = ZSTD_NAME.encode() + b"\0"
_FLAG: Final = 1
_SIZES: Final = struct.Struct("<II")
_CHUNK_BYTES: Final = 1 << 18
_CONTENTS_MAX_BYTES: Final = 1 << 26
_TRAILER: Final = struct.Struct("<QI8s")  # size of the file, number of places, magic
_CPUS_MAX: Final = 1 << 16
_SIZE_MAX: Final = (1 << 63) - 1  # off_t


class _Section(NamedTuple):
    """A section: `at` is where its header is."""

    at: int
    kind: int
    flags: int
    description: int
    size: int

    @property
    def contents_at(self) -> int:
        """The place where its contents begin."""
        return self.at + SECTION_BYTES

    def header(self, flags: int, size: int) -> bytes:
        """Return its header with other flags and another size."""
        return SECTION.pack(self.kind, flags, self.description, size)


def is_packed(first: bytes) -> bool:
    """Whether a file that begins so has the compressed form."""
    return first.startswith(MAGIC + VERSION) and first.startswith(_PACKED, _START_BYTES)


def pack(plain: memoryview) -> Pieces:
    """Yield the pieces of the compressed form. Raises CodecError if there is none."""
    head = parse_head(bytes(plain[: head_bytes(bytes(plain[:FIRST_BYTES]))]))
    compressor = Compressor()
    first = bytes(plain[:_START_BYTES]) + _PACKED + ZSTD_VERSION.encode() + b"\0"
    first += U64.pack(len(first) + U64.size)
    yield Piece(0, first)
    at = options_at = len(first)
    moved = {}
    sections = list(_sections(plain, _options_at(plain, UNCOMPRESSED)))
    for section in sections:
        moved[section.at] = at
        if section.kind == OptionId.BUFFER:
            break
        with plain[section.contents_at :][: section.size] as contents:
            if section.kind in (OptionId.DONE, OptionId.STRINGS):
                part = section.header(0, section.size) + bytes(contents)
            else:
                frame = compressor.frame(contents)
                body = _SIZES.pack(len(frame), len(contents)) + frame
                part = section.header(_FLAG, len(body)) + body
        yield Piece(at, part)
        at += len(part)
    buffer = sections[-1]
    buffer_at, at = at, at + SECTION_BYTES
    places = {}
    for cpu, extent in head.extents.items():
        with plain[extent.offset :][: extent.size_bytes] as pages:
            chunks = _chunks(pages, compressor)
            start = at
            for part in chunks:
                yield Piece(at, part)
                at += len(part)
            places[cpu] = start, at - start
    rows = b"".join(
        CPU_EXTENT.pack(cpu, e.offset, e.size_bytes) for cpu, e in head.extents.items()
    )
    trailer = rows + _TRAILER.pack(len(plain), len(head.extents), MARK)
    yield Piece(at, trailer)
    at += len(trailer)
    yield Piece(buffer_at, buffer.header(_FLAG, at - buffer_at - SECTION_BYTES))
    options = sections[0]
    with plain[options.contents_at :][: options.size] as contents:
        yield Piece(options_at + SECTION_BYTES, _moved_options(contents, moved, places))


def unpack(packed: memoryview, *, lenient: bool = False) -> Pieces:
    """Yield the pieces of the file as it was. Raises CodecError."""
    decompressor = Decompressor(_CONTENTS_MAX_BYTES, lenient=lenient)
    size, places = _trailer(packed)
    first = bytes(packed[:_START_BYTES]) + UNCOMPRESSED
    first += U64.pack(len(first) + U64.size)
    yield Piece(0, first)
    at = len(first)
    moved = {}
    sections = list(_sections(packed, _options_at(packed, None)))
    for section in sections:
        moved[section.at] = at
        if section.kind == OptionId.BUFFER:
            break
        with packed[section.contents_at :][: section.size] as contents:
            body = bytes(contents)
            if section.flags:
                body = _triple(contents, 0, section.contents_at, decompressor)[0]
        yield Piece(at, section.header(0, len(body)))
        if section.kind != OptionId.DONE:
            yield Piece(at + SECTION_BYTES, body)
        at += SECTION_BYTES + len(body)
    options, buffer = sections[0], sections[-1]
    if not at + SECTION_BYTES <= size <= _SIZE_MAX:
        raise CodecError(f"a file of {size} bytes", offset=at, reason="size")
    yield Piece(at, buffer.header(0, size - at - SECTION_BYTES))
    with packed[options.contents_at :][: options.size] as contents:
        yield Piece(len(first) + SECTION_BYTES, _moved_options(contents, moved, places))
        rows = _cpu_rows(contents)
    for cpu, start, length in rows:
        with closing(_pages(packed, start, length, decompressor)) as pages:  # a part of a map
            yield from _pages_of(cpu, pages, places[cpu])
    yield Piece(size, b"")


def _options_at(file: memoryview, compression: bytes | None) -> int:
    cursor = Cursor(bytes(file[:FIRST_BYTES]), _START_BYTES)
    if compression is None:
        cursor.string()
        cursor.string()
    else:
        cursor.expect(compression)
    return cursor.number(U64)


def _sections(file: memoryview, at: int) -> Iterator[_Section]:
    """Yield the sections up to BUFFER, which is the last one."""
    while at + SECTION_BYTES <= len(file):
        section = _Section(at, *SECTION.unpack_from(file, at))
        if section.contents_at + section.size > len(file):
            break
        yield section
        if section.kind == OptionId.BUFFER:
            return
        at = section.contents_at + section.size
    raise CodecError("no BUFFER section", offset=at, reason="layout")


def _chunks(pages: memoryview, compressor: Compressor) -> Iterator[bytes]:
    """Yield the chunks of a CPU; nothing if it has no pages."""
    if len(pages):
        yield U32.pack(-(-len(pages) // _CHUNK_BYTES))
    for at in range(0, len(pages), _CHUNK_BYTES):
        with pages[at : at + _CHUNK_BYTES] as chunk:
            frame = compressor.frame(chunk)
            yield _SIZES.pack(len(frame), len(chunk)) + frame


def _pages(
    packed: memoryview, at: int, size: int, decompressor: Decompressor
) -> Generator[bytes, None, None]:
    """Yield what the chunks of a CPU contain; nothing if it has none."""
    if not size:
        return
    with packed[at:][:size] as chunks:
        if len(chunks) < U32.size:
            raise CodecError("chunks are cut short", offset=at, reason="short")
        (count,) = U32.unpack_from(chunks)
        past = U32.size
        for _ in range(count):
            pages, past = _triple(chunks, past, at, decompressor)
            yield pages


def _pages_of(cpu: int, pages: Iterator[bytes], place: tuple[int, int]) -> Iterator[Piece]:
    """Yield the pages of a CPU, which fill their {offset, size}."""
    offset, past = place[0], sum(place)
    for some in pages:
        if offset + len(some) > past:
            raise CodecError(f"too many pages of CPU {cpu}", offset=offset, reason="size")
        yield Piece(offset, some)
        offset += len(some)
    if offset != past:
        raise CodecError(f"too few pages of CPU {cpu}", offset=offset, reason="size")


def _triple(data: memoryview, at: int, base: int, decompressor: Decompressor) -> tuple[bytes, int]:
    """Return the contents of {size in the file, size, frame}, and where it ends."""
    if len(data) - at < _SIZES.size:
        raise CodecError("a chunk is cut short", offset=base + at, reason="short")
    packed_bytes, size = _SIZES.unpack_from(data, at)
    end = at + _SIZES.size + packed_bytes
    if end > len(data):
        raise CodecError("a chunk is cut short", offset=base + at, reason="short")
    with data[at + _SIZES.size : end] as frame:
        contents = decompressor.contents(frame, base + at)
    if len(contents) != size:
        raise CodecError(f"chunk of {size} bytes", offset=base + at, reason="size")
    return contents, end


def _trailer(packed: memoryview) -> tuple[int, dict[int, tuple[int, int]]]:
    """Return the size of the file, and the place of each CPU's pages."""
    at = len(packed) - _TRAILER.size
    if at < 0 or bytes(packed[-len(MARK) :]) != MARK:
        raise CodecError("another program compressed it", offset=0, reason="compressed")
    size, count, _ = _TRAILER.unpack_from(packed, at)
    first = at - count * CPU_EXTENT.size
    if not 0 < count <= _CPUS_MAX or first < 0:
        raise CodecError(f"places of {count} CPUs", offset=at, reason="cpus")
    rows = CPU_EXTENT.iter_unpack(bytes(packed[first:at]))
    return size, {cpu: (offset, length) for cpu, offset, length in rows}


def _cpu_rows(options: memoryview) -> list[tuple[int, int, int]]:
    """Return the table of CPUs in the BUFFER option."""
    for kind, at, size in _each_option(options):
        if kind == OptionId.BUFFER:
            return [CPU_EXTENT.unpack_from(options, row) for row in _rows(options, at, size)]
    raise CodecError("no BUFFER", offset=0, reason="layout")


def _each_option(options: memoryview) -> Iterator[tuple[int, int, int]]:
    """Yield each option: what it is about, and the place and the size of its value."""
    at = 0
    while at + OPTION.size <= len(options):
        kind, size = OPTION.unpack_from(options, at)
        at += OPTION.size
        if at + size > len(options):
            break
        yield kind, at, size
        at += size


def _rows(options: memoryview, at: int, size: int) -> range:
    """Return where the rows of the table of CPUs are, of a BUFFER option at a place."""
    cursor = Cursor(bytes(options[: at + size]), at)
    cursor.number(U64)
    cursor.string()
    cursor.string()
    cursor.number(U32)
    start = cursor.at + U32.size
    rows = cursor.number(U32) * CPU_EXTENT.size
    cursor.take(rows)
    return range(start, start + rows, CPU_EXTENT.size)


def _moved_options(
    options: memoryview, moved: Mapping[int, int], places: Mapping[int, tuple[int, int]]
) -> bytes:
    """Return the options with the offsets of sections and pages that have moved."""
    made = bytearray(options)
    for kind, at, size in _each_option(options):
        if kind == OptionId.BUFFER:
            for row in _rows(options, at, size):
                cpu, _, _ = CPU_EXTENT.unpack_from(made, row)
                if cpu not in places:
                    raise CodecError(f"no place of CPU {cpu}", offset=at, reason="cpus")
                CPU_EXTENT.pack_into(made, row, cpu, *places[cpu])
        elif kind not in _SECTIONS or size != U64.size:
            continue
        (offset,) = U64.unpack_from(made, at)
        if offset not in moved:
            raise CodecError(f"no section at {offset}", offset=at, reason="layout")
        U64.pack_into(made, at, moved[offset])
    return bytes(made)


_SECTIONS: Final = frozenset(
    {
        *(OptionId.STRINGS, OptionId.HEADER_INFO, OptionId.FTRACE_EVENTS),
        *(OptionId.EVENT_FORMATS, OptionId.KALLSYMS, OptionId.PRINTK, OptionId.CMDLINES),
    }
)
