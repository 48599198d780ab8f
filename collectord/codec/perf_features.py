# SPDX-License-Identifier: Apache-2.0
"""Feature sections of perf.data: a file's facts about its host, the machine and its recording.

Encodings are those of tools/perf/util/header.c, write_*(); all features are optional, and a value
of None has no section.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from collectord.codec.cursor import U32, U64, Cursor
from collectord.codec.elf import BUILD_ID_MAX_BYTES
from collectord.codec.perf_attr import RecordType
from collectord.codec.perf_bpf import LoadedBpf, encode_bpf
from collectord.codec.perf_record import AUXTRACE_BYTES, Misc
from collectord.codec.perf_section import Feature, counted, encode_signed, encode_string, padded
from collectord.errors import CodecError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_BUILD_ID_FIELD_BYTES: Final = 24  # with its length and padding
_CLOCK_DATA_VERSION: Final = 1
# Readers take it for no name, and print only the names of the members.
_UNNAMED_GROUP: Final = "{anon_group}"
# struct perf_record_header_build_id up to the build-id: header and pid.
_BUILD_ID: Final = struct.Struct("<IHHi")
_CACHE_VERSION: Final = 1
_MEMORY_VERSION: Final = 1
_WORD_BITS: Final = 64


class CpuPlace(NamedTuple):
    """A CPU's core, die and socket; -1 if unknown, as for an offline CPU."""

    core: int = -1
    die: int = -1
    socket: int = -1


@dataclass(frozen=True, slots=True)
class CpuTopology:
    """The topology of the CPUs; lists are in the kernel's form "0-3,8".

    Attributes:
        sockets: the CPU list of each socket.
        cores: the thread list of each core.
        dies: the CPU list of each die; empty if the architecture has none.
        places: of each CPU, by its number.
    """

    sockets: tuple[str, ...]
    cores: tuple[str, ...]
    dies: tuple[str, ...]
    places: tuple[CpuPlace, ...]


@dataclass(frozen=True, slots=True)
class NumaNode:
    """A NUMA node, its memory at the time of the reading, and the list of its CPUs."""

    node: int
    total_kib: int
    free_kib: int
    cpus: str


@dataclass(frozen=True, slots=True)
class Cache:
    """A cache in the kernel's terms, e.g. type "Data" and size "32K", with the CPUs it serves."""

    level: int
    line_bytes: int
    sets: int
    ways: int
    type: str
    size: str
    cpus: str


@dataclass(frozen=True, slots=True)
class Memory:
    """The assignment of blocks of physical memory to nodes.

    Attributes:
        block_bytes: size of a block.
        nodes: node number to the numbers of its blocks.
    """

    block_bytes: int
    nodes: tuple[tuple[int, frozenset[int]], ...]


@dataclass(frozen=True, slots=True)
class PmuCaps:
    """The capabilities of a PMU: pairs of a name and a value, e.g. ("branches", "32")."""

    pmu: str
    caps: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine as described by its kernel; None: unknown.

    Attributes:
        cpu_pmu: capabilities of the PMU called "cpu".
        pmus: capabilities of the others; those without any are left out.
    """

    cpus: CpuTopology | None = None
    nodes: tuple[NumaNode, ...] | None = None
    caches: tuple[Cache, ...] | None = None
    memory: Memory | None = None
    cpu_pmu: PmuCaps | None = None
    pmus: tuple[PmuCaps, ...] | None = None


def _encode_machine(machine: Machine) -> Iterator[tuple[Feature, bytes]]:
    """Yield a section for each known value. Raises struct.error, CodecError."""
    for feature, name, encode in _MACHINE_ENCODERS:
        value = getattr(machine, name)
        if value is not None:
            yield feature, encode(value)


def _cpu_topology(value: CpuTopology) -> bytes:
    """Encode lists of sockets and cores, core and socket of each CPU, then the dies likewise."""
    parts = [counted(map(encode_string, value.sockets)), counted(map(encode_string, value.cores))]
    for place in value.places:
        parts += [encode_signed(place.core), encode_signed(place.socket)]
    if value.dies:
        parts.append(counted(map(encode_string, value.dies)))
        parts += [encode_signed(place.die) for place in value.places]
    return b"".join(parts)


def _numa_topology(value: tuple[NumaNode, ...]) -> bytes:
    return counted(
        U32.pack(n.node) + U64.pack(n.total_kib) + U64.pack(n.free_kib) + encode_string(n.cpus)
        for n in value
    )


def _cache(value: tuple[Cache, ...]) -> bytes:
    rows = (
        b"".join(map(U32.pack, (c.level, c.line_bytes, c.sets, c.ways)))
        + b"".join(map(encode_string, (c.type, c.size, c.cpus)))
        for c in value
    )
    return U32.pack(_CACHE_VERSION) + counted(rows)


def _mem_topology(value: Memory) -> bytes:
    head = (_MEMORY_VERSION, value.block_bytes, len(value.nodes))
    return b"".join((*map(U64.pack, head), *(_memory_node(*node) for node in value.nodes)))


def _memory_node(node: int, blocks: frozenset[int]) -> bytes:
    """Encode number, bitmap size in bits (twice: the node's, the bitmap's), and bitmap."""
    bits = max(blocks, default=0) + 1
    bitmap = sum(1 << block for block in blocks)
    words = -(-bits // _WORD_BITS)
    head = (node, bits, bits)
    return b"".join(map(U64.pack, head)) + bitmap.to_bytes(words * U64.size, "little")


def _cpu_pmu_caps(value: PmuCaps) -> bytes:
    return counted(encode_string(name) + encode_string(text) for name, text in value.caps)


def _pmu_caps(value: tuple[PmuCaps, ...]) -> bytes:
    return counted(_cpu_pmu_caps(pmu) + encode_string(pmu.pmu) for pmu in value)


_MACHINE_ENCODERS: Final[tuple[tuple[Feature, str, Callable[[Any], bytes]], ...]] = (
    (Feature.CPU_TOPOLOGY, "cpus", _cpu_topology),
    (Feature.NUMA_TOPOLOGY, "nodes", _numa_topology),
    (Feature.CACHE, "caches", _cache),
    (Feature.MEM_TOPOLOGY, "memory", _mem_topology),
    (Feature.CPU_PMU_CAPS, "cpu_pmu", _cpu_pmu_caps),
    (Feature.PMU_CAPS, "pmus", _pmu_caps),
)


@dataclass(frozen=True, slots=True)
class ClockData:
    """An instant on two clocks: `clockid`, which stamps the records, and the wall clock."""

    clockid: int
    wall_ns: int
    clockid_ns: int


@dataclass(frozen=True, slots=True)
class Group:
    """An event group: `leader_index` counts the file's attrs, `members` includes the leader."""

    leader_index: int
    members: int


