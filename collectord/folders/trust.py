# SPDX-License-Identifier: Apache-2.0
"""Trust in a folder: its owner and mode decide what the program may do in it."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from collectord.errors import UnsafePath

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT: Final = 0
PROC: Final = Path("/proc")
# include/uapi/linux/capability.h: CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER.
_BEYOND_PERMISSIONS: Final = 1 << 1 | 1 << 2 | 1 << 3


class Trust(Enum):
    """The demands on a folder.

    READ: it may be anybody's; nothing is written into it.
    WRITE: for a privileged process a single user can write to it, or it is sticky. Files that
        the process writes there belong to its own user or root, or, if nobody else can write
        to the folder, to its owner. Without privilege any folder, since permissions then
        decide.
    OWN: it belongs to this process's user or root, and nobody else can write to it.
    ROOTED: the same for it and all folders above it, and no link leads to it.
    """

    READ = "read"
    WRITE = "write"
    OWN = "own"
    ROOTED = "rooted"


def is_privileged() -> bool:
    """Whether this process reaches files beyond the permissions of its user."""
    if os.geteuid() == ROOT:
        return True
    return bool(effective_mask(PROC) & _BEYOND_PERMISSIONS)


def effective_mask(proc: Path) -> int:
    """Return `CapEff` of this process, a bit for each capability; 0 if it cannot be read."""
    try:
        status = (proc / "self/status").read_bytes()
    except OSError:
        return 0
    masks = [line.split()[1] for line in status.splitlines() if line.startswith(b"CapEff:")]
    return int(masks[0], 16) if masks else 0


def others_may_write(status: os.stat_result) -> bool:
    """Whether anybody but the owner and root can create, rename and delete names in a folder.

    A user's own group, which many systems give each user with write access, does not count.
    """
    if status.st_mode & stat.S_IWOTH:
        return True
    return bool(status.st_mode & stat.S_IWGRP) and not _is_own_group(status)


def _is_own_group(status: os.stat_result) -> bool:
    try:
        owner = pwd.getpwuid(status.st_uid).pw_name
        group = grp.getgrgid(status.st_gid)
    except KeyError:
        return False
    return group.gr_name == owner and set(group.gr_mem) <= {owner}


def check_folder(
    status: os.stat_result, path: Path, trust: Trust, *, owners: Iterable[int] = ()
) -> frozenset[int] | None:
    """Check an open folder.

    Args:
        status: status of its descriptor.
        path: the path that it was opened by, for messages.
        trust: the demands.
        owners: users who may own it, for OWN and ROOTED, beside root; by default this process's
            user.

    Returns:
        users who may own a file in it that is opened for writing; None for anybody.

    Raises:
        UnsafePath: it does not meet the demands.
    """
    if trust is Trust.READ or (trust is Trust.WRITE and not is_privileged()):
        return None
    if trust is Trust.WRITE:
        if not others_may_write(status):
            return frozenset({ROOT, os.geteuid(), status.st_uid})
        if not status.st_mode & stat.S_ISVTX:
            raise UnsafePath(
                "others can write to this folder",
                path=str(path),
                hint="choose one that only its owner can write to, or chmod go-w (or +t) it",
            )
        return frozenset({ROOT, os.geteuid()})
    check_owner(status, path, owners or (os.geteuid(),))
    return frozenset({ROOT, *(owners or (os.geteuid(),))})


def check_owner(
    status: os.stat_result, path: Path, owners: Iterable[int], *, sticky: bool = False
) -> None:
    """Raise UnsafePath if anybody but the owners and root could have changed it.

    Args:
        status: status of a file or folder.
        path: its path.
        owners: users who may own it, beside root.
        sticky: others may write to it if it is sticky: nobody can move there what root owns.
    """
    if status.st_uid not in {ROOT, *owners}:
        reason, hint = f"belongs to user {status.st_uid}", "chown it to root"
        raise UnsafePath(reason, path=str(path), hint=hint)
    if sticky and status.st_mode & stat.S_ISVTX:
        return
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UnsafePath("others can write to it", path=str(path), hint="chmod go-w")


def is_safe_link(link: os.stat_result, folder: os.stat_result) -> bool:
    """Whether this user or root made a link in a folder, and nobody else can replace it.

    Without privilege every link passes: it leads nowhere that its maker could not go.
    """
    if not is_privileged():
        return True
    ours = {ROOT, os.geteuid()}
    kept = not others_may_write(folder) or bool(folder.st_mode & stat.S_ISVTX)
    return link.st_uid in ours and folder.st_uid in ours and kept
