# SPDX-License-Identifier: Apache-2.0
"""Segments of relay streams, fed with bytes as the native writer feeds them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from collectord._native._core import SegmentClosed
from collectord.plan.sink_plan import SinkPlan
from collectord.sink.base import Closing, Opening
from collectord.sink.manifest import RingEntry
from collectord.sink.relay_sink import RelaySink
from collectord.sink.sums import sums_of
from tests.support.relay_records import record
from tests.support.segments import CLOCK, IDENTITY, LEDGER

if TYPE_CHECKING:
    from pathlib import Path

    from collectord.sink.base import OpenSegment, SegmentInfo

RINGS = tuple(
    RingEntry(ring=ring, role="data", cpu=cpu, data_bytes=1 << 20, watermark_bytes=1 << 18)
    for ring, cpu in ((4, 0), (5, 2))
)


def make_sink(directory: Path, form: str = "blktrace", **options: str) -> RelaySink:
    """Return a sink of CPUs 0 and 2; CPU 1 is offline."""
    plan = SinkPlan(format=form, directory=str(directory), **options)  # type: ignore[arg-type]
    cpus = {entry.ring: entry.cpu for entry in RINGS}
    return RelaySink(plan, IDENTITY, cpus=cpus, channel="/dev/vdb")


def filled(sink: RelaySink, token: int, data: dict[int, bytes]) -> OpenSegment:
    """Return a segment with these data, written as the core writes them, by ring."""
    segment = sink.next_segment(token, Opening(clock=CLOCK, rings=RINGS))
    for ring, content in data.items():
        os.pwrite(segment.files[ring], content, 0)
    return segment


def closed(token: int, data: dict[int, bytes], *, final: bool = False) -> SegmentClosed:
    """Return the core's event for it."""
    events = {ring: content.count(b"\x07tae") for ring, content in data.items()}
    return SegmentClosed(
        stream=0,
        token=token,
        end_offset=0,
        sums=(),
        chunks=1,
        records=sum(events.values()),
        samples=sum(events.values()),
        replayed=0,
        first_ns=1,
        last_ns=2,
        rings=tuple((ring, events[ring], len(data[ring])) for ring in data),
        final=final,
        tracks=tuple(
            (ring, len(content), sums_of(memoryview(content))) for ring, content in data.items()
        ),
    )


def seal(
    sink: RelaySink, token: int, data: dict[int, bytes], *, final: bool = False
) -> SegmentInfo | None:
    """Write and seal a segment."""
    segment = filled(sink, token, data)
    return sink.seal(
        segment, closed(token, data, final=final), Closing(clock=CLOCK, rings=RINGS, ledger=LEDGER)
    )


DATA = {4: record(1) + record(2), 5: record(1)}
EMPTY = {4: b"", 5: b""}
