# SPDX-License-Identifier: Apache-2.0
"""Read stage: follow segments while they are written, from one to the next.

A stream has a running segment and, most of the time, an empty one that is prepared beside it. The
running one ends with its seal, and is renamed then; one that never held an event is deleted.
"""

from __future__ import annotations

import errno
import time
from collections import deque
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, NamedTuple

from collectord.codec.file_formats import PERF_DATA
from collectord.errors import SinkError, UsageError
from collectord.folders.walk import open_folder
from collectord.reader.event_file import read_manifest
from collectord.reader.live_segment import LiveSegment
from collectord.sink.segment import PARTIAL, Group, SegmentPaths, group_files, sink_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from collectord.reader.live_segment import LinesOf

# After this time without new data nothing older can arrive: all rings are drained once per flush
# interval, which is a second by default.
QUIET_S: Final = 1.0
# The longest time between a seal and the creation of a segment that a full disk has delayed.
GRACE_S: Final = 2.0
# A directory is listed for this long after a change of its names: a segment gets its open manifest
# after its name, and two changes within one clock tick have the same time.
SETTLE_S: Final = 2.0


class _Opened(NamedTuple):
    """An open segment, and the stack that closes it."""

    segment: LiveSegment
    stack: ExitStack

    def close(self) -> None:
        """Close the file."""
        self.stack.close()


class _Waiting(NamedTuple):
    """A segment that follows the running one of its stream; open unless it is already sealed."""

    paths: SegmentPaths
    opened: _Opened | None


class _Tail:
    """One segment of a stream, from the moment it is the running one to its end.

    Attributes:
        over: no more data will come.
        abandoned: its writer died.
    """

    def __init__(self, opened: _Opened, clock: Callable[[], float]) -> None:
        self.opened = opened
        self.segment = opened.segment
        self.over = self.abandoned = False
        self._clock = clock
        self._grew_s = clock()

    def read_new(self) -> Iterator[bytes]:
        """Yield lines of what was added since the last call. Raises as `LiveSegment.read_new`."""
        segment = self.segment
        deleted = segment.deleted  # asked before the poll, it has the last word
        grew, now_s = segment.poll(), self._clock()
        if grew:
            self._grew_s = now_s
        quiet = deleted or now_s - self._grew_s >= QUIET_S
        if grew or (quiet and segment.keeps):
            yield from segment.read_new(everything=quiet)
        elif quiet:
            self._grew_s = now_s
            if not deleted and segment.is_abandoned():
                # Its writer may have continued after the poll, and ended: its last data decide.
                if segment.poll():
                    yield from segment.read_new(everything=True)
                self.abandoned = not (segment.sealed or segment.deleted)
        self.over = segment.sealed or deleted or self.abandoned


class _Changes:
    """Detects recent changes of a directory's names by one stat(2), without listing it."""

    def __init__(self, directory: Path, clock: Callable[[], float]) -> None:
        self._directory = directory
        self._clock = clock
        self._last: tuple[int, int] | None = None
        self._seen_s = clock()

    def are_recent(self) -> bool:
        """Whether the directory has to be listed. Raises SinkError."""
        with sink_errors("cannot read the directory", self._directory, reading=True):
            status = self._directory.stat()
        current = status.st_ino, status.st_mtime_ns
        now_s = self._clock()
        if current != self._last:
            self._last, self._seen_s = current, now_s
        return now_s - self._seen_s <= SETTLE_S


