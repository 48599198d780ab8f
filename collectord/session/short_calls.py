# SPDX-License-Identifier: Apache-2.0
"""Short file work of many sessions, which wakes a thread once instead of once a session."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from collectord.errors import CollectordError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Executor

    Call = Callable[[], None]
    Waiting = Sequence[tuple[Call, asyncio.Future[None]]]


class ShortCalls:
    """The short calls that sessions make on one file system.

    Those of one turn of the event loop are a single job of a thread: the hand-over between the
    threads costs more than such a call.

    Args:
        worker: threads for the file system's work.
    """

    def __init__(self, worker: Executor) -> None:
        self._worker = worker
        self._waiting: list[tuple[Call, asyncio.Future[None]]] = []

    def add(self, call: Call) -> asyncio.Future[None]:
        """Call a function in a thread; the future gets its result, or its error."""
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._submit)
        ended: asyncio.Future[None] = loop.create_future()
        self._waiting.append((call, ended))
        return ended

    def _submit(self) -> None:
        waiting, self._waiting = self._waiting, []
        calls = [call for call, _ in waiting]
        job = asyncio.get_running_loop().run_in_executor(self._worker, _run, calls)
        job.add_done_callback(partial(_answer, waiting))


def _run(calls: Sequence[Call]) -> list[CollectordError | None]:
    """Call each function; return their errors."""
    return [_error_of(call) for call in calls]


def _error_of(call: Call) -> CollectordError | None:
    try:
        call()
    except CollectordError as error:
        return error
    return None


def _answer(waiting: Waiting, job: asyncio.Future[list[CollectordError | None]]) -> None:
    unforeseen = job.exception()
    errors = [unforeseen] * len(waiting) if unforeseen is not None else job.result()
    for (_, ended), error in zip(waiting, errors, strict=True):
        if ended.done():  # its caller was cancelled
            continue
        if error is None:
            ended.set_result(None)
        else:
            ended.set_exception(error)
