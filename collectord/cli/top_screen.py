# SPDX-License-Identifier: Apache-2.0
"""The screen of `collectord top`, by textual. Loaded only when it is shown."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, ClassVar, Final

from rich.text import Text
from textual import work
from textual.app import App
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Footer, Static
from textual.worker import get_current_worker

from collectord.cli import top_busy, top_figures
from collectord.cli.top_figures import DISPENSABLE, ORDERS
from collectord.errors import CollectordError
from collectord.text.foreign import visible
from collectord.text.units import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.app import ComposeResult

    from collectord.cli.top_figures import Reading, Table

_BUSY_S: Final = 5.0  # between two looks at what is busiest: each reads segments
# The span of rates: a daemon reads the kernel's counters once or twice in 2 s.
_SPAN_NS: Final = 3 * NS_PER_SECOND
_FEWEST: Final = 2  # readings that a rate needs
_TROUBLES: Final = 4  # lines


class Screen(App[None]):
    """The sessions above, and below the rings or what is busiest.

    Args:
        read: reads the status; it may raise CollectordError while no daemon runs.
        first: the reading to compare the first one with.
        interval_s: time between two readings.
        session: the only one to show, "" for all.
    """

    CSS = """
    Screen { layout: vertical; }
    #heading { height: auto; }
    #sessions { height: auto; max-height: 50%; }
    #details { height: 1fr; }
    #busiest { height: 1fr; overflow-y: auto; }
    #troubles { height: auto; max-height: 5; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit"),
        Binding("p", "pause", "pause"),
        Binding("s", "sort", "sort"),
        Binding("escape", "all", "all sessions"),
        Binding("r", "rings", "rings"),
        Binding("b", "busiest", "busiest"),
    ]
    ENABLE_COMMAND_PALETTE = False

    def __init__(
        self, read: Callable[[], Reading], first: Reading, interval_s: float, session: str
    ) -> None:
        super().__init__()
        self._read = read
        self._readings = deque([first])
        self._interval_s = interval_s
        self._session = session
        self._order = ORDERS[0]
        self._is_paused = False
        self._problem = ""
        self._shows_busiest = False

    def compose(self) -> ComposeResult:
        """Make the parts of the screen, from the top."""
        yield Static(id="heading", markup=False)
        yield DataTable(id="sessions", cursor_type="row", zebra_stripes=False)
        yield DataTable(id="details", cursor_type="none", zebra_stripes=False)
        yield Static(id="busiest", markup=False)
        yield Static(id="troubles", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        """Begin to read."""
        self.query_one("#busiest").display = False
        self._draw()
        self.set_interval(self._interval_s, self._tick)
        self.set_interval(_BUSY_S, self._look)

    def on_resize(self) -> None:
        """Fit the tables to the new width."""
        self._draw()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Show the session of the row alone."""
        if event.data_table.id == "sessions" and event.row_key.value is not None:
            self._session = event.row_key.value.partition("\0")[0]
            self._look()
            self._draw()

    def action_pause(self) -> None:
        """Stop reading, or go on."""
        self._is_paused = not self._is_paused
        self._draw()

    def action_sort(self) -> None:
        """Sort by the next one of `ORDERS`."""
        self._order = ORDERS[(ORDERS.index(self._order) + 1) % len(ORDERS)]
        self._draw()

    def action_all(self) -> None:
        """Show all sessions."""
        self._session = ""
        self._look()
        self._draw()

    def action_rings(self) -> None:
        """Show the rings."""
        self._show(busiest=False)

    def action_busiest(self) -> None:
        """Show the busiest events, processes and stacks."""
        self._show(busiest=True)

    def _show(self, *, busiest: bool) -> None:
        self._shows_busiest = busiest
        self.query_one("#busiest").display = busiest
        self.query_one("#details").display = not busiest
        if busiest:
            self.query_one("#busiest", Static).update("reading the last seconds ...")
            self._look()

    def _tick(self) -> None:
        if not self._is_paused:
            self._poll()

    @work(thread=True, exclusive=True, group="status")
    def _poll(self) -> None:
        """Read the status beside the screen: a daemon may take its time."""
        try:
            now = self._read()
        except CollectordError as error:
            self.call_from_thread(self._fail, str(error))
        else:
            self.call_from_thread(self._take, now)

    def _take(self, now: Reading) -> None:
        if now.status["pid"] != self._readings[-1].status["pid"]:
            self._readings.clear()  # another daemon counts from 0
        self._readings.append(now)
        while self._readings[0].at_ns < now.at_ns - _SPAN_NS and len(self._readings) > _FEWEST:
            self._readings.popleft()
        self._problem = ""
        self._draw()

    def _fail(self, problem: str) -> None:
        self._problem = problem
        self._draw()

    def _look(self) -> None:
        if self._shows_busiest and not self._is_paused:
            self._look_at_segments()

    @work(thread=True, exclusive=True, group="busiest")
    def _look_at_segments(self) -> None:
        worker = get_current_worker()
        try:
            found = top_busy.busiest(self._readings[-1].status, self._session)
        except CollectordError as error:
            lines = [visible(str(error))]
        else:
            lines = []
            for title, rows in found.items():
                lines.append(f"{title} in {top_busy.SECONDS} s")
                lines += [f"{count:>12,}  {name}" for name, count in rows] or ["           -"]
        if not worker.is_cancelled:
            text = Text("\n".join(lines), no_wrap=True, overflow="ellipsis")
            self.call_from_thread(self.query_one("#busiest", Static).update, text)

    def _draw(self) -> None:
        if not self.query("#heading"):  # a reading that came while the screen ended
            return
        now, before = self._readings[-1], self._readings[0]
        lines = top_figures.heading(now, before)
        state = [f"sorted by {self._order}"]
        state += [f"only {visible(self._session)}"] if self._session else []
        state += ["PAUSED"] if self._is_paused else []
        lines.append(", ".join(state))
        if self._problem:
            lines.append(f"NOT READ: {visible(self._problem)}")
        self.query_one("#heading", Static).update(Text("\n".join(lines)))
        self._fill("#sessions", top_figures.sessions(now, before, self._order))
        self._fill("#details", top_figures.rings(now, before, self._order, self._session))
        found = top_figures.troubles(now, self._session)
        more = [f"and {len(found) - _TROUBLES} more"] if len(found) > _TROUBLES else []
        troubles = Text("\n".join([*found[:_TROUBLES], *more]), no_wrap=True, overflow="ellipsis")
        self.query_one("#troubles", Static).update(troubles)

    def _fill(self, place: str, table: Table) -> None:
        """Put a table in the place of the one before, with the cursor on the same row."""
        shown = self.query_one(place, DataTable)
        row, scroll = shown.cursor_row, shown.scroll_y
        fitted = table.fitted(self.size.width - 2, DISPENSABLE)
        shown.clear(columns=True)
        for column in fitted.columns:
            shown.add_column(Text(column.title, justify=column.align))
        for number, one in enumerate(fitted.rows):
            cells = (
                Text(cell, justify=column.align)
                for cell, column in zip(one.cells, fitted.columns, strict=True)
            )
            shown.add_row(*cells, key=f"{one.session}\0{number}")
        shown.move_cursor(row=row, scroll=False)
        shown.scroll_to(y=scroll, animate=False)
