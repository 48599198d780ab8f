# SPDX-License-Identifier: Apache-2.0
"""CPUs: the possible ones and the online ones."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Final

from collectord.errors import KernelError
from collectord.kernel.host.sysfs import numbered
from collectord.kernel.values.host import CpuNews
from collectord.text import cpu_list

_FOLDER: Final = "devices/system/cpu"
NODES: Final = "devices/system/node"
_KOBJECT_UEVENT: Final = 15  # NETLINK_KOBJECT_UEVENT, include/uapi/linux/netlink.h
_KERNEL_GROUP: Final = 1


def online(sys: Path = Path("/sys")) -> tuple[int, ...]:
    """Return the online CPUs. Raises KernelError where sysfs does not tell."""
    return _read(sys / _FOLDER / "online")


def possible(sys: Path = Path("/sys")) -> tuple[int, ...]:
    """Return the CPUs that may ever come online. Raises KernelError where sysfs does not tell."""
    return _read(sys / _FOLDER / "possible")


def count(sys: Path = Path("/sys")) -> int:
    """Return the number of CPUs plugged in, counted up to the last one. Raises as `online`."""
    return max(_read(sys / _FOLDER / "present"), default=-1) + 1


def numa_nodes(sys: Path = Path("/sys")) -> tuple[tuple[int, ...], ...]:
    """Return the CPUs of each memory node that has any; none where the kernel knows no nodes."""
    found = (_read(path / "cpulist") for _, path in numbered(sys / NODES, "node"))
    return tuple(node for node in found if node)


def _read(path: Path) -> tuple[int, ...]:
    try:
        return cpu_list.parse(path.read_text())
    except OSError as error:
        raise _unreadable(path, error) from error


def open_news(sys: Path = Path("/sys")) -> CpuNews:
    """Open what tells which CPUs come and go. Raises KernelError where sysfs does not tell."""
    path = sys / _FOLDER / "online"
    try:
        online_fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise _unreadable(path, error) from error
    try:
        return CpuNews(online_fd, _listen())
    except OSError:
        return CpuNews(online_fd, -1)


def _listen() -> int:
    kind = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK
    with socket.socket(socket.AF_NETLINK, kind, _KOBJECT_UEVENT) as uevents:
        uevents.bind((0, _KERNEL_GROUP))
        return uevents.detach()


def _unreadable(path: Path, error: OSError) -> KernelError:
    return KernelError(
        f"cannot read {path}", syscall="open", errno=error.errno or 0, hint="mount sysfs"
    )
