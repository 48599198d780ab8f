# SPDX-License-Identifier: Apache-2.0
"""How tests of two lanes keep out of each other's way on one machine.

Those that run beside the kernel lane share the machine; some of the kernel lane must not: they
take a CPU offline, change what all sessions have in common, or measure. These wait until the test
that runs beside them has ended, and the next one waits for them.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

# Locks of this checkout. One who waits for the second has the first, so that nobody who came later
# goes ahead.
_ENTRANCE: Final = Path(__file__).resolve()
_MACHINE: Final = _ENTRANCE.parent


def shared() -> AbstractContextManager[None]:
    """Hold the machine together with others for the length of a block."""
    return _held(fcntl.LOCK_SH)


def alone() -> AbstractContextManager[None]:
    """Hold the machine for the length of a block. Nobody who does so may hold it already."""
    return _held(fcntl.LOCK_EX)


class Alone:
    """The machine for tests that follow each other: they wait for others but once."""

    def __init__(self) -> None:
        self._held = ExitStack()
        self._is_taken = False

    def take(self) -> None:
        """Wait for it, if it is not taken yet."""
        if not self._is_taken:
            self._held.enter_context(alone())
            self._is_taken = True

    def give_back(self) -> None:
        """Let others have it again, if it is taken."""
        self._held.close()
        self._is_taken = False


@contextmanager
def _held(operation: int) -> Iterator[None]:
    with ExitStack() as stack:
        machine = _opened(_MACHINE, stack)
        with ExitStack() as entering:
            fcntl.flock(_opened(_ENTRANCE, entering), fcntl.LOCK_EX | operation & fcntl.LOCK_NB)
            fcntl.flock(machine, operation)
        yield


def _opened(path: Path, stack: ExitStack) -> int:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    stack.callback(os.close, fd)
    return fd
