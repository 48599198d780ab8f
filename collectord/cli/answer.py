# SPDX-License-Identifier: Apache-2.0
"""Answers of BPF programs on stdout: histograms with bars, tables, and stacks as folded lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from collectord.cli.output import Column, print_table, say
from collectord.session.maps.answers import FoldedAnswer, HistogramAnswer, TableAnswer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from collectord.session.maps.answers import Answer, Section

_BAR_WIDTH: Final = 40
_BAR: Final = "#"
_NOTHING: Final = "nothing was counted"


def print_answers(program: str, answers: Iterable[Answer]) -> None:
    """Print a program's answers, one after the other. Raises as `output.emit`."""
    for answer in answers:
        say(f"{answer.title or program}{_in_unit(answer)}")
        match answer:
            case HistogramAnswer():
                _print_histograms(answer)
            case TableAnswer():
                _print_table(answer)
            case FoldedAnswer():
                _print_folded(answer)
        if not answer.complete:
            say("(incomplete: the map has more entries than are read)")
        say("")


def _in_unit(answer: Answer) -> str:
    if isinstance(answer, TableAnswer) or answer.unit == "count":
        return ""
    return f", {answer.unit}"


def _print_histograms(answer: HistogramAnswer) -> None:
    if not answer.sections:
        say(_NOTHING)
    for section in answer.sections:
        if section.by:
            say("  ".join(f"{title} {text}" for title, text in section.by.items()))
        for line in histogram_lines(section):
            say(line)


def histogram_lines(section: Section) -> Iterator[str]:
    """Yield a line for each slot: its lowest and highest value, the count, and a bar.

    Bars are relative to the fullest slot; a slot that is not empty has one.
    """
    cells = [(str(slot.low), str(slot.high), str(slot.count)) for slot in section.slots]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    most = max(slot.count for slot in section.slots)
    for (low, high, count), slot in zip(cells, section.slots, strict=True):
        length = -(-slot.count * _BAR_WIDTH // most)
        yield (
            f"{low.rjust(widths[0])} .. {high.rjust(widths[1])}  {count.rjust(widths[2])}  "
            f"{_BAR * length}"
        ).rstrip()


def _print_table(answer: TableAnswer) -> None:
    if not answer.rows:
        say(_NOTHING)
    columns = [Column(title, "right" if figure else "left") for title, figure in answer.columns]
    print_table(columns, answer.rows)
    if answer.left_out:
        say(f"(and {answer.left_out:,} more)")


def _print_folded(answer: FoldedAnswer) -> None:
    if not answer.stacks:
        say(_NOTHING)
    for frames, value in answer.stacks:
        say(f"{';'.join(frames)} {value}")
