# SPDX-License-Identifier: Apache-2.0
"""Symbols that were read from files, kept in a folder for the next time, up to a limit."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from collectord.errors import UnsafePath
from collectord.folders.trust import Trust
from collectord.folders.walk import open_folder
from collectord.reader.symbols import symbolic_names

if TYPE_CHECKING:
    from collectord.folders.folder import Folder
    from collectord.reader.symbols.debuginfod import Debuginfod
    from collectord.reader.symbols.symbolic_names import FileNames

LIMIT_BYTES: Final = 512 << 20
_SUFFIX: Final = ".symcache"
_MODE: Final = 0o700


class SymbolCache:
    """Files by build-id. What fails is not kept, and nothing is said: it is read anew.

    Args:
        path: of the folder, which is made when something is kept.
        limit_bytes: of all files together; those that were used last stay.
        servers: of debug files that are not here.
    """

    def __init__(
        self, path: Path, limit_bytes: int = LIMIT_BYTES, servers: Debuginfod | None = None
    ) -> None:
        self.servers = servers
        self._path = path
        self._limit_bytes = limit_bytes

    def get(self, key: str) -> FileNames | None:
        """Return what was kept by a key."""
        name = key + _SUFFIX
        with suppress(OSError, UnsafePath), open_folder(self._path, Trust.OWN) as folder:
            data = folder.read(name, self._limit_bytes)
            os.utime(name, dir_fd=folder.fd, follow_symlinks=False)
            return symbolic_names.of_encoded(data)
        return None

    def put(self, key: str, names: FileNames) -> None:
        """Keep something, and delete what was not used for the longest time."""
        data = names.encoded()
        if len(data) > self._limit_bytes:
            return
        with (
            suppress(OSError, UnsafePath),
            open_folder(self._path, Trust.OWN, make_mode=_MODE) as folder,
        ):
            self._make_room(folder, len(data))
            folder.put(key + _SUFFIX, data)

    def _make_room(self, folder: Folder, need_bytes: int) -> None:
        found = []
        for entry in folder.entries():
            status = folder.stat(entry.name)
            if entry.is_file and status is not None and stat.S_ISREG(status.st_mode):
                found.append((status.st_mtime_ns, entry.name, status.st_size))
        total = need_bytes + sum(size for *_, size in found)
        for _, name, size in sorted(found):
            if total <= self._limit_bytes:
                return
            folder.discard(name)
            total -= size


def user_cache(servers: Debuginfod | None = None) -> SymbolCache | None:
    """Return the user's cache; None for a user without a home.

    Args:
        servers: of debug files that are not here.
    """
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        path = Path(home).expanduser() / "collectord" / "symbols"
    except RuntimeError:
        return None
    return SymbolCache(path, servers=servers)
