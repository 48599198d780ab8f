# SPDX-License-Identifier: Apache-2.0
"""Read stage: open a segment of any format, or a file of perf or trace-cmd, to read its events."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from collectord.codec.perf_section import MAGIC as PERF_MAGIC
from collectord.codec.tracing_data import MAGIC as TRACE_MAGIC
from collectord.errors import UsageError
from collectord.folders.folder import opened
from collectord.folders.walk import open_file
from collectord.reader.event_file import UNREADABLE
from collectord.sink.segment import PARTIAL, SegmentPaths, sink_errors

if TYPE_CHECKING:
    from contextlib import ExitStack
    from pathlib import Path

    from collectord.reader.event_file import EventFile
    from collectord.reader.relay_events import RelaySegment


def open_any(path: Path, stack: ExitStack) -> EventFile | RelaySegment:
    """Open a segment until the stack ends; for a set, one file or all.

    Raises:
        UsageError: its format has no events.

    Raises as `open_tables` and `RelaySegment`.
    """
    one = SegmentPaths(path.parent, path.name.removesuffix(PARTIAL))
    if one.set_format or not path.exists():
        from collectord.reader.blk_tables import BlkTables, is_blktrace  # noqa: PLC0415  # rare
        from collectord.reader.relay_events import RelaySegment, files_of  # noqa: PLC0415

        files = files_of(path)
        if files and is_blktrace(next(iter(files.values()))):
            return BlkTables(path, files, stack)
        if files:
            return RelaySegment(path, files, stack)
    file = open_tables(path, stack)
    if file is None:
        raise UsageError(
            f"{path} is neither trace.dat nor perf.data, and no set of blktrace files"
        )
    return file


def open_tables(path: Path, stack: ExitStack) -> EventFile | None:
    """Open a file until the stack ends; None for one whose format has no tables.

    A running segment may have been sealed since its path was listed.

    Raises:
        SinkError: it cannot be read, or its head is damaged.
        UnsafePath: it is not a plain file.
    """
    paths = (path, path.with_name(path.name.removesuffix(PARTIAL)))
    with sink_errors(UNREADABLE, path, reading=True):
        try:
            fd = open_file(paths[0])
        except FileNotFoundError:
            fd, path = open_file(paths[1]), paths[1]
        stack.enter_context(opened(fd))
        first = os.pread(fd, len(TRACE_MAGIC), 0)
    # Each is loaded when it is needed.
    if first == TRACE_MAGIC:
        from collectord.reader.trace_tables import TraceTables  # noqa: PLC0415

        return TraceTables(fd, path, stack)
    if first.startswith(PERF_MAGIC):
        from collectord.reader.perf_tables import PerfTables  # noqa: PLC0415

        return PerfTables(fd, path, stack)
    from collectord.reader.blk_tables import is_blktrace, open_one  # noqa: PLC0415

    return open_one(path, stack) if is_blktrace(path) else None
