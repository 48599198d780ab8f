# SPDX-License-Identifier: Apache-2.0
"""The way from a path to an open folder, step by step.

Links on the way are followed where only this user and root can have made them, as those of a
distribution (/var/run) and of an administrator are. Somebody else's link is refused.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from collectord.errors import UnsafePath
from collectord.folders.folder import Folder, opened, read_all, reopen
from collectord.folders.trust import ROOT, Trust, check_owner, is_safe_link

if TYPE_CHECKING:
    from collections.abc import Iterable

# Flags for a folder that can be entered and need not be readable. A link fails with ENOTDIR.
_STEP: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_LINKS_MAX: Final = 40  # MAXSYMLINKS of the kernel


def open_folder(
    path: Path,
    trust: Trust = Trust.READ,
    *,
    owners: Iterable[int] = (),
    make_mode: int | None = None,
    owner_from_above: bool = False,
) -> Folder:
    """Open a folder.

    Args:
        path: its path; a relative one begins at the working directory.
        trust: the demands on it.
        owners: see `check_folder`.
        make_mode: permissions of folders made for missing parts of the path; None makes none.
        owner_from_above: what root makes belongs to the owner of the folder above it, so that a
            service of that user can write there, too.

    Raises:
        OSError: it cannot be opened or made.
        UnsafePath: it does not meet the demands, or somebody else's link leads to it.
    """
    walk = _Walk(path, trust, owners, make_mode, owner_from_above=owner_from_above)
    try:
        walk.go()
        fd = os.open(".", _OPEN, dir_fd=walk.fd)
    finally:
        os.close(walk.fd)
    return Folder(fd, path, trust, made=tuple(walk.made)).checked(owners)


def remove_made(made: Iterable[Path]) -> None:
    """Delete folders that were made in vain, the deepest first; those that are not empty stay."""
    for path in reversed(tuple(made)):
        try:
            with open_folder(path.parent) as above:
                above.remove_folder(path.name)
        except (OSError, UnsafePath):
            break


def open_file(path: Path) -> int:
    """Open a plain file for reading that a user named; links are followed.

    Anything else is not opened at all: that alone can start a device, or wait for one.

    Raises:
        OSError: it cannot be opened.
        UnsafePath: it is not a plain file.
    """
    with opened(os.open(path, os.O_PATH | os.O_CLOEXEC)) as place:
        if not stat.S_ISREG(os.fstat(place).st_mode):
            hint = "name a regular file"
            raise UnsafePath("is not a regular file", path=str(path), hint=hint)
        return reopen(place, os.O_RDONLY | os.O_NONBLOCK)


def read_file(path: Path, limit_bytes: int) -> bytes:
    """Read a plain file that a user named, of at most so many bytes; raises as `open_file`."""
    with opened(open_file(path)) as fd:
        return read_all(fd, path, limit_bytes)


class _Walk:
    """A descriptor on its way down a path.

    Attributes:
        fd: descriptor of the folder reached; the walk owns it until the caller closes it.
        made: the folders that were made.
    """

    def __init__(
        self,
        path: Path,
        trust: Trust,
        owners: Iterable[int],
        make_mode: int | None,
        *,
        owner_from_above: bool,
    ) -> None:
        self.made: list[Path] = []
        self._here = Path(path.anchor)
        self._parts = deque(path.parts)
        self._trust = trust
        self._owners = tuple(owners) or (os.geteuid(),)
        self._make_mode = make_mode
        self._owner_from_above = owner_from_above and os.geteuid() == ROOT
        self._links = 0
        self.fd = os.open(path.anchor or ".", _STEP)

    def go(self) -> None:
        """Walk to the end of the path. Raises as `open_folder`."""
        while self._parts:
            part = self._parts.popleft()
            if part == "/":
                self._move(os.open("/", _STEP), Path("/"))
                continue
            try:
                self._move(os.open(part, _STEP, dir_fd=self.fd), self._here / part)
            except FileNotFoundError:
                if self._make_mode is None:
                    raise
                self._make(part, self._make_mode)
            except NotADirectoryError:
                self._follow(part)
            else:
                if self._trust is Trust.ROOTED and self._parts:
                    check_owner(os.fstat(self.fd), self._here, self._owners, sticky=True)

    def _move(self, fd: int, path: Path) -> None:
        # The new one comes first: Ctrl-C in between must not have the old number closed twice.
        left, self.fd, self._here = self.fd, fd, path
        os.close(left)

    def _make(self, part: str, mode: int) -> None:
        with suppress(FileExistsError):
            os.mkdir(part, mode, dir_fd=self.fd)
            self.made.append(self._here / part)
            if self._owner_from_above:
                self._give(part)
        self._parts.appendleft(part)

    def _give(self, part: str) -> None:
        """Give a folder that was just made to the owner of the one above.

        That owner could have moved another folder there meanwhile: one that has something in it,
        or belongs to somebody else, is left alone.
        """
        above = os.fstat(self.fd)
        with opened(os.open(part, _OPEN | os.O_NOFOLLOW, dir_fd=self.fd)) as fd:
            with os.scandir(fd) as entries:
                is_empty = next(entries, None) is None
            if os.fstat(fd).st_uid == ROOT and is_empty:
                os.fchown(fd, above.st_uid, above.st_gid)

    def _follow(self, part: str) -> None:
        """Follow a link. Raises NotADirectoryError if it is not one."""
        path = self._here / part
        status = os.stat(part, dir_fd=self.fd, follow_symlinks=False)
        if self._trust is Trust.ROOTED:
            raise UnsafePath("is a link, or not a directory", path=str(path))
        if not stat.S_ISLNK(status.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
        above = os.fstat(self.fd)
        if not is_safe_link(status, above):
            raise UnsafePath(
                f"is a link of user {status.st_uid} in a folder of user {above.st_uid}: the "
                "other user can change it at any time",
                path=str(path),
                hint="name the folder that it leads to",
            )
        self._links += 1
        if self._links > _LINKS_MAX:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        self._parts.extendleft(reversed(Path(os.readlink(part, dir_fd=self.fd)).parts))
