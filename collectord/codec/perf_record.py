# SPDX-License-Identifier: Apache-2.0
"""Perf records in general: header, id trailer, walks over a buffer of them, and samples.

Every record is `struct perf_event_header` {u32 type, u16 misc, u16 size}, a body, and, for the
kernel's own types but SAMPLE under `sample_id_all`, a trailer of ids
(include/uapi/linux/perf_event.h). Bodies are in perf_sideband.

Of a sample the fields up to RAW are read, in the order of perf_output_sample() in
kernel/events/core.c. Those behind RAW (branch stack, registers, user stack, weights and later
ones) are left to tools.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntFlag
from typing import TYPE_CHECKING, Final, NamedTuple

from collectord.codec.perf_attr import (
    ID_TRAILER_ORDER,
    PerfEventAttr,
    RecordType,
    SampleType,
    id_trailer_bytes,
)
from collectord.errors import CodecError

if TYPE_CHECKING:
    from collections.abc import Iterator

HEADER_BYTES: Final = 8
# The size field has 16 bits and records are whole words.
RECORD_MAX_BYTES: Final = 65528
# AUXTRACE up to the payload that follows it.
AUXTRACE_BYTES: Final = 48
PAGE_BYTES: Final = 4096

_HEADER: Final = struct.Struct("<IHH")
_TWO_U32: Final = struct.Struct("<II")
_U64: Final = struct.Struct("<Q")
_AUXTRACE: Final = int(RecordType.AUXTRACE)
# Its payload follows the record and is not in `size`; it occurs in pipe mode only.
_TRACING_DATA: Final = int(RecordType.HEADER_TRACING_DATA)
RAW_SAMPLE_NEEDS: Final = (
    SampleType.IDENTIFIER | SampleType.TID | SampleType.TIME | SampleType.CPU | SampleType.RAW
)
# The one-word fields before READ, in the record's order.
_WORDS: Final = (
    SampleType.IDENTIFIER,
    SampleType.IP,
    SampleType.TID,
    SampleType.TIME,
    SampleType.ADDR,
    SampleType.ID,
    SampleType.STREAM_ID,
    SampleType.CPU,
    SampleType.PERIOD,
)


class Misc(IntFlag):
    """`perf_event_header.misc`, PERF_RECORD_MISC_*; bits 12 to 15 have a meaning per type."""

    KERNEL = 1
    USER = 2
    HYPERVISOR = 3
    GUEST_KERNEL = 4
    GUEST_USER = 5
    CPUMODE_MASK = 7
    PROC_MAP_PARSE_TIMEOUT = 1 << 12
    MMAP_DATA = 1 << 13
    COMM_EXEC = 1 << 13
    FORK_EXEC = 1 << 13
    SWITCH_OUT = 1 << 13
    EXACT_IP = 1 << 14
    SWITCH_OUT_PREEMPT = 1 << 14
    MMAP_BUILD_ID = 1 << 14
    BUILD_ID_SIZE = 1 << 15
    LOST_SAMPLES_BPF = 1 << 15


class RecordHeader(NamedTuple):
    """A record's header, and the record's offset in the buffer it was read from."""

    type: int
    misc: int
    size: int
    offset: int


@dataclass(frozen=True, slots=True)
class SampleId:
    """The trailer's values; the attr's `sample_type` decides which are written."""

    pid: int = 0
    tid: int = 0
    time_ns: int = 0
    id: int = 0
    stream_id: int = 0
    cpu: int = 0


_TRAILER_FIELDS: Final = {
    SampleType.TIME: "time_ns",
    SampleType.ID: "id",
    SampleType.STREAM_ID: "stream_id",
    SampleType.IDENTIFIER: "id",
}


def frame(kind: int, misc: int, body: bytes) -> bytes:
    """Put a header before `body`.

    Raises:
        CodecError: the record is not a multiple of 8 bytes, or exceeds its size field.
    """
    size = HEADER_BYTES + len(body)
    if size % 8 or size > RECORD_MAX_BYTES:
        raise CodecError(f"record of {size} bytes", offset=6, reason="record_size")
    return _HEADER.pack(kind, misc, size) + body


def encode_sample_id(attr: PerfEventAttr, sample_id: SampleId) -> bytes:
    """Return the trailer, empty without `sample_id_all`."""
    if not attr.sample_id_all:
        return b""
    parts = {
        SampleType.TID: _TWO_U32.pack(sample_id.pid, sample_id.tid),
        SampleType.TIME: _U64.pack(sample_id.time_ns),
        SampleType.ID: _U64.pack(sample_id.id),
        SampleType.STREAM_ID: _U64.pack(sample_id.stream_id),
        SampleType.CPU: _TWO_U32.pack(sample_id.cpu, 0),
        SampleType.IDENTIFIER: _U64.pack(sample_id.id),
    }
    return b"".join(parts[bit] for bit in ID_TRAILER_ORDER if attr.sample_type & bit)


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


def body_end(header: RecordHeader, attr: PerfEventAttr) -> int:
    """Return the offset in the buffer of the end of a record's body, where its trailer begins."""
    has_trailer = header.type <= RecordType.AUX_OUTPUT_HW_ID and header.type != RecordType.SAMPLE
    trailer = id_trailer_bytes(attr) if has_trailer else 0
    if header.size < HEADER_BYTES + trailer:
        raise CodecError("no room for the ids", offset=header.offset, reason="record_size")
    return header.offset + header.size - trailer


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


