# SPDX-License-Identifier: Apache-2.0
"""`struct perf_event_attr`: the definition of an event and of the fields in its records.

Layout and names are those of `include/uapi/linux/perf_event.h`. Everything is little-endian,
as are all hosts this program runs on: bitfields of a big-endian kernel run the other way.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, fields
from enum import IntEnum, IntFlag
from typing import Final

from collectord.errors import CodecError

# Published sizes of the struct, PERF_ATTR_SIZE_VER0 and on.
ATTR_SIZES_BYTES: Final = (64, 72, 80, 96, 104, 112, 120, 128, 136)
# perf 6.1 refuses a file with larger attributes ("incompatible file format").
FILE_ATTR_BYTES: Final = 128

CLOCK_MONOTONIC: Final = 1
PRECISE_IP_MAX: Final = 3


class OpenFlag(IntFlag):
    """Flags of perf_event_open(2), PERF_FLAG_*."""

    FD_NO_GROUP = 1 << 0
    FD_OUTPUT = 1 << 1
    PID_CGROUP = 1 << 2
    FD_CLOEXEC = 1 << 3


class EventType(IntEnum):
    """`perf_event_attr.type`, PERF_TYPE_*; dynamic PMUs have larger numbers of their own."""

    HARDWARE = 0
    SOFTWARE = 1
    TRACEPOINT = 2
    HW_CACHE = 3
    RAW = 4
    BREAKPOINT = 5


class HardwareId(IntEnum):
    """`config` of a HARDWARE event, PERF_COUNT_HW_*."""

    CPU_CYCLES = 0
    INSTRUCTIONS = 1
    CACHE_REFERENCES = 2
    CACHE_MISSES = 3
    BRANCH_INSTRUCTIONS = 4
    BRANCH_MISSES = 5
    BUS_CYCLES = 6
    STALLED_CYCLES_FRONTEND = 7
    STALLED_CYCLES_BACKEND = 8
    REF_CPU_CYCLES = 9


class SoftwareId(IntEnum):
    """`config` of a SOFTWARE event, PERF_COUNT_SW_*."""

    CPU_CLOCK = 0
    TASK_CLOCK = 1
    PAGE_FAULTS = 2
    CONTEXT_SWITCHES = 3
    CPU_MIGRATIONS = 4
    PAGE_FAULTS_MIN = 5
    PAGE_FAULTS_MAJ = 6
    ALIGNMENT_FAULTS = 7
    EMULATION_FAULTS = 8
    DUMMY = 9
    BPF_OUTPUT = 10
    CGROUP_SWITCHES = 11


class CacheId(IntEnum):
    """Bits 0-7 of an HW_CACHE `config`, PERF_COUNT_HW_CACHE_*."""

    L1D = 0
    L1I = 1
    LL = 2
    DTLB = 3
    ITLB = 4
    BPU = 5
    NODE = 6


class CacheOp(IntEnum):
    """Bits 8-15 of an HW_CACHE `config`."""

    READ = 0
    WRITE = 1
    PREFETCH = 2


class CacheResult(IntEnum):
    """Bits 16-23 of an HW_CACHE `config`."""

    ACCESS = 0
    MISS = 1


class BreakpointType(IntFlag):
    """`bp_type`, HW_BREAKPOINT_* of linux/hw_breakpoint.h."""

    R = 1
    W = 2
    X = 4


class SampleType(IntFlag):
    """`sample_type`, PERF_SAMPLE_*: the fields of a SAMPLE and of every record's trailer."""

    IP = 1 << 0
    TID = 1 << 1
    TIME = 1 << 2
    ADDR = 1 << 3
    READ = 1 << 4
    CALLCHAIN = 1 << 5
    ID = 1 << 6
    CPU = 1 << 7
    PERIOD = 1 << 8
    STREAM_ID = 1 << 9
    RAW = 1 << 10
    BRANCH_STACK = 1 << 11
    REGS_USER = 1 << 12
    STACK_USER = 1 << 13
    WEIGHT = 1 << 14
    DATA_SRC = 1 << 15
    IDENTIFIER = 1 << 16
    TRANSACTION = 1 << 17
    REGS_INTR = 1 << 18
    PHYS_ADDR = 1 << 19
    AUX = 1 << 20
    CGROUP = 1 << 21
    DATA_PAGE_SIZE = 1 << 22
    CODE_PAGE_SIZE = 1 << 23
    WEIGHT_STRUCT = 1 << 24


