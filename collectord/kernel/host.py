# SPDX-License-Identifier: Apache-2.0
"""Which host this is: what manifests and the headers of segments say about it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Host:
    """A host and its kernel; `cpudesc` and `total_mem_kib` are None where /proc does not say."""

    hostname: str
    boot_id: str
    release: str
    machine: str
    cpus_online: int
    cpus_configured: int
    cpudesc: str | None
    total_mem_kib: int | None


def read_host(proc: Path = Path("/proc")) -> Host:
    """Read it below an injected procfs root."""
    name = os.uname()
    memory = _field(proc / "meminfo", "MemTotal")
    return Host(
        hostname=name.nodename,
        boot_id=(proc / "sys/kernel/random/boot_id").read_text().strip(),
        release=name.release,
        machine=name.machine,
        cpus_online=os.sysconf("SC_NPROCESSORS_ONLN"),
        cpus_configured=os.sysconf("SC_NPROCESSORS_CONF"),
        cpudesc=_field(proc / "cpuinfo", "model name"),
        total_mem_kib=int(memory.split()[0]) if memory else None,
    )


def _field(path: Path, name: str) -> str | None:
    """The value of the first `name : value` line."""
    for line in path.read_text(errors="replace").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None
