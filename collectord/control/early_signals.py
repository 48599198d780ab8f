# SPDX-License-Identifier: Apache-2.0
"""Signals before an event loop handles them: those without a use, and Ctrl-C.

This module imports almost nothing, because it runs before all slow imports. SIGTERM has its
default action until a loop handles it: the process ends at once, and nothing has begun.
"""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

# Their default action ends the process without a flush, whatever it is about to do.
_STRAY: Final = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM)


def ignore(*more: signal.Signals) -> None:
    """Ignore signals that have no use here, until the process ends.

    An empty handler is used instead of SIG_IGN because an exec resets it, so that commands and
    workers have their defaults.

    Args:
        more: beyond SIGUSR1, SIGUSR2 and SIGALRM.
    """
    for number in (*_STRAY, *more):
        signal.signal(number, _do_nothing)


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


def _do_nothing(_number: int, _frame: FrameType | None) -> None:
    pass
