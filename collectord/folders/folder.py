# SPDX-License-Identifier: Apache-2.0
"""A folder that is held open, and what is done to the names directly in it."""

from __future__ import annotations

import errno
import os
import stat
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from collectord.errors import UnsafePath
from collectord.folders.trust import Trust, check_folder, check_owner

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

FILE_MODE: Final = 0o640
# O_NONBLOCK: a FIFO is opened and refused, not waited for, and so is a file that somebody leased.
_PLAIN: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CHILD: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LIST: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_PIECE_BYTES: Final = 1 << 20
# open(2) of a link, a directory, a socket or a FIFO without a reader, and a device without driver.
_NO_FILE: Final = frozenset({errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.ENODEV})
_MOVE_AWAY: Final = "move it away, or choose another name or folder"


class Entry(NamedTuple):
    """A name in a folder, as it was when the folder was listed."""

    name: str
    is_file: bool
    is_folder: bool


class Folder:
    """An open folder. All names are of what is directly in it; links are never followed.

    Args:
        fd: of the folder, which it owns from now on.
        path: as it was named, for messages.
        trust: what it must be; see `checked`.
        made: the folders that were made on the way to it, the deepest last.

    Raises, of its methods: OSError, and UnsafePath for what is no plain file or somebody else's.
    The descriptor is closed with the last reference to it, or by `close`.
    """

    def __init__(
        self,
        fd: int,
        path: Path,
        trust: Trust = Trust.READ,
        *,
        made: tuple[Path, ...] = (),
    ) -> None:
        self.fd = fd
        self.path = path
        self.made = made
        self._trust = trust
        self._owners: frozenset[int] | None = None
        self._close = weakref.finalize(self, os.close, fd)

    def checked(self, owners: Iterable[int] = ()) -> Self:
        """Give it back if it is what it must be, and close it if not. See `check_folder`."""
        try:
            status = os.fstat(self.fd)
            self._owners = check_folder(status, self.path, self._trust, owners=owners)
        except UnsafePath:
            self.close()
            raise
        return self

    def __enter__(self) -> Self:
        """Hold it for the length of a block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Close the descriptor. It may be done again."""
        self.fd = -1
        self._close()

    @property
    def place(self) -> Path:
        """A path to it for calls that take no descriptor: it leads here until it is closed."""
        return Path(f"/proc/self/fd/{self.fd}")

    @property
    def is_deleted(self) -> bool:
        """Nobody can find it by a name any more, and nothing can be made in it."""
        return os.fstat(self.fd).st_nlink == 0

    def enter(self, name: str, *, owners: Iterable[int] = ()) -> Folder:
        """Open a folder in it, which must be what this one had to be."""
        path = self.path / name
        fd = os.open(name, _CHILD, dir_fd=self.fd)
        return Folder(fd, path, self._trust).checked(owners)

    def entries(self) -> list[Entry]:
        """List it, by name."""
        # A listing has a place in the open file: each has one of its own.
        fd = os.open(".", _LIST, dir_fd=self.fd)
        try:
            with os.scandir(fd) as found:
                return sorted(
                    Entry(
                        entry.name,
                        entry.is_file(follow_symlinks=False),
                        entry.is_dir(follow_symlinks=False),
                    )
                    for entry in found
                )
        finally:
            os.close(fd)

    def stat(self, name: str) -> os.stat_result | None:
        """Look at what has a name, links themselves; None if nothing has it."""
        try:
            return os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def is_named(self, name: str, fd: int) -> bool:
        """Whether an open file still has this name."""
        status = self.stat(name)
        return status is not None and os.path.samestat(status, os.fstat(fd))

    def create(self, name: str, *, mode: int = FILE_MODE) -> int:
        """Make a file where nothing is, open for reading and writing. Raises FileExistsError."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | _PLAIN
        return os.open(name, flags, mode, dir_fd=self.fd)

    def open(self, name: str, *, write: bool = False) -> int:
        """Open a plain file that exists, for reading, or for writing as well.

        For writing it must have one name alone and belong to whom files in this folder may. In a
        folder that must be ours it must be ours.
        """
        path = self.path / name
        try:
            fd = os.open(name, (os.O_RDWR if write else os.O_RDONLY) | _PLAIN, dir_fd=self.fd)
        except OSError as error:
            if error.errno not in _NO_FILE:
                raise
            raise _no_file(path, error.errno) from error
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise _no_file(path)
            if self._trust in (Trust.OWN, Trust.ROOTED):
                check_owner(status, path, self._owners or ())
            if write:
                self._check_ours(status, path)
        except UnsafePath:
            os.close(fd)
            raise
        return fd

    def read(self, name: str, limit_bytes: int) -> bytes:
        """Read a plain file, which may have so many bytes. Raises UnsafePath, EFBIG, if more."""
        fd = self.open(name)
        try:
            return read_all(fd, self.path / name, limit_bytes)
        finally:
            os.close(fd)

    def rename(self, old: str, new: str) -> None:
        """Give a file another name; what had it is gone."""
        os.rename(old, new, src_dir_fd=self.fd, dst_dir_fd=self.fd)

    def remove(self, name: str, *, missing_ok: bool = False) -> None:
        """Delete a name that is no folder's."""
        try:
            os.unlink(name, dir_fd=self.fd)
        except FileNotFoundError:
            if not missing_ok:
                raise

    def discard(self, name: str) -> None:
        """Delete a plain file that may be ours, if one has this name; anything else is let be."""
        status = self.stat(name)
        if status is not None and stat.S_ISREG(status.st_mode) and not self._is_others(status):
            self.remove(name, missing_ok=True)

    def give_up(self, name: str) -> bool:
        """Delete a name; False if it is not there. Raises UnsafePath for somebody else's."""
        status = self.stat(name)
        if status is None:
            return False
        if self._is_others(status):
            raise _others(self.path / name, status.st_uid)
        self.remove(name, missing_ok=True)
        return True

    def remove_folder(self, name: str) -> None:
        """Delete an empty folder."""
        os.rmdir(name, dir_fd=self.fd)

    def sync(self) -> None:
        """Make its names durable."""
        os.fsync(self.fd)

    def replace(self, name: str) -> int:
        """Make a file where nothing is, or where one of ours is that may go."""
        while True:
            try:
                return self.create(name)
            except FileExistsError:
                status = self.stat(name)
                if status is None:
                    continue
                if not stat.S_ISREG(status.st_mode):
                    raise _no_file(self.path / name) from None
                self._check_ours(status, self.path / name)
                self.remove(name, missing_ok=True)

    def write_new(self, name: str, data: bytes) -> None:
        """Write a small file and wait until the disk has it; if that fails nothing of it is left.

        One of ours that has the name is replaced.
        """
        self._write(self.replace(name), name, data)

    def put(self, name: str, data: bytes) -> None:
        """Give a small file its contents at once: a kill leaves the old ones or the new."""
        new = f".{name}.new"
        self.write_new(new, data)
        try:
            self.rename(new, name)
        except OSError:
            self.discard(new)
            raise
        self.sync()

    def write_claimed(self, name: str, data: bytes) -> None:
        """Do what `write_new` does, in room that `claim_room` made, if it is there."""
        try:
            fd = self.open(name, write=True)
        except FileNotFoundError:
            fd = self.create(name)
        self._write(fd, name, data)

    def _write(self, fd: int, name: str, data: bytes) -> None:
        try:
            write_all(fd, data, 0)
            os.ftruncate(fd, len(data))
            os.fdatasync(fd)
        except OSError:
            self.remove(name, missing_ok=True)
            raise
        finally:
            os.close(fd)

    def claim_room(self, name: str, size_bytes: int) -> None:
        """Create a file with the room that `write_claimed` will want on a disk full by then.

        If that fails nothing of it is left.
        """
        fd = self.replace(name)
        try:
            os.posix_fallocate(fd, 0, size_bytes)
        except OSError:
            self.remove(name, missing_ok=True)
            raise
        finally:
            os.close(fd)

    def _check_ours(self, status: os.stat_result, path: Path) -> None:
        if status.st_nlink > 1:
            reason = f"has {status.st_nlink} names, one of them perhaps somebody else's"
            raise UnsafePath(reason, path=str(path), hint=_MOVE_AWAY)
        if self._is_others(status):
            raise _others(path, status.st_uid)

    def _is_others(self, status: os.stat_result) -> bool:
        return self._owners is not None and status.st_uid not in self._owners


