# SPDX-License-Identifier: Apache-2.0
"""Sink stage: the catalogue of segments and files that a query reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from collectord.errors import SinkError, UsageError
from collectord.reader.any_events import open_tables
from collectord.reader.event_tables import EventTable, tables_of
from collectord.reader.relay_events import files_of
from collectord.reader.verify import list_segments

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import ExitStack
    from pathlib import Path

    from collectord.reader.event_file import EventFile
    from collectord.reader.sql import Nearest
    from collectord.reader.verify import SegmentRow


class Catalogue(NamedTuple):
    """All that can be asked for.

    Attributes:
        rows: all segments and files.
        files: those that can be read.
        tables: of them, by name.
        unread: paths of those whose format has no tables.
        failures: why others cannot be read.
    """

    rows: Sequence[SegmentRow]
    files: Sequence[EventFile]
    tables: dict[str, EventTable]
    unread: Sequence[Path]
    failures: Sequence[SinkError]


def open_catalogue(
    targets: Sequence[Path], stack: ExitStack, *, session: str | None, nearest: Nearest
) -> Catalogue:
    """Open what is in state directories and session directories, and files by name.

    Args:
        targets: directories, segments, other files, and names of sets of files.
        stack: the files are closed when it ends.
        session: only its segments; None: all.
        nearest: says which session may have been meant.

    Raises:
        UsageError: no segment is of that session.
        SinkError: a directory or a file that was named cannot be read.
    """
    targets = [path for target in targets for path in files_of(target).values() or (target,)]
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
    return Catalogue(rows, files, tables_of(files), unread, failures)