def iter_records(data: bytes | memoryview, start: int = 0) -> Iterator[RecordHeader]:
    """Yield the headers of all records from `start` to the end of `data`.

    The payload of AUXTRACE, which follows the record, is skipped.

    Raises:
        CodecError: a size is impossible or reaches past the end, or the type is TRACING_DATA,
            which does not occur in file mode.
    """
    at, end = start, len(data)
    while at < end:
        if end - at < HEADER_BYTES:
            raise CodecError("record header cut short", offset=at, reason="short")
        kind, misc, size = _HEADER.unpack_from(data, at)
        if size < HEADER_BYTES or size % 8:
            raise CodecError(f"record size {size}", offset=at, reason="record_size")
        if size > end - at:
            raise CodecError(f"record of {size} bytes cut short", offset=at, reason="short")
        if kind == _TRACING_DATA:
            raise CodecError(f"record type {kind}", offset=at, reason="record_payload")
        payload = payload_bytes(data, at) if kind == _AUXTRACE else 0
        if payload < 0:
            raise CodecError("AUXTRACE of odd size", offset=at, reason="record_size")
        if payload > end - at - size:
            raise CodecError(f"payload of {payload} bytes cut short", offset=at, reason="short")
        yield RecordHeader(kind, misc, size, at)
        at += size + payload


def payload_bytes(data: bytes | memoryview, at: int) -> int:
    """Return the bytes behind the whole AUXTRACE record at `at`; -1 if it is invalid.

    Payloads are padded to whole words, so that the next record is aligned.
    """
    size = _HEADER.unpack_from(data, at)[2]
    if size != AUXTRACE_BYTES:
        return -1
    payload = int(_U64.unpack_from(data, at + HEADER_BYTES)[0])
    return -1 if payload & 7 else payload


def word_offset(sample_type: int, field: SampleType) -> int:
    """Return the offset of a field before READ from the start of a SAMPLE, 0 without it."""
    if not sample_type & field:
        return 0
    return HEADER_BYTES + _U64.size * sum(
        bool(sample_type & bit) for bit in _WORDS[: _WORDS.index(field)]
    )


class RawSample(NamedTuple):
    """The fields of a sample that `RawSamples` reads."""

    pid: int
    tid: int
    time_ns: int
    cpu: int
    raw: bytes


class RawSamples:
    """Reads samples fast, for an event with all fields up to RAW at fixed offsets.

    Args:
        attr: the event; it carries RAW_SAMPLE_NEEDS, neither READ nor CALLCHAIN.

    Raises:
        CodecError: it carries other fields.
    """

    def __init__(self, attr: PerfEventAttr) -> None:
        needed = attr.sample_type & (RAW_SAMPLE_NEEDS | SampleType.READ | SampleType.CALLCHAIN)
        if needed != RAW_SAMPLE_NEEDS:
            raise CodecError(f"sample_type {attr.sample_type:#x}", offset=24, reason="sample_type")
        codes = {SampleType.TID: "II", SampleType.TIME: "Q", SampleType.CPU: "I4x"}
        words = "".join(codes.get(bit, "8x") for bit in _WORDS if attr.sample_type & bit)
        self._fields = struct.Struct(f"<{HEADER_BYTES}x{words}I")

    def decode(self, data: bytes | memoryview, at: int, size: int) -> RawSample:
        """Read the sample of `size` bytes at `at`. Raises CodecError if it is too short."""
        start = at + self._fields.size
        if start > at + size:
            raise CodecError("sample too short", offset=at, reason="short")
        pid, tid, time_ns, cpu, raw_bytes = self._fields.unpack_from(data, at)
        if start + raw_bytes > at + size:
            raise CodecError("raw data too long", offset=at, reason="raw")
        return RawSample(pid, tid, time_ns, cpu, bytes(data[start : start + raw_bytes]))