class ReadFormat(IntFlag):
    """`read_format`, PERF_FORMAT_*: what read(2) of the event returns. LOST is Linux 6.0."""

    TOTAL_TIME_ENABLED = 1 << 0
    TOTAL_TIME_RUNNING = 1 << 1
    ID = 1 << 2
    GROUP = 1 << 3
    LOST = 1 << 4


class BranchSampleType(IntFlag):
    """`branch_sample_type`, PERF_SAMPLE_BRANCH_*."""

    USER = 1 << 0
    KERNEL = 1 << 1
    HV = 1 << 2
    ANY = 1 << 3
    ANY_CALL = 1 << 4
    ANY_RETURN = 1 << 5
    IND_CALL = 1 << 6
    ABORT_TX = 1 << 7
    IN_TX = 1 << 8
    NO_TX = 1 << 9
    COND = 1 << 10
    CALL_STACK = 1 << 11
    IND_JUMP = 1 << 12
    CALL = 1 << 13
    NO_FLAGS = 1 << 14
    NO_CYCLES = 1 << 15
    TYPE_SAVE = 1 << 16
    HW_INDEX = 1 << 17
    PRIV_SAVE = 1 << 18
    COUNTERS = 1 << 19


class AuxAction(IntFlag):
    """`aux_action` (Linux 6.13, and 6.12 as Debian has it)."""

    START_PAUSED = 1 << 0
    PAUSE = 1 << 1
    RESUME = 1 << 2


class RecordType(IntEnum):
    """`perf_event_header.type`: 1-21 by the kernel (PERF_RECORD_*), 64-82 by recorders.

    The user range ends where perf 6.1 ends: a higher type is fatal to it.
    """

    MMAP = 1
    LOST = 2
    COMM = 3
    EXIT = 4
    THROTTLE = 5
    UNTHROTTLE = 6
    FORK = 7
    READ = 8
    SAMPLE = 9
    MMAP2 = 10
    AUX = 11
    ITRACE_START = 12
    LOST_SAMPLES = 13
    SWITCH = 14
    SWITCH_CPU_WIDE = 15
    NAMESPACES = 16
    KSYMBOL = 17
    BPF_EVENT = 18
    CGROUP = 19
    TEXT_POKE = 20
    AUX_OUTPUT_HW_ID = 21
    HEADER_ATTR = 64
    HEADER_EVENT_TYPE = 65
    HEADER_TRACING_DATA = 66
    HEADER_BUILD_ID = 67
    FINISHED_ROUND = 68
    ID_INDEX = 69
    AUXTRACE_INFO = 70
    AUXTRACE = 71
    AUXTRACE_ERROR = 72
    THREAD_MAP = 73
    CPU_MAP = 74
    STAT_CONFIG = 75
    STAT = 76
    STAT_ROUND = 77
    EVENT_UPDATE = 78
    TIME_CONV = 79
    HEADER_FEATURE = 80
    COMPRESSED = 81
    FINISHED_INIT = 82
    COMPRESSED2 = 83


