# SPDX-License-Identifier: Apache-2.0
"""A folder that is held open, and operations on the names directly in it."""

from __future__ import annotations

import errno
import os
import stat
import weakref
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from collectord.errors import UnsafePath
from collectord.folders.trust import Trust, check_folder, check_owner

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

FILE_MODE: Final = 0o640
# O_NONBLOCK: a FIFO, or a file that somebody leased, is refused instead of waited for.
_PLAIN: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CHILD: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LIST: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_PIECE_BYTES: Final = 1 << 20
# errnos of open(2) for a link, a directory, a socket, a FIFO without a reader, a device without
# driver.
_NO_FILE: Final = frozenset({errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.ENODEV})
_MOVE_AWAY: Final = "move it away, or choose another name or folder"


class Entry(NamedTuple):
    """A name in a folder, as it was when the folder was listed."""

    name: str
    is_file: bool
    is_folder: bool


class Folder:
    """An open folder. All names are directly in it; links are never followed.

    Args:
        fd: descriptor of the folder, owned by it from now on.
        path: the path that it was opened by, for messages.
        trust: demands on it; see `checked`.
        made: the folders that were made on the way to it, the deepest last.

    Methods raise OSError, and UnsafePath for anything but plain files, and for somebody else's.
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
        """Return the folder if it meets the demands, else close it. See `check_folder`."""
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

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Close the descriptor. It may be called again."""
        self.fd = -1
        self._close()

    @property
    def place(self) -> Path:
        """A path to it for calls that take no descriptor: it leads here until it is closed."""
        return Path(f"/proc/self/fd/{self.fd}")

    @property
    def is_deleted(self) -> bool:
        """Whether it has no name any more, so that nothing can be made in it."""
        return os.fstat(self.fd).st_nlink == 0

    def enter(self, name: str, *, owners: Iterable[int] = ()) -> Folder:
        """Open a folder in it, which must meet the same demands."""
        path = self.path / name
        fd = os.open(name, _CHILD, dir_fd=self.fd)
        return Folder(fd, path, self._trust).checked(owners)

    def entries(self) -> list[Entry]:
        """List its entries by name."""
        # A listing moves the position of the open file: each one opens its own.
        with opened(os.open(".", _LIST, dir_fd=self.fd)) as fd, os.scandir(fd) as found:
            return sorted(
                Entry(
                    entry.name,
                    entry.is_file(follow_symlinks=False),
                    entry.is_dir(follow_symlinks=False),
                )
                for entry in found
            )

    def stat(self, name: str) -> os.stat_result | None:
        """Return the status of a name, of links themselves; None if it does not exist."""
        try:
            return os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def is_named(self, name: str, fd: int) -> bool:
        """Whether an open file still has this name."""
        status = self.stat(name)
        return status is not None and os.path.samestat(status, os.fstat(fd))

    def create(self, name: str, *, mode: int = FILE_MODE) -> int:
        """Create a file, open for reading and writing. Raises FileExistsError."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | _PLAIN
        return os.open(name, flags, mode, dir_fd=self.fd)

    def open(self, name: str, *, write: bool = False) -> int:
        """Open a plain file that exists, for reading, or for writing as well.

        For writing it must have one name only and a permitted owner of files in this folder. In a
        folder that must be ours the file must be ours.
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
        """Read a plain file of at most `limit_bytes`. Raises UnsafePath, EFBIG, if it has more."""
        with opened(self.open(name)) as fd:
            return read_all(fd, self.path / name, limit_bytes)

    def rename(self, old: str, new: str) -> None:
        """Rename a file; a file that had the new name is gone."""
        os.rename(old, new, src_dir_fd=self.fd, dst_dir_fd=self.fd)

    def remove(self, name: str, *, missing_ok: bool = False) -> None:
        """Delete a name that is not a folder's."""
        try:
            os.unlink(name, dir_fd=self.fd)
        except FileNotFoundError:
            if not missing_ok:
                raise

    def discard(self, name: str) -> None:
        """Delete a plain file that may be ours, if it exists; leave anything else alone."""
        status = self.stat(name)
        if status is not None and stat.S_ISREG(status.st_mode) and not self._is_others(status):
            self.remove(name, missing_ok=True)

    def give_up(self, name: str) -> bool:
        """Delete a name; return False if it is absent. Raises UnsafePath for somebody else's."""
        status = self.stat(name)
        if status is None:
            return False
        if self._is_others(status):
            raise _others(self.path / name, status.st_uid)
        self.remove(name, missing_ok=True)
        return True

    def make_folder(self, name: str, mode: int) -> Folder:
        """Make a folder in it, and open that. Raises FileExistsError."""
        os.mkdir(name, mode, dir_fd=self.fd)
        return self.enter(name)

    def link(self, name: str, where: Folder) -> None:
        """Give a plain file in it the same name in another folder. Raises FileExistsError."""
        with opened(self.open(name)) as fd:
            os.link(name, name, src_dir_fd=self.fd, dst_dir_fd=where.fd, follow_symlinks=False)
            if not where.is_named(name, fd):
                where.remove(name, missing_ok=True)
                raise _no_file(self.path / name)  # somebody replaced it meanwhile

    def remove_folder(self, name: str) -> None:
        """Delete an empty folder."""
        os.rmdir(name, dir_fd=self.fd)

    def sync(self) -> None:
        """Make its names durable (fsync)."""
        os.fsync(self.fd)

    def replace(self, name: str) -> int:
        """Create a file, in place of one of ours if that may be replaced."""
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
        """Write a small file durably; if that fails nothing of it is left.

        One of ours that has the name is replaced.
        """
        self._write(self.replace(name), name, data)

    def put(self, name: str, data: bytes) -> None:
        """Replace a small file atomically: a kill leaves the old content or the new."""
        new = f".{name}.new"
        self.write_new(new, data)
        try:
            self.rename(new, name)
        except OSError:
            self.discard(new)
            raise
        self.sync()

    def write_claimed(self, name: str, data: bytes) -> None:
        """Write as `write_new`, in the room that `claim_room` made, if it exists."""
        try:
            fd = self.open(name, write=True)
        except FileNotFoundError:
            fd = self.create(name)
        self._write(fd, name, data)

    def _write(self, fd: int, name: str, data: bytes) -> None:
        with self._filling(name, fd):
            write_all(fd, data, 0)
            os.ftruncate(fd, len(data))
            os.fdatasync(fd)

    def claim_room(self, name: str, size_bytes: int) -> None:
        """Create a file with the room that `write_claimed` will need when the disk is full.

        If that fails nothing of it is left.
        """
        with self._filling(name, self.replace(name)) as fd:
            os.posix_fallocate(fd, 0, size_bytes)

    @contextmanager
    def _filling(self, name: str, fd: int) -> Iterator[int]:
        """Close a file at the end of the block, and remove it if the block fails."""
        with opened(fd):
            try:
                yield fd
            except OSError:
                self.remove(name, missing_ok=True)
                raise

    def _check_ours(self, status: os.stat_result, path: Path) -> None:
        if status.st_nlink > 1:
            reason = f"has {status.st_nlink} names, one of which may belong to another user"
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


@contextmanager
def opened(fd: int) -> Iterator[int]:
    """Close a descriptor at the end of the block."""
    try:
        yield fd
    finally:
        os.close(fd)


def reopen(fd: int, flags: int) -> int:
    """Open the file of a descriptor again, whatever its name leads to by now.

    This needs /proc, as much else does.
    """
    return os.open(f"/proc/self/fd/{fd}", flags | os.O_CLOEXEC)


def read_all(fd: int, path: Path, limit_bytes: int) -> bytes:
    """Read a plain file from its start.

    Args:
        fd: its descriptor.
        path: its path, for messages.
        limit_bytes: the most that it may have.

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
    """Write all of `data` at `offset` with pwrite(2)."""
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view = view[written:]
        offset += written
