# SPDX-License-Identifier: Apache-2.0
"""The machine as sysfs describes it: CPUs, caches, memory and capabilities of PMUs.

The files are those that perf reads for the same purpose (tools/perf/util/cputopo.c, header.c), so
that its readers show the same for our files and for perf's. What cannot be read is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from collectord.codec.perf_features import (
    Cache,
    CpuPlace,
    CpuTopology,
    Machine,
    Memory,
    NumaNode,
    PmuCaps,
)
from collectord.errors import CollectordError
from collectord.kernel.host import cpus, sysfs
from collectord.kernel.host.cpus import NODES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_CPUS: Final = "devices/system/cpu"
_CORE_PMU: Final = "cpu"
# The limit on described CPUs: every file of a recording would begin with megabytes of them.
_CPUS_MAX: Final = 4096
# The limit on memory blocks, each 128 MiB at least: 128 TiB.
_BLOCKS_MAX: Final = 1 << 20


def read_machine(sys: Path) -> Machine:
    """Describe the machine below a root of sysfs."""
    pmus = dict(_pmus(sys))
    core = pmus.pop(_CORE_PMU, None)
    present, online = _cpu_numbers(sys)
    return Machine(
        cpus=_cpu_topology(sys, present, online),
        nodes=tuple(_nodes(sys)) or None,
        caches=_caches(sys, online),
        memory=_memory(sys),
        cpu_pmu=core,
        pmus=tuple(pmu for pmu in pmus.values() if pmu.caps),
    )


def _cpu_numbers(sys: Path) -> tuple[int, tuple[int, ...]]:
    """Return the number of CPUs, counted up to the last one, and the online ones."""
    try:
        present, online = cpus.count(sys), cpus.online(sys)
    except CollectordError:
        return 0, ()
    return (present, online) if present <= _CPUS_MAX else (0, ())


def _cpu_topology(sys: Path, present: int, online: tuple[int, ...]) -> CpuTopology | None:
    folders = {cpu: sys / _CPUS / f"cpu{cpu}/topology" for cpu in online}
    sockets = _lists(folders, "package_cpus_list", "core_siblings_list")
    cores = _lists(folders, "core_cpus_list", "thread_siblings_list")
    if not sockets or not cores:
        return None
    return CpuTopology(
        sockets=sockets,
        cores=cores,
        dies=_lists(folders, "die_cpus_list"),
        places=tuple(_place(folders.get(cpu)) for cpu in range(present)),
    )


def _lists(folders: dict[int, Path], *names: str) -> tuple[str, ...]:
    """Return the distinct lists in a file of the CPUs, which has a second name in some kernels."""
    found = (
        next(filter(None, (sysfs.text(folder / name) for name in names)), "")
        for folder in folders.values()
    )
    return tuple(dict.fromkeys(filter(None, found)))


def _place(folder: Path | None) -> CpuPlace:
    if folder is None:
        return CpuPlace()
    names = ("core_id", "die_id", "physical_package_id")
    found = (sysfs.number(folder / name) for name in names)
    return CpuPlace(*(-1 if number is None else number for number in found))


def _nodes(sys: Path) -> Iterator[NumaNode]:
    for node, folder in sysfs.numbered(sys / NODES, "node"):
        # Node 0 MemTotal:       24682416 kB
        lines = (line.split() for line in sysfs.text(folder / "meminfo").splitlines())
        memory = {words[2]: words[3] for words in lines if len(words) > 3}  # noqa: PLR2004
        total, free = (memory.get(name, "") for name in ("MemTotal:", "MemFree:"))
        if total.isdecimal() and free.isdecimal():
            yield NumaNode(node, int(total), int(free), sysfs.text(folder / "cpulist"))


def _caches(sys: Path, online: tuple[int, ...]) -> tuple[Cache, ...] | None:
    """Return the distinct caches, in the order of their levels, then of their CPUs."""
    found = [
        cache
        for cpu in online
        for _, folder in sysfs.numbered(sys / _CPUS / f"cpu{cpu}/cache", "index")
        if (cache := _cache(folder)) is not None
    ]
    return tuple(sorted(dict.fromkeys(found), key=lambda cache: cache.level)) or None


def _cache(folder: Path) -> Cache | None:
    level = sysfs.number(folder / "level")
    line_bytes = sysfs.number(folder / "coherency_line_size")
    sets = sysfs.number(folder / "number_of_sets")
    ways = sysfs.number(folder / "ways_of_associativity")
    if level is None or line_bytes is None or sets is None or ways is None:
        return None
    words = (sysfs.text(folder / name) for name in ("type", "size", "shared_cpu_list"))
    return Cache(level, line_bytes, sets, ways, *words)


def _memory(sys: Path) -> Memory | None:
    try:
        block_bytes = int(sysfs.text(sys / "devices/system/memory/block_size_bytes"), 16)
    except ValueError:  # memory of this kernel is not hotpluggable
        return None
    nodes = tuple(
        (node, frozenset(n for n, _ in sysfs.numbered(folder, "memory") if n < _BLOCKS_MAX))
        for node, folder in sysfs.numbered(sys / NODES, "node")
    )
    return Memory(block_bytes, nodes) if nodes else None


def _pmus(sys: Path) -> Iterator[tuple[str, PmuCaps]]:
    for folder in sysfs.entries(sys / "bus/event_source/devices"):
        yield folder.name, PmuCaps(folder.name, tuple(sysfs.files(folder / "caps").items()))
