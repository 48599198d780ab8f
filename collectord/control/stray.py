# SPDX-License-Identifier: Apache-2.0
"""Signals before an event loop handles them: those without a use, and Ctrl-C.

This module imports almost nothing, because it runs before all slow imports. SIGTERM has its
default action until a loop handles it: the process ends at once, and nothing has begun.
"""

from __future__ import annotations

import atexit
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import FrameType

# Their default action ends the process without a flush, whatever it is about to do.
_STRAY: Final = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM)


def ignore(*more: signal.Signals) -> None:
    """Ignore signals that have no use here, until the process ends.

    An empty handler is used instead of SIG_IGN because an exec resets it, so that commands and
    workers have their defaults. The interpreter would reset it at its end too: from then on
    SIG_IGN is used.

    Args:
        more: beyond SIGUSR1, SIGUSR2 and SIGALRM.
    """
    numbers = (*_STRAY, *more)
    for number in numbers:
        signal.signal(number, _do_nothing)
    atexit.register(_ignore, numbers)


@contextmanager
def abrupt_interrupt() -> Iterator[None]:
    """Let Ctrl-C end the process at once and silently while modules are imported.

    Nothing has begun yet, and an exception raised inside the import system may be swallowed there.
    If Ctrl-C is turned off, it stays off.
    """
    before = signal.getsignal(signal.SIGINT)
    if before != signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _ignore(numbers: Iterable[signal.Signals]) -> None:
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)


def _do_nothing(_number: int, _frame: FrameType | None) -> None:
    pass
