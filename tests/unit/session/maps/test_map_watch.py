# SPDX-License-Identifier: Apache-2.0
"""When the programs of sessions are read."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from collectord.errors import KernelError
from collectord.session.maps import map_watch
from collectord.session.maps.map_watch import BpfWatch

if TYPE_CHECKING:
    import pytest


class OneReader:
    """A session's programs, which count how often they are read."""

    def __init__(self, session: str, *, live: bool) -> None:
        self.session = session
        self.has_live_figures = live
        self.reads = 0

    def read(self) -> tuple[Any, ...]:
        """Count the reading."""
        self.reads += 1
        return ()


class Failing(OneReader):
    """Programs whose maps cannot be read."""

    def read(self) -> tuple[Any, ...]:
        """Count the attempt. Raises KernelError."""
        super().read()
        raise KernelError("no")


def test_programs_without_live_figures_are_read_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """They keep no poll from being left out; the last reading has all."""
    live, still = OneReader("live", live=True), OneReader("still", live=False)
    readers: list[Any] = [still, live]
    watch = BpfWatch()
    watch.add(readers[0], ())
    assert watch.is_idle
    watch.add(readers[1], ())
    assert not watch.is_idle

    async def ticks(worker: ThreadPoolExecutor, count: int) -> None:
        for _ in range(count):
            watch.tick(worker)
            await watch.join()

    with ThreadPoolExecutor(1) as worker:
        asyncio.run(ticks(worker, 3))
        assert (live.reads, still.reads) == (3, 1)
        asyncio.run(watch.poll(worker))
        assert (live.reads, still.reads) == (4, 2)
        monkeypatch.setattr(map_watch, "_SLOW_NS", 0)
        asyncio.run(ticks(worker, 1))  # the time from the reading before
        assert still.reads == 2
        asyncio.run(watch.poll(worker))
        asyncio.run(ticks(worker, 1))
        assert still.reads == 4


def test_a_session_that_comes_again_is_read_at_once() -> None:
    """The reading of the one that is gone does not put that of the next off."""
    first, second = OneReader("still", live=False), OneReader("still", live=False)
    readers: list[Any] = [first, second]
    watch = BpfWatch()

    async def tick(worker: ThreadPoolExecutor) -> None:
        watch.tick(worker)
        await watch.join()

    with ThreadPoolExecutor(1) as worker:
        watch.add(readers[0], ())
        asyncio.run(tick(worker))
        watch.forget("still")
        watch.add(readers[1], ())
        asyncio.run(tick(worker))
    assert (first.reads, second.reads) == (1, 1)


def test_a_session_that_comes_again_has_no_old_trouble() -> None:
    """Nor does a reader that it had before tell any, which is not read again."""
    first, second = Failing("one", live=True), OneReader("one", live=True)
    readers: list[Any] = [first, second]
    watch = BpfWatch()
    watch.add(readers[0], ())
    with ThreadPoolExecutor(1) as worker:
        asyncio.run(watch.poll(worker))
        assert watch.trouble("one") == "maps not read: no"
        watch.add(readers[1], ())
        assert watch.trouble("one") == ""
        watch.remove(readers[0])
        asyncio.run(watch.poll(worker))
        watch.remove(readers[1])
        asyncio.run(watch.poll(worker))
    assert (first.reads, second.reads) == (1, 1)
