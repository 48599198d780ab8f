# SPDX-License-Identifier: Apache-2.0
"""A file that code ran from: found, checked, and asked for the functions at its offsets."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from collectord.codec import elf
from collectord.errors import UnsafePath
from collectord.folders.folder import opened, read_all
from collectord.folders.walk import open_file
from collectord.reader.symbols import symbolic_names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from collectord.reader.symbols.address_spaces import Mapping
    from collectord.reader.symbols.frame import Function
    from collectord.reader.symbols.symbol_cache import SymbolCache
    from collectord.reader.symbols.symbolic_names import FileNames

# Larger ones have no names: all of a file is in memory while it is read.
FILE_MAX_BYTES: Final = 1 << 30
_DEBUG: Final = Path("/usr/lib/debug/.build-id")
_ID_MIN_BYTES: Final = 8
VDSO: Final = "[vdso]"
_VDSO_MAX_BYTES: Final = 1 << 20


class CodeFile(NamedTuple):
    """A file by its loaded parts.

    Attributes:
        parts: of the file.
        names: None if nothing tells them.
    """

    parts: tuple[elf.Part, ...]
    names: FileNames | None

    def find(self, offset: int) -> tuple[Function, ...]:
        """Return the functions at an offset in the file, the innermost first."""
        if self.names is None:
            return ()
        for part in self.parts:
            if part.offset <= offset < part.offset + part.length:
                address = offset - part.offset + part.address
                return self.names.find(address - self.parts[0].address)
        return ()


NOTHING: Final = CodeFile((), None)


def open_code(
    mapping: Mapping, build_id: bytes, pids: Iterator[int], cache: SymbolCache | None
) -> CodeFile:
    """Open the file that was mapped, as far as it is still there.

    The names come from its debug file, if that is installed, else from itself.

    Args:
        mapping: of it; without a build-id its inode must be that of the file.
        build_id: of it, empty if it is not known.
        pids: of processes that mapped it, in which it may have another root.
        cache: of what was read before.
    """
    name = mapping.file.lstrip("/")
    roots = (Path("/"), *(Path(f"/proc/{pid}/root") for pid in pids))
    for root in roots:
        with suppress(OSError, ValueError, UnsafePath), opened(open_file(root / name)) as fd:
            if _is_it(fd, mapping, build_id):
                return CodeFile(elf.loaded(_reading(fd)), _names(fd, root / name, cache))
    return NOTHING


@lru_cache(maxsize=1)
def own_vdso() -> CodeFile:
    """Return the code that the running kernel maps into every process of 64 bits."""
    with suppress(OSError, ValueError):
        maps = Path("/proc/self/maps").read_text(errors="replace").splitlines()
        line = next((line for line in maps if line.endswith(VDSO)), "0-0")
        begin, end = (int(word, 16) for word in line.split()[0].split("-"))
        with Path("/proc/self/mem").open("rb", buffering=0) as memory:
            data = os.pread(memory.fileno(), min(end - begin, _VDSO_MAX_BYTES), begin)
        parts = elf.loaded(lambda size, offset: data[offset : offset + size])
        return CodeFile(parts, symbolic_names.of_elf(data))
    return NOTHING


def _is_it(fd: int, mapping: Mapping, build_id: bytes) -> bool:
    if build_id:
        return elf.build_id(_reading(fd)) == build_id
    return bool(mapping.inode) and os.fstat(fd).st_ino == mapping.inode


def _names(fd: int, path: Path, cache: SymbolCache | None) -> FileNames | None:
    if not symbolic_names.is_installed():
        return None
    build_id = elf.build_id(_reading(fd))
    if len(build_id) >= _ID_MIN_BYTES:
        text = build_id.hex()
        key = f"{text}.debug"
        debug = _DEBUG / text[:2] / f"{text[2:]}.debug"
        with suppress(OSError, UnsafePath), opened(open_file(debug)) as its_fd:
            if elf.build_id(_reading(its_fd)) == build_id:
                found = _of_file(its_fd, debug, key, cache)
                if found is not None:
                    return found
        return _of_servers(build_id, key, cache) or _of_file(fd, path, text, cache)
    return _of_file(fd, path, "", None)


def _of_servers(build_id: bytes, key: str, cache: SymbolCache | None) -> FileNames | None:
    """Return the names in a debug file of the servers, if the user wants to ask them."""
    if cache is None or cache.servers is None:
        return None
    found = cache.get(key)
    if found is None:
        data = cache.servers.fetch(build_id)
        found = symbolic_names.of_elf(data) if data is not None else None
        if found is not None:
            cache.put(key, found)
    return found


def _of_file(fd: int, path: Path, key: str, cache: SymbolCache | None) -> FileNames | None:
    """Return the names in a file, or in the cache by its key. Raises OSError, UnsafePath."""
    found = cache.get(key) if cache is not None else None
    if found is None:
        found = symbolic_names.of_elf(read_all(fd, path, FILE_MAX_BYTES))
        if found is not None and cache is not None:
            cache.put(key, found)
    return found


def _reading(fd: int) -> elf.Read:
    return lambda size, offset: os.pread(fd, size, offset)
