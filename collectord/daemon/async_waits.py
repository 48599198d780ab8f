# SPDX-License-Identifier: Apache-2.0
"""Waiting for several things at once: answers of disks, work that runs beside, and a stop."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
    from typing import Any

# For answers of disks that take milliseconds, unless they hang.
ANSWER_S: Final = 2.0


@asynccontextmanager
async def running(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run work beside a block; it ends with the block, and its errors are raised."""
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def answered(
    answers: Sequence[asyncio.Future[Any]], stop: asyncio.Event, limit_s: float | None
) -> None:
    """Wait for answers, for so long at most, and only a moment longer once `stop` is set."""
    if not answers:
        return
    told = asyncio.ensure_future(asyncio.wait(answers))
    stopped = asyncio.ensure_future(stop.wait())
    await asyncio.wait([told, stopped], timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
    if stopped.done():
        await asyncio.wait([told], timeout=ANSWER_S)
    told.cancel()
    stopped.cancel()


@asynccontextmanager
async def stop_or_failure(
    stop: asyncio.Event, work: asyncio.Future[None], wake: Callable[[], None]
) -> AsyncIterator[asyncio.Event]:
    """Yield an event that `stop` sets, or work that failed.

    Args:
        stop: the one.
        work: the other.
        wake: called when the event is set.
    """
    end = asyncio.Event()

    def on_end(ended: asyncio.Future[Any]) -> None:
        if ended is stopping or ended.cancelled() or ended.exception() is not None:
            end.set()
            wake()

    stopping = asyncio.ensure_future(stop.wait())
    stopping.add_done_callback(on_end)
    work.add_done_callback(on_end)
    try:
        yield end
    finally:
        stopping.cancel()
