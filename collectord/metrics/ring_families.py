# SPDX-License-Identifier: Apache-2.0
"""Metric families of rings: their sizes, their fill, and what is read from them."""

from __future__ import annotations

from collections import defaultdict
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from prometheus_client.core import HistogramMetricFamily

from collectord.metrics.families import Labelling, counter, gauge, highest
from collectord.text.units import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from prometheus_client.metrics_core import Metric

    from collectord.ledger.record_ledger import RingBalance, SessionBalance
    from collectord.metrics.families import Labels
    from collectord.model import ClockReading

    Rings = Sequence[tuple[Labels, RingBalance]]

_WAKEUP_TRIGGERS: Final = ("watermark", "timer")
# Upper bounds of RingCounters.fill_buckets, in its order.
_FILL_BOUNDS: Final = (
    "0.1",
    "0.2",
    "0.3",
    "0.4",
    "0.5",
    "0.6",
    "0.7",
    "0.8",
    "0.9",
    "0.95",
    "1.0",
)


def families(
    sessions: Sequence[SessionBalance], clocks: ClockReading, labelling: Labelling
) -> Iterator[Metric]:
    """Yield all families of all rings; `clocks` relates their times to Unix time."""
    rings = labelling.rings(sessions)
    names = labelling.names
    quarantined = [(labels, ring.quarantined is not None) for labels, ring in rings]
    quarantined += [
        (labelling.of(session, area.label), area.quarantined is not None)
        for session in sessions
        for area in session.aux
    ]
    yield gauge("collectord_rings", "Ring buffers.", names, ((labels, 1) for labels, _ in rings))
    yield gauge(
        "collectord_quarantined_rings",
        "Ring buffers and AUX areas that are not read any more: their contents were invalid again "
        "and again.",
        names,
        quarantined,
    )
    yield from _fills(rings, names)
    yield from _ftrace(rings, names)
    yield highest(
        "collectord_last_event_timestamp_seconds",
        "Unix time of the youngest record read, 0 before the first.",
        names,
        ((labels, _unix_seconds(clocks, ring.counters.last_sample_ns)) for labels, ring in rings),
    )
    yield from _reads(rings, names)


def _fills(rings: Rings, names: Labels) -> Iterator[Metric]:
    yield gauge(
        "collectord_buffer_capacity_bytes",
        "Size of the rings, after rounding and fallback.",
        names,
        ((labels, ring.capacity_bytes) for labels, ring in rings),
    )
    yield gauge(
        "collectord_buffer_used_bytes",
        "Unread bytes in the rings at the start of the last pass.",
        names,
        ((labels, ring.used_bytes) for labels, ring in rings),
    )
    yield gauge(
        "collectord_buffer_used_high_watermark_bytes",
        "Highest used bytes of each ring since it was opened, summed.",
        names,
        ((labels, ring.counters.high_watermark_bytes) for labels, ring in rings),
    )
    yield highest(
        "collectord_buffer_fill_high_watermark_ratio",
        "Highest fill that any of the rings ever had; 1 is full.",
        names,
        ((labels, ring.peak_fill) for labels, ring in rings),
    )
    yield _fill_histogram(rings, names)


def _fill_histogram(rings: Rings, names: Labels) -> Metric:
    # No _sum: the core counts passes by fill, and a sum made from bucket bounds would be a guess.
    family = HistogramMetricFamily(
        "collectord_buffer_fill_ratio", "Fill of a ring at the start of a pass.", labels=names
    )
    passes: dict[Labels, list[int]] = defaultdict(lambda: [0] * len(_FILL_BOUNDS))
    for labels, ring in rings:
        passes[labels] = [
            total + count
            for total, count in zip(passes[labels], ring.counters.fill_buckets, strict=True)
        ]
    for labels, counts in passes.items():
        cumulative = list(accumulate(counts))
        buckets = [*zip(_FILL_BOUNDS, cumulative, strict=True), ("+Inf", cumulative[-1])]
        family.add_metric(labels, buckets, sum_value=None)
    return family


def _ftrace(rings: Rings, names: Labels) -> Iterator[Metric]:
    """Yield the families of ftrace rings, whose values come from the kernel."""
    kept = [(labels, ring) for labels, ring in rings if ring.transport is not None]
    yield highest(
        "collectord_oldest_unread_seconds",
        "Age of the oldest event that is still in an ftrace ring, 0 without one.",
        names,
        ((labels, (ring.oldest_unread_age_ns or 0) / NS_PER_SECOND) for labels, ring in kept),
    )
    yield gauge(
        "collectord_foreign_read_records",
        "Records that another reader took out of an ftrace ring.",
        names,
        ((labels, ring.foreign_reads) for labels, ring in kept),
    )


def _reads(rings: Rings, names: Labels) -> Iterator[Metric]:
    yield counter(
        "collectord_read_records",
        "Records of any type read from the rings, sideband included.",
        names,
        ((labels, ring.counters.records) for labels, ring in rings if not ring.in_bytes),
    )
    yield counter(
        "collectord_read_bytes",
        "Bytes read from the rings.",
        names,
        ((labels, ring.counters.bytes) for labels, ring in rings),
    )
    yield counter(
        "collectord_wakeups",
        "Passes over a ring, by what started them.",
        (*names, "trigger"),
        (
            ((*labels, trigger), getattr(ring.counters, f"wakeups_{trigger}"))
            for labels, ring in rings
            for trigger in _WAKEUP_TRIGGERS
        ),
    )
    yield counter(
        "collectord_throttles",
        "Times the kernel throttled an event for its rate; not loss.",
        names,
        ((labels, ring.counters.throttles) for labels, ring in rings),
    )
    yield counter(
        "collectord_ring_faults",
        "Times that the contents of a ring were refused, and it went on behind them.",
        names,
        ((labels, ring.counters.faults) for labels, ring in rings),
    )
    yield counter(
        "collectord_faulty_bytes",
        "Bytes that were passed over: of refused contents, and of records without an end.",
        names,
        ((labels, ring.faulty_bytes) for labels, ring in rings),
    )
    yield counter(
        "collectord_neutralised_records",
        "Records of a type that readers of perf.data do not know, stored as padding.",
        names,
        ((labels, ring.counters.neutralised) for labels, ring in rings if not ring.in_bytes),
    )
    yield counter(
        "collectord_starved_passes",
        "Passes that left a ring alone because no staging chunk was free.",
        names,
        ((labels, ring.counters.starved) for labels, ring in rings),
    )


def _unix_seconds(clocks: ClockReading, monotonic_ns: int) -> float:
    if monotonic_ns == 0:
        return 0.0
    return (monotonic_ns + clocks.realtime_ns - clocks.monotonic_ns) / NS_PER_SECOND
