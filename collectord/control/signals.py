# SPDX-License-Identifier: Apache-2.0
"""Signals become one stop event. Only the main thread gets them: native threads block all."""

from __future__ import annotations

import asyncio
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:
    from collections.abc import Iterator

_LOG: Final = structlog.get_logger()

# SIGHUP is what a closed terminal sends; its default would end the process without a flush.
_GRACE_S: Final = 1.0
STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def stop_event() -> Iterator[asyncio.Event]:
    """An event of the running loop that is set by the first stop signal.

    After a moment SIGINT has its usual meaning again: a second Ctrl-C gives up the final flush,
    and the next start repairs what it left. timeout(1) sends two at once, which are one.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def on_signal(number: signal.Signals) -> None:
        _LOG.info("stop_requested", signal=number.name)
        if not stop.is_set():
            loop.call_later(_GRACE_S, loop.remove_signal_handler, signal.SIGINT)
        stop.set()

    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield stop
    finally:
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)
