# SPDX-License-Identifier: Apache-2.0
"""Feature sections of perf.data: a file's facts about its host and its recording.

Encodings are those of tools/perf/util/header.c, write_*(); all features are optional.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from collectord.codec.cursor import U32, U64, Cursor
from collectord.codec.perf_attr import RecordType
from collectord.codec.perf_bpf import LoadedBpf, encode_bpf
from collectord.codec.perf_machine import Machine, encode_machine
from collectord.codec.perf_record import AUXTRACE_BYTES, Misc
from collectord.codec.perf_section import Feature, counted, encode_string, padded
from collectord.errors import CodecError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_BUILD_ID_MAX_BYTES: Final = 20
_CLOCK_DATA_VERSION: Final = 1
# Readers take it for no name, and print only the names of the members.
_UNNAMED_GROUP: Final = "{anon_group}"
# struct perf_record_header_build_id up to the build-id: header and pid.
_BUILD_ID: Final = struct.Struct("<IHHi")
_UNKNOWN_MACHINE: Final = Machine()


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
    machine: Machine = _UNKNOWN_MACHINE
    bpf: LoadedBpf | None = None


def encode_features(features: Features) -> Mapping[Feature, bytes]:
    """Return the section of each feature that has a value.

    Raises:
        CodecError: a value does not fit its field, or a string holds a NUL.
    """
    sections: dict[Feature, bytes] = {}
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
        sections |= encode_machine(features.machine)
    except struct.error as error:
        raise CodecError(f"machine: {error}", offset=0, reason="feature_value") from error
    return sections


def decode_auxtrace_index(section: bytes) -> tuple[int, ...]:
    """Return the offsets of the AUXTRACE records from an AUXTRACE section."""
    cursor = Cursor(section)
    numbers = [(cursor.number(U64), cursor.number(U64)) for _ in range(cursor.number(U64))]
    return tuple(offset for offset, _ in numbers)


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
    if size > _BUILD_ID_MAX_BYTES:
        raise CodecError(f"build-id of {size} bytes", offset=0, reason="build_id")
    build_id = entry.build_id.ljust(_BUILD_ID_MAX_BYTES, b"\0") + bytes((size, 0, 0, 0))
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
