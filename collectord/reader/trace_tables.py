# SPDX-License-Identifier: Apache-2.0
"""Read stage: the tables that a trace.dat has, of an ftrace session or of trace-cmd."""

from __future__ import annotations

import fcntl
import os
import time
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from collectord.codec.ftrace_columns import columns_of
from collectord.codec.trace_cmd_dat import parse, read_buffers, read_parts, unpack
from collectord.errors import CodecError, SinkError
from collectord.folders.folder import write_all
from collectord.reader.event_file import (
    IDLE,
    INT32_MAX,
    INT64_MAX,
    UNREADABLE,
    EventFile,
    FileEvent,
    Records,
    Source,
    nameless,
)
from collectord.sink.manifest import OpenManifest
from collectord.sink.segment import sink_errors
from collectord.sink.segment_lock import lock
from collectord.sink.sparse import written

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from contextlib import ExitStack
    from pathlib import Path

    from collectord.codec.ftrace_format import EventFormat
    from collectord.codec.trace_cmd_dat import Buffer, Parts, TraceDat, Track
    from collectord.reader.event_file import Span

_FTRACE: Final = "ftrace"
_COMMON_PID: Final = "common_pid"
_COMMON_PID_AT: Final = 4  # in all kernels since 2.6.39
# A seal moves the pages of a file within milliseconds, on a busy disk within a second.
_TRIES: Final = 60
_TRY_S: Final = 0.05
_PIECE_BYTES: Final = 1 << 20
_MOVING: Final = (
    "it was left out, a seal is moving its pages: ask again, or run `collectord segments repair`"
)


class TraceTables(EventFile):
    """A trace.dat whose records are tables.

    Attributes:
        buffers: each instance, and where its records are.

    Raises:
        SinkError: it cannot be read, or its head is damaged.
    """

    def __init__(self, fd: int, path: Path, stack: ExitStack) -> None:
        super().__init__(path)
        with sink_errors(UNREADABLE, path, reading=True):
            try:
                found = parse(partial(_read, fd))
            except CodecError as error:
                raise SinkError(
                    f"it does not have the layout of a segment, {error.message}",
                    path=str(path),
                    hint="`trace-cmd convert -i FILE -o NEW --file-version 7` makes a file of "
                    "version 7 from an older one",
                ) from error
        self._stack = stack
        self._compression = found.compression
        self._packed: dict[tuple[Span, ...], Sequence[Track]] = {}
        self._unpacked: dict[tuple[Span, ...], tuple[int, tuple[Span, ...]]] = {}
        self._fd = fd
        self.buffers = tuple(self._pages(fd, found))
        self.sources = tuple(source for _, source in self.buffers)
        comms = {0: IDLE} | {
            tid: comm.decode(errors="backslashreplace")
            for tid, comm in found.comms.items()
            if tid <= INT32_MAX
        }
        self._comms = tuple((tid, 0, comm) for tid, comm in comms.items())
        layouts: dict[int, tuple[str, EventFormat]] = {}
        for system, layout in self.layouts(
            [*found.events.items(), (_FTRACE, found.ftrace_events)]
        ):
            layouts.setdefault(layout.id, (system, layout))
        self.records = tuple(self._of(system, layout) for system, layout in layouts.values())
        self.events = tuple(
            FileEvent((layout.id,), system, layout.name, layout)
            for system, layout in layouts.values()
        )

    def comms(self) -> Sequence[tuple[int, int, str]]:
        """Return the names that the file knows at its end."""
        return self._comms

    def line_sources(self, wanted: Collection[int]) -> tuple[Source, ...]:
        """Return where all records are; those of unknown events are shown as well."""
        del wanted
        offset = next((_tid_offset(one.layout) for one in self.events if one.layout), None)
        options = {"tid_offset": _COMMON_PID_AT if offset is None else offset}
        return tuple(one._replace(options={**one.options, **options}) for one in self.sources)

    def _of(self, system: str, layout: EventFormat) -> Records:
        options = {"event": layout.id, "tid_offset": _tid_offset(layout)}
        sources = tuple(one._replace(options={**one.options, **options}) for one in self.sources)
        return Records(system, layout.name, tuple(columns_of(layout)), sources)

    def parts(self) -> Parts:
        """Return the descriptions in the file: all but its pages.

        Raises:
            SinkError: it cannot be read, or is damaged.
        """
        with sink_errors(UNREADABLE, self.path, reading=True):
            try:
                return read_parts(partial(_read, self._fd))
            except CodecError as error:
                raise SinkError(
                    f"it does not have the layout of a segment, {error.message}",
                    path=str(self.path),
                ) from error

    def _pages(self, fd: int, found: TraceDat) -> Iterator[tuple[Buffer, Source]]:
        """Yield each instance and its sub-buffers, packed or not."""
        for buffer in found.buffers:
            tracks = [track for track in buffer.tracks if track.bytes]
            for track in [*tracks]:
                if track.cpu > INT32_MAX or track.offset + track.bytes > INT64_MAX:
                    self.damage = f"its head places data of CPU {track.cpu} nowhere"
                    tracks.remove(track)
            if buffer.packed and tracks:
                self._packed[tuple(tracks)] = tracks
            options = {"page_bytes": buffer.page_bytes}
            yield buffer, Source(fd, _FTRACE, tuple(tracks), options)

    def contents(self, source: Source) -> tuple[int, tuple[Span, ...]]:
        """Return where the sub-buffers are: in a nameless file if they are packed or may move."""
        packed = source.spans in self._packed
        if not packed and not self._may_move(source):
            return source.fd, source.spans
        if source.spans not in self._unpacked:
            with sink_errors(UNREADABLE, self.path, reading=True):
                made = self._unpack(source) if packed else self._stay(source)
                self._unpacked[source.spans] = made
        return self._unpacked[source.spans]

    def _may_move(self, source: Source) -> bool:
        """Whether a seal will close gaps before these pages: it leaves the foremost in place."""
        is_open = isinstance(self.manifest, OpenManifest)
        if len(self.buffers) != 1 or (self.manifest is not None and not is_open):
            return False
        if not is_open and _is_idle(source.fd):  # by a name without a manifest, as that of a link
            return False
        first = min((track.offset for track in self.buffers[0][0].tracks), default=0)
        return any(offset != first for _, offset, _ in source.spans)

    def _stay(self, source: Source) -> tuple[int, tuple[Span, ...]]:
        """Copy the pages that were there when the file was opened, wherever they are by now.

        A seal cuts the file to its last page before it moves any, and whatever it moves cuts the
        file again. So a copy is whole if the file has its length and its places still.
        """
        for _ in range(_TRIES):
            is_idle = _is_idle(source.fd)
            before = _places(source.fd)
            if before.are_whole:
                copy, end = nameless(self._stack), 0
                spans = []
                for cpu, _, size in source.spans:
                    _copy(source.fd, before.offsets[cpu], size, (copy, end))
                    spans.append((cpu, end, size))
                    end += size
                if _places(source.fd).are_as(before):
                    return copy, tuple(spans)
            elif is_idle:  # nobody moves anything: it is damaged
                return source.fd, source.spans
            time.sleep(_TRY_S)
        self.move = _MOVING
        return source.fd, ()

    def _unpack(self, source: Source) -> tuple[int, tuple[Span, ...]]:
        copy = nameless(self._stack)
        spans, end = [], 0
        for track in self._packed[source.spans]:
            start = end
            try:
                for piece in unpack(partial(_read, source.fd), track, self._compression):
                    write_all(copy, piece, end)
                    end += len(piece)
            except CodecError as error:
                self.damage = f"of CPU {track.cpu}: {error.message}"
            spans.append((track.cpu, start, end - start))
        return copy, tuple(spans)