# type size config sample_period sample_type read_format flags wakeup bp_type config1 config2
# branch_sample_type sample_regs_user sample_stack_user clockid sample_regs_intr aux_watermark
# sample_max_stack __reserved_2 aux_sample_size aux_action sig_data config3
_LAYOUT: Final = struct.Struct("<IIQQQQQIIQQQQIiQIHHIIQQ")
_LAYOUT_FIELDS: Final = (
    *("type", "size", "config", "sample_period", "sample_type", "read_format", "flags"),
    *("wakeup", "bp_type", "config1", "config2", "branch_sample_type", "sample_regs_user"),
    *("sample_stack_user", "clockid", "sample_regs_intr", "aux_watermark", "sample_max_stack"),
    *("reserved_2", "aux_sample_size", "aux_action", "sig_data", "config3"),
)
# The flags by bit; precise_ip uses bits 15 and 16.
_FLAG_NAMES: Final = (
    *("disabled", "inherit", "pinned", "exclusive", "exclude_user", "exclude_kernel"),
    *("exclude_hv", "exclude_idle", "mmap", "comm", "freq", "inherit_stat", "enable_on_exec"),
    *("task", "watermark", "", "", "mmap_data", "sample_id_all", "exclude_host"),
    *("exclude_guest", "exclude_callchain_kernel", "exclude_callchain_user", "mmap2"),
    *("comm_exec", "use_clockid", "context_switch", "write_backward", "namespaces", "ksymbol"),
    *("bpf_event", "aux_output", "cgroup", "text_poke", "build_id", "inherit_thread"),
    *("remove_on_exec", "sigtrap"),
)
_FLAG_BITS: Final = {name: bit for bit, name in enumerate(_FLAG_NAMES) if name}
_PRECISE_SHIFT: Final = 15
_KNOWN_FLAGS: Final = (1 << len(_FLAG_NAMES)) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PerfEventAttr:
    """One event's attributes; field names are the kernel's.

    Attributes:
        sample_period: events per sample, or samples per second when `freq` is set.
        wakeup: `wakeup_events`, or `wakeup_watermark` in bytes when `watermark` is set.
        config1: also `bp_addr`, `kprobe_func` and `uprobe_path`.
        config2: also `bp_len`, `kprobe_addr` and `probe_offset`.
        config3: beyond FILE_ATTR_BYTES, so never in a file.
    """

    type: int = 0
    config: int = 0
    sample_period: int = 0
    freq: bool = False
    sample_type: int = 0
    read_format: int = 0
    disabled: bool = False
    inherit: bool = False
    pinned: bool = False
    exclusive: bool = False
    exclude_user: bool = False
    exclude_kernel: bool = False
    exclude_hv: bool = False
    exclude_idle: bool = False
    mmap: bool = False
    comm: bool = False
    inherit_stat: bool = False
    enable_on_exec: bool = False
    task: bool = False
    watermark: bool = False
    precise_ip: int = 0
    mmap_data: bool = False
    sample_id_all: bool = False
    exclude_host: bool = False
    exclude_guest: bool = False
    exclude_callchain_kernel: bool = False
    exclude_callchain_user: bool = False
    mmap2: bool = False
    comm_exec: bool = False
    use_clockid: bool = False
    context_switch: bool = False
    write_backward: bool = False
    namespaces: bool = False
    ksymbol: bool = False
    bpf_event: bool = False
    aux_output: bool = False
    cgroup: bool = False
    text_poke: bool = False
    build_id: bool = False
    inherit_thread: bool = False
    remove_on_exec: bool = False
    sigtrap: bool = False
    wakeup: int = 0
    bp_type: int = 0
    config1: int = 0
    config2: int = 0
    branch_sample_type: int = 0
    sample_regs_user: int = 0
    sample_stack_user: int = 0
    clockid: int = 0
    sample_regs_intr: int = 0
    aux_watermark: int = 0
    sample_max_stack: int = 0
    aux_sample_size: int = 0
    aux_action: int = 0
    sig_data: int = 0
    config3: int = 0

    def encode(self, size_bytes: int = FILE_ATTR_BYTES) -> bytes:
        """Return the struct in one of its published sizes.

        Raises:
            CodecError: the size is not a published one, a value does not fit its field, or a
                field beyond `size_bytes` is not 0.
        """
        if size_bytes not in ATTR_SIZES_BYTES:
            raise CodecError(f"attr size {size_bytes}", offset=4, reason="attr_size")
        if not 0 <= self.precise_ip <= 3:  # noqa: PLR2004 - two bits
            raise CodecError("precise_ip does not fit", offset=40, reason="attr_value")
        flags = self.precise_ip << _PRECISE_SHIFT
        for name, bit in _FLAG_BITS.items():
            flags |= int(bool(getattr(self, name))) << bit
        values = {"size": size_bytes, "flags": flags, "reserved_2": 0}
        row = (int(values.get(n, 0) or getattr(self, n, 0)) for n in _LAYOUT_FIELDS)
        try:
            whole = _LAYOUT.pack(*row)
        except struct.error as error:
            raise CodecError(f"attr: {error}", offset=0, reason="attr_value") from error
        if any(whole[size_bytes:]):
            raise CodecError("a field lies beyond", offset=size_bytes, reason="attr_size")
        return whole[:size_bytes]

    @classmethod
    def decode(cls, data: bytes | memoryview) -> PerfEventAttr:
        """Read a struct of any published size; bytes past the known fields must be 0.

        Raises:
            CodecError: the size field disagrees with the data, or a bit is unknown.
        """
        if len(data) < ATTR_SIZES_BYTES[0]:
            raise CodecError("attr cut short", offset=len(data), reason="short")
        size = int.from_bytes(data[4:8], "little")
        if not ATTR_SIZES_BYTES[0] <= size <= len(data) or size % 8:
            raise CodecError(f"attr size {size}", offset=4, reason="attr_size")
        if any(data[_LAYOUT.size : size]):
            raise CodecError("unknown attr fields", offset=_LAYOUT.size, reason="attr_unknown")
        whole = bytes(data[: min(size, _LAYOUT.size)]).ljust(_LAYOUT.size, b"\0")
        row = dict(zip(_LAYOUT_FIELDS, _LAYOUT.unpack(whole), strict=True))
        flags = row["flags"]
        if flags & ~_KNOWN_FLAGS:
            raise CodecError(f"attr flags {flags:#x}", offset=40, reason="attr_unknown")
        row |= {name: bool(flags >> bit & 1) for name, bit in _FLAG_BITS.items()}
        row["precise_ip"] = flags >> _PRECISE_SHIFT & 3
        return cls(**{field.name: row[field.name] for field in fields(cls)})


