# SPDX-License-Identifier: Apache-2.0
"""Sink stage: names of code that processes made while they ran, kept beside a segment.

Interpreters and virtual machines write them to `/tmp/perf-PID.map` on request, a line for each
function, with START and SIZE in hexadecimal and the name. With the process such a file may go, or
change: `<segment>.PID.map.gz` is a copy from the time of the segment's seal. A map that has not
changed since the segment before is another name of that copy.
"""

from __future__ import annotations

import os
import re
import stat
import zlib
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from collectord.errors import UnsafePath
from collectord.folders.folder import Folder, opened, reopen
from collectord.folders.walk import open_folder
from collectord.sink.segment import map_copy_name
from collectord.sink.sidecar_files import NewFile, link, unpacked

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

MAP_MAX_BYTES: Final = 64 << 20
MAPS_MAX: Final = 64  # of one segment
_TOTAL_MAX_BYTES: Final = 128 << 20  # likewise, as text
_PIECE_BYTES: Final = 256 << 10
_LINE_MAX_BYTES: Final = 64 << 10
# Others may bind any file to that name: what is no function is not copied.
_FUNCTION: Final = re.compile(rb"^(?:0x)?[0-9a-f]{1,16} (?:0x)?[0-9a-f]{1,16} .+\n", re.MULTILINE)
_INNER_PID: Final = re.compile(r"^NSpid:.*?(\d+)$", re.MULTILINE)
_TEMPORARY: Final = "tmp"
_FOLDER: Final = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


def open_map(pid: int, root: Path = Path("/")) -> int:
    """Open the map of a process that lives, or has lived.

    It is looked for where the process sees it; and, for one that is gone, where the first process
    and this one see it. It must belong to root, to this user or to the user of the process, as
    perf requires: anybody may write to /tmp.

    Args:
        pid: of the process.
        root: of the file system.

    Raises:
        FileNotFoundError: it has none.
    """
    process = root / "proc" / str(pid)
    owners = {0, os.geteuid()}
    inner = str(pid)
    with suppress(OSError):
        owners.add(process.stat().st_uid)
        told = _INNER_PID.search((process / "status").read_text())
        inner = told[1] if told else inner
    for top, number in ((process / "root", inner), (root / "proc/1/root", pid)):
        with suppress(OSError, UnsafePath), opened(os.open(top, _FOLDER)) as place:
            tmp = os.open(_TEMPORARY, _FOLDER | os.O_NOFOLLOW, dir_fd=place)
            with Folder(tmp, top / _TEMPORARY) as folder:
                return _opened(folder, f"perf-{number}.map", owners)
    with suppress(OSError, UnsafePath), open_folder(root / _TEMPORARY) as folder:
        return _opened(folder, f"perf-{pid}.map", owners)
    raise FileNotFoundError(pid)


def _opened(folder: Folder, name: str, owners: Collection[int]) -> int:
    """Open a plain file of one of some users; anything else is not opened at all."""
    way = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
    with opened(os.open(name, way, dir_fd=folder.fd)) as place:
        status = os.fstat(place)
        if not stat.S_ISREG(status.st_mode):
            raise UnsafePath("is not a regular file", path=str(folder.path / name))
        if status.st_uid not in owners:
            raise UnsafePath(f"belongs to user {status.st_uid}", path=str(folder.path / name))
        return reopen(place, os.O_RDONLY | os.O_NONBLOCK)


class Kept(NamedTuple):
    """The result of keeping the maps of a segment.

    Attributes:
        maps: how many it has.
        left_out: those that were too large or too many, or that could not be read.
    """

    maps: int = 0
    left_out: int = 0


class _Copy(NamedTuple):
    """A copy, and the state of the map that it was made of."""

    name: str
    state: tuple[int, ...]
    text_bytes: int


class MapCopies:
    """Keeps the maps of one session's processes; one call at a time.

    Args:
        root: of the file system with the processes.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._last: dict[int, _Copy] = {}

    def keep(self, folder: Folder, segment: str, pids: Collection[int]) -> Kept:
        """Copy the maps of processes, for a sealed segment.

        Raises:
            OSError, UnsafePath: a copy cannot be written.
        """
        copies: dict[int, _Copy] = {}
        left_out = total_bytes = 0
        for pid in sorted(pids):
            try:
                fd = open_map(pid, self._root)
            except FileNotFoundError:
                continue
            with opened(fd):
                if len(copies) == MAPS_MAX or total_bytes >= _TOTAL_MAX_BYTES:
                    left_out += 1
                    continue
                copy = self._copied(folder, fd, map_copy_name(segment, pid), self._last.get(pid))
            if copy is None:
                left_out += 1
            else:
                copies[pid] = copy
                total_bytes += copy.text_bytes
        self._last = copies
        return Kept(len(copies), left_out)

    def _copied(self, folder: Folder, fd: int, name: str, last: _Copy | None) -> _Copy | None:
        """Return the copy of an open map; None for one that is too large, or cannot be read."""
        status = os.fstat(fd)
        if status.st_size > MAP_MAX_BYTES:
            return None
        state = (
            *(status.st_dev, status.st_ino, status.st_size),
            *(status.st_mtime_ns, status.st_ctime_ns),
        )
        if last is not None and last.state == state and link(folder, last.name, name):
            return last._replace(name=name)
        with NewFile(folder, name) as new:
            text_bytes, _ = new.write(_functions(fd))
            if text_bytes:
                new.keep()
                return _Copy(name, state, text_bytes)
        return None


def _functions(fd: int) -> Iterator[bytes]:
    """Yield the lines of a map, some at a time; what is cut, or no function, is left out."""
    at, rest = 0, b""
    with suppress(OSError):
        while at < MAP_MAX_BYTES and (piece := os.pread(fd, _PIECE_BYTES, at)):
            at += len(piece)
            lines, end, rest = (rest + piece).rpartition(b"\n")
            if len(rest) > _LINE_MAX_BYTES:
                return
            yield b"".join(_FUNCTION.findall(lines + end))


def kept_map(segment: Path, pid: int) -> bytes:
    """Return the kept map of a process, as far as it is sound; empty if there is none.

    Args:
        segment: the path of the segment.
        pid: of the process.
    """
    with suppress(OSError, UnsafePath, zlib.error), open_folder(segment.parent) as folder:
        return unpacked(folder, map_copy_name(segment.name, pid), MAP_MAX_BYTES)
    return b""