def _read(fd: int, at: int, size: int) -> bytes:
    """Return a part of a file, as far as there is one where a damaged file places it."""
    size = min(size, os.fstat(fd).st_size - at)
    return os.pread(fd, size, at) if size > 0 else b""


class _Places(NamedTuple):
    """Places in a file: the first page of each CPU, the end of the last page, and the length."""

    offsets: Mapping[int, int]
    end: int
    file_bytes: int

    @property
    def are_whole(self) -> bool:
        """Whether the pages are where they should be: those that are being moved reach too far."""
        return self.end <= self.file_bytes

    def are_as(self, before: _Places) -> bool:
        """Whether no page has moved since; there may be more of them."""
        return (self.offsets, self.file_bytes) == (before.offsets, before.file_bytes)


def _places(fd: int) -> _Places:
    """Read from the present head where the pages are. Raises CodecError."""
    (buffer,) = read_buffers(partial(_read, fd))
    end = max((track.offset + track.bytes for track in buffer.tracks if track.bytes), default=0)
    offsets = {track.cpu: track.offset for track in buffer.tracks}
    return _Places(offsets, end, os.fstat(fd).st_size)


def _is_idle(fd: int) -> bool:
    """Whether no process writes or seals a file."""
    if not lock(fd):
        return False
    fcntl.flock(fd, fcntl.LOCK_UN)
    return True


def _copy(fd: int, at: int, size: int, to: tuple[int, int]) -> None:
    """Copy a part of a file to {file, offset}, except for its holes."""
    out, to_at = to
    for first, past in written(fd, at, at + size):
        for start in range(first, past, _PIECE_BYTES):
            piece = _read(fd, start, min(_PIECE_BYTES, past - start))
            write_all(out, piece, to_at + start - at)
    os.ftruncate(out, to_at + size)


def _tid_offset(layout: EventFormat) -> int:
    offsets = (field.offset for field in layout.common if field.name == _COMMON_PID)
    return min(next(offsets, _COMMON_PID_AT), INT32_MAX)
