# SPDX-License-Identifier: Apache-2.0
"""The native decoder against the codecs, on captured and on made sub-buffers."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import duckdb
import pytest

from collectord.codec.ftrace_format import parse_format
from collectord.reader.event_file import Window
from tests.support.ftrace_pages import event, page
from tests.support.golden import GOLDEN
from tests.support.query_files import (
    COMM,
    TID,
    decoded,
    switch,
    switches,
    write_trace,
)
from tests.support.query_tables import rows_of, tables_in

if TYPE_CHECKING:
    from contextlib import ExitStack
    from pathlib import Path


@pytest.mark.parametrize("name", ["sys_enter", "sys_exit"])
def test_captured_records_have_the_values_that_the_codecs_read(
    name: str, tmp_path: Path, stack: ExitStack
) -> None:
    """Each field of each record of a kernel's sub-buffer is the same by either decoder."""
    path = tmp_path / "trace.dat"
    write_trace(path, {1: [(GOLDEN / f"{name}.page").read_bytes()]})
    expected = [one for one in decoded(path) if one[0] == name]
    table = tables_in(stack, path)[name]
    own = list(expected[0][3])
    found = rows_of(table, "mono_ns", "cpu", *own)
    assert len(found) == len(expected) > 10
    for (stamp_ns, cpu, *values), (_, told_ns, told_cpu, fields) in zip(
        found, expected, strict=True
    ):
        assert (stamp_ns, cpu) == (told_ns, told_cpu)
        assert [tuple(v) if isinstance(v, list) else v for v in values] == [*fields.values()]


def test_text_of_every_kind_is_shown_as_the_codecs_show_it(
    tmp_path: Path, stack: ExitStack
) -> None:
    """Text at a place that the record names, with bytes that are no UTF-8, cut at its NUL."""
    layout = parse_format((GOLDEN / "sched_process_exec.format").read_bytes())
    names = [b"/bin/sh\0", b"\xff\xc3\xa9\xed\xa0\x80\xf0\x9f\x90\xa7\xe2\x82", b"a\0b", b""]
    records = []
    for text in names:
        head = struct.pack("<HBBi", layout.id, 0, 0, TID)
        at = max(field.offset + field.size_bytes for field in layout.fields)
        record = bytearray(
            (head + struct.pack("<I", len(text) << 16 | at)).ljust(at, b"\0") + text
        )
        records.append(event(bytes(record), 5, long=True))
    cut = event(struct.pack("<HBBiI", layout.id, 0, 0, TID, 50 << 16 | 20), 5)
    path = tmp_path / "trace.dat"
    write_trace(path, {0: [page(1000, *records, cut)]})
    found = rows_of(tables_in(stack, path)["sched_process_exec"], "filename")
    shown = [text.partition(b"\0")[0].decode(errors="backslashreplace") for text in names]
    assert [row[0] for row in found] == [*shown, None]


def test_names_of_every_length_are_cut_at_their_end(tmp_path: Path, stack: ExitStack) -> None:
    """Arrays of 16 bytes: plain ones, what is left behind a NUL, and bytes that take four."""
    names = [
        *(b"abcdefghijklmnop"[:length] for length in range(17)),
        *(b"ab\0\xff", b"12345678\0\xff\xff", b"\xff" * 16, b"\xc3\xa9" * 8, b"abc\xff", b"last"),
    ]
    path = tmp_path / "trace.dat"
    write_trace(path, {0: [page(1000, *(event(switch(1, next_comm=name), 5) for name in names))]})
    found = [row[0] for row in rows_of(tables_in(stack, path)["sched_switch"], "next_comm")]
    assert found == [name.partition(b"\0")[0].decode(errors="backslashreplace") for name in names]


def test_common_columns_come_first_and_others_keep_clear_of_them(
    tmp_path: Path, stack: ExitStack
) -> None:
    """An event's own `pid` is `event_pid`; the thread, its name and the CPU are the record's."""
    path = tmp_path / "trace.dat"
    write_trace(path, {2: [switches(1000, 5)]})
    tables = tables_in(stack, path)
    assert list(tables["sched_process_exec"].columns) == [
        *("time", "mono_ns", "cpu", "pid", "tid", "comm", "filename", "event_pid", "old_pid"),
    ]
    found = rows_of(tables["sched_switch"], "time", "mono_ns", "cpu", "pid", "tid", "comm")
    assert found == [(None, 1010, 2, None, TID, COMM)]


def test_only_what_is_asked_for_is_decoded(tmp_path: Path, stack: ExitStack) -> None:
    """A scan has the named columns, and one if none is named."""
    path = tmp_path / "trace.dat"
    write_trace(path, {0: [switches(1000, 5)]})
    table = tables_in(stack, path)["sched_switch"]
    with duckdb.connect() as connection:
        for names, columns in ((("next_pid", "comm"), ["comm", "next_pid"]), ((), ["cpu"])):
            connection.register("t", table.scan(names, Window()))
            told = connection.execute("DESCRIBE t").fetchall()
            assert [row[0] for row in told] == columns


def test_losses_are_rows_and_are_counted(tmp_path: Path, stack: ExitStack) -> None:
    """Each loss that a page tells of is in the table, and is counted by every scan."""
    path = tmp_path / "trace.dat"
    write_trace(
        path,
        {0: [switches(1000, 5), switches(2000, 6, lost=9)], 1: [switches(3000, 7, lost=None)]},
    )
    tables = tables_in(stack, path)
    found = rows_of(tables["losses"], "mono_ns", "cpu", "events", "how", "file")
    assert found == [(2000, 0, 9, "lost", str(path)), (3000, 1, None, "lost", str(path))]
    scan = tables["sched_switch"].scan(["next_pid"], Window())
    with duckdb.connect() as connection:
        connection.register("t", scan)
        assert connection.execute("SELECT sum(next_pid) FROM t").fetchall() == [(18,)]
    (counts,) = scan.found().values()
    assert (counts.rows, counts.lost, counts.lost_untold, counts.damaged) == (3, 9, 1, 0)


def test_damage_is_a_row_and_the_rest_is_read(tmp_path: Path, stack: ExitStack) -> None:
    """A page that cannot be walked costs what is behind the fault in it, and no other page."""
    broken = bytearray(page(2000, event(switch(6), 10), event(switch(7), 10)))
    broken[16 + 68 : 16 + 72] = struct.pack("<I", 0)
    broken[16 + 72 : 16 + 76] = struct.pack("<I", 1)
    path = tmp_path / "trace.dat"
    write_trace(path, {0: [switches(1000, 5), bytes(broken), switches(3000, 8)]})
    tables = tables_in(stack, path)
    assert [row[0] for row in rows_of(tables["sched_switch"], "next_pid")] == [5, 6, 8]
    ((mono_ns, reason),) = rows_of(tables["damage"], "mono_ns", "reason")
    assert (mono_ns, reason) == (2010, "bad_length")


def test_records_outside_the_window_are_left_out_without_a_clock(
    tmp_path: Path, stack: ExitStack
) -> None:
    """A file that cannot tell times of day is left out of a window, and is named."""
    path = tmp_path / "trace.dat"
    write_trace(path, {0: [switches(1000, 5)]})
    scan = tables_in(stack, path)["sched_switch"].scan(["cpu"], Window(since_ns=1))
    assert [file.path for file in scan.untimed] == [path]
    assert scan.found() == {}
