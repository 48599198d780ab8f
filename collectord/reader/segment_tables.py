# SPDX-License-Identifier: Apache-2.0
"""Read stage: the catalogue of segments and files that a query reads."""

from __future__ import annotations

import re
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from collectord.errors import SinkError, UsageError
from collectord.reader.any_events import open_tables
from collectord.reader.event_tables import EventTable, tables_of
from collectord.reader.relay_events import files_of
from collectord.reader.verify import list_segments
from collectord.sink.segment import PARTIAL

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from collectord.reader.event_file import EventFile
    from collectord.reader.sql import Nearest
    from collectord.reader.verify import SegmentRow


# A file that is gone since it was listed has the list made again, so often.
_LISTINGS: Final = 20
_SEGMENT: Final = re.compile(r"\d{8}T\d{6}Z-\d+\.(perf\.data|trace\.dat|blktrace\.\d+)")


class _GoneError(Exception):
    """A file is not where it was listed."""


class Catalogue(NamedTuple):
    """The tables that a statement can ask for.

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
    for _ in range(_LISTINGS):
        attempt = stack.enter_context(ExitStack())
        try:
            return _opened(targets, attempt, session, nearest)
        except _GoneError:
            attempt.close()
    return _opened(targets, stack, session, nearest, last=True)


def _opened(
    targets: Sequence[Path],
    stack: ExitStack,
    session: str | None,
    nearest: Nearest,
    *,
    last: bool = False,
) -> Catalogue:
    """Open what is listed. Raises _GoneError, unless it is the last time, and as `open_catalogue`.

    A daemon renames a segment that it seals, and deletes old ones, also while this runs.
    """
    failures: list[SinkError] = []
    rows = list_segments(targets, on_closed=failures.append)
    if session is not None:
        sessions = {row.session for row in rows if row.session}
        if session not in sessions:
            hint = nearest(session, sessions) or "`collectord segments list` shows the segments"
            raise UsageError(f"no segment is of session {session!r}", hint=hint)
        rows = [row for row in rows if row.session == session]
    files: dict[Path, EventFile] = {}
    unread: list[Path] = []
    named = {*targets}
    for row in _in_turn(rows):
        try:
            file = open_tables(row.path, stack)
        except SinkError as error:
            if row.path in named and len(rows) == 1:
                raise
            if not last and row.path not in named and not row.path.exists():
                raise _GoneError from error
            failures.append(error)
            continue
        if file is None:
            unread.append(row.path)
        else:
            files[row.path] = file
    if not last and _is_passed_over(rows):
        raise _GoneError
    ordered = [files[row.path] for row in rows if row.path in files]
    return Catalogue(rows, ordered, tables_of(ordered), unread, failures)


def _in_turn(rows: Sequence[SegmentRow]) -> Iterator[SegmentRow]:
    """Yield those that are not written first, and then the others, the newest first.

    A segment shows records only once the one before it shows all of its own. So what is found in
    one that was opened earlier is never without what came before it.
    """
    written = [row for row in rows if row.path.name.endswith(PARTIAL)]
    yield from (row for row in rows if not row.path.name.endswith(PARTIAL))
    yield from reversed(written)


def _is_passed_over(rows: Sequence[SegmentRow]) -> bool:
    """Return whether a listing lacks a segment that is older than one of its folder that it has.

    A folder may give neither name of a file that is renamed while it is read.
    """
    listed: dict[Path, set[str]] = {}
    for row in rows:
        listed.setdefault(row.path.parent, set()).add(row.path.name.removesuffix(PARTIAL))
    for folder, names in listed.items():
        with suppress(OSError):
            there = {path.name.removesuffix(PARTIAL) for path in folder.iterdir()}
            newest = max(names)
            if any(name < newest and _SEGMENT.fullmatch(name) for name in there - names):
                return True
    return False
