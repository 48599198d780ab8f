# SPDX-License-Identifier: Apache-2.0
"""The regular readings of all BPF programs of a daemon, beside the event loop."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from collectord.errors import KernelError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from concurrent.futures import Executor

    from collectord.session.maps.map_reader import BpfReader
    from collectord.session.maps.program_status import BpfStatus
    from collectord.session.maps.table import TableContents

    # A session's reader with its first reading.
    FirstReading = tuple[BpfReader, tuple[BpfStatus, ...]]
    # The tables of a session, by program and name.
    Contents = Mapping[str, Mapping[str, TableContents]]

_LOG: Final = structlog.get_logger()
# The time between readings of programs without live figures.
_SLOW_NS: Final = 10_000_000_000


class _Report(NamedTuple):
    """A taker of the tables for answers: how often, when next, and its function."""

    interval_ns: int
    due_ns: int
    then: Callable[[Mapping[str, Contents]], None]


class BpfWatch:
    """Starts the readers of all sessions, once per flush interval at most.

    Those without live figures, as of flight recorders, are read every ten seconds.

    A reading takes system calls, and time that grows with the maps: it is for a worker thread.
    """

    def __init__(self) -> None:
        self._readers: dict[str, BpfReader] = {}
        self._last: dict[str, tuple[BpfStatus, ...]] = {}
        self._troubles: dict[str, str] = {}
        self._due_ns: dict[str, int] = {}
        self._look: asyncio.Task[None] | None = None
        self._report: _Report | None = None

    def report(self, interval_ns: int, then: Callable[[Mapping[str, Contents]], None]) -> None:
        """Have the tables for answers read too, from now on at this interval, and given on.

        Args:
            interval_ns: it is as long as a flush interval at least.
            then: called in the event loop with the tables by session.
        """
        self._report = _Report(interval_ns, time.monotonic_ns() + interval_ns, then)

    def add(self, reader: BpfReader, first: tuple[BpfStatus, ...]) -> None:
        """Read a session's programs from now on, instead of others that it had before."""
        self._last[reader.session] = first
        self._readers[reader.session] = reader

    def remove(self, reader: BpfReader) -> None:
        """Stop reading a session's programs; keep their last status. No reading may run."""
        if self._readers.get(reader.session) is reader:
            del self._readers[reader.session]

    def forget(self, session: str) -> None:
        """Remove a session that is gone, or has failed, with the last status of its programs."""
        self._readers.pop(session, None)
        self._last.pop(session, None)
        self._troubles.pop(session, None)
        self._due_ns.pop(session, None)

    @property
    def is_idle(self) -> bool:
        """Whether there is no program to read at each flush."""
        return not any(reader.has_live_figures for reader in self._readers.values())

    def trouble(self, session: str) -> str:
        """Return why the last reading of a session's programs failed, "" if it did not."""
        return self._troubles.get(session, "")

    async def join(self) -> None:
        """Wait for a reading in progress: descriptors must not close during it."""
        if self._look is not None:
            await self._look

    def status(self) -> tuple[BpfStatus, ...]:
        """Return the last status of all programs."""
        return tuple(status for statuses in self._last.values() for status in statuses)

    def tick(self, worker: Executor) -> None:
        """Start a reading, unless one is in progress."""
        if self._due() and (self._look is None or self._look.done()):
            self._look = asyncio.get_running_loop().create_task(self._look_at_all(worker))

    async def poll(self, worker: Executor) -> None:
        """Read a last time, when programs count no more."""
        await self.join()
        await self._read(worker, tuple(self._readers.items()))

    async def contents(self, worker: Executor) -> dict[str, Contents]:
        """Read the tables that the answers of each session need; after the last reading."""
        loop = asyncio.get_running_loop()
        found: dict[str, Contents] = {}
        for session, reader in self._readers.items():
            try:
                found[session] = await loop.run_in_executor(worker, reader.read_answers)
            except KernelError as error:
                _LOG.error("maps_not_read", session=session, error=str(error))
        return found

    def _due(self) -> tuple[tuple[str, BpfReader], ...]:
        """Return the sessions to read now, with their readers."""
        now_ns = time.monotonic_ns()
        return tuple(
            (session, reader)
            for session, reader in self._readers.items()
            if reader.has_live_figures or now_ns >= self._due_ns.get(session, 0)
        )

    async def _look_at_all(self, worker: Executor) -> None:
        await self._read(worker, self._due())
        report, now_ns = self._report, time.monotonic_ns()
        if report is not None and now_ns >= report.due_ns:
            late_ns = (now_ns - report.due_ns) % report.interval_ns
            self._report = report._replace(due_ns=now_ns - late_ns + report.interval_ns)
            report.then(await self.contents(worker))

    async def _read(self, worker: Executor, readers: Iterable[tuple[str, BpfReader]]) -> None:
        loop = asyncio.get_running_loop()
        for session, reader in readers:
            self._due_ns[session] = time.monotonic_ns() + _SLOW_NS
            if self._readers.get(session) is not reader:
                continue  # it has left meanwhile
            trouble = ""
            try:
                status = await loop.run_in_executor(worker, reader.read)
            except KernelError as error:
                trouble = f"maps not read: {error}"
                if not self._troubles.get(session):
                    _LOG.error("maps_not_read", session=session, error=str(error))
            else:
                if self._readers.get(session) is not reader:
                    continue
                self._last[session] = status
            self._troubles[session] = trouble
