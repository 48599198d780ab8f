# SPDX-License-Identifier: Apache-2.0
"""The imports of a start, which take most of its time."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

from collectord.control import early_signals

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def slow_imports() -> Iterator[None]:
    """Import modules in this block: Ctrl-C ends the process at once, and nothing is collected.

    Modules make hardly any garbage, and the collector would look at all that they make again and
    again: here, and a last time of 25 ms while something is recorded. So it leaves them out.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        with early_signals.abrupt_interrupt():
            yield
    finally:
        gc.freeze()
        if collects:
            gc.enable()
