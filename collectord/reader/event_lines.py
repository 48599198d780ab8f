# SPDX-License-Identifier: Apache-2.0
"""Read stage: the records of a file in the order of time, as lines that programs make of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from collectord._native._columns import Lines, Scan, settled
from collectord.codec.line_ops import Words
from collectord.reader.event_file import Window
from collectord.sink.manifest import OpenManifest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from collectord._native._columns import Note
    from collectord.codec.line_ops import Ops
    from collectord.reader.event_file import EventFile, FileEvent

_BATCH_BYTES: Final = 256 << 10
_PERF: Final = "perf"
_UNKNOWN: Final = "unknown"


class Programs(NamedTuple):
    """The operations that make lines of the records of a file.

    Attributes:
        events: that are shown, each with its program.
        unknown: of records whose event the file does not describe; None: they are left out.
        loss: of losses.
        words: that all of them name.
    """

    events: Sequence[tuple[FileEvent, Ops]]
    unknown: Ops | None
    loss: Ops
    words: Words


@dataclass(slots=True)
class Lost:
    """Losses of rings: by CPU, None if a number is not known, and by event in all."""

    cpus: list[tuple[int, int | None]]
    events: Counter[str]


class EventLines:
    """The lines of one file, which are read once.

    Attributes:
        problems: what could not be read since they were taken, a line each.
        lost: what was noted of losses.
        is_untimed: nothing tells whether its records are in the time that is asked for.
    """

    def __init__(self, file: EventFile, programs: Programs, window: Window) -> None:
        self.file = file
        self.problems: list[str] = []
        self.lost = Lost([], Counter())
        self._events = {key: event for event, _ in programs.events for key in event.keys}
        span = file.window(window)
        self.is_untimed = span is None
        scan, self._end = (
            (Scan("all", ()), 0) if span is None else all_of(file, self._events.keys(), span)
        )
        words = programs.words
        self._lines = Lines(scan, words.texts, words.tables, words.widths)
        self._numbers: dict[int, str] = {}
        for event, ops in programs.events:
            least = event.described.layout.size if event.described is not None else 0
            number = self._lines.add(event.keys, ops, of_raw=_is_raw(event), least=least)
            self._numbers[number] = event.full_name
        if programs.unknown is not None:
            self._unknown = self._lines.add((), programs.unknown, role="unknown")
            self._numbers[self._unknown] = _UNKNOWN
        for key in file.silent_keys:
            self._lines.mute(key)
        if programs.loss:
            self._lines.add((), programs.loss, role="loss")

    @property
    def keeps(self) -> bool:
        """Whether records wait for later ones."""
        return self._lines.waiting

    def limit(self, lines: int) -> None:
        """Limit the number of lines."""
        self._lines.limit(lines)

    @property
    def left(self) -> int:
        """The number of lines that may still be made."""
        return self._lines.left

    def batches(self, *, end: int | None = None, everything: bool = True) -> Iterator[bytes]:
        """Yield the lines, some at a time.

        Args:
            end: of the file's records, the offset up to which they are read; None: all.
            everything: False: records are kept back that later ones may be older than.
        """
        until = self._end if end is None else end
        while (made := self._lines.read(_BATCH_BYTES, until, everything=everything)) is not None:
            self._take_notes()
            yield made

    def count(self) -> Counter[tuple[str, int]]:
        """Count all records, by event and CPU."""
        counted: Counter[tuple[str, int]] = Counter()
        for number, cpu, records in self._lines.count(self._end):
            counted[self._numbers[number], cpu] += records
        self._take_notes()
        return counted

    def _take_notes(self) -> None:
        for note in self._lines.notes():
            event = self._events.get(note.label)
            if note.kind == "damaged":
                self.problems.append(self._problem(note, event))
            elif note.kind == "lost":
                self.lost.cpus.append((note.cpu, note.lost))
            elif event is not None and note.lost:
                self.lost.events[event.full_name] += note.lost

    def _problem(self, note: Note, event: FileEvent | None) -> str:
        where = f"{self.file.path}: {note.reason} at byte {note.offset}"
        if event is not None:
            return f"{where}, a record of {event.full_name}"
        if note.reason == "file_ends":
            return f"{self.file.path}: the file ends before its data, at byte {note.offset}"
        if note.cpu >= 0:
            return f"{where}, of CPU {note.cpu}; {self.file.skips}"
        return f"{where}, skipped up to the next chunk"


def all_of(file: EventFile, wanted: Collection[int], span: Window) -> tuple[Scan, int]:
    """Return a scan of all records of a file, and the end of their part of it.

    Args:
        file: whose records they are.
        wanted: keys of events.
        span: of the file's clock.
    """
    scan = Scan("all", ())
    end = 0
    for source in file.line_sources(wanted):
        fd, spans = file.contents(source)
        if isinstance(file.manifest, OpenManifest) and source.kind == _PERF:
            # Only what its writer has finished is read.
            spans = tuple((cpu, at, settled(fd, at) - at) for cpu, at, _ in spans)
        end = max([end, *(offset + size for _, offset, size in spans)])
        scan.add(
            fd,
            source.kind,  # type: ignore[arg-type]  # of the decoder
            (),
            spans,
            since_ns=span.since_ns,
            until_ns=span.until_ns,
            comms=file.comms(),
            **source.options,
        )
    return scan, end


def tables_in(file: EventFile) -> frozenset[str]:
    """Return SYSTEM:NAME of the tables of events of which a file has records."""
    nothing: Ops = []
    events = [(event, nothing) for event in file.events if event.keys]
    lines = EventLines(file, Programs(events, None, nothing, Words()), Window())
    there = {name for (name, _), count in lines.count().items() if count}
    return frozenset(event.table_name for event in file.events if event.full_name in there)


def _is_raw(event: FileEvent) -> bool:
    """Whether the records are the raw data of samples."""
    return event.sample_type is not None and event.has_table
