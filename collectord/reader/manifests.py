# SPDX-License-Identifier: Apache-2.0
"""Read stage: the manifests of the segments of a catalogue, for tables of what they tell."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from collectord.codec.file_formats import RELAY
from collectord.errors import SinkError
from collectord.folders.walk import open_folder
from collectord.model import RingRole
from collectord.reader.event_file import shown
from collectord.reader.verify import SegmentRow, State
from collectord.sink import covered_note
from collectord.sink.manifest import (
    SCHEMA,
    Manifest,
    OpenManifest,
    damage,
    decode,
    foreign_schema,
)
from collectord.sink.manifest_ledger import UNTOLD, BalanceTold, balance_in
from collectord.sink.segment import PARTIAL, SegmentPaths, read_manifest, sink_errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from collectord.folders.folder import Folder
    from collectord.model import ClockReading
    from collectord.sink.covered_note import Covered
    from collectord.sink.manifest import M, RingEntry


class File(NamedTuple):
    """A file with its manifest.

    Attributes:
        row: of the catalogue.
        manifest: as it was found now: sealed, if the segment was sealed since it was listed.
    """

    row: SegmentRow
    manifest: Manifest | OpenManifest

    @property
    def paths(self) -> SegmentPaths:
        """The names of the segment in its folder."""
        return _paths(self.row)


class Segment(NamedTuple):
    """A segment: one file, or a set of files with one for each CPU, whose balance is one.

    Attributes:
        files: at least one, by their numbers.
        balance: at its end since the run began; without one, `lost` is None.
    """

    files: tuple[File, ...]
    balance: BalanceTold = UNTOLD

    @property
    def manifest(self) -> Manifest | OpenManifest:
        """The manifest of the first file, which tells what they have in common."""
        return self.files[0].manifest

    @property
    def folder(self) -> Path:
        """The folder of the segment."""
        return self.files[0].row.path.parent

    @property
    def stream(self) -> tuple[str, str, str]:
        """The folder, session and source: its segments follow each other, in one run or more."""
        return str(self.folder), self.manifest.session, self.manifest.source

    @property
    def labels(self) -> tuple[str, str, str]:
        """The session, the source, and the path as `segments` has it."""
        manifest, paths = self.manifest, self.files[0].paths
        path = paths.data if isinstance(manifest, Manifest) else paths.partial
        return manifest.session, manifest.source, shown(str(path))

    @property
    def is_running(self) -> bool:
        """Whether it is being written; one whose writer died is not, sealed or not."""
        rows = [file.row for file in self.files if isinstance(file.manifest, OpenManifest)]
        return any(row.state is State.RUNNING for row in rows)

    @property
    def began_ns(self) -> int:
        """UTC of its beginning, by its first reading of the clocks if it has one."""
        return self.manifest.clocks.open.realtime_ns or self.manifest.started_ns

    @property
    def in_bytes(self) -> bool:
        """Whether its figures are bytes, as of a channel whose records nobody can count."""
        return self.manifest.format.partition(".")[0] == RELAY

    @property
    def stored(self) -> int:
        """The records in it, of a running one as many as readers find, or the bytes."""
        return sum(map(self._stored_in, self.files))

    def _stored_in(self, file: File) -> int:
        manifest = file.manifest
        if isinstance(manifest, Manifest):
            return manifest.bytes if self.in_bytes else manifest.samples
        return file.row.bytes if self.in_bytes else file.row.samples or 0

    @property
    def rings(self) -> list[RingEntry]:
        """The rings of its events."""
        rings = (ring for file in self.files for ring in file.manifest.rings)
        return [ring for ring in rings if ring.role == RingRole.DATA]

    @property
    def readings(self) -> list[tuple[str, ClockReading]]:
        """The readings of the clocks, and what each was made at; none that a repair made up."""
        clocks = self.manifest.clocks
        last = () if clocks.close is None else (("close", clocks.close),)
        named = [("open", clocks.open), *(("flush", one) for one in clocks.flushes), *last]
        return [(what, one) for what, one in named if one.realtime_ns]

    def utc(self, monotonic_ns: int | None) -> int | None:
        """Return the UTC at a time of CLOCK_MONOTONIC, by the nearest reading."""
        if monotonic_ns is None:
            return None
        near = min(
            (reading for _, reading in self.readings),
            key=lambda reading: abs(reading.monotonic_ns - monotonic_ns),
            default=None,
        )
        return None if near is None else near.realtime_ns + monotonic_ns - near.monotonic_ns


class Manifests(NamedTuple):
    """All manifests of a catalogue.

    Attributes:
        segments: those that have one, the oldest of a stream first.
        damage: path and reason of each that cannot be read, or has a ledger that cannot.
    """

    segments: Sequence[Segment]
    damage: Sequence[tuple[str, str]]


def read_manifests(rows: Iterable[SegmentRow]) -> Manifests:
    """Read the manifests of segments; files of other programs have none."""
    found: list[File] = []
    damaged: list[tuple[str, str]] = []
    by_folder = sorted(rows, key=lambda row: row.path)
    for directory, of_folder in groupby(by_folder, lambda row: row.path.parent):
        try:
            with (
                sink_errors("cannot read the manifests", directory, reading=True),
                open_folder(directory) as folder,
            ):
                for row in of_folder:
                    told = _read(folder, row)
                    if isinstance(told, str):
                        damaged.append((shown(str(row.path)), told))
                    elif told is not None:
                        found.append(File(row, told))
        except SinkError as error:
            damaged.append((shown(str(directory)), str(error)))
    segments = []
    for files in _sets(found):
        segment = Segment(files)
        if isinstance(segment.manifest, Manifest):
            balance = balance_in(segment.manifest)
            if isinstance(balance, str):
                damaged.append((segment.labels[-1], balance))
            else:
                segment = segment._replace(balance=balance)
        segments.append(segment)
    return Manifests(sorted(segments, key=_age), damaged)


def segment_of(folder: Path, manifests: Sequence[Manifest]) -> Segment:
    """Return a sealed segment by its manifests alone, whether or not its files are there.

    Args:
        folder: where it is, or was.
        manifests: of its files, at least one.
    """
    files = tuple(File(_sealed_row(folder, one), one) for one in manifests)
    balance = balance_in(manifests[0])
    return Segment(files) if isinstance(balance, str) else Segment(files, balance)


def _sealed_row(folder: Path, manifest: Manifest) -> SegmentRow:
    return SegmentRow(
        path=folder / Path(manifest.segment).name,
        format=manifest.format,
        state=State.RECOVERED if manifest.recovered else State.SEALED,
        session=manifest.session,
        started_ns=manifest.started_ns,
        begins_ns=None,
        ends_ns=None,
        first_ns=manifest.first_ns,
        last_ns=manifest.last_ns,
        records=manifest.records,
        samples=manifest.samples,
        complete=manifest.complete,
        early=manifest.early,
        basis=None,
        bytes=manifest.bytes,
        allocated_bytes=manifest.allocated_bytes,
        uncompressed_bytes=None,
    )


def _read(folder: Folder, row: SegmentRow) -> Manifest | OpenManifest | str | None:
    """Return a file's manifest; None without one, or why it cannot be read."""
    paths = _paths(row)
    if row.path == paths.partial:
        running = _decoded(folder, paths.open_manifest, OpenManifest)
        if running is not None:
            return running
    return _decoded(folder, paths.manifest, Manifest)


