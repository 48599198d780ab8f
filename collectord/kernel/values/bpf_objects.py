# SPDX-License-Identifier: Apache-2.0
"""Maps and programs of BPF, as the kernel describes them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

# No more of a map is read at once: the reader keeps a number for each entry.
ENTRIES_MAX: Final = 1 << 16
_VALUE_ALIGN: Final = 8


class MapType(IntEnum):
    """The values of enum bpf_map_type that this package depends on."""

    HASH = 1
    ARRAY = 2
    PERF_EVENT_ARRAY = 4
    PERCPU_HASH = 5
    PERCPU_ARRAY = 6
    STACK_TRACE = 7
    LRU_HASH = 9
    LRU_PERCPU_HASH = 10
    PERCPU_CGROUP_STORAGE = 21


PER_CPU: Final = frozenset(
    {
        MapType.PERCPU_HASH,
        MapType.PERCPU_ARRAY,
        MapType.LRU_PERCPU_HASH,
        MapType.PERCPU_CGROUP_STORAGE,
    }
)


@dataclass(frozen=True, slots=True)
class MapInfo:
    """The sizes of a map.

    Attributes:
        id: the kernel's number of the map.
        type: enum bpf_map_type.
        name: at most 15 bytes.
        key_bytes: size of a key.
        value_bytes: size of a value; of one CPU's value in a per-CPU map.
        max_entries: how many entries fit.
        cpus: values of an entry: CPUs that may ever be online, or 1.
    """

    id: int
    type: int
    name: str
    key_bytes: int
    value_bytes: int
    max_entries: int
    cpus: int

    @property
    def per_cpu(self) -> bool:
        """Whether an entry has a value for each CPU."""
        return self.type in PER_CPU

    @property
    def cpu_bytes(self) -> int:
        """Bytes from one CPU's value to the next one's, in what is read and written."""
        if self.per_cpu:
            return (self.value_bytes + _VALUE_ALIGN - 1) // _VALUE_ALIGN * _VALUE_ALIGN
        return self.value_bytes

    @property
    def entry_bytes(self) -> int:
        """Bytes of an entry's value as it is read and written: all CPUs, in order of their number.

        CPUs that cannot exist have no value: the n-th value is that of the n-th possible CPU.
        """
        return self.cpu_bytes * self.cpus


@dataclass(frozen=True, slots=True)
class ProgramInfo:
    """A loaded program, and the kernel's counters of it since it was loaded.

    Attributes:
        id: the kernel's number of the program.
        name: at most 15 bytes.
        type: enum bpf_prog_type.
        run_time_ns: time spent in it while statistics were on (`enable_stats`), None before Linux
            5.1.
        run_count: how often it ran while they were on; None before Linux 5.1.
        recursion_misses: how often it did not run because another program ran on that CPU, with or
            without statistics; None before Linux 5.12.
        tag: the hash of its instructions, in hexadecimal.
        loaded_ns: when it was loaded, in ns since boot.
        user: id of the user who loaded it.
    """

    id: int
    name: str
    type: int
    run_time_ns: int | None
    run_count: int | None
    recursion_misses: int | None
    tag: str = ""
    loaded_ns: int = 0
    user: int = -1


@dataclass(frozen=True, slots=True)
class Entries:
    """Entries of a map; no key occurs twice.

    Attributes:
        keys: one after the other, `MapInfo.key_bytes` each.
        values: in the same order, `MapInfo.entry_bytes` each.
        count: number of entries.
        complete: whether every entry that existed all the time is here; False if the limit was
            reached or the map changed too fast.
    """

    keys: bytes
    values: bytes
    count: int
    complete: bool
