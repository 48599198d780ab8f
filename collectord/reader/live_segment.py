# SPDX-License-Identifier: Apache-2.0
"""Read stage: one perf.data with events of BPF programs, read while it is written.

In a running segment only the part before the last FINISHED_ROUND is read: the writer wrote that
marker after everything before it. The bytes behind it may be half written. So the marker is
searched first, and the part before it is read once it has been seen.
"""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING

from collectord._native._columns import settled
from collectord.codec.perf_data import HEADER_BYTES, parse_header
from collectord.errors import CodecError, SinkError, UsageError
from collectord.reader.any_events import open_tables
from collectord.reader.event_file import UNREADABLE
from collectord.reader.perf_tables import PerfTables
from collectord.sink.segment import sink_errors
from collectord.sink.segment_lock import lock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import ExitStack
    from pathlib import Path

    from collectord.reader.event_file import EventFile
    from collectord.reader.event_lines import EventLines

    # Begins to read a file, at the first need.
    LinesOf = Callable[[EventFile], EventLines]


class LiveSegment:
    """An open perf.data segment, sealed or not.

    Args:
        path: of the file.
        stack: the file is closed when it ends.
        lines_of: begins to read it.

    Attributes:
        file: with its events.
        path: of the file, as it was opened.
        sealed: `poll` has seen the seal, so no more data will come.

    Raises:
        UsageError: it has no events of BPF programs.
        SinkError: it cannot be read, or its head is damaged.
    """

    def __init__(self, path: Path, stack: ExitStack, lines_of: LinesOf) -> None:
        file = open_tables(path, stack)
        has_programs = file is not None and any(event.is_program for event in file.events)
        if not isinstance(file, PerfTables) or not has_programs:
            raise UsageError(
                f"{path} has no events of BPF programs, and only these can be followed",
                hint="without -f its present contents are shown",
            )
        (source,) = file.line_sources(())
        self.file = file
        self.path = file.path
        self.sealed = False
        self._fd, _ = file.contents(source)
        self._end = self._skipped = file.write_offset
        self._lines_of = lines_of
        self._lines: EventLines | None = None

    @property
    def lines(self) -> EventLines:
        """The lines of the segment, which are read once."""
        if self._lines is None:
            self._lines = self._lines_of(self.file)
            for _ in self._lines.batches(end=self._skipped):
                pass
        return self._lines

    @property
    def deleted(self) -> bool:
        """Whether its name was removed: it never held an event, or made room for others."""
        return not os.fstat(self._fd).st_nlink

    @property
    def keeps(self) -> bool:
        """Whether records were kept back because later rounds may have older ones."""
        return self.lines.keeps

    def is_abandoned(self) -> bool:
        """Whether nobody writes it any more, and the last poll saw no seal."""
        if self.sealed or not lock(self._fd):
            return False
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        return True

    def poll(self) -> bool:
        """Note what the writer has added since the last poll; return False if nothing was.

        Raises:
            SinkError: the segment cannot be read.
        """
        if self.sealed:
            return False
        before = self._end
        with sink_errors(UNREADABLE, self.path, reading=True):
            try:
                header = parse_header(os.pread(self._fd, HEADER_BYTES, 0))
            except CodecError as error:
                raise SinkError(f"changed, {error.message}", path=str(self.path)) from error
            self.sealed = header.sealed
            end = header.data.offset + header.data.size
            self._end = end if self.sealed else settled(self._fd, self._end)
        return self.sealed or self._end > before

    def skip(self) -> None:
        """Skip the events that the last poll saw, before anything is read."""
        self._skipped = self._end

    def read_new(self, *, everything: bool) -> Iterator[bytes]:
        """Yield lines of what the last poll saw and has not been yielded, in the order of time.

        Without `everything`, or the seal, the last rounds are kept back: later ones may be older.

        Raises:
            SinkError: the segment cannot be read any further.
        """
        with sink_errors(UNREADABLE, self.path, reading=True):
            yield from self.lines.batches(end=self._end, everything=everything or self.sealed)
