# SPDX-License-Identifier: Apache-2.0
"""The kernel's records about AUX traces, which the core passes on as they are."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from collectord.codec.perf_attr import RecordType
from collectord.codec.perf_record import HEADER_BYTES, Misc, body_end, encode_sample_id, frame
from collectord.errors import CodecError

if TYPE_CHECKING:
    from collectord.codec.perf_attr import PerfEventAttr
    from collectord.codec.perf_record import RecordHeader, SampleId

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
