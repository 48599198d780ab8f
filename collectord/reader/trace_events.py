# SPDX-License-Identifier: Apache-2.0
"""Sink stage: the events of a trace.dat segment, read back by sub-buffers."""

from __future__ import annotations

import heapq
import os
from typing import TYPE_CHECKING, Final, NamedTuple

from collectord.codec.ftrace_format import known_events
from collectord.codec.ftrace_page import PageFault, Walk
from collectord.codec.tracing_data import MAGIC as TRACE_MAGIC
from collectord.errors import CodecError, SinkError, UsageError
from collectord.reader.perf_events import sealed_manifest
from collectord.sink.segment import SegmentPaths, sink_errors
from collectord.sink.trace_file import read_head

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_UNREADABLE: Final = "cannot read the segment"
_IDLE: Final = "<idle>"
_NAMELESS: Final = "<...>"


class Record(NamedTuple):
    """One event: its payload, time and CPU."""

    time_ns: int
    cpu: int
    payload: bytes


class Loss(NamedTuple):
    """Events that the ring lost before the next one of its CPU; None: their number is unknown.

    `wrapped`: a flight recorder's ring overwrote them, which is no loss.
    """

    time_ns: int
    cpu: int
    events: int | None
    wrapped: bool = False


class Damage(NamedTuple):
    """A sub-buffer that cannot be walked to its end; `offset` is where it fails, in the file."""

    time_ns: int
    cpu: int
    offset: int
    fault: PageFault


# Two of them at the same time differ in the CPU, so their order is always defined.
Happening = Record | Loss | Damage


class TraceSegment:
    """An open trace.dat, sealed or not, with its head at the time of opening.

    A segment that is being written shows what its head claimed when it was opened: that is whole.

    Attributes:
        path: of the file.
        events: by the `common_type` of their records.

    Raises:
        UsageError: the file has another format.
        SinkError: it cannot be read, or its head is damaged.
    """

    def __init__(self, fd: int, path: Path) -> None:
        self._fd = fd
        self.path = path
        with sink_errors(_UNREADABLE, path, reading=True):
            if os.pread(fd, len(TRACE_MAGIC), 0) != TRACE_MAGIC:
                raise UsageError(f"{path} is neither trace.dat nor perf.data")
            try:
                head = read_head(fd)
                self.events = known_events(head.metadata)
            except CodecError as error:
                raise SinkError(
                    f"it does not have the layout of a segment, {error.message}",
                    path=str(path),
                    hint="trace-cmd report may still read it",
                ) from error
        self._wraps = _wraps(path)
        self._extents = head.extents
        self._sub_buffer_bytes = head.sub_buffer_bytes
        self._comms = {
            pid: comm.decode(errors="backslashreplace") for pid, comm in head.comms().items()
        }

    def comm(self, pid: int | None) -> str:
        """Return a task's name in the segment."""
        if not pid:
            return _NAMELESS if pid is None else _IDLE
        return self._comms.get(pid, _NAMELESS)

    def by_time(self) -> Iterator[Happening]:
        """Yield what happened on all CPUs, in the order of time. Raises as `by_cpu`."""
        return heapq.merge(*map(self._track, self._extents))

    def by_cpu(self) -> Iterator[Happening]:
        """Yield what happened on one CPU after the other, which is cheaper.

        Raises:
            SinkError: the segment cannot be read any further.
        """
        for cpu in self._extents:
            yield from self._track(cpu)

    def _track(self, cpu: int) -> Iterator[Happening]:
        extent = self._extents[cpu]
        for at in range(extent.offset, extent.offset + extent.size_bytes, self._sub_buffer_bytes):
            with sink_errors(_UNREADABLE, self.path, reading=True):
                page = os.pread(self._fd, self._sub_buffer_bytes, at)
            walk = Walk(page)
            if walk.events_lost:
                yield Loss(walk.timestamp_ns, cpu, walk.lost_events, self._wraps)
            for time_ns, offset, size_bytes in walk:
                yield Record(time_ns, cpu, page[offset : offset + size_bytes])
            if walk.fault is not None:
                time_ns = walk.position.timestamp_ns
                yield Damage(time_ns, cpu, at + walk.position.offset, walk.fault)
            if len(page) < self._sub_buffer_bytes:
                return


def _wraps(path: Path) -> bool:
    """Whether the rings were a flight recorder's, according to the ledger beside the segment."""
    manifest = sealed_manifest(SegmentPaths(path.parent, path.name).manifest)
    return manifest is not None and bool(manifest.ledger.get("overwritten"))
