# SPDX-License-Identifier: Apache-2.0
"""CPUs: the possible ones and the online ones."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from collectord.errors import KernelError
from collectord.kernel.host.sysfs import numbered
from collectord.text import cpu_list

_FOLDER: Final = "devices/system/cpu"
_NODES: Final = "devices/system/node"
_TEXT_BYTES: Final = 4096  # size of a file in sysfs, at most


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
    found = (_read(path / "cpulist") for _, path in numbered(sys / _NODES, "node"))
    return tuple(node for node in found if node)


def _read(path: Path) -> tuple[int, ...]:
    try:
        return cpu_list.parse(path.read_text())
    except OSError as error:
        raise _unreadable(path, error) from error


class OnlineFile:
    """The kernel's list of online CPUs, kept open for callers that read it often.

    Args:
        sys: root of sysfs.

    Raises:
        KernelError: sysfs does not tell.
    """

    def __init__(self, sys: Path = Path("/sys")) -> None:
        self._path = sys / _FOLDER / "online"
        try:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise _unreadable(self._path, error) from error

    def read(self) -> str:
        """Read the list: the kernel makes the text anew at offset 0. Raises KernelError."""
        try:
            return os.pread(self._fd, _TEXT_BYTES, 0).decode()
        except OSError as error:
            raise _unreadable(self._path, error) from error

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def _unreadable(path: Path, error: OSError) -> KernelError:
    return KernelError(
        f"cannot read {path}", syscall="open", errno=error.errno or 0, hint="mount sysfs"
    )
