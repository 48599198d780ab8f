# SPDX-License-Identifier: Apache-2.0
"""Rows of an answer for people: a table, a histogram, a timeline or stacks within 80 columns."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from collectord.cli.answer_tree import tree_lines
from collectord.cli.output import bar, say
from collectord.cli.query_rows import cell_text, columns_of, print_fitted
from collectord.errors import UsageError
from collectord.reader.symbols.frame import of_text

if TYPE_CHECKING:
    from collectord.cli.answer_file import Render
    from collectord.reader.sql import Answered
    from collectord.reader.symbols.frame import Frame

_COLUMNS: Final = 80
_LABEL: Final = 16
_BAR: Final = 40
# A character for each eighth of the largest value, and for none.
_LEVELS: Final = " .:-=+*#@"
_LANE_COLUMNS: Final = 3
_STACK_COLUMNS: Final = 2


def print_answer(answer: Answered, render: Render, whose: int = 0) -> None:
    """Print rows in a form; text that does not fit is shortened.

    Args:
        answer: the rows.
        render: the form.
        whose: columns before those of the form, which say whose row it is.
    """
    if render == "table":
        print_fitted(answer)
    elif render == "histogram":
        _print_histogram(answer)
    elif render == "timeline":
        _print_timeline(answer, whose)
    else:
        _print_stacks(answer, whose)


def _print_histogram(answer: Answered) -> None:
    """Print each row with a bar for the number in its last column."""
    rows = [row for batch in answer.batches() for row in batch]
    if not rows:
        return
    counts = [_number(row[-1]) for row in rows]
    titles = columns_of(answer)
    cells = [[column.title for column in titles], *([*map(cell_text, row)] for row in rows)]
    widths = [min(max(map(len, column)), _LABEL) for column in zip(*cells, strict=True)]
    room = max(min(_COLUMNS - sum(width + 2 for width in widths), _BAR), 1)
    most = max(*counts, 1)
    for index, row in enumerate(cells):
        shown = [
            cell[:width].rjust(width) if column.align == "right" else cell[:width].ljust(width)
            for cell, width, column in zip(row, widths, titles, strict=True)
        ]
        line = bar(counts[index - 1], most, room) if index else ""
        say("  ".join([*shown, line]).rstrip())


def _print_timeline(answer: Answered, whose: int) -> None:
    """Print a line for each lane: rows are {lane, slot from 0 on, value}."""
    columns = len(answer.columns) - whose
    if columns != _LANE_COLUMNS:
        raise UsageError(f"a timeline of {columns} columns", hint="it takes lane, slot and value")
    lanes: dict[str, dict[int, float]] = {}
    for batch in answer.batches():
        for *words, slot, value in batch:
            lanes.setdefault(" ".join(map(cell_text, words)), {})[int(slot)] = _number(value)
    if not lanes:
        return
    width = min(max(map(len, lanes)), _LABEL)
    most = max(value for values in lanes.values() for value in values.values()) or 1.0
    room = _COLUMNS - width - 4
    for lane, values in lanes.items():
        marks = "".join(
            _LEVELS[round(max(values.get(slot, 0), 0) * (len(_LEVELS) - 1) / most)]
            for slot in range(min(max(values) + 1, room))
        )
        say(f"{lane[:width]:<{width}}  |{marks}|")


def _print_stacks(answer: Answered, whose: int) -> None:
    """Print the tree of folded stacks: rows are {stack, whole number}."""
    columns = len(answer.columns) - whose
    if columns != _STACK_COLUMNS:
        raise UsageError(
            f"stacks of {columns} columns", hint="it takes the folded stack, and a whole number"
        )
    stacks: Counter[tuple[Frame, ...]] = Counter()
    for batch in answer.batches():
        for *outer, stack, value in batch:
            words = [*map(cell_text, outer), *cell_text(stack).split(";")]
            frames = map(of_text, words)
            stacks[tuple(frames)] += round(_number(value))
    for line in tree_lines(stacks, cell_text(answer.columns[-1]), _COLUMNS):
        say(line)


def _number(value: Any) -> float:  # noqa: ANN401  # plain data
    try:
        return float(value or 0)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{value!r} is not a number", hint="the last column is drawn") from error
