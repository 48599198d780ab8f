# SPDX-License-Identifier: Apache-2.0
"""The closed segments of a session that are not sealed yet, and what becomes of it if many are."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import structlog

from collectord.text.units import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from collectord.session.health import Health

_LOG: Final = structlog.get_logger()
# Segments that wait for a seal, each with its files open.
WAITING_MAX: Final = 4
# A burst of small segments is sealed sooner.
_PATIENCE_NS: Final = NS_PER_SECOND
_TROUBLE: Final = "seals take longer than segments fill: files grow beyond segment_bytes"


class SealBacklog:
    """Counts closed segments until their seals.

    While there are too many, no next segment is prepared, and the running one goes on beyond its
    limit, which loses nothing. Otherwise a disk that syncs slowly would have no bound to the
    files that are open on it, and none of them could be deleted.

    Args:
        session: its name, for the log.
        health: is told if the backlog lasts.
        clock_ns: a monotonic clock.
    """

    def __init__(
        self, session: str, health: Health, clock_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._health = health
        self._clock_ns = clock_ns
        self._log = _LOG.bind(session=session, limit_by=session)
        self._count = 0
        self._fewer = asyncio.Event()  # one is sealed since somebody began to wait for that
        self._awaited = asyncio.Event()  # somebody waits
        self._full_since_ns = 0

    @property
    def is_full(self) -> bool:
        """Whether too many segments wait for their seals."""
        return self._count > WAITING_MAX

    def add(self) -> None:
        """Count a segment that was closed."""
        self._count += 1
        if self.is_full and not self._full_since_ns:
            self._full_since_ns = self._clock_ns()

    def remove(self) -> None:
        """Count one less: it is sealed, or given up. Without any the backlog is over."""
        self._count -= 1
        self._fewer.set()
        if self._count == 0 and self._full_since_ns:
            self._full_since_ns = 0
            self._health.note("seals", "")

    async def wait(self, seconds: float) -> None:
        """Wait while it is full, but not for longer than this."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.is_full:
                    self._awaited.set()
                    self._fewer.clear()
                    await self._fewer.wait()
        self._awaited.clear()

    async def unless_awaited(self, answer: Coroutine[Any, Any, object]) -> None:
        """Wait for an answer, but no longer once somebody waits for seals."""
        tasks = (asyncio.ensure_future(answer), asyncio.ensure_future(self._awaited.wait()))
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def poll(self) -> None:
        """Report a backlog that lasts: some segment has waited since there were too many."""
        since_ns = self._full_since_ns
        if not since_ns or self._clock_ns() - since_ns < _PATIENCE_NS:
            return
        if self._health.note("seals", _TROUBLE):
            self._log.warning("seals_behind", waiting=self._count)
