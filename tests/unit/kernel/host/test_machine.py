# SPDX-License-Identifier: Apache-2.0
"""The machine, read below injected roots."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from collectord.codec.perf_features import (
    Cache,
    CpuPlace,
    CpuTopology,
    Machine,
    Memory,
    NumaNode,
    PmuCaps,
)
from collectord.kernel.host.identity import read_host
from collectord.kernel.host.machine import read_machine

if TYPE_CHECKING:
    from pathlib import Path


def write(root: Path, files: dict[str, str]) -> None:
    """Make files, and the folders they are in."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def cpu_files(cpu: int, core: int, siblings: str) -> dict[str, str]:
    """Return the topology of a CPU of a machine with one socket of CPUs 0-3."""
    folder = f"devices/system/cpu/cpu{cpu}"
    return {
        f"{folder}/topology/package_cpus_list": "0-1,3",
        f"{folder}/topology/core_cpus_list": siblings,
        f"{folder}/topology/die_cpus_list": "0-1,3",
        f"{folder}/topology/core_id": str(core),
        f"{folder}/topology/die_id": "1",
        f"{folder}/topology/physical_package_id": "0",
        f"{folder}/cache/index0/level": "2",
        f"{folder}/cache/index0/coherency_line_size": "64",
        f"{folder}/cache/index0/number_of_sets": "1024",
        f"{folder}/cache/index0/ways_of_associativity": "8",
        f"{folder}/cache/index0/type": "Unified",
        f"{folder}/cache/index0/size": "512K",
        f"{folder}/cache/index0/shared_cpu_list": siblings,
    }


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Sysfs of a machine with four CPUs, the third offline."""
    write(
        tmp_path,
        {
            "devices/system/cpu/present": "0-3",
            "devices/system/cpu/online": "0-1,3",
            **cpu_files(0, 0, "0-1"),
            **cpu_files(1, 0, "0-1"),
            **cpu_files(3, 4, "3"),
            "devices/system/node/node10/meminfo": "Node 10 MemTotal: 5 kB\nNode 10 MemFree: 4 kB",
            "devices/system/node/node10/cpulist": "",
            "devices/system/node/node2/meminfo": "Node 2 MemTotal: 9 kB\nNode 2 MemFree: 3 kB",
            "devices/system/node/node2/cpulist": "0-3",
            "devices/system/node/node2/memory0/state": "online",
            "devices/system/node/node2/memory70/state": "online",
            "devices/system/node/node2/memory_failure": "none",
            "devices/system/memory/block_size_bytes": "8000000",
            "bus/event_source/devices/cpu/caps/branches": "32",
            "bus/event_source/devices/cpu/type": "4",
            "bus/event_source/devices/ibs_op/caps/zen4": "1",
            "bus/event_source/devices/software/type": "1",
        },
    )
    return tmp_path


def test_machine_is_read(root: Path) -> None:
    """Shared values are listed once, nodes in order, and a PMU without data is left out."""
    place = CpuPlace(core=0, die=1, socket=0)
    assert read_machine(root) == Machine(
        cpus=CpuTopology(
            sockets=("0-1,3",),
            cores=("0-1", "3"),
            dies=("0-1,3",),
            places=(place, place, CpuPlace(), CpuPlace(core=4, die=1, socket=0)),
        ),
        nodes=(NumaNode(2, 9, 3, "0-3"), NumaNode(10, 5, 4, "")),
        caches=(
            Cache(2, 64, 1024, 8, "Unified", "512K", "0-1"),
            Cache(2, 64, 1024, 8, "Unified", "512K", "3"),
        ),
        memory=Memory(0x8000000, ((2, frozenset({0, 70})), (10, frozenset()))),
        cpu_pmu=PmuCaps("cpu", (("branches", "32"),)),
        pmus=(PmuCaps("ibs_op", (("zen4", "1"),)),),
    )


def test_caches_are_ordered_by_level(root: Path) -> None:
    """First all of the first level, whatever CPU they are of."""
    first = root / "devices/system/cpu/cpu3/cache/index0/level"
    first.write_text("1\n")
    caches = read_machine(root).caches
    assert caches is not None
    assert [(cache.level, cache.cpus) for cache in caches] == [(1, "3"), (2, "0-1")]


def test_an_empty_sysfs_tells_nothing(tmp_path: Path) -> None:
    """No section is made of what is unknown; that PMUs have no capabilities is known."""
    assert read_machine(tmp_path) == Machine(pmus=())


def test_old_names_of_the_topology(root: Path) -> None:
    """Before Linux 5.3 the lists had other names."""
    for cpu in (0, 1, 3):
        folder = root / f"devices/system/cpu/cpu{cpu}/topology"
        (folder / "package_cpus_list").rename(folder / "core_siblings_list")
        (folder / "core_cpus_list").rename(folder / "thread_siblings_list")
    cpus = read_machine(root).cpus
    assert cpus is not None
    assert (cpus.sockets, cpus.cores) == (("0-1,3",), ("0-1", "3"))


def test_a_machine_of_very_many_cpus_is_not_described(root: Path) -> None:
    """The head of each file would be megabytes."""
    (root / "devices/system/cpu/present").write_text("0-4096\n")
    machine = read_machine(root)
    assert (machine.cpus, machine.caches) == (None, None)


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """Return the procfs of an x86 host."""
    root = tmp_path / "proc"
    write(
        root,
        {
            "sys/kernel/random/boot_id": "b",
            "meminfo": "MemTotal:  7 kB",
            "cpuinfo": "processor\t: 0\nvendor_id\t: V\ncpu family\t: 6\nmodel\t\t: 85\n"
            "model name\t: A  CPU\nstepping\t: 7\n\nprocessor\t: 1\nvendor_id\t: W",
        },
    )
    return root


def test_x86_is_identified_by_its_first_cpu(proc: Path, root: Path) -> None:
    """The id is perf's, and blanks in the CPU's name are one each, as perf has them."""
    host = read_host(proc, root)
    assert (host.cpuid, host.cpudesc) == ("V,6,85,7", "A CPU")
    assert (host.cpus_configured, host.total_mem_kib) == (4, 7)


def test_arm_is_identified_by_its_register(proc: Path, root: Path) -> None:
    """/proc/cpuinfo of Arm has no vendor."""
    (proc / "cpuinfo").write_text("processor\t: 0\nCPU implementer\t: 0x41\n")
    midr = "0x00000000413fd0c1"
    write(root, {"devices/system/cpu/cpu0/regs/identification/midr_el1": midr})
    host = read_host(proc, root)
    assert (host.cpuid, host.cpudesc) == (midr, None)
