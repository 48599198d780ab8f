# SPDX-License-Identifier: Apache-2.0
"""Metric families of rings: their sizes, their fill, what is read from them, and snapshots."""

from __future__ import annotations

from collections import defaultdict
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from collectord.metrics.families import (
    SESSION,
    Family,
    Part,
    counter,
    gauge,
    highest,
    of_session,
)
from collectord.text.units import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from prometheus_client.metrics_core import Metric

    from collectord.ledger.record_ledger import RingBalance, SessionBalance
    from collectord.metrics.families import Labels, Reading, Row
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


def families(reading: Reading) -> Iterator[Metric]:
    """Yield all families of all rings."""
    sessions, labelling = reading.status.sessions, reading.labelling
    clocks = reading.status.clocks  # they relate the rings' times to Unix time
    rings, counted = labelling.rings(sessions), labelling.rings(reading.counted)
    names = labelling.names
    quarantined = [(labels, ring.quarantined is not None) for labels, ring in rings]
    quarantined += [
        (labelling.of(session, area.label), area.quarantined is not None)
        for session in sessions
        for area in session.aux
    ]
    yield gauge(
        "collectord_rings", "Number of ring buffers.", names, ((labels, 1) for labels, _ in rings)
    )
    yield gauge(
        "collectord_quarantined_rings",
        "Number of ring buffers and AUX areas that are no longer read because their contents were "
        "invalid repeatedly.",
        names,
        quarantined,
    )
    yield from _fills(rings, names)
    yield _fill_histogram(counted, names)
    yield from _ftrace(rings, names)
    yield highest(
        "collectord_last_event_timestamp_seconds",
        "Unix time of the newest record that was read, 0 before the first.",
        names,
        ((labels, _unix_seconds(clocks, ring.counters.last_sample_ns)) for labels, ring in rings),
    )
    yield from _reads(counted, names)


def recorders(reading: Reading) -> Iterator[Metric]:
    """Yield all families; for a stream only that of the ftrace window, which is 0."""
    sessions = reading.status.sessions
    recorders = [(of_session(s), s) for s in sessions if any(ring.held for ring in s.rings)]
    counted = [(of_session(s), s) for s in reading.counted if any(r.held for r in s.rings)]
    yield counter(
        "collectord_snapshots",
        "Snapshots of a flight recorder that were stored.",
        SESSION,
        ((labels, session.snapshots) for labels, session in counted),
    )
    yield counter(
        "collectord_snapshot_failures",
        "Snapshots of a flight recorder that could not be taken, or not be sealed at once.",
        SESSION,
        ((labels, session.snapshots_failed) for labels, session in counted),
    )
    yield counter(
        "collectord_repeated_records",
        "Records left out of a snapshot because the previous one has them; this is not loss.",
        SESSION,
        ((labels, session.repeated) for labels, session in counted),
    )
    yield counter(
        "collectord_paused_seconds",
        "Seconds for which a flight recorder's rings were paused for snapshots.",
        SESSION,
        ((labels, session.paused_ns / NS_PER_SECOND) for labels, session in counted),
    )
    yield gauge(
        "collectord_recorder_window_bytes",
        "Bytes that a flight recorder's rings and AUX areas hold.",
        SESSION,
        ((labels, window_bytes(session)) for labels, session in recorders),
    )
    yield gauge(
        "collectord_recorder_window_seconds",
        "How far back a snapshot would reach without a gap, in seconds. 0 for streaming ftrace "
        "sessions; not exported for AUX areas, whose age is unknown.",
        SESSION,
        (
            (of_session(s), window_ns(s.rings) / NS_PER_SECOND)
            for s in sessions
            if any(ring.transport is not None or _is_dated(ring) for ring in s.rings)
        ),
    )


def _fills(rings: Rings, names: Labels) -> Iterator[Metric]:
    yield gauge(
        "collectord_buffer_capacity_bytes",
        "Size of the rings as they were opened, in bytes.",
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
        "Most unread bytes that each ring has held since it was opened, summed over the rings.",
        names,
        ((labels, ring.counters.high_watermark_bytes) for labels, ring in rings),
    )
    yield highest(
        "collectord_buffer_fill_high_watermark_ratio",
        "Highest fill level that any of the rings has reached; 1 is full.",
        names,
        ((labels, ring.peak_fill) for labels, ring in rings),
    )


