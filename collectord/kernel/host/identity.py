# SPDX-License-Identifier: Apache-2.0
"""The host's identity, as manifests and the headers of segments record it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from collectord.folders.trust import PROC
from collectord.kernel.host import cpus, sysfs
from collectord.kernel.values.host import Host

if TYPE_CHECKING:
    from collections.abc import Mapping


def read_host(proc: Path = PROC, sys_root: Path = Path("/sys")) -> Host:
    """Read the host's identity below injected roots of procfs and sysfs."""
    name = os.uname()
    memory = _fields(proc / "meminfo").get("MemTotal")
    cpu = _fields(proc / "cpuinfo")
    model = cpu.get("model name")
    return Host(
        hostname=name.nodename,
        boot_id=(proc / "sys/kernel/random/boot_id").read_text().strip(),
        release=name.release,
        machine=name.machine,
        cpus_online=os.sysconf("SC_NPROCESSORS_ONLN"),
        cpus_configured=cpus.count(sys_root),
        cpudesc=" ".join(model.split()) if model is not None else None,
        cpuid=_cpuid(cpu, sys_root),
        total_mem_kib=int(memory.split()[0]) if memory else None,
    )


def _fields(path: Path) -> dict[str, str]:
    """Return the values of `name : value` lines by name, the first of each name."""
    found: dict[str, str] = {}
    for line in path.read_text(errors="replace").splitlines():
        key, _, value = line.partition(":")
        found.setdefault(key.strip(), value.strip())
    return found


def _cpuid(cpu: Mapping[str, str], sys_root: Path) -> str | None:
    """Return the id of x86 CPUs by /proc/cpuinfo, of Arm's by their register; None for others."""
    x86 = [cpu.get(name) for name in ("vendor_id", "cpu family", "model", "stepping")]
    if all(x86):
        return ",".join(filter(None, x86))
    return sysfs.text(sys_root / "devices/system/cpu/cpu0/regs/identification/midr_el1") or None
