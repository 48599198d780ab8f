# SPDX-License-Identifier: Apache-2.0
"""The note of what was shipped, and what retention does by it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec
import pytest
from structlog.testing import capture_logs

from collectord.plan.sink_plan import HoldPlan, RetentionPlan
from collectord.sink import ship_note
from collectord.sink.eviction import evict
from collectord.sink.segment import SegmentPaths, segment_name
from collectord.sink.ship_note import ShipNote, StreamNote, Waiting, form_of
from collectord.sink.state_dir import StateDir

if TYPE_CHECKING:
    from pathlib import Path

SEGMENT_BYTES = 64 << 10
NOW_NS = 1_800_000_000_000_000_000
HOUR_NS = 3_600_000_000_000
BLOCKS = SEGMENT_BYTES + 4096  # with its manifest


def seal(directory: Path, number: int, age_ns: int = 0, form: str = "perf.data") -> Path:
    """Make what looks like a sealed segment."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / segment_name(NOW_NS + number, number, form)
    path.write_bytes(bytes(SEGMENT_BYTES))
    path.with_name(path.name + ".json").write_bytes(b"{}")
    for file in (path, path.with_name(path.name + ".json")):
        os.utime(file, ns=(NOW_NS - age_ns, NOW_NS - age_ns + number))
    return path


