# SPDX-License-Identifier: Apache-2.0
"""Sink stage: the lock of a file that is written, which tells whether its writer lives."""

from __future__ import annotations

import fcntl
import os
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

# Readers and writers of a file that is made this moment give each other so long.
_TRIES: Final = 4
_TRY_S: Final = 0.003


def lock(fd: int) -> bool:
    """Lock a running segment; return False if its writer, or a repair, holds the lock.

    The lock (flock) ends with the last copy of the fd, so a killed writer never leaves one.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock_new(fd: int) -> bool:
    """Lock a file that was just made; return False if a repair holds the lock.

    A reader that looks at the file's state holds it for a moment.
    """
    return _in_time(lambda: lock(fd))


def is_left(fd: int) -> bool:
    """Return whether nobody writes an unsealed file; if so, the caller holds its lock.

    An empty file may have been made this moment by a writer that has not locked it yet.
    """

    def is_seen_through() -> bool:
        if not lock(fd) or os.fstat(fd).st_size > 0:
            return True
        fcntl.flock(fd, fcntl.LOCK_UN)
        return False

    _in_time(is_seen_through)
    return lock(fd)


def _in_time(call: Callable[[], bool]) -> bool:
    """Repeat a call until it returns true; return whether it did within some milliseconds."""
    for _ in range(_TRIES):
        if call():
            return True
        time.sleep(_TRY_S)
    return False
