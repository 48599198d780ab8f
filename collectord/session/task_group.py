# SPDX-License-Identifier: Apache-2.0
"""Work beside the event loop's notices: tasks that are awaited at the end, and file work."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from collectord.session.short_calls import ShortCalls

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from concurrent.futures import Executor
    from typing import Any, TypeVar

    T = TypeVar("T")


class TaskGroup:
    """The tasks of one session.

    Args:
        worker: threads for file work, so that the event loop never waits for a disk.
        short: of the same threads, shared with other sessions.
    """

    def __init__(self, worker: Executor, short: ShortCalls | None = None) -> None:
        self._worker = worker
        self._short = short or ShortCalls(worker)
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, job: Coroutine[Any, Any, None]) -> None:
        """Start a task, which `join` waits for."""
        task = asyncio.get_running_loop().create_task(job)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def join(self) -> None:
        """Wait until no task runs, including those started meanwhile."""
        while self._tasks:
            tasks = tuple(self._tasks)
            await asyncio.gather(*tasks)
            # From Python 3.12, nothing is yielded to the callbacks of tasks that have all ended.
            self._tasks.difference_update(tasks)

    async def in_worker(self, call: Callable[..., T], *args: object) -> T:
        """Call a function in a worker thread, and wait for its result."""
        return await asyncio.get_running_loop().run_in_executor(self._worker, call, *args)

    async def in_short_call(self, call: Callable[[], None]) -> None:
        """Call a short function in a worker thread, in one job with those of other sessions."""
        await self._short.add(call)
