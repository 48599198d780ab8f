# SPDX-License-Identifier: Apache-2.0
"""Sink stage: the catalogue of segments and files that a query reads."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from collectord.codec.perf_data import MAGIC as PERF_MAGIC
from collectord.codec.tracing_data import MAGIC as TRACE_MAGIC
from collectord.errors import SinkError, UsageError
from collectord.folders.folder import opened
from collectord.folders.walk import open_file
from collectord.reader.event_file import UNREADABLE, EventFile
from collectord.reader.event_tables import EventTable, tables_of
from collectord.reader.perf_tables import PerfTables
from collectord.reader.trace_tables import TraceTables
from collectord.reader.verify import list_segments
from collectord.sink.segment import PARTIAL, sink_errors

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import ExitStack
    from pathlib import Path

    from collectord.reader.sql import Nearest
    from collectord.reader.verify import SegmentRow


class Catalogue(NamedTuple):
    """All that can be asked for.

    Attributes:
        rows: all segments and files.
        tables: of those that can be read, by name.
        unread: paths of those whose format has no tables.
        failures: why others cannot be read.
    """

    rows: Sequence[SegmentRow]
    tables: dict[str, EventTable]
    unread: Sequence[Path]
    failures: Sequence[SinkError]


def open_catalogue(
    targets: Sequence[Path], stack: ExitStack, *, session: str | None, nearest: Nearest
) -> Catalogue:
    """Open what is in state directories and session directories, and files by name.

    Args:
        targets: directories, segments and other files.
        stack: the files are closed when it ends.
        session: only its segments; None: all.
        nearest: says which session may have been meant.

    Raises:
        UsageError: no segment is of that session.
        SinkError: a directory or a file that was named cannot be read.
    """
    failures: list[SinkError] = []
    rows = list_segments(targets, on_closed=failures.append)
    if session is not None:
        sessions = {row.session for row in rows if row.session}
        if session not in sessions:
            hint = nearest(session, sessions) or "`collectord segments list` shows the segments"
            raise UsageError(f"no segment is of session {session!r}", hint=hint)
        rows = [row for row in rows if row.session == session]
    files: list[EventFile] = []
    unread: list[Path] = []
    named = {*targets}
    for row in rows:
        try:
            file = open_tables(row.path, stack)
        except SinkError as error:
            if row.path in named and len(rows) == 1:
                raise
            failures.append(error)
            continue
        if file is None:
            unread.append(row.path)
        else:
            files.append(file)
    return Catalogue(rows, tables_of(files), unread, failures)


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
    if first == TRACE_MAGIC:
        return TraceTables(fd, path, stack)
    if first.startswith(PERF_MAGIC):
        return PerfTables(fd, path, stack)
    return None
