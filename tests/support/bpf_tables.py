# SPDX-License-Identifier: Apache-2.0
"""Tables of a BPF program that is not loaded: maps in memory, described as BCC does it."""

from __future__ import annotations

import struct
from typing import Final

from collectord.errors import KernelError
from collectord.kernel.values.bpf_objects import (
    ENTRIES_MAX,
    Entries,
    MapInfo,
    MapType,
    ProgramInfo,
)
from collectord.source.loaded_program import LoadedTable

U32: Final = "unsigned int"
U64: Final = "unsigned long long"
S32: Final = "int"
_PER_CPU: Final = (MapType.PERCPU_ARRAY, MapType.PERCPU_HASH, MapType.LRU_PERCPU_HASH)


def key_struct(*members: object) -> list[object]:
    """Return BCC's description of a struct without padding of its own."""
    return ["key_t", list(members), "struct_packed"]


def u32(*values: int) -> bytes:
    """Return consecutive numbers of 4 bytes."""
    return struct.pack(f"<{len(values)}I", *values)


def u64(*values: int) -> bytes:
    """Return consecutive numbers of 8 bytes."""
    return struct.pack(f"<{len(values)}Q", *values)


class FakeNames:
    """Names of this test's devices and interfaces."""

    def interface(self, ifindex: int) -> str:
        """Return the name of a network interface."""
        return f"eth{ifindex}"

    def device(self, dev: int) -> str:
        """Return the name of a block device."""
        return f"sd{dev}"


class FakeMaps:
    """A kernel whose maps a test fills. Reads of it are counted in `reads`."""

    def __init__(self) -> None:
        self.tables: dict[str, LoadedTable] = {}
        self.maps: dict[str, dict[bytes, bytes]] = {}
        self.programs: dict[int, ProgramInfo] = {}
        self.incomplete: set[str] = set()
        self.failing: set[str] = set()
        self.reads = 0
        self._infos: dict[int, MapInfo] = {}
        self._names: dict[int, str] = {}

    def add(
        self,
        name: str,
        kind: MapType,
        key: tuple[object, int],
        leaf: tuple[object, int] = (U64, 8),
        *,
        entries: int = 1024,
        cpus: int = 2,
    ) -> dict[bytes, bytes]:
        """Declare a table; its contents are put into the result."""
        fd = 1000 + len(self.tables)
        self.tables[name] = LoadedTable(
            name, fd, fd, kind, key[1], leaf[1], entries, key[0], leaf[0]
        )
        count = cpus if kind in _PER_CPU else 1
        self._infos[fd] = MapInfo(fd, kind, name[:15], key[1], leaf[1], entries, count)
        self._names[fd] = name
        content: dict[bytes, bytes] = {}
        self.maps[name] = content
        return content

    def map_info(self, fd: int) -> MapInfo:
        """Return a map's info as the kernel would."""
        return self._infos[fd]

    def map_entries(self, fd: int, *, info: MapInfo, limit: int = ENTRIES_MAX) -> Entries:
        """Return a map's entries as the kernel would, in one reading."""
        name = self._names[fd]
        self.reads += 1
        if name in self.failing:
            raise KernelError(f"cannot read BPF map {info.name}")
        content = self.maps[name]
        assert len(content) <= limit
        assert all(len(value) == info.entry_bytes for value in content.values())
        return Entries(
            b"".join(content),
            b"".join(content.values()),
            len(content),
            name not in self.incomplete,
        )

    def program_info(self, fd: int) -> ProgramInfo:
        """Return a program's info as the kernel would."""
        return self.programs[fd]
