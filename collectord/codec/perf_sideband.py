# SPDX-License-Identifier: Apache-2.0
"""Values of sideband records: tasks, names, mappings, kernel symbols, loss.

Bodies are those of include/uapi/linux/perf_event.h; framing and trailer are perf_record's.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from collectord.codec.elf import BUILD_ID_MAX_BYTES
from collectord.codec.perf_attr import RecordType
from collectord.codec.perf_record import (
    HEADER_BYTES,
    Misc,
    RecordHeader,
    body_end,
    encode_sample_id,
    frame,
)
from collectord.errors import CodecError

if TYPE_CHECKING:
    from collectord.codec.perf_attr import PerfEventAttr
    from collectord.codec.perf_record import SampleId


class KsymbolType(IntEnum):
    """`ksym_type` of a KSYMBOL record."""

    UNKNOWN = 0
    BPF = 1
    OUT_OF_LINE = 2


KSYMBOL_UNREGISTER: Final = 1 << 0


@dataclass(frozen=True, slots=True)
class Comm:
    """A thread's new name; `is_exec`: set by exec."""

    pid: int
    tid: int
    comm: bytes
    is_exec: bool = False


@dataclass(frozen=True, slots=True)
class Mmap:
    """A mapping without device and inode: the kernel's text, modules, or `mmap` without `mmap2`.

    Lengths and offsets in bytes. For the kernel's text, `pid` is 2**32 - 1 and `pgoff` the
    address of the reference symbol that `filename` names ("[kernel.kallsyms]_text").
    """

    pid: int
    tid: int
    addr: int
    length: int
    pgoff: int
    filename: bytes
    cpumode: int = Misc.USER
    is_data: bool = False


@dataclass(frozen=True, slots=True)
class Mmap2:
    """A mapping of a file, identified by build-id if there is one, else by device and inode."""

    pid: int
    tid: int
    addr: int
    length: int
    pgoff: int
    prot: int
    flags: int
    filename: bytes
    build_id: bytes = b""
    major: int = 0
    minor: int = 0
    inode: int = 0
    inode_generation: int = 0
    cpumode: int = Misc.USER
    is_data: bool = False


@dataclass(frozen=True, slots=True)
class Fork:
    """The start of thread `tid` of `pid`; its parent is thread `ptid` of `ppid`."""

    pid: int
    ppid: int
    tid: int
    ptid: int
    time_ns: int


@dataclass(frozen=True, slots=True)
class Ksymbol:
    """Kernel text that appeared at `addr`, or disappeared (`flags` & KSYMBOL_UNREGISTER)."""

    addr: int
    length: int
    ksym_type: int
    flags: int
    name: bytes


class BpfEventType(IntEnum):
    """`type` of a BPF_EVENT record."""

    LOAD = 1
    UNLOAD = 2


@dataclass(frozen=True, slots=True)
class BpfEvent:
    """A BPF program that was loaded or unloaded; `tag` is that of its code, 8 bytes."""

    kind: int
    flags: int
    id: int
    tag: bytes


@dataclass(frozen=True, slots=True)
class Cgroup:
    """A cgroup; `path` is the one below the root of its hierarchy, which is "/"."""

    id: int
    path: bytes


@dataclass(frozen=True, slots=True)
class Lost:
    """A loss of `lost` records; `id` is the event that wrote next, not one that lost."""

    id: int
    lost: int


@dataclass(frozen=True, slots=True)
class LostSamples:
    """A loss of `lost` samples of the trailer's event; `by_bpf`: a BPF filter dropped them."""

    lost: int
    by_bpf: bool = False


Written = Comm | Mmap | Mmap2 | Fork | Ksymbol | BpfEvent | Cgroup | LostSamples
Read = Comm | Mmap2 | Fork | Lost | LostSamples

_TWO_U32: Final = struct.Struct("<II")
_TASK: Final = struct.Struct("<IIIIQ")
_MMAP: Final = struct.Struct("<IIQQQ")
_INODE: Final = struct.Struct("<IIQQ")
_KSYMBOL: Final = struct.Struct("<QIHH")
_BPF_EVENT: Final = struct.Struct("<HHI8s")
_U64: Final = struct.Struct("<Q")
_TWO_U64: Final = struct.Struct("<QQ")
_INODE_BYTES: Final = 24
KERNEL_FILE: Final = "[kernel.kallsyms]"
# The process of what belongs to the kernel.
KERNEL_PID: Final = 0xFFFFFFFF


def encode(record: Written, attr: PerfEventAttr, sample_id: SampleId) -> bytes:
    """Return the record as the kernel would write it for an event with `attr`.

    Raises:
        CodecError: a value does not fit its field, or a string holds a NUL.
    """
    try:
        kind, misc, body = _encoded(record)
        trailer = encode_sample_id(attr, sample_id)
    except struct.error as error:
        message = f"{type(record).__name__}: {error}"
        raise CodecError(message, offset=HEADER_BYTES, reason="record_value") from error
    return frame(kind, misc, body + trailer)


