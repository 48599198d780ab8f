# SPDX-License-Identifier: Apache-2.0
"""Sink stage: a trace.dat of anybody, open for its events to be decoded into columns."""

from __future__ import annotations

import bisect
import os
import tempfile
from typing import TYPE_CHECKING, Final, NamedTuple

from collectord.codec.ftrace_format import parse_format
from collectord.codec.trace_cmd_dat import parse, unpack
from collectord.codec.tracing_data import MAGIC
from collectord.errors import CodecError, SinkError
from collectord.folders.folder import opened, write_all
from collectord.folders.walk import open_file, open_folder
from collectord.sink.manifest import Manifest, OpenManifest, decode
from collectord.sink.segment import PARTIAL, SegmentPaths, read_other_manifest, sink_errors

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import ExitStack
    from pathlib import Path

    from collectord.codec.ftrace_format import EventFormat
    from collectord.codec.trace_cmd_dat import Buffer, TraceDat, Track

_UNREADABLE: Final = "cannot read the segment"
_IDLE: Final = "<idle>"
_FTRACE: Final = "ftrace"
_COMMON_PID: Final = "common_pid"
_UINT16_MAX: Final = (1 << 16) - 1
_INT32_MAX: Final = (1 << 31) - 1
_INT64_MAX: Final = (1 << 63) - 1
_COMMON_PID_AT: Final = 4  # in all kernels since 2.6.39


class Window(NamedTuple):
    """A span of time in ns, both ends included; None: without an end."""

    since_ns: int | None = None
    until_ns: int | None = None

    @property
    def everything(self) -> bool:
        """Whether no time is left out."""
        return self.since_ns is None and self.until_ns is None


class Pages(NamedTuple):
    """Sub-buffers of one instance in an open file."""

    fd: int
    page_bytes: int
    spans: tuple[tuple[int, int, int], ...]  # {CPU, offset, bytes}


class Event(NamedTuple):
    """An event whose layout is in a file."""

    system: str
    layout: EventFormat

    @property
    def tid_offset(self) -> int:
        """The offset of the thread's id in its records, in bytes."""
        fields = (field.offset for field in self.layout.common if field.name == _COMMON_PID)
        return min(next(fields, _COMMON_PID_AT), _INT32_MAX)


