# SPDX-License-Identifier: Apache-2.0
"""Sink stage: relay segments read back: records of blktrace, or bytes of a channel."""

from __future__ import annotations

import heapq
import mmap
import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

from collectord.codec.blktrace import read_records
from collectord.errors import CodecError
from collectord.folders.folder import opened
from collectord.folders.walk import open_file
from collectord.sink.packing import plain_errors, unpacked
from collectord.sink.segment import BLKTRACE, PARTIAL, RELAY, SegmentPaths

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from collectord.codec.blktrace import BlkRecord

# Bytes of a channel per line.
LINE_BYTES = 16


class Damage(NamedTuple):
    """Bytes that are not a record; the rest of the file is skipped."""

    path: Path
    error: CodecError


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
        return {int(one.set_format.rpartition(".")[2]): path}
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
    """The open files of a set.

    Attributes:
        path: as it was given.
        is_blktrace: the files have records; otherwise bytes.

    Raises:
        SinkError: a file cannot be read.
    """

    def __init__(self, path: Path, files: dict[int, Path], stack: ExitStack) -> None:
        self.path = path
        first = next(iter(files.values())).name.removesuffix(PARTIAL)
        self.is_blktrace = SegmentPaths(path.parent, first).set_format.startswith(BLKTRACE)
        self._views = {number: (file, _mapped(file, stack)) for number, file in files.items()}

    def by_time(self) -> Iterator[BlkRecord | Damage]:
        """Return the records of all files, in the order of time."""
        streams = [self._records(number) for number in self._views]
        return (found for _, _, _, found in heapq.merge(*streams))

    def _records(self, number: int) -> Iterator[tuple[int, int, int, BlkRecord | Damage]]:
        """Yield records with their sort key: time, file, position."""
        path, view = self._views[number]
        last_ns = place = 0
        try:
            for place, record in enumerate(read_records(view)):
                # If the clock stood still, or a note was late, the order in the file counts.
                last_ns = max(last_ns, record.time_ns)
                yield last_ns, number, place, record
        except CodecError as error:
            yield last_ns, number, place + 1, Damage(path, error)

    def pieces(self) -> Iterator[Piece]:
        """Yield the bytes of all files, one after the other."""
        for number, (_, view) in self._views.items():
            for offset in range(0, len(view), LINE_BYTES):
                yield Piece(number, offset, bytes(view[offset : offset + LINE_BYTES]))

    @property
    def sizes(self) -> dict[int, int]:
        """The size of each file in bytes."""
        return {number: len(view) for number, (_, view) in self._views.items()}


def _mapped(path: Path, stack: ExitStack) -> memoryview:
    with plain_errors(path), ExitStack() as own:
        file = own.enter_context(opened(open_file(path)))
        fd = own.enter_context(unpacked(file))
        size = os.fstat(fd).st_size
        if not size:
            return memoryview(b"")
        pages = stack.enter_context(mmap.mmap(fd, size, prot=mmap.PROT_READ))
    return stack.enter_context(memoryview(pages))
