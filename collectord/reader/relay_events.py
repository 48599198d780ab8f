# SPDX-License-Identifier: Apache-2.0
"""Read stage: sets of files, of blktrace or of a relay channel, and the bytes of the latter."""

from __future__ import annotations

import mmap
import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

from collectord.codec.file_formats import BLKTRACE, RELAY
from collectord.folders.folder import opened
from collectord.folders.walk import open_file
from collectord.sink.packing import plain_errors, unpacked
from collectord.sink.segment import PARTIAL, SegmentPaths

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Bytes of a channel per line.
LINE_BYTES = 16


class Piece(NamedTuple):
    """One line of bytes of a channel's file."""

    number: int
    offset: int
    data: bytes


def files_of(path: Path) -> dict[int, Path]:
    """Return the files that a name stands for, by their number: one of a set, or a whole set.

    A set's name is the common part of its files' names, as for blkparse. The result is empty if
    the name fits neither.
    """
    one = SegmentPaths(path.parent, path.name.removesuffix(PARTIAL))
    if one.set_format and path.exists():
        return {one.set_number: path}
    found: dict[int, Path] = {}
    if path.exists() or not path.parent.is_dir():
        return found
    for kind in (BLKTRACE, RELAY):
        for entry in path.parent.glob("*"):
            name = entry.name.removesuffix(PARTIAL)
            number = name.removeprefix(f"{path.name}.{kind}.")
            if number != name and number.isascii() and number.isdigit():
                found[int(number)] = entry
        if found:
            break
    return dict(sorted(found.items()))


class RelaySegment:
    """The open files of a channel whose format is unknown.

    Attributes:
        path: as it was given.

    Raises:
        SinkError: a file cannot be read.
    """

    def __init__(self, path: Path, files: dict[int, Path], stack: ExitStack) -> None:
        self.path = path
        self._views = {number: _mapped(file, stack) for number, file in files.items()}

    def pieces(self) -> Iterator[Piece]:
        """Yield the bytes of all files, one after the other."""
        for number, view in self._views.items():
            for offset in range(0, len(view), LINE_BYTES):
                yield Piece(number, offset, bytes(view[offset : offset + LINE_BYTES]))

    @property
    def sizes(self) -> dict[int, int]:
        """The size of each file in bytes."""
        return {number: len(view) for number, view in self._views.items()}


def _mapped(path: Path, stack: ExitStack) -> memoryview:
    with plain_errors(path), ExitStack() as own:
        file = own.enter_context(opened(open_file(path)))
        fd = own.enter_context(unpacked(file))
        size = os.fstat(fd).st_size
        if not size:
            return memoryview(b"")
        pages = stack.enter_context(mmap.mmap(fd, size, prot=mmap.PROT_READ))
    return stack.enter_context(memoryview(pages))
