# SPDX-License-Identifier: Apache-2.0
"""The thread in which sources are opened, so that the event loop goes on while a program compiles.

Workers that compile die with the thread that has started them: this one lives as long as the
daemon.
"""

from __future__ import annotations

import asyncio
import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from collectord.errors import CollectordError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Abortable(Protocol[T_co]):
    """A call that gives up with an error once a descriptor is readable."""

    def __call__(self, *, abort: int) -> T_co:
        """Do the work."""


class OpeningThread:
    """One thread, which runs once it is entered, so that its id is known to the sources."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "open")
        self._turn = asyncio.Lock()

    def __enter__(self) -> Self:
        self._thread.submit(time.time_ns).result()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()

    async def run(self, call: Callable[[], T]) -> T:
        """Make a call in the thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    async def open(self, call: Abortable[T], began: Callable[[], None] = lambda: None) -> T:
        """Make a call in the thread; if the waiting task is cancelled, it is told to give up.

        Either way the call has ended when this returns or raises.

        Args:
            call: the call.
            began: called when its turn has come.
        """
        async with self._turn:
            began()
            return await self._open(call)

    async def _open(self, call: Abortable[T]) -> T:
        abort = os.eventfd(0, os.EFD_CLOEXEC)
        try:
            job = asyncio.get_running_loop().run_in_executor(
                self._thread, partial(call, abort=abort)
            )
            try:
                return await asyncio.shield(job)
            except asyncio.CancelledError:
                os.eventfd_write(abort, 1)
                while not job.done():  # the call has the descriptor until then
                    with suppress(asyncio.CancelledError):
                        await asyncio.wait([job])
                with suppress(CollectordError):
                    job.result()
                raise
        finally:
            os.close(abort)
