# SPDX-License-Identifier: Apache-2.0
"""Processes that hold a file: those that keep a tracefs directory busy, and holders of locks."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from collectord.kernel.values.host import Holder
from collectord.text.foreign import visible

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_MAPS_PATH_FIELD: Final = 5  # /proc/PID/maps: range, rights, offset, device, inode, path


def holders_below(part: str, proc: Path) -> tuple[Holder, ...]:
    """Return the processes that have a file open or mapped whose path contains `part`.

    A mapping keeps its file when the descriptor is closed. Processes that the caller may not
    inspect, and files held by the kernel itself, are not seen.

    Args:
        part: part of the path, such as "/instances/NAME/"; tracefs is mounted at more than one
            place.
        proc: root of procfs.
    """
    found = []
    for folder in proc.glob("[1-9]*"):
        # The process is gone (ESRCH while its files are read), or is another user's.
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            if any(part in path for path in _held_paths(folder)):
                found.append(_holder(int(folder.name), proc))
    return tuple(sorted(found, key=lambda holder: holder.pid))


def _held_paths(process: Path) -> Iterator[str]:
    for entry in (process / "fd").iterdir():
        with suppress(FileNotFoundError):  # closed since it was listed
            yield str(entry.readlink())
    for line in (process / "maps").read_text(errors="replace").splitlines():
        fields = line.split(maxsplit=_MAPS_PATH_FIELD)
        if len(fields) > _MAPS_PATH_FIELD:
            yield fields[_MAPS_PATH_FIELD]


def lock_owner(fd: int, proc: Path) -> Holder | None:
    """Return the holder of a flock on the file of `fd`, as far as this pid namespace sees it.

    /proc/locks: "1: FLOCK  ADVISORY  WRITE 1234 00:0d:357 0 EOF", device in hexadecimal.
    """
    status = os.fstat(fd)
    major, minor = os.major(status.st_dev), os.minor(status.st_dev)
    place = f"{major:02x}:{minor:02x}:{status.st_ino}"
    for line in (proc / "locks").read_text().splitlines():
        kind, *_, pid, where, _start, _end = line.split()[1:]
        if kind == "FLOCK" and where == place:
            return _holder(int(pid), proc)
    return None


def _holder(pid: int, proc: Path) -> Holder:
    try:
        comm = (proc / str(pid) / "comm").read_text(errors="replace").removesuffix("\n")
    except (FileNotFoundError, ProcessLookupError):
        comm = "exited process"
    return Holder(pid, visible(comm))
