# SPDX-License-Identifier: Apache-2.0
"""Sink stage: the tables of a query whose rows are no records: segments, names and gaps."""

from __future__ import annotations

import errno
import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from collectord.codec.syscall_names import syscall_names
from collectord.reader.event_file import shown
from collectord.reader.event_tables import ERRNO_NAMES, SEGMENTS, SYSCALL_NAMES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from collectord.reader.event_tables import TableScan
    from collectord.reader.verify import SegmentRow

_TIME: Final = "TIMESTAMP_NS"
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
        # As JSON they take a third of the time that a list of Python takes.
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
    return {
        SEGMENTS: FixedTable(_SEGMENT_COLUMNS, [_segment(row) for row in rows]),
        SYSCALL_NAMES: FixedTable(
            {"id": "BIGINT", "name": "VARCHAR"}, [*syscall_names(machine).items()]
        ),
        ERRNO_NAMES: FixedTable(
            {"errno": "INTEGER", "name": "VARCHAR"}, [*errno.errorcode.items(), *_RESTARTS.items()]
        ),
    }


_SEGMENT_COLUMNS: Final = {
    "path": "VARCHAR",
    "session": "VARCHAR",
    "format": "VARCHAR",
    "state": "VARCHAR",
    "started": _TIME,
    "first": _TIME,
    "last": _TIME,
    "samples": "UBIGINT",
    "bytes": "UBIGINT",
}


def _segment(row: SegmentRow) -> tuple[object, ...]:
    path, state = shown(str(row.path)), str(row.state)
    times = row.started_ns, row.begins_ns, row.ends_ns
    return path, row.session, row.format, state, *times, row.samples, row.bytes
