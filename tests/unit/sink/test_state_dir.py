# SPDX-License-Identifier: Apache-2.0
"""The state directory as a whole, the deletion of its oldest segments, and what stays."""

from __future__ import annotations

import errno
import os
import subprocess
import threading
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from collectord.errors import SinkError
from collectord.folders.walk import open_folder
from collectord.model import EvictReason
from collectord.plan.sink_plan import RetentionPlan
from collectord.sink import eviction
from collectord.sink.eviction import Eviction, evict
from collectord.sink.output_dir import single_paths
from collectord.sink.segment import Group, group_files, segment_name
from collectord.sink.state_dir import StateDir
from tests.support import segments as support
from tests.support.segments import files_in

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from collectord.folders.folder import Folder

DAY_NS = 86_400_000_000_000
NOW_NS = 1_800_000_000_000_000_000
SEGMENT_BYTES = 64 << 10


def test_manifest_replaces_no_file_of_others(tmp_path: Path) -> None:
    """`-o result` beside somebody's result.json is refused."""
    (tmp_path / "result.json").write_text('{"mine": true}\n')
    with pytest.raises(SinkError, match=r"result\.json") as refused, open_folder(tmp_path) as at:
        single_paths(at, "result")
    assert refused.value.errno == errno.EEXIST


@pytest.mark.parametrize("suffix", [".json.new", ".json.partial"])
def test_running_manifest_replaces_no_file_of_others(tmp_path: Path, suffix: str) -> None:
    """A recording keeps its manifest there while it is written: whose file that is, is asked."""
    other = tmp_path / f"result{suffix}"
    other.write_bytes(b"PERFILE2")
    with open_folder(tmp_path) as at:
        with pytest.raises(SinkError, match="not a manifest of collectord") as refused:
            single_paths(at, "result")
        other.write_bytes(bytes(4096))  # room that was claimed and not used
        assert single_paths(at, "result").name == "result"
    assert refused.value.errno == errno.EEXIST


def test_a_folder_is_no_name_of_a_file(tmp_path: Path) -> None:
    """`-o /` has no name at all."""
    with open_folder(tmp_path) as at, pytest.raises(SinkError, match="is a directory") as refused:
        single_paths(at, "")
    assert refused.value.errno == errno.EISDIR


@pytest.mark.parametrize("kind", ["directory", "link", "fifo"])
def test_only_regular_files_are_replaced(tmp_path: Path, kind: str) -> None:
    """The seal renames onto the name, so anything but a regular file is refused."""
    path = tmp_path / "perf.data"
    if kind == "directory":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(tmp_path / "elsewhere")
    else:
        os.mkfifo(path)
    with pytest.raises(SinkError, match="not a regular file"), open_folder(tmp_path) as folder:
        single_paths(folder, path.name)


def _segment(
    root: Path,
    session: str,
    age_days: int,
    data_bytes: int = SEGMENT_BYTES,
    file_format: str = "perf.data",
) -> Path:
    """Return a sealed segment of this age with its manifest."""
    written_ns = NOW_NS - age_days * DAY_NS
    path = root / session / segment_name(written_ns, 1, file_format)
    path.parent.mkdir(exist_ok=True)
    for file, content in ((path, bytes(data_bytes)), (_manifest(path), b"{}")):
        file.write_bytes(content)
        with file.open("rb") as opened:
            os.fsync(opened.fileno())  # blocks are allocated late
        os.utime(file, ns=(written_ns, written_ns))
    return path


def test_the_oldest_kept_segment_is_the_one_written_first(tmp_path: Path) -> None:
    """By the last write, as retention has it; a session without segments has none."""
    directory = StateDir(tmp_path, RetentionPlan())
    (tmp_path / "exec").mkdir()
    assert directory.stats(tmp_path / "exec", 0, 0).oldest_ns is None
    for age_days in (2, 5, 3):
        _segment(tmp_path, "exec", age_days)
    assert directory.stats(tmp_path / "exec", 0, 0).oldest_ns == NOW_NS - 5 * DAY_NS


def _manifest(path: Path) -> Path:
    return path.with_name(path.name + ".json")


def _allocated(path: Path) -> int:
    return sum(file.stat().st_blocks * 512 for file in (path, _manifest(path)))


