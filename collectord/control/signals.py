# SPDX-License-Identifier: Apache-2.0
"""Signals become one stop event, requests, or nothing: none of them ends a process midway.

Only the main thread gets them: native threads block all.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

import structlog

from collectord.errors import CollectordError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence
    from typing import Any

_LOG: Final = structlog.get_logger()

_GRACE_S: Final = 1.0
STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def snapshots(take: Callable[[], Coroutine[Any, Any, object]]) -> Iterator[None]:
    """Store the contents of the flight recorders on SIGUSR2. Errors are logged.

    Args:
        take: makes the snapshots.
    """
    with _requested(signal.SIGUSR2, "snapshot", take):
        yield


@contextmanager
def rotations(rotate: Callable[[], Coroutine[Any, Any, object]]) -> Iterator[None]:
    """Continue all sessions in new segments on SIGUSR1. Errors are logged.

    Args:
        rotate: makes the rotations.
    """
    with _requested(signal.SIGUSR1, "rotation", rotate):
        yield


@contextmanager
def _requested(
    number: signal.Signals, name: str, work: Callable[[], Coroutine[Any, Any, object]]
) -> Iterator[None]:
    """Do the work at each signal, and log its errors as NAME_failed."""
    loop = asyncio.get_running_loop()
    running: set[asyncio.Task[None]] = set()

    async def run() -> None:
        try:
            await work()
        except CollectordError as error:
            _LOG.error(f"{name}_failed", error=str(error))

    def on_signal() -> None:
        _LOG.info(f"{name}_requested", signal=number.name)
        task = loop.create_task(run())
        running.add(task)
        task.add_done_callback(running.discard)

    with _handled(number, on_signal):
        yield


@contextmanager
def reloads(reload: Callable[[], Coroutine[Any, Any, object]]) -> Iterator[None]:
    """Read the configuration anew on SIGHUP, and change what differs. Errors are logged.

    Args:
        reload: does that.
    """
    with _requested(signal.SIGHUP, "reload", reload):
        yield


@contextmanager
def hangups() -> Iterator[None]:
    """Log on SIGHUP that it is not needed: an opener reads the configuration at each request."""

    def on_signal() -> None:
        _LOG.info("hangup_ignored", reason="the configuration is read at each request")

    with _handled(signal.SIGHUP, on_signal):
        yield


@contextmanager
def stop_event(numbers: Sequence[signal.Signals] = STOP_SIGNALS) -> Iterator[asyncio.Event]:
    """Yield an event of the running loop that is set by the first stop signal.

    After a moment SIGINT has its usual meaning again: a second Ctrl-C abandons the final flush,
    and the next start repairs the rest. timeout(1) sends two signals at once, which count as one.
    A SIGHUP that nohup(1) has turned off stays off.

    Args:
        numbers: the stop signals.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def on_signal(number: signal.Signals) -> None:
        _LOG.info("stop_requested", signal=number.name)
        if not stop.is_set():
            loop.call_later(_GRACE_S, loop.remove_signal_handler, signal.SIGINT)
        stop.set()

    with ExitStack() as stack:
        for number in numbers:
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                stack.enter_context(_handled(number, on_signal, number))
        yield stop


@contextmanager
def _handled(
    number: signal.Signals, handler: Callable[..., object], *arguments: object
) -> Iterator[None]:
    """Let the running loop handle a signal for the duration of a block.

    The previous handler is restored at the end. The loop sets the default action first, which may
    end the process: the signal is blocked until the handler is restored.
    """
    loop = asyncio.get_running_loop()
    before = signal.getsignal(number)
    loop.add_signal_handler(number, handler, *arguments)
    try:
        yield
    finally:
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
        try:
            loop.remove_signal_handler(number)
            signal.signal(number, before)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
