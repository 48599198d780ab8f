# SPDX-License-Identifier: Apache-2.0
"""`answer processes` on records that a test makes: numbers that come again, and gaps."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import pytest

from collectord.cli import answer_file
from collectord.fleet.engines import ENGINES
from collectord.fleet.engines.place import Place
from collectord.fleet.questions import Asking
from collectord.fleet.required_events import RequiredEvents
from collectord.fleet.selection import Selection, Wanted
from collectord.fleet.store import Store
from collectord.programs.parameter import values_of
from collectord.reader.event_file import Window
from tests.support.fleets import BEGIN_NS, SECOND, Host, Shipped

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

# It makes a store of several hosts for most tests.
pytestmark = [pytest.mark.slow, pytest.mark.no_cover]

_PID: Final = 700
_MS: Final = 1_000_000
_NAMES: Final = {
    "fork": "sched:sched_process_fork",
    "exec": "sched:sched_process_exec",
    "exit": "sched:sched_process_exit",
    "snoop": "bpf:exitsnoop",
}
_COLUMNS: Final = {
    "fork": "'sh' AS parent_comm, 1::INTEGER AS parent_pid, {pid}::INTEGER AS child_pid",
    "exec": "{pid}::INTEGER AS event_pid, {old}::INTEGER AS old_pid, '{text}' AS filename",
    "exit": "{pid}::INTEGER AS event_pid",
    "snoop": (
        "{pid}::UINTEGER AS event_pid, 'name' AS event_comm, 2::UINTEGER AS parent, "
        "{old}::UBIGINT AS lifetime_ns, 4::UINTEGER AS code, 0::UINTEGER AS signal"
    ),
}
# An event: at which ms, what, the file, and the thread or the lifetime.
_Mark = tuple[int, str, str, int]


class Records:
    """A store with the records of one process number of a host."""

    def __init__(self, shipped: Shipped) -> None:
        self._shipped = shipped
        self._host = Host("one")
        self._begins_ns = BEGIN_NS

    def add(self, *marks: _Mark) -> None:
        """Put a segment of a second with these."""
        events = {}
        for what, name in _NAMES.items():
            # Each has a record of another process, so that its columns are known.
            rows = [_row(what, 0, 9, 9, "other")]
            rows += [
                _row(what, ms, _PID, old or _PID, text)
                for ms, one, text, old in marks
                if one == what
            ]
            numbered = (f"SELECT {n} AS n, * FROM ({row})" for n, row in enumerate(rows))  # noqa: S608
            events[name] = " UNION ALL ".join(numbered)
        self._shipped.segment(self._host, events, self._begins_ns, SECOND)
        self._begins_ns += 2 * SECOND

    def gap(self) -> None:
        """Let the session be another run from here on: what was between is not known."""
        self._host.run_number += 1

    def told(self, *columns: str) -> list[tuple[Any, ...]]:
        """Return columns of the answer about the number, the first life first."""
        one = answer_file.load("processes")
        asking = Asking(
            Selection(self._shipped.store, Wanted(Window())),
            Place(self._shipped.store),
            ENGINES["duckdb"],
            None,
        )
        needs = RequiredEvents(one.head.needs, one.head.optional, one.head.columns)
        values = values_of(one.name, one.head.parameter, {})
        question = asking.of_answer(one.text, needs, values, ("host",))
        names = [name for name, _ in asking.shape(question)]
        with ExitStack() as stack:
            answered = ENGINES["duckdb"].ask(question, asking.place, (), stack)
            rows = [
                dict(zip(names, row, strict=True)) for batch in answered.batches() for row in batch
            ]
        return [
            tuple(row[name] for name in columns) for row in reversed(rows) if row["pid"] == _PID
        ]


def _row(what: str, ms: int, pid: int, old: int, text: str) -> str:
    columns = _COLUMNS[what].format(pid=pid, old=old, text=text)
    return f"SELECT 0::INTEGER AS cpu, {columns}, {ms * _MS} AS after"


@pytest.fixture
def records(tmp_path: Path) -> Iterator[Records]:
    """Provide a store without records."""
    with Shipped(Store.open(str(tmp_path / "store"), make=True)) as shipped:
        yield Records(shipped)


_LIFE: Final = ("program", "started_by", "parent", "lifetime_ms", "code")


@pytest.mark.parametrize(
    ("marks", "expected"),
    [
        pytest.param(
            [(1, "fork", "", 0), (2, "exec", "/a", 0), (3, "exec", "/b", 0), (9, "exit", "", 0)],
            [("/b", "sh", 1, 8.0, None)],
            id="the last program",
        ),
        pytest.param(
            [
                *((1, "fork", "", 0), (2, "exec", "/a", 0), (3, "exit", "", 0)),
                *((5, "fork", "", 0), (6, "exec", "/b", 0), (9, "exit", "", 0)),
            ],
            [("/a", "sh", 1, 2.0, None), ("/b", "sh", 1, 4.0, None)],
            id="a number that comes again",
        ),
        pytest.param(
            [(2, "exec", "/a", 0), (3, "exit", "", 0), (6, "exec", "/b", 0)],
            [("/a", None, None, None, None), ("/b", None, None, None, None)],
            id="a number that comes again, without forks",
        ),
        pytest.param(
            [(1, "fork", "", 0), (2, "exit", "", 0), (3, "exec", "/a", 701), (9, "exit", "", 0)],
            [("/a", "sh", 1, 8.0, None)],
            id="a thread that executes ends the first",
        ),
        pytest.param(
            [(1, "fork", "", 0), (2, "exit", "", 0), (3, "exec", "/a", 701)],
            [("/a", "sh", 1, None, None)],
            id="a thread that executes, and still runs",
        ),
        pytest.param([(1, "fork", "", 0), (9, "exit", "", 0)], [], id="perhaps a thread"),
        pytest.param(
            [(1, "fork", "", 0), (9, "exit", "", 0), (9, "snoop", "", 8 * _MS)],
            [("name", "sh", 1, 8.0, 4)],
            id="a process that executes nothing",
        ),
        pytest.param(
            [(5, "snoop", "", 60_000 * _MS)],
            [("name", None, 2, 60_000.0, 4)],
            id="a process that is older than the records",
        ),
    ],
)
def test_lives(
    records: Records, marks: Sequence[_Mark], expected: Sequence[tuple[Any, ...]]
) -> None:
    """Each process is a row with what is known of it."""
    records.add(*marks)
    assert records.told(*_LIFE) == expected


def test_a_gap_parts_what_has_one_number(records: Records) -> None:
    """Behind it the number may be another's: no parent and no beginning is from before it."""
    records.add((1, "fork", "", 0), (2, "exec", "/a", 0))
    records.gap()
    records.add((1, "exit", "", 0), (1, "snoop", "", 5 * _MS))
    assert records.told(*_LIFE) == [
        ("/a", "sh", 1, None, None),
        ("name", None, 2, 5.0, 4),
    ]


def test_a_life_goes_on_from_segment_to_segment(records: Records) -> None:
    """Segments of one run have no gap between them."""
    records.add((1, "fork", "", 0), (2, "exec", "/a", 0))
    records.add((1, "exit", "", 0))
    assert records.told(*_LIFE) == [("/a", "sh", 1, 2000.0, None)]