class LiveStreams:
    """The streams of BPF events in a directory, each followed from segment to segment.

    Args:
        directory: the running segments are followed from now on.
        lines_of: begins to read a segment.
        begin: a segment in it, sealed or not: only its stream is followed, from its beginning.
        clock: returns seconds that never decrease.

    Attributes:
        found: there was something to follow.

    Raises:
        UsageError: a followed segment has no events of BPF programs.
        SinkError: the directory or a segment cannot be read.
    """

    def __init__(
        self,
        directory: Path,
        lines_of: LinesOf,
        begin: SegmentPaths | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._complaints: list[str] = []
        self._directory = directory
        self._lines_of = lines_of
        self._clock = clock
        self._waiting: dict[str, deque[_Waiting]] = {}
        self._tails: dict[str, _Tail] = {}
        self._changes = _Changes(directory, clock)
        self._ended_s = clock()
        self._alone = False
        self._run: str | None = None
        if begin is not None:
            path = begin.partial if begin.partial.exists() else begin.data
            with sink_errors("cannot read the manifest", path, reading=True):
                manifest = read_manifest(path)
            self._run = manifest.run if manifest is not None else ""
            self._alone = not (begin.rotated and self._run)
            self._waiting[self._run] = deque([_Waiting(begin, None)])
            self._known = {group.paths.name for group in _groups(directory, up_to=begin)}
            self._fresh: set[str] = set()
        else:
            groups = _groups(directory)
            self._known = {g.paths.name for g in groups if PARTIAL not in g.suffixes}
            self._look_for_more()
            self._fresh = {*self._waiting}
        self.found = bool(self._waiting)
        self._go_on()

    def poll(self) -> Iterator[tuple[LiveSegment, bytes | None]]:
        """Yield lines of what was added since the last call, by stream; None: a segment is over.

        Raises as `LiveSegment.read_new`.
        """
        if not self._alone:
            try:
                if self._changes.are_recent():
                    self._look_for_more()
            except SinkError as error:
                if error.errno != errno.ENOENT:
                    raise
                self._known.clear()  # the directory went with its last segment, and may return
        self._go_on()
        for run, tail in [*self._tails.items()]:
            for batch in tail.read_new():
                yield tail.segment, batch
            if tail.over:
                yield tail.segment, None
                if tail.abandoned:
                    hint = "its writer died; run `collectord segments repair`"
                    self._complaints.append(f"{tail.segment.path}: {hint}")
                self._ended_s = self._clock()
                del self._tails[run]
                if not self._waiting[run]:
                    del self._waiting[run]
                tail.opened.close()

    @property
    def ended(self) -> bool:
        """Whether nothing is running any more."""
        if self._tails or self._waiting:
            return False
        return self._alone or self._clock() - self._ended_s >= GRACE_S

    @property
    def segments(self) -> list[LiveSegment]:
        """The open segments."""
        return [tail.segment for tail in self._tails.values()]

    def take_complaints(self) -> list[str]:
        """Return the problems since the last call, a line each."""
        complaints, self._complaints = self._complaints, []
        return complaints

    def close(self) -> None:
        """Close all files."""
        waiting = [one.opened for waiting in self._waiting.values() for one in waiting]
        for opened in (*waiting, *(tail.opened for tail in self._tails.values())):
            if opened is not None:
                opened.close()
        self._waiting.clear()
        self._tails.clear()

    def _go_on(self) -> None:
        """Open the next segment of each stream whose last one is over."""
        for run, waiting in [*self._waiting.items()]:
            while run not in self._tails and waiting:
                paths, opened = waiting.popleft()
                opened = opened or self._open(paths)
                if opened is None:
                    self._complaints.append(f"{paths.data}: deleted before it was read")
                    continue
                self._tails[run] = _Tail(opened, self._clock)
                if run in self._fresh:
                    opened.segment.poll()
                    opened.segment.skip()
                self._fresh.discard(run)
            if run not in self._tails:
                del self._waiting[run]

    def _look_for_more(self) -> None:
        """Note new segments, which follow one another by their names.

        A running one may be deleted at any time, so it is opened at once.
        """
        for group in _groups(self._directory):
            paths = group.paths
            is_running = PARTIAL in group.suffixes
            if paths.name in self._known:
                continue
            path = paths.partial if is_running else paths.data
            with sink_errors("cannot read the manifest", path, reading=True):
                manifest = read_manifest(path)
            if manifest is None:  # it is being created, or has lost its manifest
                continue
            self._known.add(paths.name)
            if not manifest.layouts or self._run not in (None, manifest.run):
                continue
            opened = self._open(paths) if is_running else None
            if opened is not None or not is_running:
                self._waiting.setdefault(manifest.run, deque()).append(_Waiting(paths, opened))

    def _open(self, paths: SegmentPaths) -> _Opened | None:
        """Open a segment, running or sealed; None if it is gone."""
        for path in (paths.partial, paths.data):  # it may have been sealed since it was listed
            stack = ExitStack()
            try:
                return _Opened(LiveSegment(path, stack, self._lines_of), stack)
            except SinkError:
                stack.close()
                if path.exists():
                    raise
            except UsageError:
                stack.close()
                raise
        return None


def _groups(directory: Path, *, up_to: SegmentPaths | None = None) -> list[Group]:
    reading = sink_errors("cannot read the directory", directory, reading=True)
    with reading, open_folder(directory) as folder:
        groups = group_files(folder)
    return [
        group
        for group in groups
        if group.paths.format == PERF_DATA and (up_to is None or group.paths <= up_to)
    ]
