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

    from collectord.maps.reader import BpfReader
    from collectord.maps.status import BpfStatus
    from collectord.maps.table import TableContents

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
        self._look: asyncio.Task[None] | None = None
        self._failing = False

    def add(self, session: str, reader: BpfReader) -> None:
        """Look at this session's programs too; the first time at once."""
        self._readers[session] = reader
        self._last[session] = reader.read()

    def status(self) -> tuple[BpfStatus, ...]:
        """All programs as they were last looked at."""
        return tuple(status for statuses in self._last.values() for status in statuses)

    def tick(self, worker: Executor) -> None:
        """Begin a look, unless one is still on its way."""
        if self._readers and (self._look is None or self._look.done()):
            self._look = asyncio.get_running_loop().create_task(self._read(worker))

    async def finish(self, worker: Executor) -> dict[str, Contents]:
        """Look a last time, when programs count no more.

        Returns:
            what the answers of each session's programs are made of.
        """
        if self._look is not None:
            await self._look
        await self._read(worker)
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
        failed = ""
        for session, reader in self._readers.items():
            try:
                self._last[session] = await loop.run_in_executor(worker, reader.read)
            except KernelError as error:
                failed = str(error)
                if not self._failing:
                    _LOG.error("maps_not_read", session=session, error=failed)
        self._failing = bool(failed)
