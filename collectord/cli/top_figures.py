# SPDX-License-Identifier: Apache-2.0
"""The figures of `collectord top`: tables of text from two readings of a daemon's status."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from collectord.cli.output import bytes_text, count_text, figure_text
from collectord.cli.text_table import Column, table_lines, table_width
from collectord.text.foreign import visible
from collectord.text.units import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    Document = Mapping[str, Any]

_BAR: Final = 10
# Columns that are left out of a narrow terminal, the first one first.
DISPENSABLE: Final = ("SOURCE", "BASIS", "STATE", "STORED", "SIZE", "WINDOW", "PEAK", "UNACC")
# Rows are sorted by one of these, in the order of the key `s`.
ORDERS: Final = ("events", "lost", "fill", "name")


class Reading(NamedTuple):
    """A status and when it was read.

    Attributes:
        at_ns: CLOCK_MONOTONIC.
        status: the document of `/v1/status`.
    """

    at_ns: int
    status: Document


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table, with what it is sorted by.

    Attributes:
        cells: texts, one for each column.
        session: the session that it belongs to.
        keys: values of `ORDERS`.
    """

    cells: tuple[str, ...]
    session: str
    keys: tuple[float, float, float, str]


@dataclass(frozen=True, slots=True)
class Table:
    """A table: its columns, and the rows in their order."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]

    def fitted(self, width: int, dispensable: Sequence[str] = ()) -> Table:
        """Return the table without as many columns as are needed to fit into a width.

        Args:
            width: in columns of the terminal.
            dispensable: titles of columns that may be left out, the first one first.
        """
        table = self
        for title in dispensable:
            if table.width <= width:
                break
            kept = [n for n, column in enumerate(table.columns) if column.title != title]
            table = Table(
                tuple(table.columns[n] for n in kept),
                tuple(
                    Row(tuple(row.cells[n] for n in kept), row.session, row.keys)
                    for row in table.rows
                ),
            )
        return table

    @property
    def width(self) -> int:
        """The columns of a terminal that it takes."""
        return table_width(self.columns, self._cells)

    def lines(self) -> Iterator[str]:
        """Yield the titles and the rows as lines of text."""
        return table_lines(self.columns, self._cells)

    @property
    def _cells(self) -> list[tuple[str, ...]]:
        return [row.cells for row in self.rows]


def heading(now: Reading, before: Reading) -> list[str]:
    """Return the lines about the daemon as a whole."""
    status, core = now.status, now.status["core"]
    cost = status["cost"]
    written = _rate(now, before, lambda document: document["core"]["written_bytes"])
    budget = f" of {cost['budget']:.2%}" if cost["budget"] else ""
    staged = core["chunks"] - core["chunks_free"]
    lines = [
        f"collectord {status['version']}, pid {status['pid']}, since {status['started'][:19]}Z",
        (
            f"CPUs {status['cpus_covered']} of {status['cpus_online']} covered   "
            f"cost {cost['ratio']:.2%}{budget}   staging {staged} of {core['chunks']}   "
            f"disk {bytes_text(written)}/s"
        ),
    ]
    if core["write_errors"]:
        lines.append(f"write errors: {core['write_errors']:,}")
    return lines


def sessions(now: Reading, before: Reading, order: str) -> Table:
    """Return a row for each session and source."""
    columns = (
        Column("SESSION"),
        Column("SOURCE"),
        Column("STATE"),
        Column("BASIS"),
        Column("EVENTS/S", "right"),
        Column("STORED", "right"),
        Column("LOST", "right"),
        Column("LOST/S", "right"),
        Column("UNACC", "right"),
        Column("WINDOW", "right"),
        Column("FULLEST RING"),
    )
    rows = []
    earlier = _by_name(before.status)
    seconds = _seconds(now, before)
    for session in now.status["sessions"]:
        known = earlier.get((session["name"], session["source"]))
        rate = _events_rate(session, known, seconds)
        lost = sum(session["lost"].values())
        losing = (lost - sum(known["lost"].values())) / seconds if known else 0.0
        fill = max(map(_fill, session["rings"]), default=0.0)
        cells = (
            visible(session["name"]),
            session["source"],
            "paused" if session["paused"] else session["state"],
            session["ledger_basis"],
            count_text(rate),
            count_text(session["stored"]),
            count_text(lost),
            count_text(max(losing, 0.0)),
            figure_text(session["unaccounted"]),
            _window(session["rings"]),
            _fill_bar(fill),
        )
        rows.append(Row(cells, session["name"], (rate, lost, fill, session["name"])))
    return Table(columns, _sorted(rows, order))


def rings(now: Reading, before: Reading, order: str, session: str = "") -> Table:
    """Return a row for each data ring of a session, or of all."""
    columns = (
        Column("RING"),
        Column("CPU", "right"),
        Column("EVENTS/S", "right"),
        Column("LOST", "right"),
        Column("SIZE", "right"),
        Column("WINDOW", "right"),
        Column("FILL"),
        Column("PEAK", "right"),
    )
    rows = []
    earlier = _by_name(before.status)
    seconds = _seconds(now, before)
    for one in now.status["sessions"]:
        if session and one["name"] != session:
            continue
        known = earlier.get((one["name"], one["source"]))
        olds = {(ring["cpu"], ring["tid"]): ring for ring in known["rings"]} if known else {}
        for ring in one["rings"]:
            rate = _events_rate(ring, olds.get((ring["cpu"], ring["tid"])), seconds)
            lost = sum(ring["lost"].values())
            size = ring["capacity_bytes"]
            peak = ring["high_watermark_bytes"] / size if size else 0.0
            cells = (
                visible(f"{one['name']}/{one['source']}"),
                str(ring["cpu"]) if ring["cpu"] >= 0 else f"tid {ring['tid']}",
                count_text(rate),
                count_text(lost),
                bytes_text(size),
                _window([ring]),
                _fill_bar(_fill(ring)),
                f"{peak:.0%}",
            )
            rows.append(Row(cells, one["name"], (rate, lost, max(_fill(ring), peak), cells[0])))
    return Table(columns, _sorted(rows, order))


def troubles(now: Reading, session: str = "") -> list[str]:
    """Return the reasons why sessions are degraded, and the losses that go on."""
    lines = []
    for one in now.status["sessions"]:
        if session and one["name"] != session:
            continue
        lines += [visible(f"{one['name']}: {reason}") for reason in one["degraded"]]
    lines += [visible(f"drain threads: {reason}") for reason in now.status["drain"]["lacks"]]
    return lines


def _sorted(rows: Sequence[Row], order: str) -> tuple[Row, ...]:
    """Return rows with the highest first, or by their names."""
    at = ORDERS.index(order)
    by_name = sorted(rows, key=lambda row: (row.keys[-1], row.cells))
    if order == ORDERS[-1]:
        return tuple(by_name)
    return tuple(sorted(by_name, key=lambda row: row.keys[at], reverse=True))


def _by_name(status: Document) -> dict[tuple[str, str], Document]:
    return {(one["name"], one["source"]): one for one in status["sessions"]}


def _seconds(now: Reading, before: Reading) -> float:
    return max(now.at_ns - before.at_ns, 1) / NS_PER_SECOND


def _rate(now: Reading, before: Reading, figure: Callable[[Document], int]) -> float:
    return max(figure(now.status) - figure(before.status), 0) / _seconds(now, before)


def _events_rate(one: Document, known: Document | None, seconds: float) -> float:
    """Return the events per second: produced ones, or where nobody counts these, drained ones."""
    if known is None:
        return 0.0
    return max(_events(one) - _events(known), 0) / seconds


def _events(one: Document) -> int:
    produced = one["produced"]
    drained = one["stored"] + one["in_flight"] + sum(one["lost"].values())
    return int(drained if produced is None else produced)


def _fill(ring: Document) -> float:
    size = ring["capacity_bytes"]
    return ring["used_bytes"] / size if size else 0.0


def _fill_bar(fill: float) -> str:
    """Return a bar with the share in percent; it needs no colour."""
    marks = round(min(fill, 1.0) * _BAR)
    return f"[{'#' * marks}{'.' * (_BAR - marks)}] {fill:4.0%}"


def _window(found: Sequence[Document]) -> str:
    """Return how far back a snapshot would reach, by the ring that reaches least far."""
    known = [ring["window_ns"] for ring in found if ring["window_ns"] is not None]
    return f"{min(known) / NS_PER_SECOND:.1f}s" if known else "-"