class EventFile:
    """An open trace.dat, sealed or running, with what was in it when it was opened.

    Attributes:
        path: of the file.
        session: that wrote it, "" if no manifest says it.
        events: whose layouts it has; one without a sound layout is left out.
        comms: names of tasks, by thread.
        clock: readings of {stamp, UTC} in ns, the earliest first; empty if they are not known.
        pages: where the records are.
        wraps: its rings were a flight recorder's: what they lost was overwritten.
        damage: what is wrong with the part that describes the events, "" if nothing is.
    """

    def __init__(self, fd: int, path: Path, stack: ExitStack) -> None:
        self.path = path
        with sink_errors(_UNREADABLE, path, reading=True):
            try:
                found = parse(lambda at, size: os.pread(fd, size, at))
            except CodecError as error:
                raise SinkError(
                    f"it does not have the layout of a segment, {error.message}",
                    path=str(path),
                    hint="`trace-cmd convert -i FILE -o NEW --file-version 7` makes a file of "
                    "version 7 from an older one",
                ) from error
            self.damage = ""
            self.pages = tuple(self._pages(fd, found, stack))
            manifest = _manifest(path)
        self.session = manifest.session if manifest else ""
        self.wraps = isinstance(manifest, Manifest) and bool(manifest.ledger.get("overwritten"))
        self.clock = _readings(manifest) if manifest else ()
        self._stamps = (0, 0)
        if isinstance(manifest, Manifest):
            self._stamps = manifest.first_ns, manifest.last_ns
        self.events = tuple(self._events(found).values())
        self.comms = {0: _IDLE} | {
            tid: comm.decode(errors="backslashreplace")
            for tid, comm in found.comms.items()
            if tid <= _INT32_MAX
        }

    @property
    def path_text(self) -> str:
        """The path as text that UTF-8 can encode."""
        return str(self.path).encode(errors="surrogateescape").decode(errors="backslashreplace")

    def window(self, asked: Window) -> Window | None:
        """Return a span of UTC in the clock of the file; None if the file cannot tell."""
        if asked.everything:
            return asked
        if not self.clock:
            return None
        since_ns, until_ns = (None if at is None else self._stamp(at) for at in asked)
        return Window(since_ns, until_ns)

    def is_outside(self, window: Window) -> bool:
        """Whether it is known that no record is in a span of the file's clock."""
        first_ns, last_ns = self._stamps
        return bool(last_ns) and (
            (window.since_ns is not None and last_ns < window.since_ns)
            or (window.until_ns is not None and first_ns > window.until_ns)
        )

    def _stamp(self, utc_ns: int) -> int:
        """Return the stamp at a time of UTC, within 64 bits."""
        at = max(bisect.bisect_right([utc for _, utc in self.clock], utc_ns) - 1, 0)
        stamp_ns, reading_ns = self.clock[at]
        past_ns = utc_ns - reading_ns
        if past_ns > 0 and at + 1 < len(self.clock):
            behind = self.clock[at + 1]
            past_ns = past_ns * (behind[0] - stamp_ns) // max(behind[1] - reading_ns, 1)
        return min(max(stamp_ns + past_ns, 0), (1 << 64) - 1)

    def _pages(self, fd: int, found: TraceDat, stack: ExitStack) -> Iterator[Pages]:
        for buffer in found.buffers:
            tracks = [track for track in buffer.tracks if track.bytes]
            for track in [*tracks]:
                if track.cpu > _INT32_MAX or track.offset + track.bytes > _INT64_MAX:
                    self.damage = f"its head places data of CPU {track.cpu} nowhere"
                    tracks.remove(track)
            if not buffer.packed:
                yield Pages(fd, buffer.page_bytes, tuple(tracks))
            elif tracks:
                yield self._unpacked(fd, buffer, tracks, found.compression, stack)

    def _unpacked(
        self,
        fd: int,
        buffer: Buffer,
        tracks: Sequence[Track],
        compression: str,
        stack: ExitStack,
    ) -> Pages:
        """Write the pages of an instance to a nameless file."""
        copy = _nameless(stack)
        spans, end = [], 0
        for track in tracks:
            start = end
            try:
                for piece in unpack(lambda at, size: os.pread(fd, size, at), track, compression):
                    write_all(copy, piece, end)
                    end += len(piece)
            except CodecError as error:
                self.damage = f"of CPU {track.cpu}: {error.message}"
            spans.append((track.cpu, start, end - start))
        return Pages(copy, buffer.page_bytes, tuple(spans))

    def _events(self, found: TraceDat) -> dict[int, Event]:
        events: dict[int, Event] = {}
        for raw, texts in (*found.events.items(), (_FTRACE, found.ftrace_events)):
            system = raw.encode(errors="surrogateescape").decode(errors="backslashreplace")
            for text in texts:
                try:
                    layout = parse_format(text)
                except CodecError as error:
                    self.damage = f"the layout of an event of {system}: {error.message}"
                    continue
                if layout.id > _UINT16_MAX:
                    self.damage = f"the layout of {system}:{layout.name} has an impossible id"
                else:
                    events.setdefault(layout.id, Event(system, layout))
        return events


def _nameless(stack: ExitStack) -> int:
    """Return a file without a name, which goes when the stack ends."""
    file = tempfile.TemporaryFile(prefix="collectord-")  # noqa: SIM115  # the stack closes it
    return stack.enter_context(file).fileno()


def open_trace(path: Path, stack: ExitStack) -> EventFile | None:
    """Open a trace.dat until the stack ends; None for a file of another format.

    A running segment may have been sealed since its path was listed.

    Raises:
        SinkError: it cannot be read, or its head is damaged.
        UnsafePath: it is not a plain file.
    """
    paths = (path, path.with_name(path.name.removesuffix(PARTIAL)))
    with sink_errors(_UNREADABLE, path, reading=True):
        try:
            fd = open_file(paths[0])
        except FileNotFoundError:
            fd, path = open_file(paths[1]), paths[1]
        stack.enter_context(opened(fd))
        is_trace = os.pread(fd, len(MAGIC), 0) == MAGIC
    return EventFile(fd, path, stack) if is_trace else None


def _manifest(path: Path) -> Manifest | OpenManifest | None:
    """Read the manifest beside a segment, sealed or running."""
    paths = SegmentPaths(path.parent, path.name.removesuffix(PARTIAL))
    with open_folder(path.parent) as folder:
        if path == paths.partial:
            running = decode(read_other_manifest(folder, paths.open_manifest), OpenManifest)
            if running is not None:
                return running
        return decode(read_other_manifest(folder, paths.manifest), Manifest)


def _readings(manifest: Manifest | OpenManifest) -> tuple[tuple[int, int], ...]:
    clocks = manifest.clocks
    last = () if clocks.close is None else (clocks.close,)
    found: Mapping[int, int] = {
        getattr(reading, f"{manifest.clock}_ns"): reading.realtime_ns
        for reading in (clocks.open, *clocks.flushes, *last)
    }
    return tuple(
        sorted((at, utc) for at, utc in found.items() if 0 < at <= _INT64_MAX >= abs(utc))
    )