def stream(path: Path, form: str = "perf.data") -> StreamNote:
    """Return the note of a stream that is done up to a segment."""
    paths = SegmentPaths(path.parent, path.name)
    return StreamNote(
        directory=str(path.parent),
        format=form,
        session="exec",
        segment=path.name,
        sequence=paths.sequence,
        shipped=1,
        rows=2,
        bytes=3,
    )


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return the folder of the session that is shipped."""
    return tmp_path / "state" / "exec"


def waiting(directory: Path, *streams: StreamNote) -> Waiting:
    """Return what waits where so much is noted."""
    return Waiting(frozenset({directory}), ShipNote(written_ns=1, streams=streams))


def test_shipped_segments_go_first(directory: Path) -> None:
    """Retention deletes what is in the store, although what waits is older."""
    paths = [seal(directory, number) for number in (1, 2, 3)]
    of_others = seal(directory.with_name("other"), 4)
    plan = RetentionPlan(bytes=3 * BLOCKS, hold=HoldPlan(bytes=0))
    held = waiting(directory, stream(paths[0]))
    gone = evict(directory.parent, plan, NOW_NS, waiting=held)
    assert [(one.path, one.unshipped) for one in gone] == [(paths[0], False)]
    plan = RetentionPlan(bytes=2 * BLOCKS, hold=HoldPlan(bytes=0))
    gone = evict(directory.parent, plan, NOW_NS, waiting=held)
    assert [one.path for one in gone] == [of_others]


@pytest.mark.parametrize(
    ("plan", "deleted"),
    [
        (RetentionPlan(bytes=1, hold=HoldPlan(bytes=3 * BLOCKS)), 0),
        (RetentionPlan(bytes=1, hold=HoldPlan(bytes=2 * BLOCKS)), 1),
        (RetentionPlan(age_ns=HOUR_NS, hold=HoldPlan(age_ns=2 * HOUR_NS)), 0),
        (RetentionPlan(age_ns=HOUR_NS, hold=HoldPlan(age_ns=HOUR_NS - 10)), 3),
    ],
)
def test_what_waits_is_kept_up_to_a_limit(
    directory: Path, plan: RetentionPlan, deleted: int
) -> None:
    """Beyond it the oldest goes, and is named as one that was not shipped."""
    paths = [seal(directory, number, age_ns=2 * HOUR_NS) for number in (1, 2, 3)]
    gone = evict(directory.parent, plan, NOW_NS, waiting=waiting(directory))
    assert [one.path for one in gone] == paths[:deleted]
    assert all(one.unshipped for one in gone)


def test_a_full_disk_is_not_held_up(directory: Path) -> None:
    """A write that needs room gets it, whatever waits."""
    paths = [seal(directory, number) for number in (1, 2)]
    plan = RetentionPlan(hold=HoldPlan(bytes=1 << 40, age_ns=1 << 60))
    gone = evict(directory.parent, plan, NOW_NS, need_bytes=1, waiting=waiting(directory))
    assert [one.path for one in gone] == paths[:1]


def test_the_daemon_tells_what_waits(directory: Path, tmp_path: Path) -> None:
    """Figures by session; a limit that is exceeded for it is said once, and so is its end."""
    paths = [seal(directory, number) for number in (1, 2)]
    note = tmp_path / "ship"
    hold = HoldPlan(str(note), (("exec", str(directory)),), bytes=1 << 40, age_ns=1 << 60)
    state = StateDir(directory.parent, RetentionPlan(bytes=1, hold=hold))
    with capture_logs() as logs:
        state.look_at_shipping()
        state.look_at_shipping()
    assert [line["event"] for line in logs] == ["retention_waits_for_shipping"]
    found = state.shipping.sessions["exec"]
    assert (found.waiting, found.waiting_bytes) == (2, 2 * BLOCKS)
    assert found.since_ns == min(path.stat().st_mtime_ns for path in paths)
    note.mkdir()
    done = ShipNote(written_ns=1, streams=(stream(paths[1]),), errors={"refused": 4})
    ship_note.write(note, done)
    assert ship_note.read(note) == done
    with capture_logs() as logs:
        assert state.make_room()
        state.look_at_shipping()
    assert [line["event"] for line in logs] == [
        *["segment_deleted"] * 2,
        "retention_waits_no_more",
    ]
    found = state.shipping.sessions["exec"]
    assert (found.segments, found.rows, found.bytes, found.waiting) == (1, 2, 3, 0)
    assert state.shipping.errors == {"refused": 4}


def test_a_deletion_before_shipping_is_an_error(directory: Path, tmp_path: Path) -> None:
    """The log and the figures have it."""
    seal(directory, 1)
    hold = HoldPlan(str(tmp_path / "none"), (("exec", str(directory)),))
    state = StateDir(directory.parent, RetentionPlan(bytes=1, hold=hold))
    with capture_logs() as logs:
        assert state.make_room()
        state.look_at_shipping()
    assert [line["event"] for line in logs] == ["segment_deleted_unshipped"]
    assert state.shipping.sessions["exec"].deleted == 1


@pytest.mark.parametrize("contents", [b"", b"{}", b"\xff", b'{"written_ns": -1}', bytes(5 << 20)])
def test_a_note_that_is_none(tmp_path: Path, contents: bytes) -> None:
    """The daemon takes a damaged note, one of a future version and a huge one as none."""
    (tmp_path / ship_note.NAME).write_bytes(contents)
    assert ship_note.read(tmp_path) is None
    (tmp_path / ship_note.NAME).unlink()
    assert ship_note.read(tmp_path) is None
    later = msgspec.structs.replace(ShipNote(written_ns=1), schema=2)
    ship_note.write(tmp_path, later)
    assert ship_note.read(tmp_path) is None


def test_numbers_that_begin_anew(directory: Path) -> None:
    """A folder that was made anew has small numbers again, and later times."""
    done = stream(directory / "20261127T000000Z-000009.perf.data")
    later = SegmentPaths(directory, "20261127T000001Z-000001.perf.data")
    earlier = SegmentPaths(directory, "20261126T000001Z-000003.perf.data")
    assert not done.is_done(later)
    assert done.is_done(earlier)


def test_a_set_of_files_has_one_form(directory: Path) -> None:
    """The files of a block trace, one for each CPU, are done together."""
    one = SegmentPaths(directory, "20261127T000001Z-000001.blktrace.1")
    assert form_of(one) == "blktrace"
    assert form_of(SegmentPaths(directory, "20261127T000001Z-000001.trace.dat")) == "trace.dat"
