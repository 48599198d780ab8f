# SPDX-License-Identifier: Apache-2.0
"""Sideband records of all kinds, those that the program passes on without a look included."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from collectord.codec import perf_sideband
from collectord.codec.perf_attr import RecordType
from collectord.codec.perf_record import HEADER_BYTES, Misc, body_end, encode_sample_id, frame
from collectord.codec.perf_sideband import BpfEvent, Cgroup, Ksymbol, Lost, Mmap
from collectord.errors import CodecError

if TYPE_CHECKING:
    from collectord.codec.perf_attr import PerfEventAttr
    from collectord.codec.perf_record import RecordHeader, SampleId

_TASK: Final = struct.Struct("<IIIIQ")
_LOST: Final = struct.Struct("<QQ")
_THROTTLE: Final = struct.Struct("<QQQ")
_MMAP: Final = struct.Struct("<IIQQQ")
_KSYMBOL: Final = struct.Struct("<QIHH")
_BPF_EVENT: Final = struct.Struct("<HHI8s")
_U64: Final = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Exit:
    """The end of thread `tid` of `pid`; its parent is thread `ptid` of `ppid`."""

    pid: int
    ppid: int
    tid: int
    ptid: int
    time_ns: int


@dataclass(frozen=True, slots=True)
class Throttle:
    """A stop of event `id` until the next tick, or (`resumed`) its end."""

    time_ns: int
    id: int
    stream_id: int
    resumed: bool = False


Record = perf_sideband.Written | perf_sideband.Read | Exit | Throttle


def encode(record: Record, attr: PerfEventAttr, sample_id: SampleId) -> bytes:
    """Return the record as the kernel would write it for an event with `attr`."""
    match record:
        case Exit():
            kind = RecordType.EXIT
            body = _TASK.pack(record.pid, record.ppid, record.tid, record.ptid, record.time_ns)
        case Lost():
            kind, body = RecordType.LOST, _LOST.pack(record.id, record.lost)
        case Throttle():
            kind = RecordType.UNTHROTTLE if record.resumed else RecordType.THROTTLE
            body = _THROTTLE.pack(record.time_ns, record.id, record.stream_id)
        case _:
            return perf_sideband.encode(record, attr, sample_id)
    return frame(kind, 0, body + encode_sample_id(attr, sample_id))


def decode(data: bytes | memoryview, header: RecordHeader, attr: PerfEventAttr) -> Record | None:
    """Read a record's values; None for a type without a class here or in the program.

    Raises:
        CodecError: the record is too short for its type, or a string has no end.
    """
    body = bytes(data[header.offset + HEADER_BYTES : body_end(header, attr)])
    try:
        found = _cgroup(header, body) or _decoded(header, body)
    except struct.error as error:
        message = f"{RecordType(header.type).name} too short"
        raise CodecError(message, offset=header.offset, reason="record_size") from error
    return found or perf_sideband.decode(data, header, attr)


def _cgroup(header: RecordHeader, body: bytes) -> Cgroup | None:
    if header.type != RecordType.CGROUP:
        return None
    (number,) = _U64.unpack_from(body)
    return Cgroup(number, _name(header, body, _U64.size))


def _decoded(header: RecordHeader, body: bytes) -> Record | None:
    match header.type:
        case RecordType.EXIT:
            return Exit(*_TASK.unpack_from(body))
        case RecordType.THROTTLE | RecordType.UNTHROTTLE:
            time_ns, event, stream = _THROTTLE.unpack_from(body)
            return Throttle(time_ns, event, stream, header.type == RecordType.UNTHROTTLE)
        case RecordType.BPF_EVENT:
            return BpfEvent(*_BPF_EVENT.unpack_from(body))
        case RecordType.KSYMBOL:
            addr, length, kind, flags = _KSYMBOL.unpack_from(body)
            return Ksymbol(addr, length, kind, flags, _name(header, body, _KSYMBOL.size))
        case RecordType.MMAP:
            mode, is_data = header.misc & Misc.CPUMODE_MASK, bool(header.misc & Misc.MMAP_DATA)
            pid, tid, addr, length, pgoff = _MMAP.unpack_from(body)
            name = _name(header, body, _MMAP.size)
            return Mmap(pid, tid, addr, length, pgoff, name, mode, is_data)
    return None


def _name(header: RecordHeader, body: bytes, at: int) -> bytes:
    end = body.find(b"\0", at)
    if end < 0:
        raise CodecError("string without end", offset=header.offset, reason="string")
    return body[at:end]
