# SPDX-License-Identifier: Apache-2.0
"""Folders of other users: what a privileged process does there reaches nothing outside."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path
from typing import Final

import pytest

from collectord import cli
from collectord.cli import EXIT_FAILURE
from collectord.control.sockets import claim_unix
from collectord.errors import KernelError, SinkError, UnsafePath
from collectord.folders.trust import Trust
from collectord.folders.walk import open_folder, read_file
from collectord.kernel.linux import LinuxKernel
from collectord.plan.sink_plan import RetentionPlan
from collectord.reader.verify import list_segments, verify
from collectord.sink.eviction import evict
from collectord.sink.repair import repair
from collectord.sink.segment import segment_name
from tests.support import segments as support

pytestmark = pytest.mark.beside

USER: Final = 65534
OTHER: Final = 65533


def _owned(path: Path, uid: int, mode: int) -> Path:
    path.mkdir(exist_ok=True)
    os.chown(path, uid, uid)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("mode", [0o757, 0o777, 0o775])
def test_folder_that_others_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    """A sticky one is accepted: nobody can replace our files there."""
    folder = _owned(tmp_path / "shared", USER, mode)
    os.chown(folder, USER, OTHER)
    for use in (
        lambda: support.make_sink(folder),
        lambda: repair(folder),
        lambda: open_folder(folder, Trust.OWN),
    ):
        with pytest.raises(UnsafePath) as caught:
            use()
        assert str(folder) in str(caught.value)
        assert caught.value.hint
    folder.chmod(mode | stat.S_ISVTX)
    sink = support.make_sink(folder)
    support.write_segment(sink)
    sink.close()
    assert [verdict.finding for verdict in verify([folder])] == [None]
    with pytest.raises(UnsafePath):
        open_folder(folder, Trust.OWN)


def test_a_folder_that_the_user_may_not_enter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The segments of other folders are listed and verified, and the closed one is reported."""
    open_, closed = (_owned(tmp_path / name, 0, 0o755) for name in ("open", "closed"))
    paths = [support.write_segment(support.make_sink(folder)).path for folder in (open_, closed)]
    closed.chmod(0o700)
    tmp_path.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    errors: list[SinkError] = []
    os.seteuid(USER)
    try:
        rows = list_segments([Path()], on_closed=errors.append)
        verdicts = verify([Path()], on_closed=errors.append)
        status = cli.main(LinuxKernel, ["segments", "list", "."])
    finally:
        os.seteuid(0)
    found = Path("open") / paths[0].name
    assert ([row.path for row in rows], [v.path for v in verdicts]) == ([found], [found])
    assert [error.path for error in errors] == ["closed"] * 2
    assert status == EXIT_FAILURE


def test_limits_delete_what_is_ours(tmp_path: Path) -> None:
    """In a sticky folder, an old segment that belongs to another user stays."""
    folder = _owned(tmp_path / "shared", 0, 0o1777)
    planted = folder / segment_name(1, 1, "perf.data")
    planted.write_bytes(bytes(4096))
    os.chown(planted, OTHER, OTHER)
    with pytest.raises(UnsafePath, match=f"user {OTHER}"):
        evict(tmp_path, RetentionPlan(age_ns=1), time.time_ns())
    assert planted.exists()


def test_control_socket_of_others(tmp_path: Path) -> None:
    """Nobody else decides where it is, and what it removes at its end is a name of its own."""
    shared = _owned(tmp_path / "shared", USER, 0o777)
    path = shared / "control.sock"
    with pytest.raises(UnsafePath, match="others can write"), claim_unix(path):
        pass
    shared.chmod(0o755)
    moved = tmp_path / "moved"
    with claim_unix(path):
        shared.rename(moved)
        shared.mkdir()
        path.write_bytes(b"somebody else's")
    assert path.read_bytes() == b"somebody else's"
    assert not list(moved.iterdir())
    path.unlink()
    path.symlink_to(tmp_path / "absent")
    with pytest.raises(KernelError, match="control API"), claim_unix(path):
        pass


def test_group_of_a_user_alone_is_nobody_else(tmp_path: Path) -> None:
    """Many systems let a user's own group write to all that the user makes."""
    folder = _owned(tmp_path / "root", 0, 0o775)
    with open_folder(folder, Trust.WRITE) as opened:
        assert opened.path == folder


