# SPDX-License-Identifier: Apache-2.0
"""The running segment of a stream, as readers find it: its data so far, and a link to it.

A segment shows nothing before all of the one before it is shown: what readers find of a session
has an end, but no gap.
"""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING, Final

import structlog

from collectord.errors import SinkError
from collectord.sink.segment import PASSING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from collectord._native import _core
    from collectord.session.session_parts import SessionParts
    from collectord.sink.base import OpenSegment

_LOG: Final = structlog.get_logger()


class RunningFile:
    """Shows the running one among the open segments of a stream.

    Args:
        parts: the stream, and the sink of its files.
        segments: the open ones by token; the caller adds and removes them.

    Attributes:
        lock: held while a file is changed; nothing is shown while somebody else holds it.
    """

    def __init__(self, parts: SessionParts, segments: Mapping[int, OpenSegment]) -> None:
        self._stream = parts.stream
        self._sink = parts.sink
        self._health = parts.health
        self._tasks = parts.tasks
        self._segments = segments
        self._log = _LOG.bind(session=parts.plan.name)
        self._last: tuple[int, Mapping[int, int]] = (0, {})
        self._ended: list[tuple[OpenSegment, Mapping[int, int]]] = []  # not shown to the end
        self._link_due = False  # there was no room for it
        self.lock = asyncio.Lock()

    def show(self) -> None:
        """Show what has been written until now, if that is more than the last time."""
        if self._link_due:
            self.lead()
        token, sizes = self._stream.track_bytes()
        segment = self._segments.get(token)
        if not sizes:
            error = self._stream.tell_error()
            name = errno.errorcode.get(error, error)
            self._health.note("show", f"cannot update the segment ({name})" if error else "")
        elif segment and (token, sizes) != self._last and not self.lock.locked():
            self._tasks.start(self._show(segment, sizes))

    def end(self, segment: OpenSegment, closed: _core.SegmentClosed) -> None:
        """Note that a segment was closed: all of it is shown before anything of the next one."""
        if segment.offsets:
            sizes = {ring: size for ring, size, _ in closed.tracks if ring in segment.offsets}
            self._ended.append((segment, sizes))

    async def _show(self, segment: OpenSegment, sizes: Mapping[int, int]) -> None:
        async with self.lock:
            if segment.token not in self._segments:
                return  # it closed meanwhile, and its seal writes the same
            if segment.token != min(self._segments):
                return  # the notice that the one before it was closed is on the way
            try:
                while self._ended:
                    await self._tasks.in_worker(self._sink.flush, *self._ended[0])
                    del self._ended[0]
                    if segment.token not in self._segments:
                        return  # it closed meanwhile: it is among those that ended
                await self._tasks.in_worker(self._sink.flush, segment, sizes)
            except SinkError as error:
                self._health.note("show", str(error))
            else:
                self._last = (segment.token, sizes)
                self._health.note("show", "")

    def lead(self) -> None:
        """Point the link to the running segment; if there is no room, at a later `show`."""
        token, _ = self._stream.track_bytes()
        segment = self._segments.get(token)
        if segment is not None:
            self._tasks.start(self._lead(segment))

    async def _lead(self, segment: OpenSegment) -> None:
        async with self.lock:
            try:
                await self._tasks.in_worker(self._sink.lead, segment)
            except SinkError as error:
                self._link_due = error.errno in PASSING
                if not self._link_due:
                    self._log.warning("current_link_not_set", error=str(error))
            else:
                self._link_due = False
