# SPDX-License-Identifier: Apache-2.0
"""Results on stdout: JSON, or tables that are plain columns unless stdout is a terminal.

Cells may hold text of the traced system or of a file: it is never taken for markup, and control
characters are made visible.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from collectord.log import visible

if TYPE_CHECKING:
    from collections.abc import Sequence

_KIB: Final = 1024
_BYTE_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_THOUSAND: Final = 1000
_COUNT_UNITS: Final = ("", "k", "M", "G")


@dataclass(frozen=True, slots=True)
class Column:
    """A table's column; figures go to the right."""

    title: str
    align: Literal["left", "right"] = "left"


def say(text: str) -> None:
    """Print one line of the result."""
    sys.stdout.write(visible(text) + "\n")


def complain(text: str) -> None:
    """Print one line of trouble, to stderr."""
    sys.stderr.write(f"collectord: {visible(text)}\n")


def print_json(value: Any) -> None:  # noqa: ANN401  # whatever msgspec encodes
    """Print one JSON document and nothing else."""
    document = msgspec.json.encode(value, enc_hook=str)
    sys.stdout.write(msgspec.json.format(document, indent=2).decode() + "\n")


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under their titles; of no rows, nothing."""
    if not rows:
        return
    shown = [[visible(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        from collectord.cli.terminal import print_rich_table  # noqa: PLC0415  # rich when needed

        print_rich_table(columns, shown)
        return
    table = [[column.title for column in columns], *shown]
    widths = [max(map(len, cells)) for cells in zip(*table, strict=True)]
    for row in table:
        cells = (
            cell.rjust(width) if column.align == "right" else cell.ljust(width)
            for cell, width, column in zip(row, widths, columns, strict=True)
        )
        say("  ".join(cells).rstrip())


def bytes_text(count: float) -> str:
    """A size with a binary unit: `512 KiB`, `1.5 GiB`."""
    for unit in _BYTE_UNITS:
        if count < _KIB or unit == _BYTE_UNITS[-1]:
            break
        count /= _KIB
    return f"{_short(count)} {unit}"


def count_text(count: float) -> str:
    """A count for a narrow place: `987`, `12.3k`, `1.2M`."""
    for unit in _COUNT_UNITS:
        if count < _THOUSAND or unit == _COUNT_UNITS[-1]:
            break
        count /= _THOUSAND
    return f"{_short(count)}{unit}"


def _short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
