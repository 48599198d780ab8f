# SPDX-License-Identifier: Apache-2.0
"""`collectord top`: what is made of two readings, at 80 and at 160 columns, and its screen."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from textual.widgets import DataTable, Static

from collectord.cli import top, top_figures
from collectord.cli.top_figures import Reading
from collectord.cli.top_screen import Screen
from collectord.control.documents import status_json
from collectord.errors import NoDaemon, UsageError
from collectord.text.foreign import encode_json
from tests.support import balances

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.pilot import Pilot

    from collectord.ledger.record_ledger import SessionBalance

pytestmark = pytest.mark.slow

GOLDEN: Final = Path(__file__).parents[2] / "golden/top"
SECOND_NS: Final = 1_000_000_000


def reading(seconds: float, *sessions: SessionBalance) -> Reading:
    """Return the status of a daemon at a time."""
    status = json.loads(encode_json(status_json(balances.status(*sessions))))
    status["pid"] = 4321
    status["version"] = "1.2.3"
    return Reading(round(seconds * SECOND_NS), status)


def later(name: str, more: int, *, lost: int = 0) -> SessionBalance:
    """Return a session whose first ring has produced and lost more since."""
    made = balances.session(name)
    first = made.rings[0]
    assert first.produced is not None
    assert made.produced is not None
    losses = {"kernel_ring/ring_full": made.lost["kernel_ring/ring_full"] + lost}
    ring = replace(first, produced=first.produced + more, lost=first.lost | losses)
    return replace(
        made,
        produced=made.produced + more,
        lost=made.lost | losses,
        rings=(ring, *made.rings[1:]),
    )


@pytest.mark.parametrize("width", [80, 160])
def test_the_figures_are_golden(width: int) -> None:
    """No line is wider than the terminal: columns without room are left out."""
    before = reading(1)
    busy = replace(later("exec", 4000, lost=20), degraded_reasons=("losing 10 records/s",))
    sessions = (balances.session("profile"), busy, balances.recorder("blackbox"))
    now = reading(3, *sessions)
    lines = top_figures.heading(now, before)
    for table in (
        top_figures.sessions(now, before, "events"),
        top_figures.rings(now, before, "events"),
    ):
        lines += ["", *table.fitted(width, top_figures.DISPENSABLE).lines()]
    lines += top_figures.troubles(now)
    assert max(map(len, lines)) <= width
    golden = GOLDEN / f"{width}.txt"
    assert "\n".join(lines) + "\n" == golden.read_text()


def test_rates_are_of_the_time_between_the_readings() -> None:
    """4,000 events and 20 losses within 2 s are 2,000 and 10 a second, of the ring as well."""
    now, before = reading(3, later("exec", 4000, lost=20)), reading(1, balances.session("exec"))
    table = top_figures.sessions(now, before, "events")
    titles = [column.title for column in table.columns]
    shown = dict(zip(titles, table.rows[0].cells, strict=True))
    assert (shown["EVENTS/S"], shown["LOST/S"]) == ("2k", "10")
    first, second = top_figures.rings(now, before, "events").rows
    assert (first.cells[1:3], second.cells[1:3]) == (("0", "2k"), ("1", "0"))


def test_a_session_that_has_just_begun_has_no_rate() -> None:
    """It is not in the earlier reading: what it had counted by then is no rate."""
    now, before = reading(3, later("new", 4000)), reading(1, balances.session("exec"))
    (row,) = top_figures.sessions(now, before, "events").rows
    assert row.keys[0] == 0


@pytest.mark.parametrize(
    ("order", "names"),
    [("events", ["b", "a", "c"]), ("lost", ["c", "b", "a"]), ("name", ["a", "b", "c"])],
)
def test_orders(order: str, names: list[str]) -> None:
    """The highest comes first, and names in their order."""
    before = reading(1, *map(balances.session, "abc"))
    now = reading(2, later("a", 10), later("b", 20, lost=1), later("c", 0, lost=5))
    rows = top_figures.sessions(now, before, order).rows
    assert [row.session for row in rows] == names


def test_rings_of_one_session() -> None:
    """Only those of the session that is named are shown."""
    now = reading(1)
    rows = top_figures.rings(now, now, "name", "exec").rows
    assert {row.session for row in rows} == {"exec"}


def test_hostile_names_do_no_harm() -> None:
    """Control characters of a session's reasons are visible."""
    bad = replace(balances.session("exec"), degraded_reasons=("comm \x1b[31m[red]",))
    (line, _) = top_figures.troubles(reading(1, bad))
    assert "\x1b" not in line
    assert "[red]" in line


