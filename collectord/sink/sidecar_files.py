# SPDX-License-Identifier: Apache-2.0
"""Sink stage: small files that are kept beside a sealed segment, for the names in its stacks.

What has not changed since the segment before is another name of that one's file.
"""

from __future__ import annotations

import os
import re
import zlib
from typing import TYPE_CHECKING, Final, Self

from collectord.folders.folder import opened, write_all
from collectord.sink.segment import BESIDE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from collectord.folders.folder import Folder

GZIP: Final = zlib.MAX_WBITS | 16
FAST: Final = 1
_BESIDE: Final = re.compile(rf"(.+?){BESIDE}")
_UNFINISHED: Final = re.compile(rf"\..+{BESIDE}\.new")


class NewFile:
    """A file that is written under another name until it is kept.

    Args:
        folder: of the segment.
        name: of the file.
    """

    def __init__(self, folder: Folder, name: str) -> None:
        self._folder = folder
        self._name = name
        self._new = f".{name}.new"

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the file unless it was kept."""
        self._folder.discard(self._new)

    def write(self, pieces: Iterable[bytes]) -> tuple[int, int]:
        """Write text in its compressed form; return its bytes and its CRC. Raises OSError."""
        packer = zlib.compressobj(FAST, zlib.DEFLATED, GZIP)
        text_bytes = crc = at = 0
        with opened(self._folder.replace(self._new)) as fd:
            for piece in pieces:
                text_bytes += len(piece)
                crc = zlib.crc32(piece, crc)
                packed = packer.compress(piece)
                write_all(fd, packed, at)
                at += len(packed)
            write_all(fd, packer.flush(), at)
        return text_bytes, crc

    def keep(self) -> None:
        """Give the finished file its name. Raises OSError."""
        self._folder.rename(self._new, self._name)


def link(folder: Folder, old: str, new: str) -> bool:
    """Give a file another name; return False if that cannot be."""
    try:
        os.link(old, new, src_dir_fd=folder.fd, dst_dir_fd=folder.fd, follow_symlinks=False)
    except OSError:  # it is deleted, or the file system has no such names
        return False
    return True


def unpacked(folder: Folder, name: str, limit_bytes: int) -> bytes:
    """Return the text of a file, as far as it is sound. Raises OSError, UnsafePath, zlib.error."""
    unpacker = zlib.decompressobj(GZIP)
    return unpacker.decompress(folder.read(name, limit_bytes), limit_bytes)


def remove_lone(folder: Folder) -> None:
    """Remove files whose segment is gone, and what a process has left that ended meanwhile."""
    entries = folder.entries()
    names = {entry.name for entry in entries}
    for entry in entries:
        found = _BESIDE.fullmatch(entry.name)
        if (found and found[1] not in names) or _UNFINISHED.fullmatch(entry.name):
            folder.discard(entry.name)
