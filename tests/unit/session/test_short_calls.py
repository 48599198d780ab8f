# SPDX-License-Identifier: Apache-2.0
"""Short calls of many sessions: one job of a thread for all that are made at a time."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from collectord.errors import SinkError
from collectord.session.short_calls import ShortCalls

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future


class Jobs(ThreadPoolExecutor):
    """A thread that counts its jobs."""

    count = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:  # noqa: ANN401
        """Count the job, and run it."""
        self.count += 1
        return super().submit(fn, *args, **kwargs)


def refused() -> None:
    """Fail as a full disk does."""
    raise SinkError("full", path="/x", errno=28)


def unforeseen() -> None:
    """Fail as only a fault of the program does."""
    raise IndexError


def test_calls_of_one_turn_are_one_job() -> None:
    """Each caller gets the end of its own call, in whatever turn it came."""
    called: list[int] = []

    async def scenario() -> None:
        with Jobs(1) as jobs:
            calls = ShortCalls(jobs)
            many = [calls.add(partial(called.append, number)) for number in range(10)]
            await asyncio.gather(*many)
            assert (jobs.count, called) == (1, [*range(10)])
            await calls.add(partial(called.append, 10))
            assert (jobs.count, called[-1]) == (2, 10)

    asyncio.run(scenario())


def test_an_error_is_its_callers_alone() -> None:
    """The calls behind it are made, and end well."""

    async def scenario() -> None:
        with Jobs(1) as jobs:
            calls = ShortCalls(jobs)
            bad, good = calls.add(refused), calls.add(lambda: None)
            with pytest.raises(SinkError, match="full"):
                await bad
            await good

    asyncio.run(scenario())


def test_an_unforeseen_error_leaves_nobody_waiting() -> None:
    """Which calls were made is not known: all callers of the job get the error."""

    async def scenario() -> None:
        with Jobs(1) as jobs:
            calls = ShortCalls(jobs)
            both = [calls.add(unforeseen), calls.add(lambda: None)]
            ended = await asyncio.gather(*both, return_exceptions=True)
            assert [type(one) for one in ended] == [IndexError, IndexError]

    asyncio.run(scenario())


def test_a_caller_that_leaves_is_no_trouble() -> None:
    """The others of its job are answered."""

    async def scenario() -> None:
        with Jobs(1) as jobs:
            calls = ShortCalls(jobs)
            left, stays = calls.add(refused), calls.add(lambda: None)
            left.cancel()
            await stays

    asyncio.run(scenario())