def _others(path: Path, user: int) -> UnsafePath:
    return UnsafePath(f"belongs to user {user}", path=str(path), hint=_MOVE_AWAY)


def _no_file(path: Path, code: int = 0) -> UnsafePath:
    reason = "is a link" if code == errno.ELOOP else "is not a regular file"
    return UnsafePath(reason, path=str(path), hint=_MOVE_AWAY)


def reopen(fd: int, flags: int) -> int:
    """Open the file of a descriptor again, whatever its name leads to by now.

    Needs /proc, as much else does.
    """
    return os.open(f"/proc/self/fd/{fd}", flags | os.O_CLOEXEC)


def read_all(fd: int, path: Path, limit_bytes: int) -> bytes:
    """Read a plain file from its start.

    Args:
        fd: of it.
        path: of it, for messages.
        limit_bytes: what it may have.

    Raises:
        OSError: it cannot be read.
        UnsafePath: it has more.
    """
    size_bytes = os.fstat(fd).st_size
    pieces: list[bytes] = []
    at = 0
    while at <= limit_bytes and size_bytes <= limit_bytes:
        piece = os.pread(fd, min(_PIECE_BYTES, limit_bytes + 1 - at), at)
        if not piece:
            return b"".join(pieces)
        pieces.append(piece)
        at += len(piece)
    raise UnsafePath(
        f"has more than {limit_bytes} bytes", path=str(path), errno=errno.EFBIG, hint=_MOVE_AWAY
    )


def write_all(fd: int, data: bytes | memoryview, offset: int) -> None:
    """Do pwrite(2) until all of `data` is at `offset`."""
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view = view[written:]
        offset += written
