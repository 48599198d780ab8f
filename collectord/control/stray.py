# SPDX-License-Identifier: Apache-2.0
"""Signals that a process has no use for, and that must not end it.

It imports next to nothing: it is done ahead of all that takes time to import.
"""

from __future__ import annotations

import atexit
import signal
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FrameType

# Their default action ends the process without a flush, whatever it is about to do.
_STRAY: Final = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM)


def ignore(*more: signal.Signals) -> None:
    """Have signals do nothing that are not for us, from here to the process's end.

    A handler that does nothing is not SIG_IGN: an exec resets it, so that commands and workers
    have their defaults. The interpreter's end would reset it too: from there on it is SIG_IGN.

    Args:
        more: beyond SIGUSR1, SIGUSR2 and SIGALRM.
    """
    numbers = (*_STRAY, *more)
    for number in numbers:
        signal.signal(number, _do_nothing)
    atexit.register(_ignore, numbers)


def _ignore(numbers: Iterable[signal.Signals]) -> None:
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)


def _do_nothing(_number: int, _frame: FrameType | None) -> None:
    pass
