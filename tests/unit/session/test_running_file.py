# SPDX-License-Identifier: Apache-2.0
"""Readers find each file of a page stream whole before the next one shows anything."""

from __future__ import annotations

import asyncio
import errno
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from collectord.errors import SinkError
from collectord.session.running_file import RunningFile
from collectord.session.task_group import TaskGroup
from tests.support.sessions import parts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Mapping

RING = 10


class Files:
    """A sink that notes what it is to show, and a stream whose writer is the test.

    Attributes:
        shown: {token, pages of the ring} in the order in which files were told to show them.
        refusals: so many calls fail as on a broken disk.
        held: a call waits there while it is clear.
        token: of the file that is written.
        pages: what is in it by now.
        notes: the last words of the session about the subject.
    """

    def __init__(self) -> None:
        self.shown: list[tuple[int, int]] = []
        self.refusals = 0
        self.begun = threading.Event()
        self.held = threading.Event()
        self.held.set()
        self.token = 1
        self.pages = 0
        self.notes: dict[str, str] = {}

    def track_bytes(self) -> tuple[int, dict[int, int]]:
        """Return the running segment's token, and the pages in it."""
        return self.token, {RING: self.pages}

    def flush(self, segment: Any, sizes: Mapping[int, int]) -> None:  # noqa: ANN401 - a segment
        """Show so much. Raises SinkError."""
        self.begun.set()
        assert self.held.wait(10)
        if self.refusals:
            self.refusals -= 1
            raise SinkError("cannot update the segment", path="x", errno=errno.EIO)
        self.shown.append((segment.token, sizes[RING]))

    def note(self, subject: str, text: str) -> None:
        """Note a trouble, or its end."""
        self.notes[subject] = text

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Have the first call of the block wait until the block ends."""
        self.begun.clear()
        self.held.clear()
        try:
            yield
        finally:
            self.held.set()


class Running:
    """The files of a stream, of which the first is written and the next one prepared."""

    def __init__(self, tasks: TaskGroup) -> None:
        self.files = Files()
        self.segments: dict[int, Any] = {}
        one: Any = self.files
        plan: Any = SimpleNamespace(name="box")
        self.file = RunningFile(parts_of(plan, one, tasks=tasks), self.segments)
        self._tasks = tasks
        for token in (1, 2):
            self.prepare(token)

    def prepare(self, token: int, offsets: Mapping[int, int] | None = None) -> None:
        """Open one more segment."""
        places = {RING: 4096} if offsets is None else offsets
        self.segments[token] = SimpleNamespace(token=token, offsets=places)

    def close(self, token: int, pages: int) -> None:
        """Give notice of a segment that the core has closed, as `Rotation` does."""
        tracks = ((RING, pages, ()), (RING + 1, 1, ()))  # the second has joined since
        closed: Any = SimpleNamespace(token=token, tracks=tracks)
        self.file.end(self.segments.pop(token), closed)

    async def show(self) -> list[tuple[int, int]]:
        """Show what is written, and return what was shown until now."""
        self.file.show()
        await self._tasks.join()
        return self.files.shown


def _run(scenario: Callable[[Running], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        with ThreadPoolExecutor(1) as worker:
            await scenario(Running(TaskGroup(worker)))

    asyncio.run(run())


def test_a_file_shows_nothing_before_all_of_the_one_before_it() -> None:
    """Pages behind the last flush of a closed file are shown first; each only once."""

    async def scenario(running: Running) -> None:
        files = running.files
        files.pages = 3
        assert await running.show() == [(1, 3)]
        files.token, files.pages = 2, 1
        running.close(1, 5)
        assert await running.show() == [(1, 3), (1, 5), (2, 1)]
        files.pages = 2
        assert (await running.show())[3:] == [(2, 2)]

    _run(scenario)


def test_several_files_may_have_ended_meanwhile() -> None:
    """They are shown in their order."""

    async def scenario(running: Running) -> None:
        running.prepare(3)
        running.files.token, running.files.pages = 3, 7
        running.close(1, 5)
        running.close(2, 6)
        assert await running.show() == [(1, 5), (2, 6), (3, 7)]

    _run(scenario)


def test_nothing_is_shown_while_the_notice_of_an_end_is_on_the_way() -> None:
    """The core writes the next file by then; how long the one before it is, the notice tells."""

    async def scenario(running: Running) -> None:
        running.files.token, running.files.pages = 2, 1
        assert await running.show() == []
        running.close(1, 5)
        assert await running.show() == [(1, 5), (2, 1)]

    _run(scenario)


def test_a_file_that_ends_while_the_one_before_it_is_shown() -> None:
    """It never shows less than at its end."""

    async def scenario(running: Running) -> None:
        files = running.files
        files.token, files.pages = 2, 1
        running.close(1, 5)
        with files.writing():
            running.file.show()
            await asyncio.to_thread(files.begun.wait, 10)
            running.close(2, 4)
            running.prepare(3)
        files.token, files.pages = 3, 2
        await running._tasks.join()
        assert (2, 1) not in files.shown
        assert await running.show() == [(1, 5), (2, 4), (3, 2)]

    _run(scenario)


def test_a_file_that_ends_while_it_is_shown() -> None:
    """The rest of it is shown before the next one."""

    async def scenario(running: Running) -> None:
        files = running.files
        files.pages = 1
        with files.writing():
            running.file.show()
            await asyncio.to_thread(files.begun.wait, 10)
            running.close(1, 4)
        files.token, files.pages = 2, 2
        await running._tasks.join()
        assert await running.show() == [(1, 1), (1, 4), (2, 2)]

    _run(scenario)


def test_an_end_that_cannot_be_shown_is_tried_again() -> None:
    """The next file waits for it, and the session says what is wrong meanwhile."""

    async def scenario(running: Running) -> None:
        files = running.files
        files.token, files.pages, files.refusals = 2, 1, 1
        running.close(1, 5)
        assert await running.show() == []
        assert "cannot update the segment" in files.notes["show"]
        assert await running.show() == [(1, 5), (2, 1)]
        assert files.notes["show"] == ""

    _run(scenario)


@pytest.mark.parametrize("count", [1, 3])
def test_files_that_show_their_data_by_themselves_are_not_kept(count: int) -> None:
    """The end of a segment that has no pages is not waited for."""

    async def scenario(running: Running) -> None:
        for token in range(10, 10 + count):
            running.prepare(token, {})
            running.close(token, 5)
        running.files.pages = 1
        assert await running.show() == [(1, 1)]

    _run(scenario)
