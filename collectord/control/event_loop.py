# SPDX-License-Identifier: Apache-2.0
"""The event loop of a process whose threads may hang."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any, Self

T = TypeVar("T")


class EventLoop:
    """An event loop, closed at the end of the block, unless `abandon` was called."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._abandoned = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._abandoned:
            self._runner.close()

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end, as asyncio.run does."""
        return self._runner.run(main)

    def abandon(self) -> None:
        """Leave tasks to the end of the process, since they wait for threads that hang.

        They are not cancelled: what they would undo then waits as they do.
        """
        self._abandoned = True
