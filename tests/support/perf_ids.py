# SPDX-License-Identifier: Apache-2.0
"""Headers and ids of single perf records, read for tests."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from collectord.codec.perf_attr import ID_TRAILER_ORDER, RecordType, SampleType
from collectord.codec.perf_record import HEADER_BYTES, RecordHeader, SampleId, body_end
from collectord.errors import CodecError

if TYPE_CHECKING:
    from collectord.codec.perf_attr import PerfEventAttr

_HEADER: Final = struct.Struct("<IHH")
_TWO_U32: Final = struct.Struct("<II")
_U64: Final = struct.Struct("<Q")
_TRAILER_FIELDS: Final = {
    SampleType.TIME: "time_ns",
    SampleType.ID: "id",
    SampleType.STREAM_ID: "stream_id",
    SampleType.IDENTIFIER: "id",
}


def decode_sample_id(
    data: bytes | memoryview, header: RecordHeader, attr: PerfEventAttr
) -> SampleId:
    """Read the trailer of a record that is not a SAMPLE; absent fields are 0.

    Raises:
        CodecError: the record is too short for its trailer.
    """
    at = body_end(header, attr)
    values: dict[str, int] = {}
    for bit in ID_TRAILER_ORDER if at < header.offset + header.size else ():
        if not attr.sample_type & bit:
            continue
        low, high = _TWO_U32.unpack_from(data, at)
        if bit is SampleType.TID:
            values |= {"pid": low, "tid": high}
        elif bit is SampleType.CPU:
            values["cpu"] = low
        else:
            values[_TRAILER_FIELDS[bit]] = low | high << 32
        at += 8
    return SampleId(**values)


def header_at(data: bytes | memoryview, at: int) -> RecordHeader:
    """Read the header of the record at `at`, which must be whole."""
    kind, misc, size = _HEADER.unpack_from(data, at)
    return RecordHeader(kind, misc, size, at)


def identifier(data: bytes | memoryview, header: RecordHeader) -> int:
    """Return the id of a record's event, if all events of the buffer carry IDENTIFIER.

    PERF_SAMPLE_IDENTIFIER comes first in a SAMPLE and last in all other records, so that it can be
    read without knowing the event.
    """
    if header.size < HEADER_BYTES + _U64.size:
        raise CodecError("no room for an id", offset=header.offset, reason="record_size")
    is_sample = header.type == RecordType.SAMPLE
    at = header.offset + (HEADER_BYTES if is_sample else header.size - _U64.size)
    (value,) = _U64.unpack_from(data, at)
    return int(value)
