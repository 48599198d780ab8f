# SPDX-License-Identifier: Apache-2.0
"""A heat map over time: what came in each interval, by slots that stay in their columns."""

from __future__ import annotations

from collectord.cli.live_answers import HeatMap
from collectord.session.maps.answers import HistogramAnswer, Section, Slot

NOW = "12:00:00"


def answer(*sections: tuple[str, dict[int, int]]) -> HistogramAnswer:
    """Return histograms with these counts of slots, by a name."""
    return HistogramAnswer(
        "runs",
        "us",
        tuple(
            Section(
                {"NAME": name} if name else {},
                tuple(Slot(low, 2 * low - 1, count) for low, count in slots.items()),
            )
            for name, slots in sections
        ),
        complete=True,
    )


def test_lines_have_what_came_in_the_interval() -> None:
    """Counts are those since the line before; the most in one slot is the darkest."""
    heat = HeatMap()
    first = list(heat.lines(answer(("", {1: 1, 2: 100})), "runs", NOW))
    assert first[:2] == ["runs, from us", "TIME          1     2"]
    assert first[2].split() == [NOW, ".....", "@@@@@", "101"]
    (second,) = heat.lines(answer(("", {1: 101, 2: 100})), "runs", NOW)
    assert second == f"{NOW}  @@@@@        100"
    (third,) = heat.lines(answer(("", {1: 101, 2: 100})), "runs", NOW)
    assert third == f"{NOW}               0"


def test_slots_that_come_later_have_a_column() -> None:
    """There is a new heading then, and the columns of others stay behind it in their order."""
    heat = HeatMap()
    list(heat.lines(answer(("", {2: 1})), "runs", NOW))
    lines = list(heat.lines(answer(("", {1: 5, 2: 1, 4096: 5})), "runs", NOW))
    assert lines[1].split() == ["TIME", "1", "2", "4.1k"]
    assert lines[2] == f"{NOW}  @@@@@       @@@@@  10"


def test_each_histogram_has_a_line() -> None:
    """Those in which nothing came have none."""
    heat = HeatMap()
    lines = list(heat.lines(answer(("one", {1: 1}), ("two", {1: 2})), "runs", NOW))
    assert [line.split()[-1] for line in lines[2:]] == ["one", "two"]
    (line,) = heat.lines(answer(("one", {1: 1}), ("two", {1: 3})), "runs", NOW)
    assert line.endswith("1 two")


def test_the_heading_comes_again() -> None:
    """It does not scroll out of sight."""
    heat = HeatMap()
    lines = [
        line
        for count in range(1, 50)
        for line in heat.lines(answer(("", {1: count})), "runs", NOW)
    ]
    assert lines.count("runs, from us") == 3


def test_nothing_yet() -> None:
    """A map without entries has a line too: time goes on."""
    assert list(HeatMap().lines(answer(), "runs", NOW)) == [f"{NOW}   0"]
