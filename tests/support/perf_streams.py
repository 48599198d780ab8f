# SPDX-License-Identifier: Apache-2.0
"""perf.data compressed as `perf record -z` does: one stream that goes on from record to record."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import zstandard

from collectord.codec.perf_attr import RecordType
from collectord.codec.perf_data import Section, parse_feature_table, parse_header
from collectord.codec.perf_record import iter_records
from collectord.codec.perf_section import Feature
from collectord.codec.perf_table import feature_table

if TYPE_CHECKING:
    from collections.abc import Iterator

_HEADER: Final = struct.Struct("<IHH")
_FEATURE: Final = struct.pack("<IIIII", 1, 1, 1, 5, 1 << 19)


def compress(
    plain: bytes,
    *,
    part_bytes: int,
    kind: RecordType = RecordType.COMPRESSED,
    late_bytes: int = 0,
) -> bytes:
    """Return a file as perf compresses it: parts end within records, rounds stay plain.

    Args:
        plain: the file.
        part_bytes: of the records in a part of the stream.
        kind: type of the records that have the parts.
        late_bytes: how much of a round stands behind its end, as what perf does not flush.
    """
    header = parse_header(plain)
    start, end = header.data.offset, header.data.offset + header.data.size
    sections = parse_feature_table(plain[end:], header, len(plain))
    data = b"".join(_data(plain[start:end], part_bytes, kind, late_bytes))
    shift = start + len(data) - end + 16  # of the tail: the table has one entry more
    moved = {bit: Section(at + shift if at >= end else at, n) for bit, (at, n) in sections.items()}
    # perf has features behind this one too.
    tail = plain[end + 16 * len(sections) :]
    placed = Section(start + len(data) + 16 * (len(sections) + 1), len(_FEATURE))
    moved = {
        bit: Section(at + len(_FEATURE) * (at >= placed.offset), n)
        for bit, (at, n) in moved.items()
    }
    told = header._replace(
        data=Section(start, len(data)), features=header.features | 1 << Feature.COMPRESSED
    )
    # Nor does its head say what features there are.
    head = told.encode() + bytes(8)
    table = feature_table({**moved, Feature.COMPRESSED: placed})
    return head + plain[len(head) : start] + data + table + _FEATURE + tail


def _data(records: bytes, part_bytes: int, kind: RecordType, late_bytes: int) -> Iterator[bytes]:
    stream = zstandard.ZstdCompressor(level=1).compressobj()
    first, late = 0, b""
    for record in iter_records(records):
        if record.type == RecordType.FINISHED_ROUND:
            taken = late + records[first : record.offset]
            now = len(taken) - late_bytes
            yield from _parts(stream, taken[:now], part_bytes, kind)
            yield records[record.offset : record.offset + record.size]
            first, late = record.offset + record.size, taken[now:]
    yield from _parts(stream, late + records[first:], part_bytes, kind)


def _parts(
    stream: zstandard.ZstdCompressionObj, records: bytes, part_bytes: int, kind: RecordType
) -> Iterator[bytes]:
    for at in range(0, len(records), part_bytes):
        part = stream.compress(records[at : at + part_bytes])
        part += stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        if kind == RecordType.COMPRESSED2:  # whose records are padded
            part = struct.pack("<Q", len(part)) + part + bytes(-len(part) % 8)
        yield _HEADER.pack(kind, 0, _HEADER.size + len(part)) + part
