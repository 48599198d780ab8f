# SPDX-License-Identifier: Apache-2.0
"""Compresses old segments: it chooses them, and runs the process that does it, one at a time.

The oldest segments come first. The process may take half of what the budget leaves, and none is
started while that is little.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from collectord.errors import SinkError, UnsafePath
from collectord.folders.folder import opened
from collectord.folders.trust import Trust
from collectord.folders.walk import open_folder
from collectord.sink import pack_worker
from collectord.sink.pack import Attempt, Result
from collectord.sink.packing import packing_of
from collectord.sink.segment import group_files, sink_errors
from collectord.text.units import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Executor

    from collectord.folders.folder import Folder
    from collectord.plan.sink_plan import SinkPlan
    from collectord.session.cost_meter import Cost
    from collectord.sink.state_dir import StateDir

_LOG: Final = structlog.get_logger()
_INTERVAL_S: Final = 30.0
# One process takes so much at most, unless the first segment is larger.
_BATCH_BYTES: Final = 64 << 20
_BATCH_SEGMENTS: Final = 64
# A segment that failed, or that somebody else worked on, is tried again after so long.
_AGAIN_NS: Final = 600 * NS_PER_SECOND
_NEVER_NS: Final = 1 << 63
# Less than this part of the budget is not enough to start.
_ROOM: Final = 0.25
_FINAL: Final = frozenset({Result.PACKED, Result.KEPT, Result.UNSOUND})


class Batch(NamedTuple):
    """Segments of one folder."""

    directory: Path
    names: tuple[str, ...]


class _Due(NamedTuple):
    written_ns: int
    directory: Path
    name: str
    bytes: int


class Packer:
    """Compresses the segments of a daemon's sessions.

    Args:
        sinks: returns those of all sessions.
        share: returns the part of a CPU that a process may take now, 0 for none.
        state_dir: is told what was compressed.
    """

    def __init__(
        self,
        sinks: Callable[[], Iterable[SinkPlan]],
        share: Callable[[], float],
        state_dir: StateDir,
    ) -> None:
        self._sinks = sinks
        self._share = share
        self._state_dir = state_dir
        self._later: dict[tuple[Path, str], int] = {}  # when to try a segment again

    async def run(self, worker: Executor) -> None:
        """Compress what is due, for ever; `worker` looks for it."""
        loop = asyncio.get_running_loop()
        while True:
            ages = [sink.compress_after_ns for sink in self._sinks() if sink.compress_after_ns]
            await asyncio.sleep(min([_INTERVAL_S, *(age / NS_PER_SECOND for age in ages)]))
            share = self._share()
            if not share:
                continue
            try:
                batch = await loop.run_in_executor(worker, self.due, time.time_ns())
                if batch is not None:
                    await self._pack(batch, share)
            except (SinkError, OSError) as error:
                _LOG.error("segments_not_compressed", error=str(error))

    def due(self, now_ns: int) -> Batch | None:
        """Return the oldest segments that are to be compressed. Raises SinkError."""
        found: list[_Due] = []
        for sink in {sink.directory: sink for sink in self._sinks()}.values():
            if sink.compress_after_ns:
                directory = Path(sink.directory)
                with sink_errors("cannot read the directory", directory, reading=True):
                    folder = open_folder(directory)
                with folder:
                    found += self._due_in(folder, now_ns - sink.compress_after_ns)
        found.sort()
        names: list[str] = []
        total_bytes = 0
        for one in found:
            total_bytes += one.bytes
            full = len(names) == _BATCH_SEGMENTS or total_bytes > _BATCH_BYTES
            if one.directory != found[0].directory or (names and full):
                break
            names.append(one.name)
        return Batch(found[0].directory, tuple(names)) if names else None

    def _due_in(self, folder: Folder, until_ns: int) -> Iterator[_Due]:
        """Yield the segments of a folder that were written before a time, if not compressed."""
        groups = [group for group in group_files(folder) if group.sealed and group.paths.rotated]
        known = {group.paths.name for group in groups}
        for place in [key for key in self._later if key[0] == folder.path]:
            if place[1] not in known:
                del self._later[place]
        for group in groups:
            name = group.paths.name
            key = folder.path, name
            if self._later.get(key, 0) > time.monotonic_ns():
                continue
            status = folder.stat(name)
            if status is None or status.st_mtime_ns > until_ns:
                continue
            if _is_packed(folder, name):
                self._later[key] = _NEVER_NS
            else:
                yield _Due(status.st_mtime_ns, folder.path, name, status.st_size)

    async def _pack(self, batch: Batch, share: float) -> None:
        """Run a process to its end, or end it. Raises SinkError, OSError."""
        with sink_errors("cannot write to the directory", batch.directory):
            folder = open_folder(batch.directory, Trust.WRITE)
        with folder:
            process = _start(folder, batch, share)
        try:
            with opened(os.pidfd_open(process.pid)) as pidfd:
                await _readable(pidfd)
        finally:
            process.kill()
            answer, _ = process.communicate()
        self._take(batch, answer)

    def _take(self, batch: Batch, answer: bytes) -> None:
        """Note the end of each segment; one without an end was the last of a killed process."""
        told = {
            one["name"]: Attempt(Result(one["result"]), one["detail"])
            for one in map(json.loads, answer.splitlines())
        }
        for name in batch.names:
            path = batch.directory / name
            made = told.get(name, Attempt(Result.FAILED, "the process ended"))
            again_ns = time.monotonic_ns() + _AGAIN_NS
            self._later[batch.directory, name] = _NEVER_NS
            if made.result not in _FINAL:
                self._later[batch.directory, name] = again_ns
            if made.result is Result.PACKED:
                _LOG.info("segment_compressed", path=str(path))
            elif made.went_wrong:
                _LOG.error("segment_not_compressed", path=str(path), error=made.detail)
        failed = sum(made.result is Result.FAILED for made in told.values())
        self._state_dir.compressed(batch.directory, len(batch.names) - len(told) + failed)


def share_of(cost: Cost, cpus: int) -> float:
    """Return the part of one CPU that compression may take, 0 while the budget leaves little."""
    if not cost.budget:
        return 1.0
    room = cost.budget - cost.ratio
    return room * cpus / 2 if room > _ROOM * cost.budget else 0.0


def _is_packed(folder: Folder, name: str) -> bool:
    try:
        with opened(folder.open(name)) as fd:
            return packing_of(fd) is not None
    except (OSError, UnsafePath):
        return False


def _start(folder: Folder, batch: Batch, share: float) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - ourselves
        [
            *(sys.executable, "-I", "-m", pack_worker.__name__),
            *(str(os.getpid()), str(share), str(folder.fd), str(batch.directory), *batch.names),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        pass_fds=(folder.fd,),
        cwd="/",
        env={},
    )


async def _readable(fd: int) -> None:
    """Wait until a descriptor is readable."""
    loop = asyncio.get_running_loop()
    seen = asyncio.Event()
    loop.add_reader(fd, seen.set)
    try:
        await seen.wait()
    finally:
        loop.remove_reader(fd)
