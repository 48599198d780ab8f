# SPDX-License-Identifier: Apache-2.0
"""Calls that may wait for a disk for ever, each in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def lone_call(call: Callable[[], T]) -> asyncio.Future[T]:
    """Make a call in a thread of its own; the future has its result, or its error.

    Neither another call nor the end of the process waits for the thread.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001 - it is raised where it is awaited
            tell(_fail, answer, error)
        else:
            tell(_succeed, answer, result)

    def tell(how: Callable[..., None], *what: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(how, *what)

    threading.Thread(target=run, name="disk", daemon=True).start()
    return answer


def _succeed(answer: asyncio.Future[T], result: T) -> None:
    if not answer.done():
        answer.set_result(result)


def _fail(answer: asyncio.Future[T], error: BaseException) -> None:
    if not answer.done():
        answer.set_exception(error)
