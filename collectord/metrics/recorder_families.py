# SPDX-License-Identifier: Apache-2.0
"""Metric families of flight recorders: their snapshots, and how far back one would reach."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collectord.metrics.families import SESSION, counter, gauge, of_session
from collectord.text.units import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from prometheus_client.metrics_core import Metric

    from collectord.ledger.record_ledger import RingBalance, SessionBalance


def families(sessions: Sequence[SessionBalance]) -> Iterator[Metric]:
    """Yield all families; for a stream only that of the ftrace window, which is 0."""
    recorders = [(of_session(s), s) for s in sessions if any(ring.held for ring in s.rings)]
    yield counter(
        "collectord_snapshots",
        "Snapshots of a flight recorder that were stored.",
        SESSION,
        ((labels, session.snapshots) for labels, session in recorders),
    )
    yield counter(
        "collectord_snapshot_failures",
        "Snapshots of a flight recorder that could not be taken, or not be sealed at once.",
        SESSION,
        ((labels, session.snapshots_failed) for labels, session in recorders),
    )
    yield counter(
        "collectord_repeated_records",
        "Records that a snapshot left out since the one before it has them; not loss.",
        SESSION,
        ((labels, session.repeated) for labels, session in recorders),
    )
    yield counter(
        "collectord_paused_seconds",
        "Time that a flight recorder's rings stood still for snapshots.",
        SESSION,
        ((labels, session.paused_ns / NS_PER_SECOND) for labels, session in recorders),
    )
    yield gauge(
        "collectord_recorder_window_bytes",
        "What a flight recorder's rings and AUX areas hold.",
        SESSION,
        ((labels, window_bytes(session)) for labels, session in recorders),
    )
    yield gauge(
        "collectord_recorder_window_seconds",
        "How far back a snapshot would reach without a gap. 0 of a stream; none of AUX areas, "
        "whose age is unknown.",
        SESSION,
        (
            (of_session(s), window_ns(s.rings) / NS_PER_SECOND)
            for s in sessions
            if any(ring.transport is not None or _is_dated(ring) for ring in s.rings)
        ),
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
