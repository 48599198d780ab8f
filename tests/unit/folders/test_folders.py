# SPDX-License-Identifier: Apache-2.0
"""Folders held by a descriptor: whatever somebody puts in the place of a name is refused."""

from __future__ import annotations

import errno
import os
import socket
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from collectord.errors import UnsafePath
from collectord.folders.trust import Trust
from collectord.folders.walk import open_file, open_folder, read_file, remove_made

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from collectord.folders.folder import Folder

SECRET = b"not yours\n"


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Path]:
    """Provide a file outside of the folder, which must stay as it is."""
    path = tmp_path / "victim"
    path.write_bytes(SECRET)
    yield path
    assert path.read_bytes() == SECRET


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    """Provide a folder that this user alone can write to."""
    with open_folder(tmp_path / "folder", Trust.WRITE, make_mode=0o750) as opened:
        yield opened


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


PLANTS: dict[str, Callable[[Path, Path], object]] = {
    "link": lambda path, victim: path.symlink_to(victim),
    "dangling": lambda path, victim: path.symlink_to(victim.with_name("absent")),
    "fifo": lambda path, _: os.mkfifo(path),
    "socket": lambda path, _: _socket(path),
    "directory": lambda path, _: path.mkdir(),
    "hard_link": lambda path, victim: path.hardlink_to(victim),
}


@pytest.fixture(params=PLANTS)
def plant(request: pytest.FixtureRequest) -> Callable[[Path, Path], object]:
    """Return a function that puts something in the place of a name."""
    return PLANTS[request.param]


def test_nothing_is_written_through_what_was_planted(
    folder: Folder, victim: Path, plant: Callable[[Path, Path], object]
) -> None:
    """Neither creating, replacing, claiming nor opening for writing goes past it."""
    path = folder.path / "x"
    plant(path, victim)
    before = path.lstat()
    with pytest.raises(FileExistsError):
        folder.create("x")
    for write in (
        lambda: folder.open("x", write=True),
        lambda: folder.write_new("x", b"data"),
        lambda: folder.write_claimed("x", b"data"),
        lambda: folder.claim_room("x", 4096),
    ):
        with pytest.raises(UnsafePath) as caught:
            write()
        assert caught.value.path == str(path)
        assert "move it away" in caught.value.hint
    assert path.lstat() == before
    assert not victim.with_name("absent").exists()


@pytest.mark.parametrize("kind", ["link", "dangling", "fifo", "socket", "directory"])
def test_nothing_but_plain_files_is_read(folder: Folder, victim: Path, kind: str) -> None:
    """A FIFO is not waited for, a link not followed."""
    PLANTS[kind](folder.path / "x", victim)
    with pytest.raises(UnsafePath, match=r"is a link|is not a regular file"):
        folder.read("x", 100)


def test_reads_are_capped(folder: Folder) -> None:
    """A file of as many bytes as it may have is read, one with more is not even begun."""
    path = folder.path / "x"
    path.write_bytes(bytes(100))
    assert folder.read("x", 100) == bytes(100)
    os.truncate(path, 1 << 40)
    for limit_bytes in (99, 1 << 30):
        with pytest.raises(UnsafePath, match=f"more than {limit_bytes} bytes") as caught:
            folder.read("x", limit_bytes)
        assert caught.value.errno == errno.EFBIG


def test_size_that_is_told_as_none() -> None:
    """If a file has bytes but no size, as in procfs, the bytes read are counted."""
    with open_folder(Path(f"/proc/{os.getpid()}")) as folder:
        assert folder.read("comm", 100)
        with pytest.raises(UnsafePath, match="more than 10 bytes"):
            folder.read("status", 10)


def test_replaced_file_is_a_new_one(folder: Folder) -> None:
    """A descriptor opened before still has the old contents."""
    path = folder.path / "x"
    path.write_bytes(b"old")
    with path.open("rb") as before:
        folder.write_new("x", b"new")
        assert before.read() == b"old"
    assert path.read_bytes() == b"new"
    folder.put("x", b"newer")
    assert [path.name for path in folder.path.iterdir()] == ["x"]
    assert path.read_bytes() == b"newer"


def test_names_stay_in_a_folder_that_was_moved(folder: Folder, tmp_path: Path) -> None:
    """Whatever has the folder's name by now, what is done is done in the folder."""
    folder.path.rename(tmp_path / "moved")
    (tmp_path / "decoy").mkdir()
    folder.path.symlink_to(tmp_path / "decoy")
    folder.write_new("x", b"data")
    folder.rename("x", "y")
    assert (tmp_path / "moved" / "y").read_bytes() == b"data"
    assert not list((tmp_path / "decoy").iterdir())
    assert not folder.is_deleted
    folder.remove("y")
    (tmp_path / "moved").rmdir()
    assert folder.is_deleted