@dataclass(frozen=True, slots=True)
class BuildId:
    """Build-id of a file that was mapped, or (`cpumode` KERNEL) of the kernel or a module."""

    filename: str
    build_id: bytes
    pid: int = -1
    cpumode: int = Misc.USER


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """Values of the feature sections; None or empty: the section is missing.

    Attributes:
        version: of the recorder.
        nrcpus: (online, available).
        total_mem_kib: of the host.
        pmu_mappings: PMU name to attr type; names the events of dynamic PMUs.
        sample_time: times of the first and the last sample, in ns; needed by `perf script --time
            10%-20%`.
        clockid_resolution_ns: of the clock that `use_clockid` selected.
        clock_data: needed by `perf script -F +tod`.
        auxtrace_index: offsets of the AUXTRACE records in the file.
        machine: the kernel's description of CPUs, caches, memory and PMUs.
        bpf: loaded programs, by which readers name and annotate their code.
    """

    hostname: str | None = None
    osrelease: str | None = None
    version: str | None = None
    arch: str | None = None
    nrcpus: tuple[int, int] | None = None
    cpudesc: str | None = None
    cpuid: str | None = None
    total_mem_kib: int | None = None
    cmdline: tuple[str, ...] = ()
    pmu_mappings: tuple[tuple[str, int], ...] = ()
    group_desc: tuple[Group, ...] = ()
    sample_time: tuple[int, int] | None = None
    clockid_resolution_ns: int | None = None
    clock_data: ClockData | None = None
    build_ids: tuple[BuildId, ...] = ()
    auxtrace_index: tuple[int, ...] = ()
    machine: Machine = Machine()
    bpf: LoadedBpf | None = None


def encode_features(features: Features) -> Mapping[int, bytes]:
    """Return the section of each feature that has a value.

    Raises:
        CodecError: a value does not fit its field, or a string holds a NUL.
    """
    sections: dict[int, bytes] = {}
    for feature, name, encode in _ENCODERS:
        value = getattr(features, name)
        if value is None or value == ():
            continue
        try:
            sections[feature] = encode(value)
        except struct.error as error:
            raise CodecError(f"{name}: {error}", offset=0, reason="feature_value") from error
    if features.bpf is not None:
        sections |= encode_bpf(features.bpf)
    try:
        sections |= _encode_machine(features.machine)
    except struct.error as error:
        raise CodecError(f"machine: {error}", offset=0, reason="feature_value") from error
    return sections


def decode_auxtrace_index(section: bytes) -> tuple[int, ...]:
    """Return the offsets of the AUXTRACE records from an AUXTRACE section."""
    cursor = Cursor(section)
    numbers = [(cursor.number(U64), cursor.number(U64)) for _ in range(cursor.number(U64))]
    return tuple(offset for offset, _ in numbers)


