# SPDX-License-Identifier: Apache-2.0
"""Answers of BPF programs at intervals: histograms as a heat map over time, and tables."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Final

from collectord.cli.output import count_text, flush, say
from collectord.cli.summary import print_answers
from collectord.session.maps.answers import HistogramAnswer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from collectord.session.maps.answers import Answer

    # Counts of slots by their lowest value, by the text that tells a histogram from others.
    Counts = dict[str, dict[int, int]]

_SHADES: Final = " .:+*#@"
_CELL: Final = 6
_ROWS: Final = 20  # lines of a heat map between two headings
_TIME: Final = "TIME"


class LiveAnswers:
    """Prints answers again and again."""

    def __init__(self) -> None:
        self._maps: dict[tuple[str, int], HeatMap] = {}

    def show(self, answers: Mapping[str, Sequence[Answer]]) -> None:
        """Print the answers of each program. Raises as `output.emit`."""
        now = time.strftime("%H:%M:%S")
        for program, given in answers.items():
            for index, answer in enumerate(given):
                if isinstance(answer, HistogramAnswer):
                    heat = self._maps.setdefault((program, index), HeatMap())
                    for line in heat.lines(answer, answer.title or program, now):
                        say(line)
                else:
                    print_answers(program, [answer])
        flush()


class HeatMap:
    """A histogram over time: a line for each interval, a column for each slot.

    A column is the darker, the more values came in the interval, in powers of a base that gives
    the most so far the darkest. One in which a value came is not empty.
    """

    def __init__(self) -> None:
        self._last: Counts = {}
        self._lows: list[int] = []
        self._most = 0
        self._rows = 0

    def lines(self, answer: HistogramAnswer, title: str, now: str) -> Iterator[str]:
        """Yield the lines of an interval, with a heading where one is due.

        Args:
            answer: all values until now.
            title: of the heading.
            now: the time of the clock.
        """
        counts = _counts(answer)
        came = {
            name: {low: n - self._last.get(name, {}).get(low, 0) for low, n in slots.items()}
            for name, slots in counts.items()
        }
        self._last = counts
        lows = sorted({*self._lows, *(low for slots in counts.values() for low in slots)})
        self._most = max(self._most, *(n for slots in came.values() for n in slots.values()), 0)
        shown = {name: slots for name, slots in came.items() if any(slots.values())} or {"": {}}
        if lows != self._lows or self._rows >= _ROWS:
            self._lows, self._rows = lows, 0
            yield f"{title}, from {answer.unit}" if answer.unit != "count" else title
            yield f"{_TIME:8} " + "".join(f"{count_text(low):>{_CELL}}" for low in lows)
        for name, slots in shown.items():
            self._rows += 1
            cells = "".join(f"{self._shade(slots.get(low, 0)):>{_CELL}}" for low in lows)
            yield f"{now} {cells}  {sum(slots.values()):,} {name}".rstrip()

    def _shade(self, count: int) -> str:
        if count <= 0:
            return ""
        darkest = len(_SHADES) - 1
        level = math.ceil(darkest * math.log1p(count) / math.log1p(self._most))
        return _SHADES[min(level, darkest)] * (_CELL - 1)


def _counts(answer: HistogramAnswer) -> Counts:
    return {
        " ".join(section.by.values()): {slot.low: slot.count for slot in section.slots}
        for section in answer.sections
    }
