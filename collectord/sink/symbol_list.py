# SPDX-License-Identifier: Apache-2.0
"""Sink stage: the addresses of the kernel's functions in a boot, kept beside its segments.

Another boot has them elsewhere, so a profile that is read later needs the list of its own boot.
Modules and BPF programs come and go meanwhile: segments have lists of their own of these.
"""

from __future__ import annotations

import re
import time
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from collectord.codec.kallsyms import FUNCTIONS, OF_MODULES, are_hidden
from collectord.errors import UnsafePath
from collectord.folders.trust import PROC
from collectord.folders.walk import open_folder
from collectord.sink.segment import modules_name
from collectord.sink.sidecar_files import FAST, GZIP, NewFile, link, unpacked
from collectord.text.units import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from collectord.folders.folder import Folder

TEXT_MAX_BYTES: Final = 64 << 20
_FILE_MAX_BYTES: Final = 16 << 20
_PIECE_BYTES: Final = 256 << 10
_KEPT: Final = 8
_PREFIX: Final = ".kallsyms-"
_SUFFIX: Final = ".gz"
_MODULE: Final = re.compile(r"^(\S+) .* (Live \S+)", re.MULTILINE)
# No cheap sign tells that BPF programs have come or gone: their list is taken anew after that.
_LASTS_NS: Final = 600 * NS_PER_SECOND
_BOOT_ID: Final = re.compile(r"[0-9a-f-]{36}", re.ASCII)


def list_name(boot_id: str) -> str:
    """Return the name of a boot's list; "" for what is no id of a boot."""
    return f"{_PREFIX}{boot_id}{_SUFFIX}" if _BOOT_ID.fullmatch(boot_id) else ""


def read_symbols(source: Path) -> bytes:
    """Return the kernel's own list, of functions only; empty if it hides the addresses.

    Raises OSError.
    """
    return b"".join(_pieces(source))


def _pieces(source: Path, lines_of: re.Pattern[bytes] = FUNCTIONS) -> Iterator[bytes]:
    """Yield the list, some lines at a time: all of it is as large as the rest of a daemon."""
    left, rest, is_shown = TEXT_MAX_BYTES, b"", False
    with source.open("rb", buffering=0) as file:
        while left > 0 and (piece := file.read(min(_PIECE_BYTES, left))):
            left -= len(piece)
            lines, end, rest = (rest + piece).rpartition(b"\n")
            found = lines_of.findall(lines + end)
            if not is_shown and are_hidden(found):
                return
            is_shown |= bool(found)
            yield b"".join(found)


def keep_symbols(folder: Folder, boot_id: str, source: Path) -> None:
    """Keep the list of a boot, unless it is there, and of other boots the newest few.

    Raises OSError, UnsafePath.
    """
    name = list_name(boot_id)
    if not name or folder.stat(name) is not None:
        return
    packer = zlib.compressobj(FAST, zlib.DEFLATED, GZIP)
    total = 0
    packed = []
    for piece in _pieces(source):
        total += len(piece)
        packed.append(packer.compress(piece))
    packed.append(packer.flush())
    if not total or sum(map(len, packed)) > _FILE_MAX_BYTES:
        return
    folder.put(name, b"".join(packed))
    found = []
    for entry in folder.entries():
        if entry.name.startswith(f".{_PREFIX}"):  # what a process has left that ended meanwhile
            folder.discard(entry.name)
        status = folder.stat(entry.name)
        if entry.name.startswith(_PREFIX) and entry.name.endswith(_SUFFIX) and status is not None:
            found.append((status.st_mtime_ns, entry.name))
    for _, old in sorted(found)[:-_KEPT]:
        folder.discard(old)


def kept_symbols(folder: Folder, boot_id: str) -> bytes:
    """Return the list of a boot; empty if there is none, or it is damaged.

    Raises OSError, UnsafePath.
    """
    name = list_name(boot_id)
    if not name or folder.stat(name) is None:
        return b""
    with suppress(zlib.error):
        return unpacked(folder, name, TEXT_MAX_BYTES)
    return b""


class _Taken(NamedTuple):
    """A list of modules' functions.

    Attributes:
        name: of its file, "" if the list is empty.
        modules: that were loaded.
        crc: of its text.
        taken_ns: MONOTONIC.
    """

    name: str
    modules: frozenset[tuple[str, str]]
    crc: int
    taken_ns: int


class ModuleLists:
    """Keeps the functions of modules and BPF programs for each segment; one call at a time.

    Args:
        proc: root of procfs.
    """

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._last: _Taken | None = None

    def keep(self, folder: Folder, segment: str) -> None:
        """Keep a list for a sealed segment: a new one, if there are other modules by now.

        Raises:
            OSError, UnsafePath: it cannot be read or written.
        """
        name = modules_name(segment)
        now_ns = time.monotonic_ns()
        modules = self._loaded()
        last = self._last
        if (
            last is not None
            and now_ns - last.taken_ns < _LASTS_NS
            and modules == last.modules
            and (not last.name or link(folder, last.name, name))
        ):
            self._last = last._replace(name=name if last.name else "")
            return
        with NewFile(folder, name) as new:
            text_bytes, crc = new.write(self._functions())
            if not text_bytes:  # there are none, or they are hidden from this user
                name = ""
            elif last is None or last.crc != crc or not link(folder, last.name, name):
                new.keep()
        self._last = _Taken(name, modules, crc, now_ns)

    def _functions(self) -> Iterator[bytes]:
        with suppress(FileNotFoundError):  # the kernel has no list
            yield from _pieces(self._proc / "kallsyms", OF_MODULES)

    def _loaded(self) -> frozenset[tuple[str, str]]:
        """Return the modules with their addresses; none if the kernel has no modules."""
        with suppress(FileNotFoundError):
            return frozenset(_MODULE.findall((self._proc / "modules").read_text()))
        return frozenset()


def kept_modules(segment: Path) -> bytes:
    """Return the list of the modules' functions beside a segment; empty if there is none.

    Args:
        segment: its path.
    """
    with suppress(OSError, UnsafePath, zlib.error), open_folder(segment.parent) as folder:
        return unpacked(folder, modules_name(segment.name), TEXT_MAX_BYTES)
    return b""
