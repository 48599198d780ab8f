# SPDX-License-Identifier: Apache-2.0
"""Read stage: the tables of a query whose rows are no records: segments, names and gaps."""

from __future__ import annotations

import errno
import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from collectord.codec.syscall_names import syscall_names
from collectord.reader.event_file import INT64_MAX, shown
from collectord.reader.event_tables import ERRNO_NAMES, SEGMENTS, SYSCALL_NAMES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from collectord.reader.event_tables import TableScan
    from collectord.reader.verify import SegmentRow

    # DuckDB's type of a column, and what it is, with its unit.
    Typed = tuple[str, str]

_UINT64_MAX: Final = (1 << 64) - 1
_TIME: Final = "TIMESTAMP_NS"
_TEXT: Final = "VARCHAR"
_UNNEST: Final = """unnest(from_json(?, '["{}"]'))"""
# include/linux/errno.h: what a system call returns within the kernel when a signal ends it.
_RESTARTS: Final = {
    512: "ERESTARTSYS",
    513: "ERESTARTNOINTR",
    514: "ERESTARTNOHAND",
    516: "ERESTART_RESTARTBLOCK",
}


class FixedTable(NamedTuple):
    """A table of given rows.

    Attributes:
        columns: DuckDB's types by name.
        rows: values in the order of the columns; times are UTC in ns.
    """

    columns: Mapping[str, str]
    rows: Sequence[Sequence[object]] = ()

    def make(self, connection: Any, name: str) -> Sequence[TableScan]:  # noqa: ANN401
        """Create the table in a database; nothing is scanned for it."""
        columns = ", ".join(f'"{column}" {kind}' for column, kind in self.columns.items())
        connection.execute(f'CREATE TABLE "{name}" ({columns})')
        self.append(connection, name, self.rows)
        return ()

    def append(self, connection: Any, name: str, rows: Sequence[Sequence[object]]) -> None:  # noqa: ANN401
        """Append rows to the table that was created."""
        if not rows:
            return
        # Rows as JSON take a third of the time that a list of Python takes.
        cells = ", ".join(
            f"make_timestamp_ns({_UNNEST.format('BIGINT')})"
            if kind == _TIME
            else _UNNEST.format(kind)
            for kind in self.columns.values()
        )
        values = [*map(json.dumps, zip(*rows, strict=True))]
        connection.execute(f'INSERT INTO "{name}" SELECT {cells}', values)  # of this module


def fixed_tables(rows: Sequence[SegmentRow], machine: str) -> dict[str, FixedTable]:
    """Return the tables that every query has, by name.

    Args:
        rows: the segments and files.
        machine: the architecture whose system calls are named, as `uname -m` prints it.
    """
    rows_of: dict[str, Sequence[Sequence[object]]] = {
        SEGMENTS: [_segment(row) for row in rows],
        SYSCALL_NAMES: [*syscall_names(machine).items()],
        ERRNO_NAMES: [*errno.errorcode.items(), *_RESTARTS.items()],
    }
    return {
        name: FixedTable(types_of(FIXED_COLUMNS[name]), rows) for name, rows in rows_of.items()
    }


def described_columns(
    tables: Mapping[str, Mapping[str, Typed]],
) -> Iterator[tuple[str, str, str]]:
    """Yield {table, column, what it is} of tables."""
    for table, columns in tables.items():
        for name, (kind, meaning) in columns.items():
            yield table, name, meaning if kind in {_TEXT, _TIME} else f"{kind}, {meaning}"


def types_of(columns: Mapping[str, Typed]) -> dict[str, str]:
    """Return DuckDB's types by name."""
    return {name: kind for name, (kind, _) in columns.items()}


FIXED_COLUMNS: Final[Mapping[str, Mapping[str, Typed]]] = {
    SEGMENTS: {
        "path": (_TEXT, "text"),
        "session": (_TEXT, "text, empty if nothing tells it"),
        "format": (_TEXT, "text"),
        "state": (_TEXT, "text"),
        "started": (_TIME, "UTC"),
        "first": (_TIME, "UTC, of the first record"),
        "last": (_TIME, "UTC, of the last record"),
        "samples": ("UBIGINT", "records"),
        "bytes": ("UBIGINT", "bytes"),
    },
    SYSCALL_NAMES: {"id": ("BIGINT", "number"), "name": (_TEXT, "text")},
    ERRNO_NAMES: {"errno": ("INTEGER", "number"), "name": (_TEXT, "text")},
}


def as_utc(utc_ns: int | None) -> int | None:
    """Return a time that a table can have; None for one that no manifest can mean."""
    return utc_ns if utc_ns is not None and 0 < utc_ns < INT64_MAX else None


def as_word(number: int | None) -> int | None:
    """Return a number that a column of 64 bits can have; None for any other."""
    return number if number is not None and 0 <= number <= _UINT64_MAX else None


def _segment(row: SegmentRow) -> tuple[object, ...]:
    path, state = shown(str(row.path)), str(row.state)
    times = map(as_utc, (row.started_ns, row.begins_ns, row.ends_ns))
    return path, row.session, row.format, state, *times, row.samples, row.bytes
