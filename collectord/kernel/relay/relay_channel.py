# SPDX-License-Identifier: Apache-2.0
"""Files of a relay channel: found by the channel's path, and opened."""

from __future__ import annotations

import os
import select
from contextlib import ExitStack
from typing import TYPE_CHECKING

from collectord.errors import KernelError, MissingFeature
from collectord.kernel.relay import debugfs
from collectord.kernel.values.relay_files import GLOBAL, RelayFile

if TYPE_CHECKING:
    from pathlib import Path


def files_of(path: Path) -> dict[int, Path]:
    """Return the channel's files by CPU: `path` itself, or `path` followed by a number.

    Raises:
        OSError: the directory cannot be read.
    """
    if path.is_file():
        return {GLOBAL: path}
    return dict(debugfs.numbered(path.parent, path.name))


def open_channel(path: Path) -> tuple[RelayFile, ...]:
    """Open all files of a channel; the caller closes them.

    Raises:
        MissingFeature: there are none, or they are not relay files.
        MissingPrivilege: they may not be opened.
        KernelError: they cannot be opened for another reason.
    """
    try:
        files = files_of(path)
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            files = {}
        else:
            raise debugfs.refused(error, path.parent) from error
    if not files:
        raise MissingFeature(
            f"no relay channel {path}",
            feature=f"relay channel {path}",
            hint="its client creates it, perhaps later; `collectord list relay` shows some",
        )
    with ExitStack() as stack:
        opened = tuple(RelayFile(cpu, open_file(file, stack)) for cpu, file in files.items())
        stack.pop_all()  # nothing failed
    return opened


def open_file(path: Path, stack: ExitStack) -> int:
    """Open one relay file.

    Raises:
        MissingFeature: it can be opened, but not polled: it is not a relay file.
        MissingPrivilege, KernelError: it cannot be opened.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise debugfs.refused(error, path) from error
    stack.callback(os.close, fd)
    with select.epoll() as poll:
        try:
            poll.register(fd, select.EPOLLIN)
        except PermissionError as error:
            raise MissingFeature(
                f"{path} is not a file of a relay channel",
                feature="relay",
                errno=error.errno or 0,
                hint="name the channel's path without the CPU's number",
            ) from error
        except OSError as error:
            raise KernelError(
                f"cannot poll {path}", syscall="epoll_ctl", errno=error.errno or 0
            ) from error
    return fd