def _free_bytes(root: Path) -> int:
    space = os.statvfs(root)
    return space.f_bavail * space.f_frsize


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Provide a filesystem that nobody else uses, 4 MiB."""
    with support.mounted("tmpfs", tmp_path / "disk", "size=4m") as directory:
        yield directory


def test_no_limits(tmp_path: Path) -> None:
    """Without limits everything stays."""
    path = _segment(tmp_path, "exec", 1000)
    assert evict(tmp_path, RetentionPlan(), NOW_NS) == []
    assert path.exists()


def test_age(tmp_path: Path) -> None:
    """Segments last written before the age limit go, of every session, manifests included."""
    old = [_segment(tmp_path, "exec", 9), _segment(tmp_path, "profile", 8)]
    young = _segment(tmp_path, "exec", 6)
    size_bytes = _allocated(old[0])
    plan = RetentionPlan(age_ns=7 * DAY_NS)
    assert evict(tmp_path, plan, NOW_NS) == [
        Eviction(path, EvictReason.AGE, size_bytes) for path in old
    ]
    assert sorted(files_in(tmp_path / "exec")) == [young, _manifest(young)]
    assert not [*files_in(tmp_path / "profile")]


def test_quota_takes_the_oldest_of_any_session(tmp_path: Path) -> None:
    """Over the quota the oldest go first, whichever session they are of, until it holds."""
    sessions = (("b", 4), ("a", 3), ("b", 2), ("a", 1))
    paths = [_segment(tmp_path, name, age) for name, age in sessions]
    one_bytes = _allocated(paths[0])
    assert one_bytes > SEGMENT_BYTES, "the manifest counts"
    evictions = evict(tmp_path, RetentionPlan(bytes=2 * one_bytes), NOW_NS)
    assert evictions == [Eviction(path, EvictReason.QUOTA, one_bytes) for path in paths[:2]]
    assert [path.exists() for path in paths] == [False, False, True, True]
    assert evict(tmp_path, RetentionPlan(bytes=2 * one_bytes), NOW_NS) == []


def test_a_quota_may_be_a_share_of_the_file_system(tmp_path: Path) -> None:
    """The smaller of a size and a share holds, and is what the limit is said to be."""
    paths = [_segment(tmp_path, "exec", age) for age in (3, 2, 1)]
    one_bytes = _allocated(paths[0])
    space = os.statvfs(tmp_path)
    percent = 250 * one_bytes / (space.f_blocks * space.f_frsize)
    plan = RetentionPlan(bytes=1 << 50, percent=percent)
    assert [one.path for one in evict(tmp_path, plan, NOW_NS)] == paths[:1]
    assert 2 * one_bytes <= StateDir(tmp_path, plan).limit_bytes <= 3 * one_bytes
    assert StateDir(tmp_path, RetentionPlan(bytes=7, percent=50.0)).limit_bytes == 7
    assert StateDir(tmp_path / "absent", plan).limit_bytes == 1 << 50
    assert StateDir(tmp_path / "absent", RetentionPlan(percent=5.0)).limited


def test_the_last_write_makes_the_oldest(tmp_path: Path) -> None:
    """A snapshot goes by when it was made: its file may have been there for days."""
    snapshot, stream = _segment(tmp_path, "recorder", 9), _segment(tmp_path, "stream", 2)
    for file in (snapshot, _manifest(snapshot)):
        os.utime(file, ns=(NOW_NS, NOW_NS))
    plan = RetentionPlan(bytes=_allocated(snapshot))
    assert [eviction.path for eviction in evict(tmp_path, plan, NOW_NS)] == [stream]
    assert snapshot.exists()


def test_running_segments_count_and_stay(tmp_path: Path) -> None:
    """Running segments and orphans use the quota and are never evicted."""
    old = _segment(tmp_path, "exec", 5)
    running = tmp_path / "exec" / (segment_name(NOW_NS - 9 * DAY_NS, 1, "perf.data") + ".partial")
    running.write_bytes(bytes(SEGMENT_BYTES))
    open_manifest = running.with_name(running.name.replace(".partial", ".json.partial"))
    open_manifest.write_bytes(b"{}")
    assert evict(tmp_path, RetentionPlan(bytes=1 << 20), NOW_NS) == []
    plan = RetentionPlan(bytes=_allocated(old))
    assert [eviction.path for eviction in evict(tmp_path, plan, NOW_NS)] == [old]
    assert evict(tmp_path, RetentionPlan(bytes=1, age_ns=DAY_NS), NOW_NS) == []
    assert running.exists()
    assert open_manifest.exists()


def test_segments_that_were_given_up_go_in_their_turn(tmp_path: Path) -> None:
    """They are no longer written; what nobody has given up stays, whoever left it."""
    oldest, older = (_segment(tmp_path, "exec", age) for age in (9, 8))
    for path in (oldest, older):
        path.rename(f"{path}.partial")
        _manifest(path).rename(f"{path}.json.partial")
    state_dir = StateDir(tmp_path, RetentionPlan(bytes=1))
    assert not state_dir.make_room()
    state_dir.leave([oldest.with_name(oldest.name + ".partial")])
    assert state_dir.make_room()
    assert {path.name for path in files_in(tmp_path / "exec")} == {
        f"{older.name}.partial",
        f"{older.name}.json.partial",
    }


def test_the_end_of_a_trail_stays(tmp_path: Path) -> None:
    """Beside a trace.dat segment that is written the newest sealed one stays, until it is not."""
    old, newest = (_segment(tmp_path, "calls", age, file_format="trace.dat") for age in (9, 8))
    other = _segment(tmp_path, "calls", 7)
    running = old.parent / (segment_name(NOW_NS, 3, "trace.dat") + ".partial")
    running.write_bytes(bytes(SEGMENT_BYTES))
    plan = RetentionPlan(bytes=1, age_ns=DAY_NS)
    assert [eviction.path for eviction in evict(tmp_path, plan, NOW_NS)] == [old, other]
    assert newest.exists()
    assert _manifest(newest).exists()
    assert evict(tmp_path, plan, NOW_NS, 1 << 40) == []
    running.unlink()
    assert [eviction.path for eviction in evict(tmp_path, plan, NOW_NS)] == [newest]


def test_named_recordings_and_foreign_files_stay(tmp_path: Path) -> None:
    """Only names that a session gives are under retention."""
    kept = [tmp_path / "out.data", tmp_path / "out.data.json", tmp_path / "notes.txt"]
    for path in kept:
        path.write_bytes(bytes(SEGMENT_BYTES))
    assert evict(tmp_path, RetentionPlan(bytes=1, age_ns=1), NOW_NS) == []
    assert all(path.exists() for path in kept)


def test_free_space_floor(disk: Path) -> None:
    """Segments go until the filesystem has the floor's bytes free, in bytes or percent."""
    paths = [_segment(disk, "exec", age) for age in (5, 4, 3, 2)]
    one_bytes = _allocated(paths[0])
    evictions = evict(disk, RetentionPlan(free_bytes=_free_bytes(disk) + 1), NOW_NS)
    assert evictions == [Eviction(paths[0], EvictReason.FREE_SPACE, one_bytes)]
    (paths[3].parent / "filler").write_bytes(bytes((2 << 20) + (1 << 19)))
    percent = 100 * (_free_bytes(disk) + one_bytes + 1) / (4 << 20)
    evictions = evict(disk, RetentionPlan(free_percent=percent), NOW_NS)
    assert [(gone.path, gone.reason) for gone in evictions] == [
        (path, EvictReason.FREE_SPACE) for path in paths[1:3]
    ]


