# SPDX-License-Identifier: Apache-2.0
"""Sink stage: identify the format of a data file by its first bytes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from collectord.codec.perf_section import MAGIC as PERF_MAGIC
from collectord.codec.tracing_data import MAGIC as TRACE_MAGIC
from collectord.errors import CodecError
from collectord.sink.perf_file import PerfFile
from collectord.sink.relay_file import RelayFile
from collectord.sink.trace_file import TraceFile

if TYPE_CHECKING:
    from collections.abc import Callable

    from collectord.sink.stored_file import StoredFile

_BY_MAGIC: Final[dict[bytes, Callable[[int], StoredFile]]] = {
    PERF_MAGIC: PerfFile,
    TRACE_MAGIC: TraceFile,
}
_MAGIC_BYTES: Final = max(map(len, _BY_MAGIC))


def open_stored(fd: int, set_format: str = "") -> StoredFile:
    """Read the head of a data file.

    Args:
        fd: the file.
        set_format: `SegmentPaths.set_format`; files of sets have no head to identify them.

    Raises:
        CodecError: its format is not one that this program writes, or its head is damaged.
    """
    if set_format:
        return RelayFile(fd, set_format)
    first = os.pread(fd, _MAGIC_BYTES, 0)
    for magic, kind in _BY_MAGIC.items():
        if first.startswith(magic):
            return kind(fd)
    raise CodecError("neither perf.data nor trace.dat", offset=0, reason="magic")


def begins_as_ours(fd: int) -> bool:
    """Whether the first bytes are those of a format that this program writes."""
    first = os.pread(fd, _MAGIC_BYTES, 0)
    return any(first.startswith(magic) for magic in _BY_MAGIC)
