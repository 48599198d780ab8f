# SPDX-License-Identifier: Apache-2.0
"""A block device that can be traced: descriptor, name, and whether the kernel can trace it."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from collectord._native import _syscalls
from collectord.errors import MissingPrivilege, NoSuchTarget
from collectord.facts.kernel_facts import SEES_DEVICES
from collectord.kernel.host.errno_mapping import DENIED

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import ExitStack
    from pathlib import Path

TRACE: Final = "trace"  # a device's folder in sysfs, and its relay files in debugfs


def open_device(device: str, stack: ExitStack) -> tuple[int, int]:
    """Open the device without waiting for a medium, and return its descriptor and number.

    Raises:
        NoSuchTarget: there is no such block device.
        MissingPrivilege: it may not be opened.
    """
    try:
        fd = os.open(device, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        code = error.errno or 0
        if code in DENIED:
            # EPERM comes from a device cgroup, whatever the permissions.
            mode = "read permission of the device (group disk, or CAP_DAC_READ_SEARCH)"
            raise MissingPrivilege(
                f"cannot open {device}",
                need=SEES_DEVICES if code == errno.EPERM else mode,
                syscall="open",
                errno=code,
            ) from error
        raise NoSuchTarget(f"no device {device}", errno=code) from error
    stack.callback(os.close, fd)
    status = os.fstat(fd)
    if not stat.S_ISBLK(status.st_mode):
        raise NoSuchTarget(f"{device} is not a block device", errno=errno.ENOTBLK)
    return fd, status.st_rdev


def sysfs_folder(number: int, sys: Path) -> Path:
    """Return the folder of a device in sysfs."""
    return sys / f"dev/block/{os.major(number)}:{os.minor(number)}"


def kernel_name(number: int, sys: Path) -> str:
    """Return a device's directory in debugfs's `block`: its name in sysfs, without a slash too."""
    return sysfs_folder(number, sys).resolve().name.replace("!", "_")


def tear_down(fd: int) -> None:
    """Remove a device's trace, if it has one."""
    with suppress(OSError):  # gone already
        _syscalls.blktrace_teardown(fd)


def traceable(devices: Iterable[str], sys: Path) -> bool:
    """Whether the kernel has blktrace, as far as the devices' sysfs tells."""
    return any((sys / "class/block" / name / TRACE).is_dir() for name in devices)
