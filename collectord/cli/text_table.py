# SPDX-License-Identifier: Apache-2.0
"""Tables on stdout: plain columns, unless it is a terminal.

Cells may hold text of the traced system or of a file: it is never taken for markup, and control
characters are made visible.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from collectord.cli.output import emit, say
from collectord.text.foreign import visible

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_GAP: Final = 2  # between columns


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; numbers are aligned to the right."""

    title: str
    align: Literal["left", "right"] = "left"


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under their titles; print nothing without rows."""
    if not rows:
        return
    shown = [[visible(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _draw(columns, shown)
        return
    for line in table_lines(columns, shown):
        say(line)


def _draw(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Draw a table on a terminal. Cells are plain text: `[red]` in a file name is not markup."""
    from rich import box  # noqa: PLC0415  # rich on a terminal only
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(Text(column.title), justify=column.align, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console = Console(file=sys.stdout, highlight=False)
    with console.capture() as drawn:
        console.print(table)
    emit(drawn.get())


def table_lines(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the titles and the rows of a table as lines of text."""
    widths = column_widths(columns, rows)
    for row in ([column.title for column in columns], *rows):
        cells = (
            cell.rjust(width) if column.align == "right" else cell.ljust(width)
            for cell, width, column in zip(row, widths, columns, strict=True)
        )
        yield (" " * _GAP).join(cells).rstrip()


def table_width(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> int:
    """Return the columns of a terminal that a table takes."""
    return sum(column_widths(columns, rows)) + _GAP * (len(columns) - 1)


def column_widths(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the width of each column: of its title, or its widest cell."""
    titles = [column.title for column in columns]
    return [max(map(len, cells)) for cells in zip(titles, *rows, strict=True)]
