# SPDX-License-Identifier: Apache-2.0
"""Records of AUX areas: the kernel's records about the trace, and the trace in a file.

The trace itself has two framings. AUXTRACE is perf's: a header of 48 bytes, followed by the
payload, which is not included in the record's size. Perf passes it to the decoder that
AUXTRACE_INFO names, and rejects a file that has one without the other. A trace for which perf has
no decoder is hidden from it, in FINISHED_INIT records that every reader skips by their size:

- AUXTRACE: header | u64 size, offset, reference; u32 idx, tid, cpu, pad | payload
- FINISHED_INIT: header | u64 magic | the same 40 bytes | payload

`size` is a multiple of 8, and `pad` is the number of its bytes that are not trace: perf calls that
field reserved. A piece is as long as the unread bytes; one longer than a record can hold is hidden
in several.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from collectord.codec.perf_attr import RecordType
from collectord.codec.perf_record import (
    AUXTRACE_BYTES,
    HEADER_BYTES,
    Misc,
    body_end,
    encode_sample_id,
    frame,
    iter_records,
)
from collectord.errors import CodecError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from collectord.codec.perf_attr import PerfEventAttr
    from collectord.codec.perf_record import RecordHeader, SampleId

# "COTDAUX1" in the file's byte order; tells a hidden piece from a chunk's padding.
HIDDEN_MAGIC: Final = 0x3158554144544F43
HIDDEN_BYTES: Final = 56

_PIECE: Final = struct.Struct("<QQQIiiI")
_MAGIC: Final = struct.Struct("<Q")
_U64: Final = struct.Struct("<Q")
_AUX: Final = struct.Struct("<QQQ")
_TASK: Final = struct.Struct("<II")


@dataclass(frozen=True, slots=True)
class Aux:
    """A note of `size` bytes of trace in the AUX area from `offset` on; `flags` are AUX_*."""

    offset: int
    size: int
    flags: int = 0


@dataclass(frozen=True, slots=True)
class ItraceStart:
    """A note that the trace of this task begins."""

    pid: int
    tid: int


@dataclass(frozen=True, slots=True)
class AuxOutputHwId:
    """The hardware's number in the trace for the event in the trailer."""

    hw_id: int


@dataclass(frozen=True, slots=True)
class SwitchCpuWide:
    """A note that the task in the trailer came onto its CPU, or (`is_out`) left it.

    `pid` and `tid` are those of the task before it, or after it.
    """

    pid: int
    tid: int
    is_out: bool = False


AuxRecord = Aux | ItraceStart | AuxOutputHwId | SwitchCpuWide


class AuxPiece(NamedTuple):
    """A run of trace in a data section.

    Attributes:
        idx: number of the queue, as perf counts them.
        cpu: -1 if the area belongs to a thread.
        tid: -1 if it belongs to a CPU.
        offset: position of the first byte in the trace, which continues from segment to segment.
        reference: value set by its recorder.
        record: offset of the record in the data.
        at: offset of the payload in the data.
        size: bytes of trace, without padding.
        hidden: framed so that perf skips it.
    """

    idx: int
    cpu: int
    tid: int
    offset: int
    reference: int
    record: int
    at: int
    size: int
    hidden: bool


def encode(record: AuxRecord, attr: PerfEventAttr, sample_id: SampleId) -> bytes:
    """Return the record as the kernel would write it for an event with `attr`.

    Raises:
        CodecError: a value does not fit its field.
    """
    misc = 0
    try:
        if isinstance(record, Aux):
            kind, body = RecordType.AUX, _AUX.pack(record.offset, record.size, record.flags)
        elif isinstance(record, ItraceStart):
            kind, body = RecordType.ITRACE_START, _TASK.pack(record.pid, record.tid)
        elif isinstance(record, AuxOutputHwId):
            kind, body = RecordType.AUX_OUTPUT_HW_ID, _U64.pack(record.hw_id)
        else:
            kind, body = RecordType.SWITCH_CPU_WIDE, _TASK.pack(record.pid, record.tid)
            misc = Misc.SWITCH_OUT if record.is_out else 0
        trailer = encode_sample_id(attr, sample_id)
    except struct.error as error:
        message = f"{type(record).__name__}: {error}"
        raise CodecError(message, offset=HEADER_BYTES, reason="record_value") from error
    return frame(kind, misc, body + trailer)


def decode(
    data: bytes | memoryview, header: RecordHeader, attr: PerfEventAttr
) -> AuxRecord | None:
    """Read a record's values; None for a type without a class here.

    Raises:
        CodecError: the record is too short for its type.
    """
    body = bytes(data[header.offset + HEADER_BYTES : body_end(header, attr)])
    try:
        if header.type == RecordType.AUX:
            return Aux(*_AUX.unpack_from(body))
        if header.type == RecordType.ITRACE_START:
            return ItraceStart(*_TASK.unpack_from(body))
        if header.type == RecordType.AUX_OUTPUT_HW_ID:
            return AuxOutputHwId(*_U64.unpack_from(body))
        if header.type == RecordType.SWITCH_CPU_WIDE:
            pid, tid = _TASK.unpack_from(body)
            return SwitchCpuWide(pid, tid, bool(header.misc & Misc.SWITCH_OUT))
    except struct.error as error:
        message = f"{RecordType(header.type).name} too short"
        raise CodecError(message, offset=header.offset, reason="record_size") from error
    return None


def piece_at(data: bytes | memoryview, header: RecordHeader) -> AuxPiece | None:
    """Read the piece of trace in a record, or right behind it; None for other records.

    Raises:
        CodecError: its sizes contradict each other, or reach past the end of the data.
    """
    at = header.offset + HEADER_BYTES
    if header.type == RecordType.AUXTRACE:
        start, hidden = header.offset + AUXTRACE_BYTES, False
    elif header.type == RecordType.FINISHED_INIT and _is_hidden(data, header):
        start, hidden = header.offset + HIDDEN_BYTES, True
        at += _MAGIC.size
    else:
        return None
    size, offset, reference, idx, tid, cpu, pad = _PIECE.unpack_from(data, at)
    room = header.offset + header.size - start if hidden else len(data) - start
    if size > room or size % 8 or pad >= 8 or pad > size:  # noqa: PLR2004 - pads to whole words
        message = f"AUX piece of {size} bytes, {pad} of them to pad"
        raise CodecError(message, offset=header.offset, reason="aux_size")
    return AuxPiece(
        idx=idx,
        cpu=cpu,
        tid=tid,
        offset=offset,
        reference=reference,
        record=header.offset,
        at=start,
        size=size - pad,
        hidden=hidden,
    )


def _is_hidden(data: bytes | memoryview, header: RecordHeader) -> bool:
    if header.size < HIDDEN_BYTES:
        return False
    (magic,) = _MAGIC.unpack_from(data, header.offset + HEADER_BYTES)
    return bool(magic == HIDDEN_MAGIC)


def iter_pieces(data: bytes | memoryview, start: int = 0) -> Iterator[AuxPiece]:
    """Yield the pieces of trace of a data section, in its order.

    Raises:
        CodecError: as `iter_records` and `piece_at`.
    """
    for header in iter_records(data, start):
        piece = piece_at(data, header)
        if piece is not None:
            yield piece


def auxtrace_index(data: bytes | memoryview) -> Iterator[int]:
    """Yield the offsets of the AUXTRACE records of a data section, as far as it is whole."""
    try:
        for header in iter_records(data):
            if header.type == RecordType.AUXTRACE:
                yield header.offset
    except CodecError:
        return
