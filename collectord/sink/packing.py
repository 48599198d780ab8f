# SPDX-License-Identifier: Apache-2.0
"""Sink stage: compressed segments, and the files as they were before, for those that read them."""

from __future__ import annotations

import os
import tempfile
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Final

from collectord.codec import perf_packed, relay_packed, trace_packed
from collectord.codec.file_formats import PERF_DATA, TRACE_DAT
from collectord.codec.packed import FIRST_BYTES
from collectord.errors import CodecError, SinkError
from collectord.folders.folder import write_all
from collectord.sink.manifest import COUNT_MAX
from collectord.sink.scan import mapped
from collectord.sink.segment import sink_errors

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from collectord.codec.packed import Packing, Pieces

_BY_FORMAT: Final[dict[str, Packing]] = {PERF_DATA: perf_packed, TRACE_DAT: trace_packed}
# Traces shrink to a twentieth at most; nobody's file may fill the disk of those who look at it.
_RATIO_MAX: Final = 1000
_CONTENTS_BYTES: Final = 64 << 20
_OF_SETS: Final[Packing] = relay_packed


def packing_for(form: str) -> Packing:
    """Return the compressed form that files of a format may have; those of sets have no head."""
    return _BY_FORMAT.get(form, _OF_SETS)


def packing_of(fd: int) -> Packing | None:
    """Return the compressed form that a file has; None if it has none."""
    first = os.pread(fd, FIRST_BYTES, 0)
    kinds = (*_BY_FORMAT.values(), _OF_SETS)
    return next((one for one in kinds if one.is_packed(first)), None)


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
            write_pieces(copy.fileno(), packing.unpack(view), contents_max_bytes(len(view)))
        yield copy.fileno()


@contextmanager
def plain_errors(path: Path) -> Iterator[None]:
    """Turn what is wrong with a file, or its compression, into a SinkError."""
    with sink_errors("cannot read the segment", path, reading=True):
        try:
            yield
        except CodecError as error:
            hint = "`collectord segments repair` keeps what can be read"
            message = f"cannot read the compressed segment, {error.message}"
            raise SinkError(message, path=str(path), hint=hint) from error


def contents_max_bytes(packed_bytes: int) -> int:
    """Return the most that a compressed file can stand for: any more is not of this program."""
    return _RATIO_MAX * packed_bytes + _CONTENTS_BYTES


def write_pieces(fd: int, pieces: Pieces, limit_bytes: int = COUNT_MAX) -> None:
    """Write the pieces of a file. Raises CodecError if it becomes larger than the limit."""
    with closing(pieces):  # they are parts of a map, which cannot be closed before
        for offset, data in pieces:
            if offset + len(data) > limit_bytes:
                raise CodecError(f"more than {limit_bytes} bytes", offset=offset, reason="size")
            if data:
                write_all(fd, data, offset)
            elif os.fstat(fd).st_size < offset:
                os.ftruncate(fd, offset)
