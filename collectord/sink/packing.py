# SPDX-License-Identifier: Apache-2.0
"""Sink stage: compressed segments, and the files as they were before, for those that read them."""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from collectord.codec import perf_packed
from collectord.codec.packed import FIRST_BYTES
from collectord.folders.folder import write_all
from collectord.sink.scan import mapped
from collectord.sink.segment import PERF_DATA

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from collectord.codec.packed import Packing, Piece

# The compressed forms, by the format of the file.
PACKINGS: Final[dict[str, Packing]] = {PERF_DATA: perf_packed}


def packing_of(fd: int) -> Packing | None:
    """Return the compressed form that a file has; None if it has none."""
    first = os.pread(fd, FIRST_BYTES, 0)
    return next((one for one in PACKINGS.values() if one.is_packed(first)), None)


@contextmanager
def unpacked(fd: int) -> Iterator[int]:
    """Yield a descriptor of a file as it was before its compression: itself, or a nameless copy.

    Raises:
        CodecError: it is damaged.
        OSError: there is no room for a copy in the folder for temporary files.
    """
    packing = packing_of(fd)
    if packing is None:
        yield fd
        return
    with tempfile.TemporaryFile(prefix="collectord-") as copy:
        with mapped(fd, os.fstat(fd).st_size) as view:
            write_pieces(copy.fileno(), packing.unpack(view))
        yield copy.fileno()


def write_pieces(fd: int, pieces: Iterable[Piece]) -> None:
    """Write the pieces of a file."""
    for offset, data in pieces:
        if data:
            write_all(fd, data, offset)
        elif os.fstat(fd).st_size < offset:
            os.ftruncate(fd, offset)