def decode(data: bytes | memoryview, header: RecordHeader, attr: PerfEventAttr) -> Read | None:
    """Read a record's values; None for a type that is not needed here.

    Raises:
        CodecError: the record is too short for its type, or a string has no end.
    """
    start = header.offset + HEADER_BYTES
    try:
        return _decoded(header, bytes(data[start : body_end(header, attr)]))
    except struct.error as error:
        message = f"{RecordType(header.type).name} too short"
        raise CodecError(message, offset=header.offset, reason="record_size") from error


def _text(value: bytes) -> bytes:
    if b"\0" in value:
        raise CodecError("NUL in a string", offset=value.index(b"\0"), reason="string")
    return value + bytes(8 - len(value) % 8)


def _untext(header: RecordHeader, body: bytes, at: int) -> bytes:
    end = body.find(b"\0", at)
    if end < 0:
        raise CodecError("string without end", offset=header.offset, reason="string")
    return body[at:end]


def _encoded(record: Written) -> tuple[int, int, bytes]:  # noqa: PLR0911 - one for each type
    """Return the type of a record, its misc bits and its body."""
    match record:
        case Comm(pid, tid, comm, is_exec):
            misc = Misc.COMM_EXEC if is_exec else 0
            return RecordType.COMM, misc, _TWO_U32.pack(pid, tid) + _text(comm)
        case Mmap():
            return RecordType.MMAP, _mmap_misc(record), _mapped(record) + _text(record.filename)
        case Mmap2():
            return _encoded_mmap2(record)
        case Fork(pid, ppid, tid, ptid, time_ns):
            return RecordType.FORK, 0, _TASK.pack(pid, ppid, tid, ptid, time_ns)
        case Ksymbol():
            head = _KSYMBOL.pack(record.addr, record.length, record.ksym_type, record.flags)
            return RecordType.KSYMBOL, 0, head + _text(record.name)
        case BpfEvent(kind, flags, number, tag):
            return RecordType.BPF_EVENT, 0, _BPF_EVENT.pack(kind, flags, number, tag)
        case Cgroup(number, path):
            return RecordType.CGROUP, 0, _U64.pack(number) + _text(path)
        case LostSamples(lost, by_bpf):
            return RecordType.LOST_SAMPLES, Misc.LOST_SAMPLES_BPF if by_bpf else 0, _U64.pack(lost)


def _mmap_misc(r: Mmap | Mmap2) -> int:
    return r.cpumode | (Misc.MMAP_DATA if r.is_data else 0)


def _mapped(r: Mmap | Mmap2) -> bytes:
    return _MMAP.pack(r.pid, r.tid, r.addr, r.length, r.pgoff)


def _encoded_mmap2(r: Mmap2) -> tuple[int, int, bytes]:
    misc = _mmap_misc(r)
    if r.build_id:
        if len(r.build_id) > BUILD_ID_MAX_BYTES:
            raise CodecError("build-id too long", offset=HEADER_BYTES, reason="build_id")
        misc |= Misc.MMAP_BUILD_ID
        file = bytes((len(r.build_id), 0, 0, 0)) + r.build_id.ljust(BUILD_ID_MAX_BYTES, b"\0")
    else:
        file = _INODE.pack(r.major, r.minor, r.inode, r.inode_generation)
    body = _mapped(r) + file + _TWO_U32.pack(r.prot, r.flags) + _text(r.filename)
    return RecordType.MMAP2, misc, body


def _decoded(header: RecordHeader, body: bytes) -> Read | None:
    match header.type:
        case RecordType.COMM:
            pid, tid = _TWO_U32.unpack_from(body)
            name = _untext(header, body, _TWO_U32.size)
            return Comm(pid, tid, name, bool(header.misc & Misc.COMM_EXEC))
        case RecordType.MMAP2:
            return _decoded_mmap2(header, body)
        case RecordType.FORK:
            return Fork(*_TASK.unpack_from(body))
        case RecordType.LOST:
            return Lost(*_TWO_U64.unpack_from(body))
        case RecordType.LOST_SAMPLES:
            (lost,) = _U64.unpack_from(body)
            return LostSamples(lost, bool(header.misc & Misc.LOST_SAMPLES_BPF))
    return None


def _decoded_mmap2(header: RecordHeader, body: bytes) -> Mmap2:
    pid, tid, addr, length, pgoff = _MMAP.unpack_from(body)
    file_at = _MMAP.size
    prot, flags = _TWO_U32.unpack_from(body, file_at + _INODE_BYTES)
    name = _untext(header, body, file_at + _INODE_BYTES + _TWO_U32.size)
    major = minor = inode = generation = 0
    build_id = b""
    if header.misc & Misc.MMAP_BUILD_ID:
        size = body[file_at]
        if size > BUILD_ID_MAX_BYTES:
            raise CodecError(f"build-id of {size} bytes", offset=header.offset, reason="build_id")
        build_id = body[file_at + 4 : file_at + 4 + size]
    else:
        major, minor, inode, generation = _INODE.unpack_from(body, file_at)
    return Mmap2(
        *(pid, tid, addr, length, pgoff, prot, flags, name, build_id),
        *(major, minor, inode, generation),
        cpumode=header.misc & Misc.CPUMODE_MASK,
        is_data=bool(header.misc & Misc.MMAP_DATA),
    )