def _fill_histogram(rings: Rings, names: Labels) -> Metric:
    # No _sum: the core counts passes by fill, and a sum made from bucket bounds would be a guess.
    passes: dict[Labels, list[int]] = defaultdict(lambda: [0] * len(_FILL_BOUNDS))
    for labels, ring in rings:
        passes[labels] = [
            total + count
            for total, count in zip(passes[labels], ring.counters.fill_buckets, strict=True)
        ]
    rows: list[Row] = []
    for labels, counts in passes.items():
        cumulative = [*accumulate(counts)]
        bounds = zip((*_FILL_BOUNDS, "+Inf"), (*cumulative, cumulative[-1]), strict=True)
        rows += (((*labels, bound), count) for bound, count in bounds)
    return Family(
        "collectord_buffer_fill_ratio",
        "Fill level of a ring at the start of a pass; 1 is full.",
        "histogram",
        [Part("_bucket", (*names, "le"), rows)],
    )


def _ftrace(rings: Rings, names: Labels) -> Iterator[Metric]:
    """Yield the families of ftrace rings, whose values come from the kernel."""
    kept = [(labels, ring) for labels, ring in rings if ring.transport is not None]
    yield highest(
        "collectord_oldest_unread_seconds",
        "Age of the oldest event that is still in an ftrace ring, 0 if there is none.",
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
        "Passes over the rings, by what triggered them.",
        (*names, "trigger"),
        (
            ((*labels, trigger), getattr(ring.counters, f"wakeups_{trigger}"))
            for labels, ring in rings
            for trigger in _WAKEUP_TRIGGERS
        ),
    )
    yield counter(
        "collectord_throttles",
        "Times that the kernel throttled an event because of its rate; this is not loss.",
        names,
        ((labels, ring.counters.throttles) for labels, ring in rings),
    )
    yield counter(
        "collectord_ring_faults",
        "Times that a ring had invalid contents, which were skipped.",
        names,
        ((labels, ring.counters.faults) for labels, ring in rings),
    )
    yield counter(
        "collectord_faulty_bytes",
        "Bytes of the rings that were skipped: invalid contents, and records without an end.",
        names,
        ((labels, ring.faulty_bytes) for labels, ring in rings),
    )
    yield counter(
        "collectord_neutralised_records",
        "Records stored as padding because readers of perf.data do not know their type.",
        names,
        ((labels, ring.counters.neutralised) for labels, ring in rings if not ring.in_bytes),
    )
    yield counter(
        "collectord_starved_passes",
        "Passes that did not read a ring because no staging chunk was free.",
        names,
        ((labels, ring.counters.starved) for labels, ring in rings),
    )


def window_bytes(session: SessionBalance) -> int:
    """Return the bytes that a snapshot would store; for a ring with an AUX area, the area's."""
    rings = (ring.used_bytes for ring in session.rings if ring.held and not ring.beside_aux)
    return sum(rings) + sum(area.window_bytes for area in session.aux)


def window_ns(rings: Iterable[RingBalance]) -> int:
    """Return how far back all rings of a flight recorder reach: to the last event that one lost.

    A ring that overwrote none goes back to the beginning, however old its oldest event is.
    """
    dated = [ring for ring in rings if _is_dated(ring)]
    full = [ring.window_ns or 0 for ring in dated if _has_given_up(ring)]
    if full:
        return min(full)
    return max((ring.window_ns or 0 for ring in dated), default=0)


def _is_dated(ring: RingBalance) -> bool:
    """Whether the ring shows how far its window reaches; with an AUX area it does not."""
    return ring.held and not ring.beside_aux


def _has_given_up(ring: RingBalance) -> bool:
    """Whether the ring has overwritten events: an overwritable ring is full from then on."""
    return bool(ring.overwritten) or ring.used_bytes >= ring.capacity_bytes


def _unix_seconds(clocks: ClockReading, monotonic_ns: int) -> float:
    if monotonic_ns == 0:
        return 0.0
    return (monotonic_ns + clocks.realtime_ns - clocks.monotonic_ns) / NS_PER_SECOND
