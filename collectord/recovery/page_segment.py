# SPDX-License-Identifier: Apache-2.0
"""Recover stage: write a sealed segment of pages that nobody drained: salvaged or late ones."""

from __future__ import annotations

import os
from contextlib import closing as closed_after
from typing import TYPE_CHECKING, Final

from collectord._native._core import SegmentClosed
from collectord.codec.file_formats import TRACE_DAT
from collectord.codec.ftrace_format import parse_header_page
from collectord.folders.folder import write_all
from collectord.plan.sink_plan import SinkPlan
from collectord.sink.scan import widest
from collectord.sink.segment import FULL, sink_errors
from collectord.sink.trace_dat_sink import TraceDatSink
from collectord.sink.trace_file import Recount

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from collectord.codec.trace_dat_head import Metadata
    from collectord.sink.base import Closing, Opening, OpenSegment, SegmentInfo
    from collectord.sink.manifest import Identity

_TOKEN: Final = 1
_AHEAD_BYTES: Final = 256 << 10


def salvage(
    directory: Path,
    identity: Identity,
    metadata: Metadata,
    pages: Mapping[int, Iterable[bytes]],
    *,
    opening: Opening,
    closing: Callable[[Mapping[int, int]], Closing],
    comms: Callable[[], Mapping[int, bytes]] = dict,
    make_room: Callable[[int], bool] = lambda _need_bytes: False,
) -> SegmentInfo | None:
    """Write one sealed segment of pages that are taken one by one.

    A page is taken only when there is room for it, so a full disk loses nothing: what was written
    is left to the repair, what was not taken to the next try.

    Args:
        directory: of the session.
        identity: host and session of the pages.
        metadata: formats of their events.
        pages: by CPU, whole sub-buffers in the order of their times.
        opening: as of now; its rings have the CPU as their id.
        closing: called with the number of events stored by CPU, once all pages are written;
            returns the balance and the statistics at that time.
        comms: names of tasks, by pid.
        make_room: called with bytes wanted when the disk is full; True if some were freed.

    Returns:
        None if there was no page.

    Raises:
        SinkError: the segment cannot be written. An OSError of the pages is passed on.
    """
    sink = TraceDatSink(
        SinkPlan(TRACE_DAT, directory=str(directory)),
        identity,
        metadata=metadata,
        cpus={cpu: cpu for cpu in pages},
        make_room=make_room,
        comms=comms,
    )
    with closed_after(sink):
        segment = sink.next_segment(_TOKEN, opening)
        step_bytes = parse_header_page(metadata.header_page).sub_buffer_bytes
        counts = {
            cpu: _write(segment, cpu, taken, Recount(step_bytes), make_room)
            for cpu, taken in pages.items()
        }
        tracks = {cpu: count.track for cpu, count in counts.items()}
        if not any(track.bytes for track in tracks.values()):
            return None
        stored = {cpu: track.samples for cpu, track in tracks.items()}
        first_ns, last_ns = widest((count.first_ns, count.last_ns) for count in counts.values())
        told = SegmentClosed(
            stream=0,
            token=_TOKEN,
            end_offset=0,
            sums=(),
            chunks=0,
            records=sum(stored.values()),
            samples=sum(stored.values()),
            replayed=0,
            first_ns=first_ns,
            last_ns=last_ns,
            rings=tuple((cpu, track.samples, track.bytes) for cpu, track in tracks.items()),
            final=True,
            tracks=tuple((cpu, t.bytes, t.sums) for cpu, t in tracks.items() if t.bytes),
        )
        return sink.seal(segment, told, closing(stored))


def _write(
    segment: OpenSegment,
    cpu: int,
    pages: Iterable[bytes],
    count: Recount,
    make_room: Callable[[int], bool],
) -> Recount:
    """Write one CPU's pages from the start of its extent on, and count them."""
    at = claimed = segment.offsets[cpu]
    taking = iter(pages)
    while True:
        if claimed - at < count.sub_buffer_bytes:
            ahead_bytes = max(_AHEAD_BYTES, count.sub_buffer_bytes)
            with sink_errors("cannot write the segment", segment.paths.partial):
                _claim(segment.meta_fd, at, ahead_bytes, make_room)
            claimed = at + ahead_bytes
        page = next(taking, None)
        if page is None:
            return count
        with sink_errors("cannot write the segment", segment.paths.partial):
            write_all(segment.meta_fd, page, at)
        with memoryview(page) as view:
            count.take(view)
        at += len(page)


def _claim(fd: int, at: int, size_bytes: int, make_room: Callable[[int], bool]) -> None:
    while True:
        try:
            os.posix_fallocate(fd, at, size_bytes)
        except OSError as error:
            if error.errno not in FULL or not make_room(size_bytes):
                raise
        else:
            return
