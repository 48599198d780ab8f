# SPDX-License-Identifier: Apache-2.0
"""The compressed form of perf.data, as `perf record -z` writes it.

The records behind the head are in PERF_RECORD_COMPRESSED records, each with one frame. A record
may begin in one frame and end in the next. Head and tail are as they were, but that the header has
the feature COMPRESSED and the sizes of what follows. Its section, the file's last, has the size of
the buffer that perf decompresses a frame into. AUX data have no compressed form: perf looks for
them by their offset in the file.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from collectord.codec.packed import LEVEL, Compressor, Decompressor, Piece, Pieces
from collectord.codec.perf_attr import RecordType
from collectord.codec.perf_data import (
    FIRST_BYTES,
    HEADER_BYTES,
    Header,
    Section,
    head_bytes,
    parse_feature_table,
    parse_head,
    parse_header,
)
from collectord.codec.perf_record import HEADER, iter_records
from collectord.codec.perf_record import HEADER_BYTES as RECORD_BYTES
from collectord.codec.perf_section import MAGIC, Feature
from collectord.codec.perf_table import feature_table
from collectord.errors import CodecError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# version, type, level, ratio, mmap_len.
_SECTION: Final = struct.Struct("<IIIII")
_VERSION: Final = 1
_TYPE_ZSTD: Final = 1
# The contents of a frame, unless the frame does not fit into a record.
_PIECE_BYTES: Final = 1 << 19
_FRAME_MAX_BYTES: Final = 0xFFFF - RECORD_BYTES
# The most that a record of another writer may hold.
_CONTENTS_MAX_BYTES: Final = 1 << 24
_ENTRY_BYTES: Final = 16
_WORD: Final = 8


def is_packed(first: bytes) -> bool:
    """Whether a file that begins so has the compressed form."""
    if not first.startswith(MAGIC) or len(first) < HEADER_BYTES:
        return False
    try:
        return bool(parse_header(first).features >> Feature.COMPRESSED & 1)
    except CodecError:
        return False


def pack(plain: memoryview) -> Pieces:
    """Yield the pieces of the compressed form. Raises CodecError if there is none."""
    header, start = _begin(plain)
    end = header.data.offset + header.data.size
    sections = parse_feature_table(bytes(plain[end:]), header, len(plain))
    if Feature.AUXTRACE in sections or _has_aux(plain):
        raise CodecError("AUX data are not compressed", offset=start, reason="aux")
    if not header.sealed or Feature.COMPRESSED in sections or end <= start:
        raise CodecError("there is nothing to compress", offset=start, reason="empty")
    yield Piece(HEADER_BYTES, bytes(plain[HEADER_BYTES:start]))
    at = start
    with plain[start:end] as data:
        for record in _records(data):
            yield Piece(at, record)
            at += len(record)
    size = -at % _WORD
    if size:  # the table begins at a whole word, as it did
        record = HEADER.pack(RecordType.FINISHED_INIT, 0, RECORD_BYTES + size) + bytes(size)
        yield Piece(at, record)
        at += len(record)
    tail = bytes(plain[end + _ENTRY_BYTES * len(sections) :])
    shift = at - end + _ENTRY_BYTES
    moved = _moved(sections, end, shift)
    last = Section(end + shift + _ENTRY_BYTES * len(sections) + len(tail), _SECTION.size)
    yield Piece(at, feature_table({**moved, Feature.COMPRESSED: last}))
    yield Piece(last.offset - len(tail), tail)
    ratio = (end - start) // (at - start)
    yield Piece(last.offset, _SECTION.pack(_VERSION, _TYPE_ZSTD, LEVEL, ratio, _PIECE_BYTES))
    yield Piece(0, _with_data(header, at, header.features | 1 << Feature.COMPRESSED).encode())


def unpack(packed: memoryview, *, lenient: bool = False) -> Pieces:
    """Yield the pieces of the file as it was. Raises CodecError."""
    header, start = _begin(packed)
    end = header.data.offset + header.data.size
    sections = dict(parse_feature_table(bytes(packed[end:]), header, len(packed)))
    last = sections.pop(Feature.COMPRESSED, None)
    if last is None or last.offset + last.size != len(packed) or end < start:
        reason = "another program compressed it"
        raise CodecError(reason, offset=start, reason="compressed")
    yield Piece(HEADER_BYTES, bytes(packed[HEADER_BYTES:start]))
    at = start
    for contents in _contents(
        packed, Decompressor(_CONTENTS_MAX_BYTES, lenient=lenient), start, end
    ):
        yield Piece(at, contents)
        at += len(contents)
    shift = at - end - _ENTRY_BYTES
    yield Piece(at, feature_table(_moved(sections, end, shift)))
    behind = end + _ENTRY_BYTES * (len(sections) + 1)
    yield Piece(0, _with_data(header, at, header.features & ~(1 << Feature.COMPRESSED)).encode())
    yield Piece(behind + shift, bytes(packed[behind : last.offset]))


def _begin(file: memoryview) -> tuple[Header, int]:
    """Return the header, and where the records begin that are not in the head."""
    first = bytes(file[:FIRST_BYTES])
    header, start = parse_header(first), head_bytes(first)
    if not start <= header.data.offset + header.data.size <= len(file):
        raise CodecError("cut short", offset=len(file), reason="short")
    return header, start


def _has_aux(plain: memoryview) -> bool:
    head = parse_head(bytes(plain[: head_bytes(bytes(plain[:FIRST_BYTES]))]))
    return any(h.type == RecordType.AUXTRACE_INFO for h in iter_records(head.first_records))


def _with_data(header: Header, end: int, features: int) -> Header:
    at = header.data.offset
    return header._replace(data=Section(at, end - at), features=features)


def _moved(sections: Mapping[int, Section], end: int, shift: int) -> dict[int, Section]:
    """Return the sections after those behind the data have moved."""
    return {
        feature: Section(at + shift, size) if at >= end else Section(at, size)
        for feature, (at, size) in sections.items()
    }


def _records(data: memoryview) -> Iterator[bytes]:
    compressor = Compressor()
    at, piece_bytes = 0, _PIECE_BYTES
    while at < len(data):
        with data[at : at + piece_bytes] as piece:
            frame = compressor.frame(piece)
            size = len(piece)
        if len(frame) > _FRAME_MAX_BYTES:
            piece_bytes //= 2
            continue
        yield HEADER.pack(RecordType.COMPRESSED, 0, RECORD_BYTES + len(frame)) + frame
        at += size
        if len(frame) < _FRAME_MAX_BYTES // 3:
            piece_bytes = min(2 * piece_bytes, _PIECE_BYTES)


def _contents(
    packed: memoryview, decompressor: Decompressor, at: int, end: int
) -> Iterator[bytes]:
    while at < end:
        if end - at < RECORD_BYTES:
            raise CodecError("a record header is cut short", offset=at, reason="short")
        kind, _, size = HEADER.unpack_from(packed, at)
        if size < RECORD_BYTES or size > end - at:
            raise CodecError(f"record of size {size}", offset=at, reason="size")
        if kind == RecordType.COMPRESSED:
            with packed[at + RECORD_BYTES : at + size] as frame:
                yield decompressor.contents(frame, at)
        elif kind != RecordType.FINISHED_INIT:
            raise CodecError(f"record of type {kind}", offset=at, reason="type")
        at += size