def test_folder_of_another_user_is_recorded_to(tmp_path: Path) -> None:
    """Both may record there, as with `sudo collectord record -o x` at home, and repair."""
    home = _owned(tmp_path / "home", USER, 0o755)
    os.chown(support.orphan(home, single_file=str(home / "x")), USER, USER)
    sink = support.make_sink(home, single_file=str(home / "x"))
    support.write_segment(sink)
    sink.close()
    names = {path.name for path in home.iterdir()}
    assert names == {"x", "x.json", "x.old", "x.old.json"}
    left = support.orphan(home, single_file=str(home / "y"))
    os.chown(left, OTHER, OTHER)
    (outcome,) = repair(home)
    assert (outcome.action, f"belongs to user {OTHER}" in outcome.detail) == ("failed", True)


def test_sticky_folder_has_files_of_ours_alone(tmp_path: Path) -> None:
    """Another user's files there are neither repaired nor written into."""
    shared = _owned(tmp_path / "shared", 0, 0o1777)
    left = support.orphan(shared, single_file=str(shared / "x"))
    before = left.stat()
    os.chown(left, USER, USER)
    (outcome,) = repair(shared)
    assert (outcome.action, f"belongs to user {USER}" in outcome.detail) == ("failed", True)
    with pytest.raises(UnsafePath, match=f"belongs to user {USER}; move it away"):
        support.make_sink(shared, single_file=str(shared / "x")).next_segment(1, support.OPENING)
    assert left.stat().st_size == before.st_size


@pytest.mark.parametrize("suffix", [".partial", ".json.partial", ".json.new"])
def test_file_of_others_in_a_name_that_a_recording_needs_stays(
    tmp_path: Path, suffix: str
) -> None:
    """The recording is refused, and takes back what it made itself alone."""
    shared = _owned(tmp_path / "shared", 0, 0o1777)
    theirs = shared / f"x{suffix}"
    theirs.write_bytes(b"somebody else's")
    os.chown(theirs, USER, USER)
    sink = support.make_sink(shared, single_file=str(shared / "x"))
    with pytest.raises(UnsafePath, match=f"belongs to user {USER}; move it away"):
        sink.next_segment(1, support.OPENING)
    sink.close()
    assert [path.name for path in shared.iterdir()] == [theirs.name]
    assert theirs.read_bytes() == b"somebody else's"


@pytest.mark.parametrize("suffix", [".json", ".json.damaged", ".json.partial", ".json.new"])
def test_manifests_of_others_stay_in_a_sticky_folder(tmp_path: Path, suffix: str) -> None:
    """Without their data they are left over, and theirs to delete."""
    shared = _owned(tmp_path / "shared", 0, 0o1777)
    segment = "20260101T000000Z-000001.perf.data"
    theirs = shared / f"{segment}{suffix}"
    theirs.write_bytes(b"{}")
    os.chown(theirs, USER, USER)
    outcomes = repair(shared)
    assert theirs.read_bytes() == b"{}"
    assert all(f"belongs to user {USER}" in outcome.detail for outcome in outcomes)


def test_links_of_others_lead_nowhere(tmp_path: Path) -> None:
    """Links on the way to a folder are refused, except root's own that nobody can replace."""
    home = _owned(tmp_path / "home", USER, 0o755)
    target = tmp_path / "target"
    target.mkdir()
    for owner, place in ((USER, home), (0, home), (USER, tmp_path)):
        link = place / f"link-{owner}"
        link.symlink_to(target)
        os.chown(link, owner, owner, follow_symlinks=False)
        told = (
            f"link of user {owner} in a folder of user {place.stat().st_uid}: the other user can"
        )
        with pytest.raises(UnsafePath, match=told) as refused:
            open_folder(link / "made", Trust.WRITE, make_mode=0o750)
        assert refused.value.hint == "name the folder that it leads to"
    (tmp_path / "own").symlink_to(target)
    open_folder(tmp_path / "own", Trust.WRITE).close()
    assert not list(target.iterdir())


def test_devices_are_not_read(tmp_path: Path) -> None:
    """An endless device is recognised, and left alone."""
    os.mknod(tmp_path / "x", stat.S_IFCHR | 0o644, os.makedev(1, 5))  # /dev/zero
    with open_folder(tmp_path) as folder, pytest.raises(UnsafePath, match="not a regular file"):
        folder.read("x", 1 << 30)
    with pytest.raises(UnsafePath, match="not a regular file"):
        read_file(tmp_path / "x", 1 << 30)
