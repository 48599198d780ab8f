# SPDX-License-Identifier: Apache-2.0
"""Read stage: the records of a compressed perf.data as they were, whoever compressed it.

`perf record -z` puts what it takes out of rings into records of a type of their own, as one
stream that goes on from record to record; files of this program have a frame in each. Other
records are between them as they are, even within a record of the stream: perf 6.1 keeps in its
compressor what exceeds a record of 64 KiB, and writes it with what it takes next. At its end that
goes into no file, and the last record is cut.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from collectord._native._columns import intact
from collectord.codec.packed import Stream
from collectord.codec.perf_attr import RecordType
from collectord.codec.perf_record import AUXTRACE_BYTES, HEADER, HEADER_BYTES, RECORD_MAX_BYTES
from collectord.errors import CodecError
from collectord.folders.folder import write_all
from collectord.sink.packing import contents_max_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

_WORD_BYTES: Final = 8
_U64: Final = struct.Struct("<Q")
_COMPRESSED: Final = (RecordType.COMPRESSED, RecordType.COMPRESSED2)
# These bytes stand where something could not be decompressed: the decoder takes it for damage.
_MARK: Final = HEADER.pack(RecordType.COMPRESSED, 0, HEADER_BYTES)


class _Part(NamedTuple):
    """A part of the stream, and the plain records before it.

    Attributes:
        plain: where those begin.
        record: the record that has the part, where they end.
        at: where the part begins.
        end: where it ends; before its start if its record is cut short.
    """

    plain: int
    record: int
    at: int
    end: int


def expand(packed: memoryview, start: int, end: int, copy: int) -> int:
    """Write the records between two offsets to another file, from the first on, decompressed.

    Args:
        packed: the file.
        start: where its records begin.
        end: where they end.
        copy: descriptor of the other file, which is empty.

    Returns:
        Where they end in the other file. A mark is where records are missing.
    """
    limit = contents_max_bytes(end)
    stream = Stream()
    to = whole = start  # the end of what was written, and of records in it that are surely whole
    is_missing = False
    for part in _parts(packed, start, end):
        if part.record > part.plain:
            with packed[part.plain : part.record] as plain:
                whole, to = _put(copy, plain, whole, to)
        before = to
        try:
            for contents in _contents(packed, part, stream, limit - to):
                write_all(copy, contents, to)
                to += len(contents)
            is_missing = is_missing and to == before
        except CodecError:
            # Whatever came out of it may be damaged as well.
            to = before if is_missing else _mark(copy, whole, before)
            whole, is_missing = to, True
    return to


def _contents(packed: memoryview, part: _Part, stream: Stream, most_bytes: int) -> Iterator[bytes]:
    if part.end < part.at:
        raise CodecError("cut short", offset=part.record, reason="short")
    with packed[part.at : part.end] as data:
        for contents in stream.contents(data, part.record):
            most_bytes -= len(contents)
            if most_bytes < 0:
                raise CodecError("more than any file has", offset=part.record, reason="size")
            yield contents


def _put(copy: int, plain: memoryview, whole: int, end: int) -> tuple[int, int]:
    """Put plain records behind the last whole record of a copy, before the begun one.

    Returns:
        Where they end, and the end of the copy.
    """
    os.ftruncate(copy, end)
    at = intact(copy, whole)
    begun = os.pread(copy, end - at, at) if end - at <= RECORD_MAX_BYTES else b""
    at = end - len(begun)
    write_all(copy, plain, at)
    whole = at + len(plain)
    write_all(copy, begun, whole)
    return whole, whole + len(begun)


def _mark(copy: int, whole: int, end: int) -> int:
    """Put a mark behind the last whole record of a copy, and return its end."""
    os.ftruncate(copy, end)
    at = intact(copy, whole)
    write_all(copy, _MARK, at)
    os.ftruncate(copy, at + len(_MARK))
    return at + len(_MARK)


def _parts(packed: memoryview, start: int, end: int) -> Iterator[_Part]:
    """Yield the parts of the stream in order.

    The last one is empty. What begins with something that is no record is plain up to the end:
    the decoder finds it.
    """
    at = plain = start
    while end - at >= HEADER_BYTES:
        kind, _, size = HEADER.unpack_from(packed, at)
        after = at + size
        if kind == RecordType.AUXTRACE and AUXTRACE_BYTES <= size <= end - at:
            after += _U64.unpack_from(packed, at + HEADER_BYTES)[0]
        if size < HEADER_BYTES or (after > end and kind not in _COMPRESSED):
            break
        if kind in _COMPRESSED:
            yield _part(packed, plain, at, after) if after <= end else _Part(plain, at, end, at)
            plain = after
        elif size % _WORD_BYTES:  # this program fills a word so, behind all records
            yield _Part(plain, at, after, after)
            plain = after
        at = after
    if plain < end:
        yield _Part(plain, end, end, end)


def _part(packed: memoryview, plain: int, record: int, end: int) -> _Part:
    kind, *_ = HEADER.unpack_from(packed, record)
    at = record + HEADER_BYTES
    if kind == RecordType.COMPRESSED2 and end - at >= _U64.size:
        (size,) = _U64.unpack_from(packed, at)
        at += _U64.size
        end = min(at + size, end)
    return _Part(plain, record, at, end)