def test_listings_do_not_disturb_each_other(folder: Folder) -> None:
    """Each has its own place in the folder."""
    for name in ("a", "b"):
        (folder.path / name).touch()
    (folder.path / "c").mkdir()
    found = [("a", True, False), ("b", True, False), ("c", False, True)]
    assert [folder.entries(), folder.entries()] == [found, found]


def test_missing_folders_are_made_and_removed(tmp_path: Path) -> None:
    """New folders are reported, and removed again while they are empty."""
    with open_folder(tmp_path / "a" / "b" / "c", Trust.WRITE, make_mode=0o750) as made:
        assert made.made == (tmp_path / "a", tmp_path / "a/b", tmp_path / "a/b/c")
        assert stat.S_IMODE(os.fstat(made.fd).st_mode) == 0o750
    (tmp_path / "a" / "kept").touch()
    remove_made(made.made)
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["kept"]


def _given_away(folder: Path) -> int:
    """Have a folder belong to another user, where this process can do that; returns its owner."""
    if os.geteuid() == 0:
        os.chown(folder, 4242, 4242)
    return folder.stat().st_uid


def test_what_root_makes_for_a_service_belongs_to_its_user(tmp_path: Path) -> None:
    """All missing folders do, if that is asked for; what was there does not change its owner."""
    owner = _given_away(tmp_path)
    for name, given in (("notes", True), ("other", False)):
        path = tmp_path / name / "deeper"
        open_folder(path, make_mode=0o755, owner_from_above=given).close()
        expected = owner if given else os.geteuid()
        assert {path.stat().st_uid, path.parent.stat().st_uid} == {expected}
    open_folder(tmp_path / "other", make_mode=0o755, owner_from_above=True).close()
    assert (tmp_path / "other").stat().st_uid == os.geteuid()


def test_a_folder_that_took_the_place_of_a_new_one_keeps_its_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its content shows that it is not the one that was made."""
    _given_away(tmp_path)
    make = os.mkdir

    def swapped(name: str, mode: int, *, dir_fd: int) -> None:
        make(name, mode, dir_fd=dir_fd)
        (tmp_path / name / "content").write_bytes(SECRET)

    monkeypatch.setattr(os, "mkdir", swapped)
    open_folder(tmp_path / "notes", make_mode=0o755, owner_from_above=True).close()
    assert (tmp_path / "notes").stat().st_uid == os.geteuid()


def test_interrupt_on_the_way_is_told_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C right after a descriptor was closed leaves none to be closed a second time."""
    close = os.close
    interrupted: list[int] = []

    def close_and_interrupt(fd: int) -> None:
        close(fd)
        if not interrupted:
            interrupted.append(fd)
            raise KeyboardInterrupt

    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    monkeypatch.setattr(os, "close", close_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        open_folder(deep)
    assert interrupted


def test_own_links_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Links like /var/run are followed, absolute or not; circular ones are not."""
    (tmp_path / "data" / "deep").mkdir(parents=True)
    (tmp_path / "absolute").symlink_to(tmp_path / "data")
    (tmp_path / "relative").symlink_to("absolute/deep/..")
    (tmp_path / "circle").symlink_to("circle")
    monkeypatch.chdir(tmp_path)
    for path in (tmp_path / "absolute/deep", Path("relative/deep"), Path("data/../relative/deep")):
        with open_folder(path, Trust.OWN) as folder:
            assert os.path.samestat(os.fstat(folder.fd), (tmp_path / "data/deep").stat())
    with pytest.raises(OSError, match="Too many levels"):
        open_folder(Path("circle"))
    with pytest.raises(FileNotFoundError):
        open_folder(tmp_path / "data" / "absent")
    with pytest.raises(UnsafePath, match="is a link, or not a directory"):
        open_folder(tmp_path / "absolute", Trust.ROOTED)


def test_folder_of_a_name_is_no_link(folder: Folder, tmp_path: Path) -> None:
    """A session's folder is one, not a link to one."""
    (folder.path / "session").symlink_to(tmp_path)
    with pytest.raises(NotADirectoryError):
        folder.enter("session")


def test_named_file_may_be_a_link(tmp_path: Path, victim: Path) -> None:
    """A user who names a file to read means what it leads to; but a file it must be."""
    (tmp_path / "link").symlink_to(victim)
    assert read_file(tmp_path / "link", 100) == SECRET
    with pytest.raises(UnsafePath, match="more than 3 bytes"):
        read_file(tmp_path / "link", 3)
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path, Path("/dev/zero")):
        with pytest.raises(UnsafePath, match="is not a regular file"):
            open_file(path)


@pytest.mark.parametrize("name", [".unclean_stops", "x.json"])
def test_open_file_is_still_named(folder: Folder, name: str) -> None:
    """Another file of the same name is another file."""
    fd = folder.create(name)
    try:
        assert folder.is_named(name, fd)
        folder.put(name, b"1")
        assert not folder.is_named(name, fd)
        folder.remove(name)
        assert not folder.is_named(name, fd)
        folder.remove(name, missing_ok=True)
    finally:
        os.close(fd)
