# SPDX-License-Identifier: Apache-2.0
"""The cgroup hierarchy that perf events know, and the cgroups in it."""

from __future__ import annotations

import os
from collections import deque
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from collectord.folders.folder import opened
from collectord.kernel.host.mounts import mounts

if TYPE_CHECKING:
    from collections.abc import Iterator

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# More than a host has that is not made to have many; the core remembers twice as many.
CGROUPS_MAX: Final = 8192


def cgroup_root(mountinfo: bytes) -> Path | None:
    """Return the mount point of the hierarchy that has the perf_event controller.

    In cgroup1 it is the hierarchy mounted with that controller; without such a mount cgroup2 has
    it, and needs no setting for it.

    Args:
        mountinfo: content of /proc/self/mountinfo.
    """
    found: dict[bytes, Path] = {}
    for one in mounts(mountinfo):
        if one.kind == b"cgroup2" or (one.kind == b"cgroup" and b"perf_event" in one.options):
            found.setdefault(one.kind, one.place)
    return found.get(b"cgroup", found.get(b"cgroup2"))


def existing(root: Path) -> Iterator[tuple[int, bytes]]:
    """Yield {id, path below the root} of the cgroups of a hierarchy, outer ones first.

    On a kernel of 64 bits the inode of a cgroup's directory is its id. Those that may not be read
    are left out with all below them, and so are those that are removed meanwhile, or too many.
    """
    try:
        top = os.open(root, _FOLDER)
    except OSError:
        return
    with opened(top):
        waiting = deque([b"."])
        left = CGROUPS_MAX
        while waiting and left:
            left -= 1
            path = waiting.popleft()
            try:
                with opened(os.open(path, _FOLDER, dir_fd=top)) as fd:
                    number = os.fstat(fd).st_ino
                    below = _folders(fd, left - len(waiting))
            except OSError:
                continue
            yield number, path[1:] or b"/"
            waiting.extend(path + b"/" + os.fsencode(name) for name in below)


def _folders(fd: int, count: int) -> list[str]:
    """Return names of the directories in one, at most some."""
    with os.scandir(fd) as entries:
        names = (entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        return [*islice(names, max(count, 0))]


def place(root: Path, path: str) -> Path:
    """Return the directory that a cgroup's path means: the hierarchy's `root`, or one below it.

    As in perf `/` is the root of the hierarchy, and `/a` is `a` below it. The directory need not
    exist.
    """
    given = Path(path)
    if given.is_absolute() and within(root, given):
        return given
    return root / path.lstrip("/")


def within(root: Path, directory: Path) -> bool:
    """Whether a directory belongs to the hierarchy mounted at `root`, by whatever mount."""
    try:
        return directory.stat().st_dev == root.stat().st_dev
    except OSError:
        return False
