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
from enum import IntEnum, IntFlag
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
# Addresses of 32-bit processes, which have another vDSO, are below.
SHORT_ADDRESS_END: Final = 1 << 32

HEADER: Final = struct.Struct("<IHH")
_TWO_U32: Final = struct.Struct("<II")
_U64: Final = struct.Struct("<Q")
_AUXTRACE: Final = int(RecordType.AUXTRACE)
# Its payload follows the record and is not in `size`; it occurs in pipe mode only.
_TRACING_DATA: Final = int(RecordType.HEADER_TRACING_DATA)
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


class ChainMark(IntEnum):
    """Entries of call chains that are no addresses, PERF_CONTEXT_*: they tell what follows."""

    FIRST = (1 << 64) - 4095
    KERNEL = (1 << 64) - 128
    USER_DEFERRED = (1 << 64) - 640


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


def frame(kind: int, misc: int, body: bytes) -> bytes:
    """Put a header before `body`.

    Raises:
        CodecError: the record is not a multiple of 8 bytes, or exceeds its size field.
    """
    size = HEADER_BYTES + len(body)
    if size % 8 or size > RECORD_MAX_BYTES:
        raise CodecError(f"record of {size} bytes", offset=6, reason="record_size")
    return HEADER.pack(kind, misc, size) + body


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


def body_end(header: RecordHeader, attr: PerfEventAttr) -> int:
    """Return the offset in the buffer of the end of a record's body, where its trailer begins."""
    has_trailer = header.type <= RecordType.AUX_OUTPUT_HW_ID and header.type != RecordType.SAMPLE
    trailer = id_trailer_bytes(attr) if has_trailer else 0
    if header.size < HEADER_BYTES + trailer:
        raise CodecError("no room for the ids", offset=header.offset, reason="record_size")
    return header.offset + header.size - trailer


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
        kind, misc, size = HEADER.unpack_from(data, at)
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
    size = HEADER.unpack_from(data, at)[2]
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
