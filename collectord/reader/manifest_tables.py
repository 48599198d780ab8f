# SPDX-License-Identifier: Apache-2.0
"""Read stage: the tables of a query that come from manifests, read once a statement names one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from collectord.reader.coverage_rows import COVERAGE_COLUMNS, coverage_rows
from collectord.reader.event_tables import CLOCKS, COVERAGE, DAMAGE, LEDGER, SNAPSHOTS
from collectord.reader.fixed_tables import FixedTable, as_utc, as_word, types_of
from collectord.reader.ledger_rows import LEDGER_COLUMNS, ledger_rows
from collectord.reader.manifests import read_manifests
from collectord.sink.manifest import Manifest, data_times

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from collectord.reader.event_file import Window
    from collectord.reader.event_tables import EventTable, TableScan
    from collectord.reader.manifests import Manifests, Segment
    from collectord.reader.segment_tables import Catalogue
    from collectord.reader.sql import MadeTable

    Rows = Iterable[tuple[object, ...]]

# {type, what it is} by name.
_CLOCK_COLUMNS: Final = {
    "session": ("VARCHAR", "text"),
    "source": ("VARCHAR", "kind of source"),
    "file": ("VARCHAR", "path of the segment, as in segments"),
    "moment": ("VARCHAR", "open, flush or close"),
    "time": ("TIMESTAMP_NS", "UTC"),
    "mono_ns": ("UBIGINT", "ns of CLOCK_MONOTONIC"),
    "perf_ns": ("UBIGINT", "ns of perf's clock"),
    "bracket_ns": ("UBIGINT", "ns, the most by which the readings are apart"),
    "stamps": ("VARCHAR", "monotonic or perf, the clock of the records"),
}
_SNAPSHOT_COLUMNS: Final = {
    "session": ("VARCHAR", "text"),
    "source": ("VARCHAR", "kind of source"),
    "file": ("VARCHAR", "path of the segment, as in segments"),
    "reason": ("VARCHAR", "request, signal, freeze or end"),
    "time": ("TIMESTAMP_NS", "UTC"),
    "mono_ns": ("UBIGINT", "ns of CLOCK_MONOTONIC"),
    "first": ("TIMESTAMP_NS", "UTC, of the first record"),
    "last": ("TIMESTAMP_NS", "UTC, of the last record"),
    "window_ns": ("UBIGINT", "ns from the first to the last"),
    "paused_ns": ("UBIGINT", "ns for which the rings stood still"),
    "samples": ("UBIGINT", "records"),
    "repeated": ("UBIGINT", "records that the snapshot before has"),
    "repeated_bytes": ("UBIGINT", "bytes"),
}
MANIFEST_COLUMNS: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    LEDGER: LEDGER_COLUMNS,
    CLOCKS: _CLOCK_COLUMNS,
    COVERAGE: COVERAGE_COLUMNS,
    SNAPSHOTS: _SNAPSHOT_COLUMNS,
}
# The tables that `damage` is made of.
_IN_FILES: Final = "damage of files"
_IN_MANIFESTS: Final = "damage of manifests"


class ManifestTables:
    """The tables of a catalogue, and the table of damage with that of manifests."""

    def __init__(self, catalogue: Catalogue, window: Window) -> None:
        self._rows = catalogue.rows
        self._damage = catalogue.tables[DAMAGE]
        self._window = window
        self._manifests: Manifests | None = None

    @property
    def tables(self) -> dict[str, MadeTable]:
        """The tables by name."""
        rows_of = {
            LEDGER: ledger_rows,
            CLOCKS: _clock_rows,
            COVERAGE: coverage_rows,
            SNAPSHOTS: _snapshot_rows,
        }
        tables: dict[str, MadeTable] = {
            name: _Table(self, types_of(columns), rows_of[name])
            for name, columns in MANIFEST_COLUMNS.items()
        }
        return {**tables, DAMAGE: _Damage(self, self._damage, self._window)}

    @property
    def damage(self) -> Sequence[tuple[str, str]]:
        """Path and reason of each damaged manifest, if a statement needed any of them."""
        return self._manifests.damage if self._manifests is not None else ()

    def read(self) -> Manifests:
        """Return all manifests, read at the first call."""
        if self._manifests is None:
            self._manifests = read_manifests(self._rows)
        return self._manifests


class _Table(NamedTuple):
    """A table that is made of manifests."""

    of: ManifestTables
    columns: Mapping[str, str]
    rows_of: Callable[[Sequence[Segment]], Rows]

    def make(self, connection: Any, name: str) -> Sequence[TableScan]:  # noqa: ANN401
        """Create the table in a database; nothing is scanned for it."""
        rows = [*self.rows_of(self.of.read().segments)]
        return FixedTable(self.columns, rows).make(connection, name)


class _Damage(NamedTuple):
    """The damage of files and of manifests in one table."""

    of: ManifestTables
    table: EventTable
    window: Window

    @property
    def columns(self) -> Mapping[str, str]:
        """The kinds of the columns by name."""
        return self.table.columns

    def make(self, connection: Any, name: str) -> Sequence[TableScan]:  # noqa: ANN401
        """Create the table in a database, and return the scan of the files."""
        scan = self.table.scan(self.columns, self.window)
        connection.register(_IN_FILES, scan)
        columns = {"reason": "VARCHAR", "file": "VARCHAR"}
        damage = [(reason, path) for path, reason in self.of.read().damage]
        FixedTable(columns, damage).make(connection, _IN_MANIFESTS)
        connection.execute(
            f'CREATE VIEW "{name}" AS FROM "{_IN_FILES}" UNION ALL BY NAME FROM "{_IN_MANIFESTS}"'
        )
        return [scan]


def _clock_rows(segments: Sequence[Segment]) -> Rows:
    for segment in segments:
        for moment, reading in segment.readings:
            yield (
                *segment.labels,
                moment,
                as_utc(reading.realtime_ns),
                as_word(reading.monotonic_ns),
                as_word(reading.perf_ns),
                as_word(reading.bracket_ns),
                segment.manifest.clock,
            )


def _snapshot_rows(segments: Sequence[Segment]) -> Rows:
    for segment in segments:
        manifest = segment.manifest
        if not isinstance(manifest, Manifest) or manifest.snapshot is None:
            continue
        note = manifest.snapshot
        times = data_times(manifest, manifest.first_ns, manifest.last_ns) or (None, None)
        window_ns = None if None in times else manifest.last_ns - manifest.first_ns
        yield (
            *segment.labels,
            note.trigger,
            as_utc(segment.utc(note.taken_ns)),
            as_word(note.taken_ns),
            *map(as_utc, times),
            as_word(window_ns),
            note.paused_ns,
            segment.stored,
            note.repeated,
            note.repeated_bytes,
        )
