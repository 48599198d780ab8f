# SPDX-License-Identifier: Apache-2.0
"""Read stage: the table that blktrace files have: one file of a set, or all of them."""

from __future__ import annotations

import os
from contextlib import ExitStack
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from collectord._native._columns import Lines, Scan
from collectord.codec.blk_columns import blk_columns, note_ops
from collectord.codec.blktrace import kinds
from collectord.codec.file_formats import BLKTRACE
from collectord.codec.line_ops import Words
from collectord.errors import UnsafePath
from collectord.folders.folder import opened
from collectord.folders.walk import open_file
from collectord.reader.event_file import IDLE, UNREADABLE, EventFile, FileEvent, Records, Source
from collectord.reader.relay_events import files_of
from collectord.reader.sound_parts import sound_parts
from collectord.sink.segment import PARTIAL, SegmentPaths, sink_errors

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from collectord.reader.event_file import Span
    from collectord.reader.sound_parts import Sound

_KINDS: Final = kinds()
_LABELS: Final = tuple(kind.name for kind in _KINDS)
_PROCESS: Final = _LABELS.index("process")
# More than the longest record has.
_PIECE_BYTES: Final = 128 << 10
_BATCH_BYTES: Final = 256 << 10


class _Named(NamedTuple):
    """A name, and the stamp from which a thread has it."""

    tid: int
    since_ns: int
    name: str


class BlkTables(EventFile):
    """blktrace files whose records are a table.

    Args:
        path: that is shown: of one file, or the common part of the names of all.
        files: by number.
        stack: they are closed when it ends.

    Raises:
        SinkError: a file cannot be read.
    """

    skips = "it is skipped up to the next record"

    def __init__(self, path: Path, files: Mapping[int, Path], stack: ExitStack) -> None:
        first = next(iter(files.values()))
        super().__init__(first)
        self.path = path
        self._stack = stack
        self._set = first.parent / _set_name(first)
        self._contents: dict[int, tuple[int, tuple[Span, ...]]] = {}
        self._paths: dict[int, Path] = {}
        sources = []
        for number, file in files.items():
            with sink_errors(UNREADABLE, file, reading=True):
                fd = stack.enter_context(opened(open_file(file)))
                size = os.fstat(fd).st_size
            self._paths[fd] = file
            sources.append(_source(fd, number, size))
        self.sources = tuple(sources)
        self.records = (self._of(of_notes=False), self._of(of_notes=True))
        self.events = tuple(
            FileEvent((key,), BLKTRACE, kind.name, letter=kind.letter)
            for key, kind in enumerate(_KINDS)
        )

    def comms(self) -> Sequence[tuple[int, int, str]]:
        """Return the names that notes of the set tell, each from its note on."""
        paths = files_of(self._set)
        sizes = []
        for path in paths.values():
            with sink_errors(UNREADABLE, path, reading=True):
                sizes.append((path, path.stat().st_size))
        return _names(tuple(sizes))

    def contents(self, source: Source) -> tuple[int, tuple[Span, ...]]:
        """Return where the records are; a compressed file may be sound in parts."""
        fd = source.fd
        if fd not in self._contents:
            with sink_errors(UNREADABLE, self._paths[fd], reading=True):
                sound = sound_parts(fd, self._stack)
            self.damage = self.damage or sound.damage
            ((cpu, *_),) = source.spans
            self._contents[fd] = sound.fd, _on_cpu(cpu, sound)
        return self._contents[fd]

    def _of(self, *, of_notes: bool) -> Records:
        rows = {"rows": "notes" if of_notes else "requests"}
        sources = tuple(one._replace(options={**one.options, **rows}) for one in self.sources)
        return Records(BLKTRACE, BLKTRACE, blk_columns(of_notes=of_notes), sources)

    def line_sources(self, wanted: Collection[int]) -> tuple[Source, ...]:
        """Return where the records are, without the labels that lines have no use for."""
        del wanted
        return tuple(one._replace(options={**one.options, "labels": ()}) for one in self.sources)


def is_blktrace(path: Path) -> bool:
    """Whether a name is that of a blktrace file."""
    name = path.name.removesuffix(PARTIAL)
    return SegmentPaths(path.parent, name).set_kind == BLKTRACE


def open_one(path: Path, stack: ExitStack) -> BlkTables:
    """Open one file of a set. Raises as `BlkTables`."""
    return BlkTables(path, files_of(path), stack)


def _set_name(path: Path) -> str:
    """Return the common part of the names of a set's files."""
    name = SegmentPaths(path.parent, path.name.removesuffix(PARTIAL)).set_name
    return name.removesuffix(f".{BLKTRACE}")


def _source(fd: int, number: int, size: int) -> Source:
    options = {"page_bytes": _PIECE_BYTES, "labels": _LABELS}
    return Source(fd, BLKTRACE, ((number, 0, size),), options)


def _on_cpu(cpu: int, sound: Sound) -> tuple[Span, ...]:
    return tuple((cpu, offset, size) for offset, size in sound.spans)


@lru_cache(maxsize=16)  # each file of a set asks for those of all
def _names(files: tuple[tuple[Path, int], ...]) -> tuple[tuple[int, int, str], ...]:
    """Return the names in the notes of files, which are told apart by their sizes."""
    found: list[tuple[int, int, str]] = [(0, 0, IDLE)]
    with ExitStack() as stack:
        scan = Scan("all", ())
        for path, _ in files:
            try:
                fd = stack.enter_context(opened(open_file(path)))
                sound = sound_parts(fd, stack)
            except (UnsafePath, OSError):
                continue  # whoever reads its records says why
            scan.add(sound.fd, BLKTRACE, (), _on_cpu(-1, sound), page_bytes=_PIECE_BYTES)
        words = Words()
        ops = note_ops(words)
        lines = Lines(scan, words.texts, words.tables, words.widths)
        lines.add((_PROCESS,), ops)
        found += _named_threads(lines)
    return tuple(found)


def _named_threads(lines: Lines) -> Iterator[tuple[int, int, str]]:
    decoder = msgspec.json.Decoder(_Named)
    while (batch := lines.read(_BATCH_BYTES, 0)) is not None:
        lines.notes()
        for line in batch.splitlines():
            named = decoder.decode(line)
            if named.tid > 0:
                yield named
