# SPDX-License-Identifier: Apache-2.0
"""Feature sections of perf.data about the machine: its CPUs, caches, memory and PMUs.

Encodings are those of tools/perf/util/header.c, write_*(); a value of None has no section.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from collectord.codec.cursor import U32, U64
from collectord.codec.perf_section import Feature, counted, encode_signed, encode_string

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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


def encode_machine(machine: Machine) -> Iterator[tuple[Feature, bytes]]:
    """Yield a section for each known value. Raises struct.error, CodecError."""
    for feature, name, encode in _ENCODERS:
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


_ENCODERS: Final[tuple[tuple[Feature, str, Callable[[Any], bytes]], ...]] = (
    (Feature.CPU_TOPOLOGY, "cpus", _cpu_topology),
    (Feature.NUMA_TOPOLOGY, "nodes", _numa_topology),
    (Feature.CACHE, "caches", _cache),
    (Feature.MEM_TOPOLOGY, "memory", _mem_topology),
    (Feature.CPU_PMU_CAPS, "cpu_pmu", _cpu_pmu_caps),
    (Feature.PMU_CAPS, "pmus", _pmu_caps),
)
