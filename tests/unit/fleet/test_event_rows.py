# SPDX-License-Identifier: Apache-2.0
"""The files of a segment's events have the rows that its tables have, in the order of time."""

from __future__ import annotations

import struct
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectord.codec.ftrace_format import parse_format
from collectord.fleet.event_rows import EventRows
from collectord.fleet.redaction import Redaction, Rule
from collectord.fleet.segment_rows import write_rows
from collectord.fleet.table_file import Place
from tests.support.examples import examples
from tests.support.ftrace_pages import event, page
from tests.support.golden import GOLDEN
from tests.support.query_files import TID, switch, switches, write_trace
from tests.support.query_tables import rows_of, tables_in
from tests.support.segments import make_sink, write_segment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from collectord.fleet.table_file import TableFile

# It makes a store of several hosts for most tests.
pytestmark = [pytest.mark.slow, pytest.mark.no_cover]

_GROUP_ROWS = 122_880
_DICTIONARY_MAX = 4096  # values that the core has a dictionary of
_OF_A_PAGE = 50
_OWN = {"session": "s", "boot_id": "b"}


def _rows(file: TableFile) -> list[tuple[Any, ...]]:
    """Return the rows of a file, as anybody reads them."""
    with duckdb.connect(":memory:") as connection:
        return connection.execute("FROM read_parquet($path)", {"path": str(file.path)}).fetchall()


def _written(
    path: Path, folder: Path, redaction: Redaction
) -> dict[str, tuple[TableFile, list[tuple[Any, ...]]]]:
    """Return the files of a segment by table, each with its rows."""
    with ExitStack() as stack:
        files = write_rows(Place(path, folder, "s", "b"), redaction, stack)
        return {file.table: (file, _rows(file)) for file in files}


def _counted(rows: Iterable[Sequence[Any]]) -> Counter[tuple[Any, ...]]:
    """Return rows without their order; lists and what a list lacks are told as text."""
    return Counter(
        tuple(str(value) if isinstance(value, list) else value for value in row) for row in rows
    )


def _compare(path: Path, folder: Path) -> dict[str, tuple[TableFile, list[tuple[Any, ...]]]]:
    """Check that the files have all rows of the tables, in their order of time; return them."""
    found = _written(path, folder, Redaction())
    with ExitStack() as stack:
        for name, table in tables_in(stack, path).items():
            if name == "samples":  # of tracepoints without call chains are in their own tables
                assert name not in found
                continue
            expected = rows_of(table, *table.columns)
            assert (name in found) == bool(expected)
            if not expected:
                continue
            file, rows = found[name]
            more = {column: text for column, text in _OWN.items() if column not in table.columns}
            assert file.columns == (*table.columns, *more)
            assert file.rows == len(rows)
            assert _counted(rows) == _counted((*row, *more.values()) for row in expected)
            stamps = [row[file.columns.index("mono_ns")] for row in rows]
            assert stamps == sorted(stamps, key=lambda stamp: (stamp is None, stamp))
    return found


def _pages(records: Sequence[bytes], start_ns: int = 1000) -> list[bytes]:
    """Return the pages of one CPU with these records, 10 ns apart."""
    return [
        page(
            start_ns + 10 * at,
            *(event(one, 10) for one in records[at : at + _OF_A_PAGE]),
        )
        for at in range(0, len(records), _OF_A_PAGE)
    ]


def test_records_of_a_kernel_have_the_same_rows_as_their_tables(tmp_path: Path) -> None:
    """Numbers, texts, lists and what they lack, of several CPUs."""
    path = tmp_path / "trace.dat"
    layout = parse_format((GOLDEN / "sched_process_exec.format").read_bytes())
    cut = event(struct.pack("<HBBiI", layout.id, 0, 0, TID, 50 << 16 | 20), 5)
    captured = [(GOLDEN / f"{name}.page").read_bytes() for name in ("sys_enter", "sys_exit")]
    pages = {
        0: [switches(1000, 1, 2, 3), page(2000, cut, cut)],
        1: captured,
        3: [switches(1005, 4)],
    }
    write_trace(path, pages)
    found = _compare(path, tmp_path)
    assert {"sched_switch", "sched_process_exec", "sys_enter", "sys_exit"} <= {*found}


def test_samples_of_perf_have_the_same_rows_as_their_tables(tmp_path: Path) -> None:
    """The records of a segment tell the names of its tasks, which have a table of their own."""
    sink = make_sink(tmp_path / "state")
    try:
        path = write_segment(sink, 1, 2500).path
    finally:
        sink.close()
    found = _compare(path, tmp_path)
    assert len(found["sys_enter_getppid"][1]) == 2500


