# SPDX-License-Identifier: Apache-2.0
"""The looks at all BPF programs of a daemon, beside the event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog

from collectord.errors import KernelError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Executor

    from collectord.session.maps.map_reader import BpfReader
    from collectord.session.maps.program_status import BpfStatus
    from collectord.session.maps.table import TableContents

    # Of a session, by program and table.
    Contents = Mapping[str, Mapping[str, TableContents]]

_LOG: Final = structlog.get_logger()


class BpfWatch:
    """Has the readers of all sessions look, once per flush interval at most.

    A look takes system calls, and time that grows with the maps: it is for a worker thread.
    """

    def __init__(self) -> None:
        self._readers: dict[str, BpfReader] = {}
        self._last: dict[str, tuple[BpfStatus, ...]] = {}
        self._troubles: dict[str, str] = {}
        self._look: asyncio.Task[None] | None = None

    def add(self, session: str, reader: BpfReader) -> None:
        """Look at this session's programs too; the first time at once. Raises KernelError."""
        self._last[session] = reader.read()
        self._readers[session] = reader

    def remove(self, session: str) -> None:
        """Look at them no more; what they were last is told still. No look may be on its way."""
        self._readers.pop(session, None)

    def forget(self, session: str) -> None:
        """Tell nothing more of a session that failed."""
        self.remove(session)
        self._last.pop(session, None)

    @property
    def is_idle(self) -> bool:
        """There is no program to look at."""
        return not self._readers

    def trouble(self, session: str) -> str:
        """Why the last look at a session's programs failed, "" if it did not."""
        return self._troubles.get(session, "")

    async def join(self) -> None:
        """Wait for a look that is on its way: descriptors must not close under it."""
        if self._look is not None:
            await self._look

    def status(self) -> tuple[BpfStatus, ...]:
        """All programs as they were last looked at."""
        return tuple(status for statuses in self._last.values() for status in statuses)

    def tick(self, worker: Executor) -> None:
        """Begin a look, unless one is still on its way."""
        if self._readers and (self._look is None or self._look.done()):
            self._look = asyncio.get_running_loop().create_task(self._read(worker))

    async def poll(self, worker: Executor) -> None:
        """Look a last time, when programs count no more."""
        await self.join()
        await self._read(worker)

    async def contents(self, worker: Executor) -> dict[str, Contents]:
        """Read what the answers of each session's programs are made of; after the last look."""
        loop = asyncio.get_running_loop()
        found: dict[str, Contents] = {}
        for session, reader in self._readers.items():
            try:
                found[session] = await loop.run_in_executor(worker, reader.read_answers)
            except KernelError as error:
                _LOG.error("maps_not_read", session=session, error=str(error))
        return found

    async def _read(self, worker: Executor) -> None:
        loop = asyncio.get_running_loop()
        for session, reader in self._readers.items():
            trouble = ""
            try:
                self._last[session] = await loop.run_in_executor(worker, reader.read)
            except KernelError as error:
                trouble = f"maps not read: {error}"
                if not self._troubles.get(session):
                    _LOG.error("maps_not_read", session=session, error=str(error))
            self._troubles[session] = trouble
