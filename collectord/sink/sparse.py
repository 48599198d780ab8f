# SPDX-License-Identifier: Apache-2.0
"""Sink stage: make holes in files for unused room, and check that holes are empty."""

from __future__ import annotations

import errno
import mmap
import os
from typing import TYPE_CHECKING, Final

from collectord.folders.folder import write_all

if TYPE_CHECKING:
    from collections.abc import Iterator

_PIECE_BYTES: Final = 1 << 20


def punch(fd: int, start: int, end: int) -> None:
    """Make a hole of the bytes from `start` to `end`; the file keeps its length.

    If the filesystem has no holes, the bytes written from `start` on become zeros.

    Args:
        fd: of the file, open for reading and writing.
        start: a multiple of the machine's page size.
        end: a multiple of it too, and not behind the file's end.

    Raises:
        OSError: the file cannot be changed.
    """
    if end <= start:
        return
    with mmap.mmap(fd, end - start, offset=start) as room:
        try:
            room.madvise(mmap.MADV_REMOVE)
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            _clear(fd, start, end)


def _clear(fd: int, start: int, end: int) -> None:
    """Overwrite data with zeros, up to the first piece that was never written."""
    for at in range(start, end, _PIECE_BYTES):
        found = os.pread(fd, min(_PIECE_BYTES, end - at), at)
        if not found.strip(b"\0"):
            return
        write_all(fd, bytes(len(found)), at)


def stray_byte(fd: int, view: memoryview, start: int, end: int) -> int | None:
    """Return the offset of the first byte from `start` to `end` that is not 0, None if all are.

    Args:
        fd: the file, whose holes are skipped.
        view: its bytes.
        start: beginning of the range.
        end: end of the range.
    """
    for first, past in written(fd, start, end):
        for at in range(first, past, _PIECE_BYTES):
            with view[at : min(at + _PIECE_BYTES, past)] as piece:
                raw = bytes(piece)
            rest = raw.lstrip(b"\0")
            if rest:
                return at + len(raw) - len(rest)
    return None


def written(fd: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of a range that are not holes."""
    at = start
    while at < end:
        try:
            at = os.lseek(fd, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:  # only a hole is left
                raise
            return
        past = min(os.lseek(fd, at, os.SEEK_HOLE), end)
        if at < past:
            yield at, past
        at = past