def decode_build_ids(section: bytes) -> tuple[BuildId, ...]:
    """Read a BUILD_ID section, as far as its records are whole."""
    found = []
    at = 0
    while at + _BUILD_ID.size + _BUILD_ID_FIELD_BYTES <= len(section):
        _, misc, size, pid = _BUILD_ID.unpack_from(section, at)
        name_at = at + _BUILD_ID.size + _BUILD_ID_FIELD_BYTES
        if size < name_at - at or at + size > len(section):
            break
        field = section[name_at - _BUILD_ID_FIELD_BYTES : name_at]
        told = field[BUILD_ID_MAX_BYTES] if misc & Misc.BUILD_ID_SIZE else BUILD_ID_MAX_BYTES
        name = section[name_at : at + size].partition(b"\0")[0]
        found.append(
            BuildId(
                name.decode(errors="surrogateescape"),
                field[: min(told, BUILD_ID_MAX_BYTES)],
                pid,
                misc & Misc.CPUMODE_MASK,
            )
        )
        at += size
    return tuple(found)


def decode_clock_data(section: bytes) -> ClockData:
    """Read a CLOCK_DATA section. Raises CodecError."""
    cursor = Cursor(section)
    version = cursor.number(U32)
    if version != _CLOCK_DATA_VERSION:
        raise CodecError(f"clock data of version {version}", offset=0, reason="version")
    return ClockData(cursor.number(U32), cursor.number(U64), cursor.number(U64))


def _nrcpus(value: tuple[int, int]) -> bytes:
    online, available = value
    return U32.pack(available) + U32.pack(online)


def _cmdline(value: tuple[str, ...]) -> bytes:
    return counted(map(encode_string, value))


def _pmu_mappings(value: tuple[tuple[str, int], ...]) -> bytes:
    return counted(U32.pack(kind) + encode_string(name) for name, kind in value)


def _groups(value: tuple[Group, ...]) -> bytes:
    return counted(
        encode_string(_UNNAMED_GROUP) + U32.pack(g.leader_index) + U32.pack(g.members)
        for g in value
    )


def _sample_time(value: tuple[int, int]) -> bytes:
    first, last = value
    return U64.pack(first) + U64.pack(last)


def _clock_data(value: ClockData) -> bytes:
    head = U32.pack(_CLOCK_DATA_VERSION) + U32.pack(value.clockid)
    return head + U64.pack(value.wall_ns) + U64.pack(value.clockid_ns)


def _auxtrace_index(value: tuple[int, ...]) -> bytes:
    """Encode offset and size of each record, without its payload."""
    rows = (U64.pack(offset) + U64.pack(AUXTRACE_BYTES) for offset in value)
    return U64.pack(len(value)) + b"".join(rows)


def _build_ids(value: tuple[BuildId, ...]) -> bytes:
    return b"".join(map(_build_id, value))


def _build_id(entry: BuildId) -> bytes:
    size = len(entry.build_id)
    if size > BUILD_ID_MAX_BYTES:
        raise CodecError(f"build-id of {size} bytes", offset=0, reason="build_id")
    build_id = entry.build_id.ljust(BUILD_ID_MAX_BYTES, b"\0") + bytes((size, 0, 0, 0))
    name = padded(entry.filename)
    # The only record whose size is not a multiple of 8 bytes: 36 before the name.
    record_bytes = _BUILD_ID.size + len(build_id) + len(name)
    misc = entry.cpumode | Misc.BUILD_ID_SIZE
    head = _BUILD_ID.pack(RecordType.HEADER_BUILD_ID, misc, record_bytes, entry.pid)
    return head + build_id + name


_ENCODERS: Final[tuple[tuple[Feature, str, Callable[[Any], bytes]], ...]] = (
    (Feature.BUILD_ID, "build_ids", _build_ids),
    (Feature.HOSTNAME, "hostname", encode_string),
    (Feature.OSRELEASE, "osrelease", encode_string),
    (Feature.VERSION, "version", encode_string),
    (Feature.ARCH, "arch", encode_string),
    (Feature.NRCPUS, "nrcpus", _nrcpus),
    (Feature.CPUDESC, "cpudesc", encode_string),
    (Feature.CPUID, "cpuid", encode_string),
    (Feature.TOTAL_MEM, "total_mem_kib", U64.pack),
    (Feature.CMDLINE, "cmdline", _cmdline),
    (Feature.PMU_MAPPINGS, "pmu_mappings", _pmu_mappings),
    (Feature.GROUP_DESC, "group_desc", _groups),
    (Feature.AUXTRACE, "auxtrace_index", _auxtrace_index),
    (Feature.SAMPLE_TIME, "sample_time", _sample_time),
    (Feature.CLOCKID, "clockid_resolution_ns", U64.pack),
    (Feature.CLOCK_DATA, "clock_data", _clock_data),
)
