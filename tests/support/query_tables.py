# SPDX-License-Identifier: Apache-2.0
"""Tables of files that were recorded, asked without the verb `query`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import duckdb

from collectord.reader.any_events import open_tables
from collectord.reader.event_file import Window
from collectord.reader.event_tables import EventTable, tables_of

if TYPE_CHECKING:
    from contextlib import ExitStack
    from pathlib import Path


def tables_in(stack: ExitStack, *paths: Path) -> dict[str, EventTable]:
    """Return the tables of files by name; the stack closes the files."""
    files = [open_tables(path, stack) for path in paths]
    return tables_of([file for file in files if file is not None])


def rows_of(table: EventTable, *names: str, window: Window | None = None) -> list[tuple[Any, ...]]:
    """Return a table's rows of a time, with these columns or all."""
    columns = ", ".join(f'"{name}"' for name in names or table.columns)
    with duckdb.connect() as connection:
        connection.register("t", table.scan(names or table.columns, window or Window()))
        rows: list[tuple[Any, ...]] = connection.execute(f"FROM t SELECT {columns}").fetchall()
    return rows