def _decoded(folder: Folder, path: Path, kind: type[M]) -> M | str | None:
    """Return the manifest in a file; None if there is none, or why it cannot be read."""
    try:
        with sink_errors("cannot read the manifest", path, reading=True):
            raw = read_manifest(folder, path)
    except SinkError as error:  # of one that somebody made another kind of file, too
        return str(error)
    manifest = decode(raw, kind)
    if manifest is not None:
        return manifest
    schema = foreign_schema(raw)
    if schema is not None:
        return f"the manifest has schema {schema}, and this version knows up to {SCHEMA}"
    wrong = damage(raw, kind)
    return None if wrong is None else f"the manifest: {wrong.reason}"


def note_of(folder: Path, source: str) -> Covered | None:
    """Return the note until when a source's rings were open; None if its folder has none."""
    if "/" in source or not source.isprintable():
        return None  # it is no name of a file
    try:
        return covered_note.read(folder, source)
    except SinkError:
        return None


def _paths(row: SegmentRow) -> SegmentPaths:
    return SegmentPaths(row.path.parent, row.path.name.removesuffix(PARTIAL))


def _sets(files: Sequence[File]) -> Iterator[tuple[File, ...]]:
    """Yield the files of each segment."""
    by_set: dict[tuple[Path, str], list[File]] = {}
    for file in files:
        by_set.setdefault((file.paths.directory, file.paths.set_name), []).append(file)
    for members in by_set.values():
        yield tuple(sorted(members, key=lambda file: file.paths.set_number))


def _age(segment: Segment) -> tuple[tuple[str, str, str], int, int, str]:
    """Return a key that sorts by stream and age: numbers count up, while a clock may be set."""
    number = segment.files[0].paths.sequence
    return segment.stream, number, segment.manifest.started_ns, segment.labels[-1]
