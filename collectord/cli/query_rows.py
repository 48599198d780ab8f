# SPDX-License-Identifier: Apache-2.0
"""Rows of a query as text, JSON or CSV, some at a time."""

from __future__ import annotations

import csv
import io
import re
from typing import TYPE_CHECKING, Any, Final

from collectord.cli.output import Column, emit, print_line, print_table, say
from collectord.text.foreign import encodable, visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from collectord.reader.sql import Answer

_COLUMNS: Final = 80
_GAP: Final = 2
_NUMBER: Final = re.compile(r"U?(?:TINY|SMALL|BIG|HUGE)?INT(?:EGER)?|FLOAT|DOUBLE|DECIMAL.*")
_NULL: Final = "-"


def print_rows(answer: Answer) -> None:
    """Print a table; rows that are wider than 80 columns are printed one value a line."""
    columns = [
        Column(visible(name), "right" if _NUMBER.fullmatch(kind) else "left")
        for name, kind in zip(answer.columns, answer.types, strict=True)
    ]
    is_wide: bool | None = None
    number = 0
    for batch in answer.batches():
        rows = [[_text(value) for value in row] for row in batch]
        if is_wide is None:
            is_wide = _width(columns, rows) > _COLUMNS
        if not is_wide:
            print_table(columns, rows)
            continue
        widest = max(len(column.title) for column in columns)
        for row in rows:
            number += 1
            say(f"row {number}")
            for column, cell in zip(columns, row, strict=True):
                say(f"  {column.title:<{widest}}  {cell}".rstrip())


def print_objects(answer: Answer) -> None:
    """Print a JSON object for each row; of columns with the same name the last one counts."""
    for batch in answer.batches():
        for row in batch:
            print_line(encodable(dict(zip(answer.columns, map(_plain, row), strict=True))))


def print_csv(answer: Answer) -> None:
    """Print CSV of RFC 4180 with a line of names; a null is an empty field."""
    _emit_csv([answer.columns])
    for batch in answer.batches():
        _emit_csv([["" if value is None else _csv(value) for value in row] for row in batch])


def _emit_csv(rows: Sequence[Sequence[str]]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n").writerows(rows)
    emit(text.getvalue())


def _width(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> int:
    titles = [[column.title for column in columns]]
    widths = (max(map(len, cells)) for cells in zip(*titles, *rows, strict=True))
    return sum(widths) + _GAP * (len(columns) - 1)


def _text(value: object) -> str:
    return _NULL if value is None else visible(_csv(value))


def _csv(value: object) -> str:
    """Return a value as DuckDB writes it, without loss."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join('NULL' if one is None else _csv(one) for one in value)}]"
    return str(value)


def _plain(value: Any) -> Any:  # noqa: ANN401  # plain data
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    return str(value)
