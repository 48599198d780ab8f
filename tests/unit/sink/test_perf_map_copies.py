# SPDX-License-Identifier: Apache-2.0
"""Copies of what processes say about code that they made, beside the segments that they ran in."""

from __future__ import annotations

import gzip
import os
from typing import TYPE_CHECKING, Final

import pytest

from collectord.folders.trust import Trust
from collectord.folders.walk import open_folder
from collectord.model import EvictReason
from collectord.plan.sink_plan import RetentionPlan
from collectord.reader.symbols import perf_map
from collectord.sink import perf_map_copies
from collectord.sink.eviction import evict
from collectord.sink.perf_map_copies import Kept, MapCopies, kept_map
from collectord.sink.segment import group_files
from collectord.sink.sidecar_files import remove_lone
from collectord.sink.state_dir import StateDir
from tests.support.segments import files_in

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

FUNCTIONS: Final = b"1000 20 work\n0x2000 0x10 a b;c\n"
FIRST: Final = "20260101T000000Z-000001.perf.data"
SECOND: Final = "20260101T000100Z-000002.perf.data"
NOW_NS: Final = 1_800_000_000_000_000_000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A file system with a process and its map."""
    (tmp_path / "root/tmp").mkdir(parents=True)
    (tmp_path / "root/tmp/perf-77.map").write_bytes(FUNCTIONS)
    return tmp_path / "root"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state directory with two segments of a session."""
    session = tmp_path / "state/load"
    session.mkdir(parents=True)
    for name in (FIRST, SECOND):
        (session / name).write_bytes(bytes(8192))
        (session / f"{name}.json").write_text("{}")
    return tmp_path / "state"


def _keep(copies: MapCopies, state: Path, segment: str, pids: Collection[int]) -> Kept:
    with open_folder(state / "load", Trust.WRITE) as folder:
        kept = copies.keep(folder, segment, pids)
        remove_lone(folder)
        return kept


def _copies(state: Path) -> list[str]:
    return sorted(path.name for path in files_in(state / "load") if "map" in path.name)


def test_functions_are_there_when_the_process_is_gone(root: Path, state: Path) -> None:
    """The copies are of processes that have a map, as it was then."""
    assert _keep(MapCopies(root), state, FIRST, {77, 78}) == Kept(1)
    (root / "tmp/perf-77.map").write_bytes(b"1000 20 other\n")
    assert kept_map(state / "load" / FIRST, 77) == FUNCTIONS
    assert kept_map(state / "load" / FIRST, 78) == b""
    assert kept_map(state / "load" / SECOND, 77) == b""
    found = perf_map.of_segment(77, state / "load" / FIRST, is_live=True)
    assert found.find(0x1000) == "work"
    assert len(perf_map.of_segment(78, state / "load" / FIRST, is_live=False)) == 0


def test_a_map_that_did_not_change_is_kept_once(root: Path, state: Path) -> None:
    """Also when the first segment is deleted; one that grew is another file."""
    copies = MapCopies(root)
    _keep(copies, state, FIRST, {77})
    _keep(copies, state, SECOND, {77})
    first, second = (state / "load" / name for name in _copies(state))
    assert first.samefile(second)
    first.unlink()
    (state / "load" / FIRST).unlink()
    with (root / "tmp/perf-77.map").open("ab") as file:
        file.write(b"3000 10 more\n")
    third = "20260101T000200Z-000003.perf.data"
    (state / "load" / third).touch()
    _keep(copies, state, third, {77})
    assert kept_map(state / "load" / SECOND, 77) == FUNCTIONS
    assert kept_map(state / "load" / third, 77) == FUNCTIONS + b"3000 10 more\n"
    # A map whose last copy was deleted is copied again.
    (state / "load" / f"{third}.77.map.gz").unlink()
    fourth = "20260101T000300Z-000004.perf.data"
    (state / "load" / fourth).touch()
    assert _keep(copies, state, fourth, {77}) == Kept(1)
    assert kept_map(state / "load" / fourth, 77).endswith(b"more\n")