def test_space_for_a_write(tmp_path: Path) -> None:
    """A write that found the disk full gets at least what it needs, whatever statvfs says."""
    paths = [_segment(tmp_path, "exec", age) for age in (3, 2, 1)]
    evictions = evict(tmp_path, RetentionPlan(), NOW_NS, SEGMENT_BYTES * 3 // 2)
    assert [gone.path for gone in evictions] == paths[:2]
    assert evict(tmp_path, RetentionPlan(), NOW_NS, 1 << 40)[0].path == paths[2]
    assert evict(tmp_path, RetentionPlan(), NOW_NS, 1 << 40) == []


def test_space_on_another_filesystem(tmp_path: Path, disk: Path) -> None:
    """Deleting from another filesystem does not help a full disk."""
    kept = _segment(tmp_path, "exec", 2)
    state_dir = StateDir(tmp_path, RetentionPlan(age_ns=1 << 62))
    assert not state_dir.room_for(disk)(SEGMENT_BYTES)
    assert not state_dir.room_for(disk / "gone")(SEGMENT_BYTES)
    assert kept.exists()
    assert state_dir.room_for(kept.parent)(SEGMENT_BYTES)
    assert not kept.exists()


def test_a_session_on_a_filesystem_of_its_own(tmp_path: Path) -> None:
    """A floor holds on each; what is short on one is made there, by whatever is oldest there."""
    with support.mounted("tmpfs", tmp_path / "disk", "size=4m") as disk:
        older, own = _segment(tmp_path, "exec", 9), _segment(tmp_path, "disk", 2)
        floor = RetentionPlan(free_bytes=_free_bytes(disk) + 1)
        assert [gone.path for gone in evict(tmp_path, floor, NOW_NS)] == [own]
        own = _segment(tmp_path, "disk", 1)
        assert StateDir(tmp_path, RetentionPlan(age_ns=1 << 62)).room_for(disk)(SEGMENT_BYTES)
        assert (older.exists(), own.exists()) == (True, False)


def test_each_file_system_is_left_to_its_own_threads(tmp_path: Path) -> None:
    """They are asked once for what is due there, it counts as deleted, and nobody waits for it."""
    with support.mounted("tmpfs", tmp_path / "disk", "size=4m"), ThreadPoolExecutor(1) as there:
        answers = threading.Event()
        there.submit(answers.wait)
        away, old, new = (_segment(tmp_path, *one) for one in (("disk", 9), ("a", 8), ("a", 7)))
        device, asked = away.stat().st_dev, list[int]()

        def workers(other: int) -> Executor:
            asked.append(other)
            return there

        state_dir = StateDir(tmp_path, RetentionPlan(bytes=_allocated(new)))
        state_dir.delete_in(workers)
        make_room = state_dir.room_for(new.parent)
        assert (make_room(0), make_room(0)) == (True, False)
        assert (away.exists(), old.exists(), new.exists()) == (True, False, True)
        assert asked == [device]
        answers.set()
        there.shutdown()
        assert (away.exists(), new.exists()) == (False, True)
        assert not make_room(0)
        assert asked == [device]


def test_threads_that_have_ended_are_not_asked(tmp_path: Path) -> None:
    """On their file system the next start deletes what is due."""
    with support.mounted("tmpfs", tmp_path / "disk", "size=4m"):
        away = _segment(tmp_path, "disk", 9)
        there = ThreadPoolExecutor(1)
        there.shutdown()
        state_dir = StateDir(tmp_path, RetentionPlan(bytes=1))
        state_dir.delete_in(lambda _device: there)
        assert not state_dir.make_room()
        assert away.exists()


def test_segment_that_cannot_be_deleted(tmp_path: Path) -> None:
    """A segment that cannot be deleted does not keep the younger ones from their limit."""
    stuck, free = _segment(tmp_path, "a", 3), _segment(tmp_path, "b", 2)
    plan = RetentionPlan(age_ns=DAY_NS)
    if os.geteuid() == 0:
        subprocess.run(["chattr", "+i", stuck], check=True)
    else:
        stuck.parent.chmod(0o555)
    try:
        assert [eviction.path for eviction in evict(tmp_path, plan, NOW_NS)] == [free]
        with pytest.raises(SinkError, match="cannot delete an old segment"):
            evict(tmp_path, plan, NOW_NS)
    finally:
        if os.geteuid() == 0:
            subprocess.run(["chattr", "-i", stuck], check=True)
        else:
            stuck.parent.chmod(0o755)


def test_a_folder_that_nobody_enters(tmp_path: Path) -> None:
    """It keeps the others from no limit, and is told of where a limit does not hold."""
    old, new = _segment(tmp_path, "a", 2), _segment(tmp_path, "a", 1)
    junk = tmp_path / "junk"
    junk.mkdir()
    junk.chmod(0o777)
    kept = RetentionPlan(bytes=_allocated(new))
    assert [one.path for one in evict(tmp_path, kept, NOW_NS)] == [old]
    assert evict(tmp_path, kept, NOW_NS) == []
    assert [one.path for one in evict(tmp_path, RetentionPlan(bytes=1), NOW_NS)] == [new]
    with pytest.raises(SinkError, match="junk"):
        evict(tmp_path, RetentionPlan(free_percent=100), NOW_NS)


def test_files_that_vanish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments deleted by somebody else meanwhile are no error, and not counted."""
    gone, half = _segment(tmp_path, "exec", 3), _segment(tmp_path, "exec", 2)

    def list_and_delete(folder: Folder) -> list[Group]:
        groups = group_files(folder)
        if folder.path == gone.parent:
            for file in (gone, _manifest(gone), half):
                file.unlink()
        return groups

    monkeypatch.setattr(eviction, "group_files", list_and_delete)
    evictions = evict(tmp_path, RetentionPlan(age_ns=DAY_NS), NOW_NS)
    assert [eviction.path for eviction in evictions] == [half]
    assert not _manifest(half).exists()
