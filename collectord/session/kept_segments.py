# SPDX-License-Identifier: Apache-2.0
"""The sealed segments of a session, and the limits within which its directory keeps them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from collectord.errors import SinkError
from collectord.model import SinkStats

if TYPE_CHECKING:
    from collections.abc import Iterable

    from collectord.session.session_parts import SessionParts
    from collectord.sink.base import SegmentInfo

_LOG: Final = structlog.get_logger()


class KeptSegments:
    """The segments that a session has stored.

    Args:
        parts: the plan, and the state directory that has the limits.

    Attributes:
        stats: figures of the session's directory, as of the last `refresh`.
        sealed: paths of what this session has sealed, without those that retention has deleted.
        write_errors: failed writes of the core.
        given_up: segments that could not be sealed.
        early: records that the core met before their time, of all sealed segments.
    """

    def __init__(self, parts: SessionParts) -> None:
        self._directory = Path(parts.plan.sink.directory)
        self._state_dir = parts.state_dir
        self._tasks = parts.tasks
        self._log = _LOG.bind(session=parts.plan.name)
        self._limiting = asyncio.Lock()
        self._limits_due = False
        self._changes = 0  # of the segments, by compression
        self.stats = SinkStats()
        self.sealed: tuple[str, ...] = ()
        self.write_errors = self.given_up = self.early = 0

    def poll(self) -> None:
        """Apply the limits if compression has changed segments since the last call."""
        changes = self._state_dir.changes(self._directory)
        if changes != self._changes:
            self._changes = changes
            self._tasks.start(self.keep_limits())

    def add(self, info: SegmentInfo) -> None:
        """Note a segment that was sealed."""
        self.sealed += (str(info.path), *map(str, info.more))
        self._log.info("segment_sealed", path=str(info.path), samples=info.manifest.samples)

    async def make_room(self, room_bytes: int) -> bool:
        """Delete the oldest segments until there is so much room; return whether there is.

        Raises:
            SinkError: the directory cannot be read, or nothing of it deleted.
        """
        return await self._tasks.in_worker(self._state_dir.make_room, room_bytes, self._directory)

    async def keep_limits(self) -> None:
        """Apply the limits to what is sealed by now, unless that is about to begin anyway."""
        if self._limits_due:
            return
        self._limits_due = True
        async with self._limiting:
            self._limits_due = False
            try:
                await self.make_room(0)
                await self.refresh()
            except SinkError as error:
                self._log.error("limits_not_kept", error=str(error))

    async def refresh(self) -> None:
        """Read the figures of the directory again. Raises SinkError."""
        counts = (self.write_errors, self.given_up)
        stats = await self._tasks.in_worker(self._state_dir.stats, self._directory, *counts)
        self.stats = replace(stats, early=self.early)
        gone = await self._tasks.in_worker(_missing, self.sealed)
        self.sealed = tuple(path for path in self.sealed if path not in gone)


def _missing(paths: Iterable[str]) -> set[str]:
    """Return the paths that retention has deleted: the list stays as short as the directory."""
    return {path for path in paths if not Path(path).exists()}
