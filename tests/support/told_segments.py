# SPDX-License-Identifier: Apache-2.0
"""Segments of known clocks, rings and balances, to ask what their manifests tell."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import msgspec

from collectord.model import ClockReading
from collectord.sink.base import Opening
from tests.support.segments import (
    RINGS,
    closed,
    closing,
    make_sink,
    sample_chunks,
    write_data,
)

if TYPE_CHECKING:
    from pathlib import Path

    from collectord.sink.base import SegmentInfo
    from collectord.sink.manifest import RingEntry
    from collectord.sink.perf_data_sink import PerfDataSink

SECOND: Final = 1_000_000_000
UTC_NS: Final = 1_700_000_000 * SECOND
DATA, SIDEBAND = RINGS
FULL: Final = "kernel_ring/ring_full"
DISK: Final = "sink/disk_full"


def reading(second: float) -> ClockReading:
    """Return a reading so long after the boot; no two of its clocks show the same."""
    at = round(second * SECOND)
    return ClockReading(
        monotonic_ns=at, realtime_ns=UTC_NS + at, perf_ns=at + 7, bracket_ns=round(second)
    )


def utc(second: float, past_ns: int = 0) -> str:
    """Return a time after the boot as a query prints it, 2023-11-14 22:13:20 being 0."""
    minutes, seconds = divmod(round(second * SECOND) + past_ns + 20 * SECOND, 60 * SECOND)
    whole, ns = divmod(seconds, SECOND)
    hours, minutes = divmod(minutes + 13, 60)
    fraction = f".{ns:09}".rstrip("0") if ns else ""
    return f"2023-11-14 {22 + hours:02}:{minutes:02}:{whole:02}{fraction}"


def balance(**values: Any) -> dict[str, Any]:  # noqa: ANN401 - of a ledger
    """Return the ledger of a manifest, in which only these values are not 0."""
    nothing = {"produced": 0, "stored": 0, "lost": {}, "overwritten": 0, "repeated": 0}
    return {"basis": "exact", **nothing, "in_flight": 0, "unaccounted": 0, **values}


def rings(*cpus: int) -> tuple[RingEntry, ...]:
    """Return a ring of events for each CPU, and one of other records for the first."""
    data = [
        msgspec.structs.replace(DATA, ring=2 * number, cpu=cpu) for number, cpu in enumerate(cpus)
    ]
    return (*data, msgspec.structs.replace(SIDEBAND, cpu=cpus[0]))


def told_segment(
    sink: PerfDataSink,
    between: tuple[float, float],
    samples: tuple[int, ...] = (250,),
    ledger: dict[str, Any] | None = None,
    *,
    opening: dict[str, Any] | None = None,
    cpus: tuple[int, ...] = (0,),
    **values: Any,  # noqa: ANN401 - of Closing
) -> SegmentInfo:
    """Create, fill and seal a segment.

    Args:
        sink: of `segments.make_sink`.
        between: the seconds after the boot at which the clocks are read.
        samples: of each CPU.
        ledger: its balance.
        opening: more that is known at its beginning.
        cpus: those that have a ring.
        values: more that is known at its end.
    """
    since, until = map(reading, between)
    first = Opening(clock=since, rings=rings(*cpus), **(opening or {}))
    segment = sink.next_segment(1, first)
    chunks = sample_chunks(sum(samples))
    write_data(segment, chunks)
    event = closed(segment, chunks, sum(samples))
    size = sum(map(len, chunks))
    event = event._replace(
        rings=tuple((2 * at, n, size) for at, n in enumerate(samples)),
        first_ns=since.perf_ns + 1,  # the clock of such files
        last_ns=until.perf_ns - 1,
    )
    last = closing(clock=until, rings=rings(*cpus), ledger=ledger or balance(), **values)
    info = sink.seal(segment, event, last)
    assert info is not None
    return info


def write_run(directory: Path) -> list[SegmentInfo]:
    """Write the segments of one run, with losses and what is counted before it is stored."""
    sink = make_sink(directory)
    return [
        told_segment(
            sink,
            (100, 110),
            (60, 38),
            balance(
                produced=110,
                stored=100,
                lost={FULL: 4, DISK: 0},
                in_flight=6,
                since_ns=99 * SECOND,
                until_ns=109 * SECOND,
            ),
            cpus=(0, 3),
        ),
        told_segment(
            sink,
            (110, 120),
            (100, 80),
            balance(
                produced=303,
                stored=280,
                lost={FULL: 4, DISK: 11},
                in_flight=5,
                overwritten=3,
                repeated=2,
                since_ns=109 * SECOND,
                until_ns=119 * SECOND,
            ),
            cpus=(0, 3),
        ),
        told_segment(
            sink,
            (120, 130),
            (105, 0),
            balance(
                produced=403,
                stored=383,
                lost={FULL: 4, DISK: 11},
                overwritten=3,
                repeated=7,
                unaccounted=2,
                since_ns=119 * SECOND,
                until_ns=129 * SECOND,
            ),
            cpus=(0, 3),
        ),
    ]


def manifest_path(info: SegmentInfo) -> Path:
    """Return the path of a segment's manifest."""
    return info.path.with_name(f"{info.path.name}.json")


def change(info: SegmentInfo, **values: Any) -> None:  # noqa: ANN401 - JSON
    """Change values in a segment's manifest."""
    path = manifest_path(info)
    path.write_text(json.dumps(json.loads(path.read_bytes()) | values))
