# SPDX-License-Identifier: Apache-2.0
"""The regular readings of all BPF programs of a daemon, beside the event loop."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from collectord.errors import KernelError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
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


@dataclass(slots=True)
class _Watched:
    """The programs of a session.

    Attributes:
        reader: reads them.
        status: their last status.
        is_read: they are read; False once they are about to be unloaded.
        trouble: why the last reading failed, "" if it did not.
        due_ns: when they are read next, if they have no live figures.
    """

    reader: BpfReader
    status: tuple[BpfStatus, ...]
    is_read: bool = True
    trouble: str = ""
    due_ns: int = 0


class BpfWatch:
    """Starts the readers of all sessions, once per flush interval at most.

    Those without live figures, as of flight recorders, are read every ten seconds.

    A reading takes system calls, and time that grows with the maps: it is for a worker thread.
    """

    def __init__(self) -> None:
        self._watched: dict[str, _Watched] = {}  # by session
        self._reading: asyncio.Task[None] | None = None
        self._report: _Report | None = None

    def report(self, interval_ns: int, then: Callable[[Mapping[str, Contents]], None]) -> None:
        """Read the tables for answers too, from now on at this interval, and pass them on.

        Args:
            interval_ns: it is as long as a flush interval at least.
            then: called in the event loop with the tables by session.
        """
        self._report = _Report(interval_ns, time.monotonic_ns() + interval_ns, then)

    def add(self, reader: BpfReader, first: tuple[BpfStatus, ...]) -> None:
        """Read a session's programs from now on, instead of others that it had before."""
        self._watched[reader.session] = _Watched(reader, first)

    def remove(self, reader: BpfReader) -> None:
        """Stop reading a session's programs; keep their last status. No reading may run."""
        one = self._watched.get(reader.session)
        if one is not None and one.reader is reader:
            one.is_read = False

    def forget(self, session: str) -> None:
        """Remove a session that is gone, or has failed, with the last status of its programs."""
        self._watched.pop(session, None)

    @property
    def is_idle(self) -> bool:
        """Whether there is no program to read at each flush."""
        return not any(one.reader.has_live_figures for one in self._each())

    def trouble(self, session: str) -> str:
        """Return why the last reading of a session's programs failed, "" if it did not."""
        one = self._watched.get(session)
        return one.trouble if one is not None else ""

    async def join(self) -> None:
        """Wait for a reading in progress: descriptors must not close during it."""
        if self._reading is not None:
            await self._reading

    def status(self) -> tuple[BpfStatus, ...]:
        """Return the last status of all programs."""
        return tuple(status for one in self._watched.values() for status in one.status)

    def tick(self, worker: Executor) -> None:
        """Start a reading, unless one is in progress."""
        if any(self._due()) and (self._reading is None or self._reading.done()):
            reading = self._read_and_report(worker)
            self._reading = asyncio.get_running_loop().create_task(reading)

    async def poll(self, worker: Executor) -> None:
        """Read a last time, when programs count no more."""
        await self.join()
        await self._read(worker, self._each())

    async def contents(self, worker: Executor) -> dict[str, Contents]:
        """Read the tables that the answers of each session need; after the last reading."""
        loop = asyncio.get_running_loop()
        found: dict[str, Contents] = {}
        for one in self._each():
            session = one.reader.session
            try:
                found[session] = await loop.run_in_executor(worker, one.reader.read_answers)
            except KernelError as error:
                _LOG.error("maps_not_read", session=session, error=str(error))
        return found

    def _each(self) -> Iterator[_Watched]:
        """Yield the programs that are read, without those that leave meanwhile."""
        return (one for one in tuple(self._watched.values()) if self._is_read(one))

    def _is_read(self, one: _Watched) -> bool:
        return one.is_read and self._watched.get(one.reader.session) is one

    def _due(self) -> Iterator[_Watched]:
        """Yield those to read now."""
        for one in self._each():
            if one.reader.has_live_figures or time.monotonic_ns() >= one.due_ns:
                yield one

    async def _read_and_report(self, worker: Executor) -> None:
        await self._read(worker, self._due())
        report, now_ns = self._report, time.monotonic_ns()
        if report is not None and now_ns >= report.due_ns:
            late_ns = (now_ns - report.due_ns) % report.interval_ns
            self._report = report._replace(due_ns=now_ns - late_ns + report.interval_ns)
            report.then(await self.contents(worker))

    async def _read(self, worker: Executor, each: Iterable[_Watched]) -> None:
        loop = asyncio.get_running_loop()
        for one in each:
            one.due_ns = time.monotonic_ns() + _SLOW_NS
            trouble = ""
            try:
                status = await loop.run_in_executor(worker, one.reader.read)
            except KernelError as error:
                trouble = f"maps not read: {error}"
                if not one.trouble:
                    _LOG.error("maps_not_read", session=one.reader.session, error=str(error))
            else:
                if not self._is_read(one):
                    continue
                one.status = status
            one.trouble = trouble
