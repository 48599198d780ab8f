# SPDX-License-Identifier: Apache-2.0
"""Signals become one stop event, and snapshots.

Only the main thread gets them: native threads block all.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import structlog

from collectord.errors import CollectordError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from typing import Any

_LOG: Final = structlog.get_logger()

# SIGHUP is what a closed terminal sends; its default would end the process without a flush.
_GRACE_S: Final = 1.0
STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def snapshots(take: Callable[[], Coroutine[Any, Any, object]]) -> Iterator[None]:
    """Have SIGUSR2 store what the flight recorders hold. What goes wrong is logged.

    Without this the signal would end the process.

    Args:
        take: makes the snapshots.
    """
    loop = asyncio.get_running_loop()
    running: set[asyncio.Task[None]] = set()

    async def run() -> None:
        try:
            await take()
        except CollectordError as error:
            _LOG.error("snapshot_failed", error=str(error))

    def on_signal() -> None:
        _LOG.info("snapshot_requested", signal="SIGUSR2")
        task = loop.create_task(run())
        running.add(task)
        task.add_done_callback(running.discard)

    loop.add_signal_handler(signal.SIGUSR2, on_signal)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGUSR2)


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
