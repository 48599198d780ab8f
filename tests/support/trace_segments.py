# SPDX-License-Identifier: Apache-2.0
"""trace.dat segments without a kernel: a sink fed with pages as the native writer feeds it."""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import msgspec

from collectord._native import _core
from collectord.codec.ftrace_page import Walk
from collectord.codec.trace_dat_head import Head, Metadata
from collectord.plan.sink_plan import SinkPlan
from collectord.sink.base import Closing, Opening
from collectord.sink.manifest import RingEntry
from collectord.sink.sums import sums_of
from collectord.sink.trace_dat_sink import TraceDatSink
from tests.support import segments
from tests.support.ftrace_pages import event, page
from tests.support.golden import GOLDEN

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from collectord.sink.base import OpenSegment, SegmentInfo

PAGE_BYTES: Final = 4096
PID: Final = 4321
EVENT: Final = "syscalls:sys_enter_getppid"
TIME_NS: Final = 1_000_000_000
PER_PAGE: Final = 7
METADATA: Final = Metadata(
    header_page=(GOLDEN / "header_page").read_bytes(),
    header_event=(GOLDEN / "header_event").read_bytes(),
    events={"syscalls": [(GOLDEN / "sys_enter_getppid.format").read_bytes()]},
    ftrace_events=[(GOLDEN / "print.format").read_bytes()],
    uname="Linux host.example 6.18.0",
    version="collectord test",
)
IDENTITY: Final = msgspec.structs.replace(segments.IDENTITY, source="tracefs")
# Ring ids that are no CPU numbers, to tell the two apart.
CPUS: Final = {10: 0, 11: 1}
LEDGER: Final = {"basis": "exact", "produced": 21, "stored": 21, "lost": {}, "unaccounted": 0}

_EVENT_ID: Final = 305  # as the golden format says


def rings(cpus: Mapping[int, int] = CPUS) -> tuple[RingEntry, ...]:
    """Return a session's description of such rings."""
    return tuple(
        RingEntry(ring=ring, role="data", cpu=cpu, data_bytes=1 << 20, watermark_bytes=1 << 18)
        for ring, cpu in cpus.items()
    )


def opening(cpus: Mapping[int, int] = CPUS, **values: Any) -> Opening:  # noqa: ANN401 - of Opening
    """Return what is known at a creation."""
    return replace(Opening(clock=segments.CLOCK, rings=rings(cpus)), **values)


def closing(cpus: Mapping[int, int] = CPUS, **values: Any) -> Closing:  # noqa: ANN401 - of Closing
    """Return what is known at a close."""
    return replace(Closing(clock=segments.CLOCK, rings=rings(cpus), ledger=LEDGER), **values)


def make_sink(directory: Path, **options: Any) -> TraceDatSink:  # noqa: ANN401
    """Make a sink of one event on two CPUs; other options are the plan's."""
    known = ("metadata", "cpus", "make_room", "comms", "recount")
    own = {key: options.pop(key) for key in known if key in options}
    return TraceDatSink(
        SinkPlan(format="trace.dat", directory=str(directory), **options),
        IDENTITY,
        **{"metadata": METADATA, "cpus": CPUS, **own},
    )


def sub_buffer(number: int, events: int = PER_PAGE, *, size_bytes: int = PAGE_BYTES) -> bytes:
    """Return a page of events 1 us apart, 1 ms after the page before."""
    one = event(struct.pack("<HBBii", _EVENT_ID, 0, 0, PID, 110), 1000)
    return page(TIME_NS + number * 1_000_000, *[one] * events, size_bytes=size_bytes)


def sub_buffers(count: int, **options: Any) -> list[bytes]:  # noqa: ANN401 - of sub_buffer
    """Return consecutive pages."""
    return [sub_buffer(number, **options) for number in range(count)]


def write_pages(segment: OpenSegment, ring: int, pages: Sequence[bytes], at: int = 0) -> int:
    """Write pages behind `at` bytes of a ring as the native writer does, into space claimed ahead.

    Gives the bytes that the ring has by then.
    """
    data = b"".join(pages)
    if not data:
        return at
    offset = segment.offsets[ring] + at
    os.posix_fallocate(segment.fd, offset, len(data) + segment.step_bytes)
    with mmap.mmap(-1, len(data)) as aligned:
        aligned[:] = data
        with memoryview(aligned) as view:
            assert os.pwrite(segment.fd, view, offset) == len(data)
    return at + len(data)


def closed(
    segment: OpenSegment, pages: Mapping[int, Sequence[bytes]], *, final: bool = False
) -> _core.SegmentClosed:
    """Return the core's event for a segment with these pages, by ring."""
    times: list[int] = []
    entries, tracks = [], []
    for ring, written in pages.items():
        found = [one.timestamp_ns for raw in written for one in Walk(raw)]
        data = b"".join(written)
        times += found
        entries.append((ring, len(found), len(data)))
        tracks.append((ring, len(data), sums_of(memoryview(data))))
    return _core.SegmentClosed(
        stream=0,
        token=segment.token,
        end_offset=0,
        sums=(),
        chunks=1,
        records=len(times),
        samples=len(times),
        replayed=0,
        first_ns=min(times, default=0),
        last_ns=max(times, default=0),
        rings=tuple(entries),
        final=final,
        tracks=tuple(tracks),
    )


def fill(
    segment: OpenSegment,
    counts: Iterable[int] = (2, 1),
    **options: Any,  # noqa: ANN401
) -> _core.SegmentClosed:
    """Write so many pages into the rings' extents, in the order of the rings."""
    pages = dict(zip(segment.offsets, (sub_buffers(n, **options) for n in counts), strict=False))
    for ring, written in pages.items():
        write_pages(segment, ring, written)
    return closed(segment, pages)


def write_segment(
    sink: TraceDatSink, token: int = 1, counts: Iterable[int] = (2, 1)
) -> SegmentInfo:
    """Create, fill and seal one segment."""
    segment = sink.next_segment(token, opening())
    info = sink.seal(segment, fill(segment, counts), closing())
    assert info is not None
    return info


def orphan(directory: Path, counts: Iterable[int] = (2, 1), **options: Any) -> Path:  # noqa: ANN401
    """Leave a segment whose writer was killed before it sealed it; give its partial file."""
    before = set(directory.glob("*.partial"))
    segments.killed(
        lambda: fill(make_sink(directory, **options).next_segment(1, opening()), counts)
    )
    (left,) = set(directory.glob("*.dat.partial")) - before
    return left


def cpustat(head: Head, cpu: int) -> str:
    """Return the text in the room for a CPU's statistics."""
    room = head.extents[cpu].stat
    image = bytes(head.image)[room.offset : room.offset + room.size_bytes]
    return image.rstrip(b"\0 ").decode(errors="replace")
