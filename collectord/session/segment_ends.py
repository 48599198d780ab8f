# SPDX-License-Identifier: Apache-2.0
"""The ends of segments that a snapshot, or a requested rotation, waits for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from collectord.errors import SinkError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from collectord.sink.base import SegmentInfo
    from collectord.sink.manifest import SnapshotNote

    End = asyncio.Future[SegmentInfo | None]


class SegmentEnds:
    """Segments by token, each of which will be sealed, or dropped, or can be neither.

    Args:
        ends: those that somebody else waits for, and which are waited for here too.
    """

    def __init__(self, ends: Mapping[int, End] | None = None) -> None:
        self._ends = dict(ends or {})

    def expect(self, token: int) -> None:
        """Wait for this segment."""
        if token not in self._ends:
            self._ends[token] = asyncio.get_running_loop().create_future()

    def notify(self, token: int, end: SegmentInfo | SinkError | None) -> None:
        """Note that a segment was sealed, or dropped because it was empty, or can be neither."""
        waiting = self._ends.get(token)
        if waiting is None or waiting.done():
            return
        if isinstance(end, SinkError):
            waiting.set_exception(end)
        else:
            waiting.set_result(end)

    def fail(self, error: SinkError) -> None:
        """Note that the segments that are still awaited may never be sealed."""
        for token in self.under_way():
            self.notify(token, error)

    async def ends(self) -> list[SegmentInfo]:
        """Wait for all of them; return those that are not empty. Raises SinkError."""
        return _sealed(await asyncio.gather(*self._ends.values()))

    def told(self) -> tuple[list[SegmentInfo], bool]:
        """Return the segments sealed so far, and whether all are, without a failure."""
        told = [end for end in self._ends.values() if end.done()]
        well = [end for end in told if end.exception() is None]
        return _sealed(end.result() for end in well), len(well) == len(self._ends)

    def under_way(self) -> dict[int, End]:
        """Return the ends that are still awaited, by token."""
        return {token: end for token, end in self._ends.items() if not end.done()}


class SnapshotSegments(SegmentEnds):
    """The segments that one snapshot goes into, whose ends it waits for.

    Args:
        note: for their manifests.
        ends: of segments for which an earlier snapshot, which this one takes over, still waits.
    """

    def __init__(self, note: SnapshotNote, ends: Mapping[int, End] | None = None) -> None:
        super().__init__(ends)
        self.note = note


def _sealed(ends: Iterable[SegmentInfo | None]) -> list[SegmentInfo]:
    return [info for info in ends if info is not None]
