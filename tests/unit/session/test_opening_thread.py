# SPDX-License-Identifier: Apache-2.0
"""The thread in which sources are opened: what a task that is cancelled leaves there."""

from __future__ import annotations

import asyncio
import select
import threading

from collectord.session.opening_thread import OpeningThread


def test_a_call_has_ended_when_its_task_has_however_often_that_is_cancelled() -> None:
    """A call that takes its time to give up keeps the descriptor that tells it to."""
    started, may_look, ended = threading.Event(), threading.Event(), threading.Event()

    def call(*, abort: int) -> None:
        started.set()
        may_look.wait()
        assert select.select([abort], [], [])[0] == [abort]
        ended.set()

    async def cancel_twice() -> None:
        with OpeningThread() as thread:
            task = asyncio.create_task(thread.open(call))
            await asyncio.to_thread(started.wait)
            for _ in range(2):
                task.cancel()
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            may_look.set()
            await asyncio.wait([task])
            assert task.cancelled()
            assert ended.is_set()

    asyncio.run(cancel_twice())
