# SPDX-License-Identifier: Apache-2.0
"""The tables of a segment's events as Parquet files, from one reading of the segment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from collectord.fleet.table_file import TableFile
from collectord.reader.event_file import Window
from collectord.reader.event_tables import DAMAGE, LOSSES
from collectord.reader.export_rows import quoted
from collectord.reader.parquet_file import ParquetFile
from collectord.reader.sorted_tables import SortedTables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from collectord.fleet.redaction import Redaction
    from collectord.fleet.table_file import Place
    from collectord.reader.event_file import EventFile
    from collectord.reader.event_tables import EventTable, TableScan

_INCIDENTS: Final = (LOSSES, DAMAGE)


class EventRows:
    """Writes the tables of events whose columns need nothing but to be decoded.

    Args:
        file: the segment.
        tables: of it, by name.
        place: of the files.
        redaction: tables of which it changes values are left to others.

    Attributes:
        done: tables whose rows were written, or that have none.
    """

    def __init__(
        self,
        file: EventFile,
        tables: Mapping[str, EventTable],
        place: Place,
        redaction: Redaction,
    ) -> None:
        self._file = file
        self._place = place
        self._scans = {
            name: table.scan(columns, Window(), with_comms=False)
            for name, table in tables.items()
            if table.is_of_event and (columns := _plain(table, redaction))
        }
        self.done: frozenset[str] = frozenset()

    def write(self, after_each: Callable[[], object]) -> Iterator[TableFile]:
        """Yield each file, which may be removed then.

        Args:
            after_each: called behind each group of rows.

        Raises:
            OSError: a file cannot be written.
        """
        if not self._scans:
            return
        found = SortedTables(self._file, self._scans)
        files = {
            name: self._made(number, scan)
            for number, (name, scan) in enumerate(self._scans.items())
        }
        for name, rows, chunks in found.groups():
            files[name].add(rows, chunks)
            after_each()
        # A ring whose clock has jumped: rows are to be sorted by those who can.
        unordered = found.unordered
        incidents = () if found.has_incidents else _INCIDENTS
        self.done = frozenset([*files, *incidents]) - unordered
        for name, file in files.items():
            if file.rows and name not in unordered:
                file.end()
                yield self._table_file(name, file)
            file.path.unlink(missing_ok=True)

    def _made(self, number: int, scan: TableScan) -> ParquetFile:
        constants = self._place.constants(scan.table.columns)
        path = self._place.folder / f"event-{number}.parquet"
        return ParquetFile(path, scan.columns, constants)

    def _table_file(self, name: str, file: ParquetFile) -> TableFile:
        kinds = self._scans[name].table.columns
        dropped = tuple(column for column in kinds if column not in file.columns)
        return TableFile(name, file.path, file.rows, tuple(file.columns), dropped)


def _plain(table: EventTable, redaction: Redaction) -> list[str]:
    """Return the columns that are written, none if a value is to be changed before."""
    chosen = {
        column: redaction.expression(table.name, column, kind)
        for column, kind in table.columns.items()
    }
    if any(text not in {None, quoted(column)} for column, text in chosen.items()):
        return []
    return [column for column, text in chosen.items() if text is not None]
