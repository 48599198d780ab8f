# SPDX-License-Identifier: Apache-2.0
"""Notifications that the service manager's time limits depend on: signs of life, and requests.

A sign of life means that all drain threads make passes, a request for time that data are written.

A hung drain thread makes no pass, and a hung event loop sends nothing: in both cases the manager
restarts the service. A hung disk stops neither, because writers are other threads.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from collectord.errors import ShardSilent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from collectord.control.service import Service

_LOG: Final = structlog.get_logger()
# One round may come late, and one sign of life may be lost.
_ROUNDS: Final = 3
_PROLONG_INTERVAL_S: Final = 5.0
_PROLONG_S: Final = 30.0


class Drains(Protocol):
    """The part of the core that tells whether its threads make passes."""

    def issued_generation(self) -> int:
        """Return the number of the last flush that was asked for."""

    def request_flush(self) -> int:
        """Ask for a flush, and return its number."""

    def silent_shards(self, generation: int) -> Iterable[int]:
        """Return the threads that have made no pass since a flush was asked for."""


class Watchdog:
    """Gives the manager a sign of life for as long as every drain thread makes passes.

    Args:
        core: its threads are running.
        service: sets the limit.
    """

    def __init__(self, core: Drains, service: Service) -> None:
        self._core = core
        self._service = service
        self._interval_s = service.watchdog_s / _ROUNDS
        self._generation = core.issued_generation()
        self._told: set[int] = set()

    async def watch(self) -> None:
        """Poll several times within the limit, without end; return at once if there is none."""
        while self._interval_s > 0:
            await asyncio.sleep(self._interval_s)
            self.poll()

    def poll(self) -> bool:
        """Give a sign of life if every drain thread has made a pass since the last one.

        An empty pass counts. A thread that has made none is named once.
        """
        silent = set(self._core.silent_shards(self._generation))
        for shard in sorted(silent - self._told):
            error = ShardSilent(shard, self._interval_s)
            _LOG.error("drain_thread_silent", shard=shard, error=str(error))
        self._told = silent
        if silent:
            return False
        self._service.alive()
        issued = self._core.issued_generation()
        # With a long flush interval no pass may be due within the limit.
        is_new = issued > self._generation
        self._generation = issued if is_new else self._core.request_flush()
        return True


async def prolong(service: Service, progress: Callable[[], object]) -> None:
    """Ask for more time as long as there is progress, without end.

    Args:
        service: has the limit.
        progress: changes while something is done; a stop that waits for a hung disk has none.
    """
    before = progress()
    while True:
        await asyncio.sleep(_PROLONG_INTERVAL_S)
        now = progress()
        if now != before:
            service.extend(_PROLONG_S)
        before = now
