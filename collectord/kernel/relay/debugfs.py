# SPDX-License-Identifier: Apache-2.0
"""debugfs: its mount point, and the reason why a file of it cannot be opened.

Facts of fs/debugfs/file.c, and their consequences: from lockdown's level `integrity` on nobody
opens a file there that can be written, mapped or sent an ioctl, and relay files can be mapped:
EPERM, whatever the capabilities. The mode of its root keeps out everybody but root: EACCES.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

from collectord.errors import MissingFeature
from collectord.kernel.host import errno_mapping, lockdown
from collectord.kernel.host.errno_mapping import Meaning
from collectord.kernel.host.mounts import mounts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from collectord.errors import KernelError

LOCKDOWN_REMEDY = "boot with lockdown=none (without Secure Boot); no capability opens it"
NEED = "root (debugfs is root's)"
MOUNT_REMEDY = "as root: mount -t debugfs debugfs /sys/kernel/debug"
STILL_CLOSED = "if kernel lockdown is on, relay files remain closed"
# Writable files of the kernel's own, so that opening one tells of lockdown.
_TRIALS = ("fault_around_bytes", "sched/verbose", "sched/features", "clear_warn_once")


def find(proc: Path) -> Path | None:
    """Return the mount point of debugfs, the usual place first; None if there is none."""
    found = mounts((proc / "self/mountinfo").read_bytes())
    places = [one.place for one in found if one.kind == b"debugfs" and one.root == Path("/")]
    usual = Path("/sys/kernel/debug")
    if usual in places:
        return usual
    return places[0] if places else None


def locked(root: Path) -> bool:
    """Whether kernel lockdown keeps relay files closed, found by trying a similar file."""
    for name in _TRIALS:
        try:
            os.close(os.open(root / name, os.O_RDONLY | os.O_CLOEXEC))
        except PermissionError as error:
            if error.errno == errno.EPERM:
                return True
            continue
        except OSError:
            continue
        return False
    return False


def absent() -> MissingFeature:
    """Return the error where debugfs is not mounted."""
    hint = f"{MOUNT_REMEDY}; {STILL_CLOSED}"
    return MissingFeature("debugfs is not mounted", feature="debugfs", hint=hint)


def refused(error: OSError, path: Path) -> KernelError:
    """Return the error for a file below debugfs that cannot be opened."""
    message = f"cannot open {path}"
    closed = Meaning(
        (errno.EPERM,),
        lockdown.NEED,
        message=f"{message}: kernel lockdown closes relay files",
        hint=LOCKDOWN_REMEDY,
    )
    denied = Meaning((errno.EACCES,), NEED)
    return errno_mapping.refused(error.errno or 0, message, "open", closed, denied)


def numbered(directory: Path, base: str) -> Iterator[tuple[int, Path]]:
    """Yield files `baseN` of a directory with their N, in order. Raises OSError."""
    found = []
    for entry in directory.iterdir():
        number = entry.name.removeprefix(base)
        if entry.name != number and number.isascii() and number.isdigit():
            found.append((int(number), entry))
    yield from sorted(found)