def test_a_table_of_many_rows_has_groups_that_tell_their_values(tmp_path: Path) -> None:
    """Values that come again, and that never do; engines pass over groups by what they tell."""
    path = tmp_path / "trace.dat"
    first = [switch(number, next_comm=b"few%d" % (number % 7)) for number in range(60_000)]
    second = [switch(number % 3, next_comm=b"many%d" % number) for number in range(70_000)]
    write_trace(path, {0: _pages(first), 1: _pages(second, 1003)})
    told = """
SELECT stats_min_value, stats_max_value, row_group_num_rows
FROM parquet_metadata($path) WHERE path_in_schema = $column ORDER BY row_group_id
"""
    with ExitStack() as stack, duckdb.connect(":memory:") as connection:
        files = write_rows(Place(path, tmp_path, "s", "b"), Redaction(), stack)
        file = next(files)
        rows = _rows(file)
        for column in ("mono_ns", "next_pid", "prev_state", "next_comm", "session"):
            values = [row[file.columns.index(column)] for row in rows]
            asked = {"path": str(file.path), "column": column}
            groups = connection.execute(told, asked).fetchall()
            assert len(groups) == 2
            assert groups[0][2] >= _GROUP_ROWS
            for least, most, count in groups:
                part, values = values[:count], values[count:]
                is_untold = column == "next_comm" and len(set(part)) > _DICTIONARY_MAX
                ends = (None, None) if is_untold else (str(min(part)), str(max(part)))
                assert (least, most) == ends
        expected = rows_of(tables_in(stack, path)["sched_switch"])
        assert _counted(rows) == _counted((*row, "s", "b") for row in expected)
        assert rows == sorted(rows, key=lambda row: row[1])
        assert next(files, None) is None


@settings(max_examples=examples(30))
@given(
    st.lists(
        st.tuples(
            st.binary(max_size=16).map(lambda text: text.partition(b"\0")[0]),
            st.sampled_from([0, 1, 2, 2**31 - 1, -(2**31), -1]) | st.integers(-(2**31), 2**31 - 1),
            st.integers(1, 40),
        ),
        min_size=1,
        max_size=20,
    ),
    st.integers(0, 2),
)
def test_rows_of_any_values_are_those_of_the_tables(
    runs: Sequence[tuple[bytes, int, int]], cpus: int
) -> None:
    """Runs of equal values of any length, and whatever is between them."""
    records = [switch(pid, next_comm=comm) for comm, pid, count in runs for _ in range(count)]
    with TemporaryDirectory() as name:
        path = Path(name) / "trace.dat"
        write_trace(path, {cpu: _pages(records, 1000 + cpu) for cpu in range(cpus + 1)})
        _compare(path, Path(name))


def test_a_clock_that_jumps_back_leaves_the_rows_in_order(tmp_path: Path) -> None:
    """Records of one CPU that are older than those before them are sorted nevertheless."""
    path = tmp_path / "trace.dat"
    write_trace(path, {0: [switches(5000, 1, 2), switches(1000, 3)], 1: [switches(3000, 4)]})
    _, rows = _compare(path, tmp_path)["sched_switch"]
    assert len(rows) == 4


@pytest.mark.parametrize(
    ("bad", "table"),
    [
        (lambda: switches(2000, 3, lost=7), "losses"),
        (lambda: switches(2000, 3, lost=None), "losses"),
        (lambda: page(2000)[:8] + b"\xff" * 8 + bytes(4080), "damage"),
    ],
    ids=["lost", "lost-untold", "damaged"],
)
def test_losses_and_damage_are_tables_if_there_are_any(
    bad: Callable[[], bytes], table: str, tmp_path: Path
) -> None:
    """A segment without them has no such files; one with them has."""
    path = tmp_path / "trace.dat"
    write_trace(path, {0: [switches(1000, 1, 2)]})
    assert {*_compare(path, tmp_path)} == {"sched_switch"}
    write_trace(path, {0: [switches(1000, 1, 2), bad(), switches(3000, 4)]})
    assert table in _compare(path, tmp_path)


def test_columns_that_are_dropped_are_not_written(tmp_path: Path) -> None:
    """They are told as dropped; a table whose values are changed is written by the database."""
    path = tmp_path / "trace.dat"
    write_trace(path, {0: [switches(1000, 1, 2)]})
    rules = (Rule("next_comm"), Rule("prev_comm", how="hash"))
    for taken in (rules[:1], rules):
        file, rows = _written(path, tmp_path, Redaction(taken, b"k" * 16))["sched_switch"]
        assert file.dropped == ("next_comm",)
        assert "next_comm" not in file.columns
        hidden = {row[file.columns.index("prev_comm")] for row in rows}
        assert (hidden == {"shell"}) == (len(taken) == 1)


def test_the_database_is_left_what_it_alone_can_do(tmp_path: Path) -> None:
    """An ftrace segment without losses and damage leaves nothing to it."""
    path = tmp_path / "trace.dat"
    write_trace(path, {0: [switches(1000, 1, 2)]})
    with ExitStack() as stack:
        tables = tables_in(stack, path)
        place = Place(path, tmp_path, "s", "b")
        (first, *_) = tables["sched_switch"].files
        rows = EventRows(first, tables, place, Redaction())
        assert [file.table for file in rows.write(lambda: None)] == ["sched_switch"]
        assert {name for name, table in tables.items() if table.files} <= rows.done
