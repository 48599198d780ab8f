# SPDX-License-Identifier: Apache-2.0
"""The segments of one snapshot, until the last of them has ended."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from collectord.errors import SinkError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from collectord.sink.base import SegmentInfo
    from collectord.sink.manifest import SnapshotNote

    End = asyncio.Future[SegmentInfo | None]


class SnapshotSegments:
    """The segments that one snapshot goes into, whose ends it waits for.

    Args:
        note: for their manifests.
        ends: of segments for which an earlier snapshot, which this one takes over, still waits.
    """

    def __init__(self, note: SnapshotNote, ends: Mapping[int, End] | None = None) -> None:
        self.note = note
        self._ends = dict(ends or {})

    def expect(self, token: int) -> None:
        """Add a segment to the snapshot."""
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


def _sealed(ends: Iterable[SegmentInfo | None]) -> list[SegmentInfo]:
    return [info for info in ends if info is not None]