# An event that never happens, and so needs no privilege over kernel mode.
DUMMY: Final = PerfEventAttr(
    type=EventType.SOFTWARE,
    config=SoftwareId.DUMMY,
    disabled=True,
    exclude_kernel=True,
    exclude_hv=True,
)

# Fields of a SAMPLE ahead of its time, and of the trailer, in their order.
_BEFORE_SAMPLE_TIME: Final = (SampleType.IDENTIFIER, SampleType.IP, SampleType.TID)
ID_TRAILER_ORDER: Final = (
    SampleType.TID,
    SampleType.TIME,
    SampleType.ID,
    SampleType.STREAM_ID,
    SampleType.CPU,
    SampleType.IDENTIFIER,
)
_ID_TRAILER: Final = int(sum(ID_TRAILER_ORDER))


def sample_time_offset(attr: PerfEventAttr) -> int:
    """Return the offset of TIME from the start of a SAMPLE record's header, 0 if it has none."""
    if not attr.sample_type & SampleType.TIME:
        return 0
    return 8 + 8 * sum(bool(attr.sample_type & bit) for bit in _BEFORE_SAMPLE_TIME)


def id_trailer_bytes(attr: PerfEventAttr) -> int:
    """Return the size of a non-SAMPLE record's id trailer, 0 without `sample_id_all`."""
    if not attr.sample_id_all:
        return 0
    return 8 * (int(attr.sample_type) & _ID_TRAILER).bit_count()


def id_trailer_from(attr: PerfEventAttr, field: SampleType) -> int:
    """Return the bytes from a non-SAMPLE record's end back to the trailer's field, 0 without."""
    if not attr.sample_id_all or not attr.sample_type & field:
        return 0
    behind = ID_TRAILER_ORDER[ID_TRAILER_ORDER.index(field) :]
    return 8 * sum(bool(attr.sample_type & bit) for bit in behind)
