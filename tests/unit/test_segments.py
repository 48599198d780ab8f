# SPDX-License-Identifier: Apache-2.0
"""Which segments a snapshot waits for: all that something was written to, and no other."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from collectord.jobs import Jobs
from collectord.segments import Collected, Segments
from collectord.sink.manifest import SnapshotNote

if TYPE_CHECKING:
    from pathlib import Path

DATA_OFFSET = 4096
LIMIT_BYTES = 1 << 20


class Stream:
    """Writes nothing by itself; its segments are those that the sink made."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._directory = directory
        self._stack = stack
        self.token = 1
        self.rotated = 0

    def track_bytes(self) -> tuple[int, dict[int, int]]:
        """What runs; no format of pages."""
        return self.token, {}

    def prepare(self, *_segment: int) -> None:
        """There it is."""

    def rotate(self) -> None:
        """The core ignores it where nothing was written."""
        self.rotated += 1

    def next_segment(self, token: int, _opening: object) -> Any:  # noqa: ANN401 - a segment
        """A file with its head."""
        fd = os.open(self._directory / str(token), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        self._stack.callback(os.close, fd)
        os.pwrite(fd, bytes(DATA_OFFSET), 0)
        return SimpleNamespace(
            token=token,
            fd=fd,
            files={},
            offsets={},
            data_offset=DATA_OFFSET,
            limit_bytes=LIMIT_BYTES,
            step_bytes=0,
        )

    def write(self, token: int) -> None:
        """A chunk of data."""
        path = self._directory / str(token)
        path.write_bytes(bytes(2 * DATA_OFFSET))


@pytest.mark.parametrize(
    ("running", "written", "expected"),
    [
        (1, (), []),  # nothing at all
        (1, (1,), [1]),
        (2, (1,), [1]),  # the first has reached its limit, and its notice is on the way
        (2, (1, 2), [1, 2]),
    ],
)
def test_an_empty_segment_is_not_waited_for(
    tmp_path: Path, running: int, written: tuple[int, ...], expected: list[int]
) -> None:
    """It would not be closed before the next snapshot, and this one never end."""

    async def scenario(stack: ExitStack) -> tuple[list[int], int]:
        stream = Stream(tmp_path, stack)
        jobs = Jobs(stack.enter_context(ThreadPoolExecutor(1)))
        one: Any = stream
        segments = Segments(
            SimpleNamespace(single_file=None),  # type: ignore[arg-type]  # as much as is looked at
            stream=one,
            sink=one,
            store=one,
            drain=one,
            accounts=SimpleNamespace(opening=lambda: None),  # type: ignore[arg-type]  # likewise
            health=SimpleNamespace(note=lambda *_: True),  # type: ignore[arg-type]  # likewise
            jobs=jobs,
            shown=False,
            session="box",
        )
        await segments.begin()
        segments.segment_wanted()
        await jobs.join()
        for token in written:
            stream.write(token)
        stream.token = running
        collected = Collected(SnapshotNote(trigger="request", taken_ns=1))
        segments.turn(collected)
        return sorted(collected.under_way()), stream.rotated

    with ExitStack() as stack:
        waited, rotated = asyncio.run(scenario(stack))
    assert waited == expected
    assert rotated == (running in written)
