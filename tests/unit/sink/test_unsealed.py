# SPDX-License-Identifier: Apache-2.0
"""Lists of segments that are being written, sealed or cut meanwhile."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from typing import TYPE_CHECKING

import pytest

from collectord.reader.verify import State, list_segments
from collectord.sink.formats import open_stored
from collectord.sink.segment_lock import is_left, lock, lock_new
from tests.support import relay_records, relay_segments
from tests.support import segments as perf_support
from tests.support import trace_segments as support
from tests.support.aux_pieces import encode_piece
from tests.support.chunks import show

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.slow

MIB = 1 << 20
FLUSHED = 2 * support.PER_PAGE
EVENTS = 3 * support.PER_PAGE  # what `fill` writes


def test_pages_at_each_step_of_a_seal(tmp_path: Path) -> None:
    """They are counted as they were flushed, or not at all while they move."""
    sink = support.make_sink(tmp_path)
    segment = sink.next_segment(1, support.opening())
    closed = support.fill(segment)
    sink.flush(segment, {10: 8192})
    (row,) = list_segments([tmp_path])
    assert (row.state, row.samples, row.begins_ns is None) == (State.RUNNING, FLUSHED, False)
    reader = segment.paths.partial.open("rb")
    opened_before = open_stored(reader.fileno())
    listed, counted = {}, {}
    for step in sink.seal_steps(segment, closed, support.closing()):
        (row,) = list_segments([tmp_path])
        listed[step] = (row.state, row.samples)
        if step in ("head written", "cut", "gap closed", "head moved"):
            shown = opened_before.shown()
            counted[step] = shown.samples if shown is not None else None
    reader.close()
    assert counted == {"head written": 14, "cut": None, "gap closed": None, "head moved": None}
    assert listed["head written"] == (State.RUNNING, EVENTS)
    assert listed["cut"] == listed["gap closed"] == (State.RUNNING, None)
    assert listed["head moved"] == listed["manifest renamed"] == (State.RUNNING, EVENTS)
    assert listed["directory synced"] == (State.SEALED, EVENTS)
    sink.close()


def test_lists_while_segments_are_sealed(tmp_path: Path) -> None:
    """A segment that is sealed while it is looked at is listed as sealed, and always whole."""
    sink = support.make_sink(tmp_path)
    ended = threading.Event()

    def work() -> None:
        try:
            for token in range(1, 41):
                support.write_segment(sink, token)
        finally:
            ended.set()

    seen = set()
    writer = threading.Thread(target=work)
    writer.start()
    try:
        while not ended.is_set():
            seen |= {(row.state, row.samples, row.bytes > 0) for row in list_segments([tmp_path])}
    finally:
        writer.join()
    sealed = (State.SEALED, EVENTS, True)
    running = {(State.RUNNING, samples, True) for samples in (None, 0, EVENTS)}
    made = (State.RUNNING, None, False)
    assert seen <= running | {made, sealed}
    rows = list_segments([tmp_path])
    assert [(row.state, row.samples, row.bytes > 0) for row in rows] == [sealed] * 40
    sink.close()


def test_records_longer_than_a_piece(tmp_path: Path) -> None:
    """Records may lie anywhere in the pieces that are read, and be longer than several of them."""
    sink = perf_support.make_sink(tmp_path)
    segment = sink.next_segment(1, perf_support.OPENING)
    trace = [encode_piece(bytes(size), offset=0) for size in (5 * MIB, 100, 3 * MIB + 8)]
    many = perf_support.sample_chunks(30_000, per_chunk=30_000)
    data = [perf_support.chunk(b"".join(trace)), *many, perf_support.chunk(b"".join(trace))]
    end = perf_support.write_data(segment, data)
    show(segment, end)
    (row,) = list_segments([tmp_path])
    assert (row.samples, row.first_ns) == (30_000, perf_support.TIME_NS)
    assert row.last_ns == perf_support.TIME_NS + 29_999 * 1000
    sink.close()


@pytest.mark.parametrize("left", [0, 100, MIB + 100])
def test_a_file_that_is_cut_meanwhile(tmp_path: Path, left: int) -> None:
    """The data that are still there are counted; nothing beyond their end is touched."""
    sink = perf_support.make_sink(tmp_path)
    segment = sink.next_segment(1, perf_support.OPENING)
    data = perf_support.sample_chunks(30_000)
    show(segment, perf_support.write_data(segment, data))
    with segment.paths.partial.open("rb") as file:
        opened = open_stored(file.fileno())
        os.ftruncate(segment.fd, segment.data_offset + left)
        shown = opened.shown()
    assert shown is not None
    assert (shown.samples > 0) == (left > MIB)
    assert shown.samples < 30_000
    sink.close()


def test_running_files_of_a_set(tmp_path: Path) -> None:
    """Each file is one row, with the records that are whole by now; of raw bytes, the bytes."""
    whole = b"".join(relay_records.requests(20))
    for form, samples in (("blktrace", 19), ("relay", len(whole) + 10)):
        sink = relay_segments.make_sink(tmp_path / form, form)
        relay_segments.filled(sink, 1, {4: whole + whole[:10]})
        rows = list_segments([tmp_path / form])
        assert {row.state for row in rows} == {State.RUNNING}
        assert sum(row.samples or 0 for row in rows) == samples
        sink.close()


@pytest.fixture
def at_next_pause(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """Return a list of what happens in the next pauses of who waits for a lock."""
    calls: list[Callable[[], object]] = []
    monkeypatch.setattr(time, "sleep", lambda _: calls.pop(0)() if calls else None)
    return calls


def test_a_writer_outwaits_a_reader_that_looks(
    tmp_path: Path, at_next_pause: list[Callable[[], object]]
) -> None:
    """A list of segments holds the lock of a new file for a moment; its writer gets it then."""
    with (tmp_path / "x").open("wb") as writer, (tmp_path / "x").open("rb") as reader:
        assert lock(reader.fileno())
        at_next_pause.append(lambda: fcntl.flock(reader.fileno(), fcntl.LOCK_UN))
        assert lock_new(writer.fileno())
        assert not lock_new(reader.fileno())


def test_a_file_that_is_made_this_moment_is_not_left(
    tmp_path: Path, at_next_pause: list[Callable[[], object]]
) -> None:
    """Its writer locks it a moment later. One that nobody locks is left, as is one with data."""
    with (tmp_path / "x").open("wb") as writer, (tmp_path / "x").open("rb") as reader:
        at_next_pause.append(lambda: lock(writer.fileno()))
        assert not is_left(reader.fileno())
        fcntl.flock(writer.fileno(), fcntl.LOCK_UN)
        assert is_left(reader.fileno())
        fcntl.flock(reader.fileno(), fcntl.LOCK_UN)
        writer.write(b"data")
        writer.flush()
        at_next_pause.append(lambda: lock(writer.fileno()))
        assert is_left(reader.fileno())
        assert len(at_next_pause) == 1
