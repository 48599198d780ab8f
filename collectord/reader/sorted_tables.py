# SPDX-License-Identifier: Apache-2.0
"""Read stage: the tables of a file's events, all in one reading, each in the order of time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collectord._native._columns import Tables
from collectord.reader.event_file import Window
from collectord.reader.event_lines import all_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from collectord._native._columns import Chunk
    from collectord.reader.event_file import EventFile
    from collectord.reader.event_tables import TableScan


class SortedTables:
    """The tables of events of one file, as columns of Parquet.

    Args:
        file: whose records they are.
        scans: of the tables, by name, of all times; they need not know the names of tasks.
    """

    def __init__(self, file: EventFile, scans: Mapping[str, TableScan]) -> None:
        keys = {key for event in file.events for key in event.keys} | {*file.silent_keys}
        scan, _ = all_of(file, keys, Window())
        self._names = [*scans]
        self._tables = Tables(scan, [one.scan for one in scans.values()])

    def groups(self) -> Iterator[tuple[str, int, Sequence[Chunk]]]:
        """Yield groups of rows: {table, rows, columns}."""
        while (group := self._tables.read()) is not None:
            number, rows, chunks = group
            yield self._names[number], rows, chunks

    @property
    def has_incidents(self) -> bool:
        """Whether the file tells of losses or has damage, as far as it was read."""
        return self._tables.is_odd

    @property
    def unordered(self) -> frozenset[str]:
        """The tables that have a record which is older than the one before it."""
        return frozenset(
            name for number, name in enumerate(self._names) if self._tables.is_unordered(number)
        )