def test_a_fill_is_a_bar_that_needs_no_colour() -> None:
    """A quarter is two or three marks of ten, with the share."""
    now = reading(1, balances.session("exec"))
    (row,) = top_figures.sessions(now, now, "name").rows
    assert row.cells[-1] in {"[##........]  25%", "[###.......]  25%"}


def test_wrong_options(tmp_path: Path) -> None:
    """An interval that is too short is refused, and no daemon has its own status."""
    with pytest.raises(UsageError, match="too short"):
        top.run(["--interval", "1ms"])
    with pytest.raises(NoDaemon):
        top.run(["--once", "--socket", str(tmp_path / "none")])


class Script:
    """Readings one after the other; the last one again and again."""

    def __init__(self, *readings: Reading | NoDaemon) -> None:
        self._readings = list(readings)

    def __call__(self) -> Reading:
        """Return the next one, or raise it."""
        first = self._readings.pop(0) if len(self._readings) > 1 else self._readings[0]
        if isinstance(first, NoDaemon):
            raise first
        return first


def on_screen(
    script: Script, first: Reading, look: Callable[[Screen, Pilot[None]], Any], width: int = 80
) -> None:
    """Show readings on a screen without a terminal, and look at it."""

    async def scenario() -> None:
        screen = Screen(script, first, 0.05, "")
        async with screen.run_test(size=(width, 24)) as pilot:
            await look(screen, pilot)

    asyncio.run(scenario())


async def until(pilot: Pilot[None], condition: Callable[[], bool]) -> None:
    """Wait until the screen shows something."""
    async with asyncio.timeout(60):
        while not condition():
            await pilot.pause(0.02)


def heading(screen: Screen) -> str:
    """Return the text above the tables."""
    return str(screen.query_one("#heading", Static).content)


def names(screen: Screen, place: str = "#sessions") -> list[str]:
    """Return the first cells of a table."""
    table = screen.query_one(place, DataTable)
    return [str(table.get_row_at(row)[0]) for row in range(table.row_count)]


def test_the_screen_follows_its_keys() -> None:
    """It reads on, sorts, narrows to the session under the cursor and back, and pauses."""
    before = reading(1, *map(balances.session, "ab"))
    now = reading(2, later("a", 10), later("b", 200))

    async def look(screen: Screen, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: names(screen) == ["b", "a"])
        assert len(names(screen, "#details")) == 4
        await pilot.press("s", "s", "s")
        await until(pilot, lambda: names(screen) == ["a", "b"])
        assert "sorted by name" in heading(screen)
        await pilot.press("down", "enter")
        await until(pilot, lambda: "only b" in heading(screen))
        assert names(screen, "#details") == ["b/perf", "b/perf"]
        await pilot.press("escape", "p")
        await until(pilot, lambda: "PAUSED" in heading(screen))
        assert len(names(screen, "#details")) == 4

    on_screen(Script(now), before, look)


def test_the_screen_survives_its_daemon() -> None:
    """While none runs it says so, with the last figures; another daemon has its own rates."""
    before = reading(1, balances.session("a"))
    other = reading(3, balances.session("a"))
    restarted = Reading(other.at_ns, {**other.status, "pid": 1})

    async def look(screen: Screen, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: "NOT READ: no daemon" in heading(screen))
        assert names(screen) == ["a"]
        await until(pilot, lambda: "pid 1," in heading(screen))
        assert "NOT READ" not in heading(screen)

    gone = [NoDaemon("no daemon is listening")] * 20
    on_screen(Script(*gone, restarted), before, look)


@pytest.mark.parametrize("width", [60, 80, 160])
def test_the_screen_shows_what_has_room(width: int) -> None:
    """Rows fit into the terminal."""
    now = reading(1)

    async def look(screen: Screen, pilot: Pilot[None]) -> None:
        await pilot.pause()
        for table in screen.query(DataTable):
            assert table.virtual_size.width <= width

    on_screen(Script(now), now, look, width)
