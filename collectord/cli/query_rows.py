# SPDX-License-Identifier: Apache-2.0
"""Rows of a query as text, JSON or CSV, some at a time."""

from __future__ import annotations

import csv
import io
import re
from typing import TYPE_CHECKING, Any, Final

from collectord.cli.output import emit, print_json, print_line, say
from collectord.cli.text_table import Column, print_table, table_width
from collectord.errors import UsageError
from collectord.text.foreign import encodable, visible

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from collectord.reader.sql import Answered

    _Columns = list[Column]
    _Rows = list[list[str]]

_COLUMNS: Final = 80
_NUMBER: Final = re.compile(r"U?(?:TINY|SMALL|BIG|HUGE)?INT(?:EGER)?|FLOAT|DOUBLE|DECIMAL.*")
_TIME: Final = "TIMESTAMP"
_NULL: Final = "-"
# Text is not shortened below this.
_TEXT_MIN: Final = 12


def columns_of(answer: Answered) -> list[Column]:
    """Return the columns of a printed table."""
    return [
        Column(visible(name), "right" if _NUMBER.fullmatch(kind) else "left")
        for name, kind in zip(answer.columns, answer.types, strict=True)
    ]


def print_rows(answer: Answered) -> None:
    """Print a table; rows that are wider than 80 columns are printed one value a line."""
    _print(answer, lambda columns, rows: (columns, rows))


def print_fitted(answer: Answered) -> None:
    """Print a table as `print_rows`, with shorter cells so that rows fit into 80 columns.

    Times are those of the day; where even so the last column, a time, has no room, it is left out.
    """
    are_times = [kind.startswith(_TIME) for kind in answer.types]

    def fit(columns: _Columns, rows: _Rows) -> tuple[_Columns, _Rows]:
        rows = [
            [
                clock_text(cell) if is_time else cell
                for is_time, cell in zip(are_times, row, strict=True)
            ]
            for row in rows
        ]
        fitted = fit_rows(columns, rows)
        if not are_times[-1] or table_width(columns, fitted) <= _COLUMNS:
            return columns, fitted
        return columns[:-1], fit_rows(columns[:-1], [row[:-1] for row in rows])

    _print(answer, fit)


def clock_text(time: str) -> str:
    """Return the time of the day of a time that DuckDB wrote, in ms: `16:04:03.123`."""
    return time[11:23] if len(time) > len(_NULL) else time


def _print(answer: Answered, fit: Callable[[_Columns, _Rows], tuple[_Columns, _Rows]]) -> None:
    is_wide: bool | None = None
    number = 0
    for batch in answer.batches():
        columns, rows = fit(columns_of(answer), [[*map(cell_text, row)] for row in batch])
        if is_wide is None:
            is_wide = table_width(columns, rows) > _COLUMNS
        if not is_wide:
            print_table(columns, rows)
            continue
        widest = max(len(column.title) for column in columns)
        for row in rows:
            number += 1
            say(f"row {number}")
            for column, cell in zip(columns, row, strict=True):
                say(f"  {column.title:<{widest}}  {cell}".rstrip())


def print_objects(answer: Answered) -> None:
    """Print a JSON object for each row; of columns with the same name the last one counts."""
    for batch in answer.batches():
        for row in batch:
            print_line(encodable(dict(zip(answer.columns, map(json_value, row), strict=True))))


def print_csv(answer: Answered) -> None:
    """Print CSV of RFC 4180 with a line of names; a null is an empty field."""
    _emit_csv([answer.columns])
    for batch in answer.batches():
        _emit_csv([["" if value is None else _csv(value) for value in row] for row in batch])


def print_schema(rows: Sequence[Sequence[str]], args: argparse.Namespace) -> None:
    """Print {table, column, type} of each column as the options of the form say.

    Raises:
        UsageError: they ask for a Parquet file, which rows of a statement alone have.
    """
    names = ("table", "column", "type")
    if args.parquet is not None:
        raise UsageError("--schema and --parquet do not go together", hint="--schema --csv > FILE")
    if args.json:
        print_json({"columns": [dict(zip(names, row, strict=True)) for row in rows]})
    elif args.csv:
        _emit_csv([names, *rows])
    else:
        print_table([Column(name.upper()) for name in names], rows)


def _emit_csv(rows: Sequence[Sequence[str]]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n").writerows(rows)
    emit(text.getvalue())


def fit_rows(columns: _Columns, rows: _Rows) -> _Rows:
    """Return rows with the longest texts shortened in their middle, as far as is needed."""
    shortest = [max(_TEXT_MIN, len(column.title)) for column in columns]
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    while (excess := table_width(columns, rows) - _COLUMNS) > 0:
        spare, at = max(
            (width - least if column.align == "left" else 0, index)
            for index, (width, least, column) in enumerate(
                zip(widths, shortest, columns, strict=True)
            )
        )
        if spare <= 0:
            break
        widths[at] -= min(spare, excess)
        rows = [[*row[:at], shortened(row[at], widths[at]), *row[at + 1 :]] for row in rows]
    return rows


def shortened(text: str, width: int) -> str:
    """Return text of at most some columns, cut in its middle."""
    if len(text) <= width:
        return text
    head = (width - 1) // 2
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


def cell_text(value: object) -> str:
    """Return a value as text of a table, on one line and without control characters."""
    return _NULL if value is None else visible(_csv(value))


def _csv(value: object) -> str:
    """Return a value as DuckDB writes it, without loss."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join('NULL' if one is None else _csv(one) for one in value)}]"
    return str(value)


def json_value(value: Any) -> Any:  # noqa: ANN401  # plain data
    """Return a value that JSON has; others become text."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [json_value(one) for one in value]
    if isinstance(value, dict):
        return {str(key): json_value(one) for key, one in value.items()}
    return str(value)