def test_copies_belong_to_their_segment(root: Path, state: Path) -> None:
    """They count as its bytes, once for all that share them, and go with it."""
    (root / "tmp/perf-77.map").write_bytes(
        b"".join(b"%x 10 %s\n" % (at, os.urandom(40).hex().encode()) for at in range(5000))
    )
    directory = StateDir(state, RetentionPlan())
    before = directory.stats(state / "load", 0, 0)
    copies = MapCopies(root)
    _keep(copies, state, FIRST, {77})
    os.sync()
    copy = state / "load" / f"{FIRST}.77.map.gz"
    taken = copy.stat().st_blocks * 512
    assert taken > 100_000
    one = directory.stats(state / "load", 0, 0)
    assert (one.segments, one.segment_bytes) == (2, before.segment_bytes + taken)
    _keep(copies, state, SECOND, {77})
    assert directory.stats(state / "load", 0, 0).segment_bytes == one.segment_bytes

    limit = before.segment_bytes // 2 + taken
    gone = evict(state, RetentionPlan(bytes=limit), NOW_NS)
    assert [(one.path.name, one.reason) for one in gone] == [(FIRST, EvictReason.QUOTA)]
    assert _copies(state) == [f"{SECOND}.77.map.gz"]
    evict(state, RetentionPlan(age_ns=1), NOW_NS)
    assert not list(files_in(state / "load"))


def test_what_has_lost_its_segment_is_removed(root: Path, state: Path) -> None:
    """A segment may be deleted while its maps are copied; and it is no segment by itself."""
    lone = state / "load" / f"{FIRST}.99.map.gz"
    lone.touch()
    for name in (FIRST, f"{FIRST}.json"):
        (state / "load" / name).unlink()
    unfinished = state / "load" / f".{SECOND}.5.map.gz.new"
    unfinished.touch()
    with open_folder(state / "load") as folder:
        assert [group.paths.name for group in group_files(folder)] == [SECOND]
    _keep(MapCopies(root), state, FIRST, {77})
    assert _copies(state) == []


def test_maps_of_others_and_what_is_no_map(root: Path, state: Path) -> None:
    """Anybody may write to /tmp, and bind there what only the daemon may read."""
    tmp = root / "tmp"
    (tmp / "perf-1.map").symlink_to(tmp / "perf-77.map")
    os.mkfifo(tmp / "perf-2.map")
    (tmp / "perf-3.map").mkdir()
    (tmp / "perf-4.map").write_bytes(b"secret: of root\n1000 20 work\n1234 no number\n")
    (tmp / "perf-5.map").write_bytes(b"root:$6$abc:19000:0:99999:7:::\n")
    (tmp / "perf-6.map").write_bytes(FUNCTIONS)
    if os.geteuid() == 0:
        os.chown(tmp / "perf-6.map", 12345, 12345)
    else:
        (tmp / "perf-6.map").unlink()
    assert _keep(MapCopies(root), state, FIRST, range(1, 7)) == Kept(1, left_out=1)
    assert _copies(state) == [f"{FIRST}.4.map.gz"]
    assert kept_map(state / "load" / FIRST, 4) == b"1000 20 work\n"


def test_sizes_and_numbers_are_bounded(
    root: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest is counted."""
    monkeypatch.setattr(perf_map_copies, "MAPS_MAX", 2)
    monkeypatch.setattr(perf_map_copies, "MAP_MAX_BYTES", 100)
    (root / "tmp/perf-78.map").write_bytes(FUNCTIONS * 5)
    for pid in (79, 80, 81):
        (root / f"tmp/perf-{pid}.map").write_bytes(FUNCTIONS)
    assert _keep(MapCopies(root), state, FIRST, range(77, 82)) == Kept(2, left_out=3)
    monkeypatch.setattr(perf_map_copies, "_TOTAL_MAX_BYTES", 1)
    assert _keep(MapCopies(root), state, SECOND, range(77, 82)) == Kept(1, left_out=4)


def test_long_maps_are_copied_whole(
    root: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line at the border of two pieces is no other line, and one without an end none."""
    monkeypatch.setattr(perf_map_copies, "_PIECE_BYTES", 7)
    whole = b"".join(b"%x 10 function_%d\n" % (at, at) for at in range(1, 200))
    (root / "tmp/perf-77.map").write_bytes(whole + b"5000 10 cut")
    _keep(MapCopies(root), state, FIRST, {77})
    assert kept_map(state / "load" / FIRST, 77) == whole


@pytest.mark.parametrize(
    "damage",
    [b"", b"text", gzip.compress(FUNCTIONS)[:-20]],
    ids=["empty", "no_gzip", "cut"],
)
def test_a_damaged_copy_is_no_copy(state: Path, damage: bytes) -> None:
    """Then the functions have no names."""
    (state / "load" / f"{FIRST}.77.map.gz").write_bytes(damage)
    found = perf_map.of_segment(77, state / "load" / FIRST, is_live=False)
    assert found.find(0x2005) is None
