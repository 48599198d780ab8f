# SPDX-License-Identifier: Apache-2.0
"""Metric families of the ledger: what was produced, stored and lost, in records or in bytes.

Those of AUX areas are in bytes, with what the kernel flagged.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from collectord.ledger.aux_ledger import AUX_LOSS_PAIRS, FLAGS
from collectord.metrics.families import SESSION, counter, gauge, highest, lowest, of_session
from collectord.model import Basis, GapCause, RingRole, loss_name, loss_pairs
from collectord.text.units import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from prometheus_client.metrics_core import Metric

    from collectord.ledger.record_ledger import RingBalance, SessionBalance
    from collectord.metrics.families import Labelling, Labels, Reading

    # A balance with its labels: of a ring, or of a whole session.
    Part = tuple[Labels, SessionBalance | RingBalance]

_STATES: Final = ("running", "degraded", "stopped", "failed")


def families(reading: Reading) -> Iterator[Metric]:
    """Yield all families of all sessions."""
    sessions, labelling = reading.status.sessions, reading.labelling
    yield highest(
        "collectord_session_state",
        "1 for the current state of the session, 0 for the other states.",
        (*SESSION, "state"),
        (
            ((*of_session(session), state), session.state == state)
            for session in sessions
            for state in _STATES
        ),
    )
    yield highest(
        "collectord_session_losing",
        "1 while records are being lost at this stage, 0 after five flush intervals without loss.",
        (*SESSION, "stage"),
        (
            ((*of_session(session), stage), stage in {place.key[0] for place in session.losing})
            for session in sessions
            for stage, _reason in loss_pairs(session.source)
        ),
    )
    yield from _records(*_divided(reading, in_bytes=False), labelling)
    yield from _channels(*_divided(reading, in_bytes=True), labelling)
    yield counter(
        "collectord_lost_sideband_records",
        "Lost records about tasks and mappings, without which addresses may not resolve.",
        labelling.names,
        (
            (labels, sum(ring.lost.values()))
            for labels, ring in labelling.rings(reading.counted)
            if ring.label.role is RingRole.SIDEBAND
        ),
    )
    yield counter(
        "collectord_sideband_dropped_records",
        "Records about tasks and mappings that were discarded for lack of memory; later segments "
        "do not have them.",
        SESSION,
        ((of_session(s), s.sideband.dropped) for s in reading.counted if not s.in_bytes),
    )
    yield lowest(
        "collectord_loss_observable",
        "1 where the source reports its loss, 0 where it cannot.",
        SESSION,
        ((of_session(s), s.basis is not Basis.NONE) for s in sessions),
    )
    yield counter(
        "collectord_gap_seconds",
        "Seconds for which the session recorded nothing, by the cause: a stop, a kill or a boot "
        "had ended the time before, or it was paused by the budget (shed) or on request. The "
        "total goes on from start to start.",
        (*SESSION, "cause"),
        (
            ((*of_session(s), cause), s.gaps_ns.get(cause, 0) / NS_PER_SECOND)
            for s in sessions
            for cause in GapCause
        ),
    )
    yield highest(
        "collectord_suppression_possible",
        "1 while a foreign BPF program on one of the events can hide records from all counters.",
        SESSION,
        ((of_session(s), any(r.suppressed_by for r in s.rings)) for s in sessions),
    )


def areas(reading: Reading) -> Iterator[Metric]:
    """Yield all families of AUX areas.

    `produced` and `unaccounted` exist if the PMU counts them, independently of this program.
    """
    sessions, labelling = reading.status.sessions, reading.labelling
    names = labelling.names
    found = [(labelling.of(s, area.label), area) for s in sessions for area in s.aux]
    counted = [(labelling.of(s, area.label), area) for s in reading.counted for area in s.aux]
    yield counter(
        "collectord_aux_produced_bytes",
        "AUX bytes traced, if the PMU counts them; otherwise those that the kernel handed over.",
        names,
        ((labels, area.produced_bytes) for labels, area in counted),
    )
    yield counter(
        "collectord_aux_stored_bytes",
        "AUX bytes written to segments.",
        names,
        ((labels, area.counters.stored_bytes) for labels, area in counted),
    )
    yield counter(
        "collectord_aux_lost_bytes",
        "AUX bytes lost, by stage and reason; truncated bytes are known only where the PMU counts "
        "bytes.",
        (*names, "stage", "reason"),
        (
            ((*labels, *pair), area.lost_bytes[loss_name(pair)])
            for labels, area in counted
            for pair in AUX_LOSS_PAIRS
        ),
    )
    yield counter(
        "collectord_aux_overwritten_bytes",
        "AUX bytes that a flight recorder overwrote before a snapshot; this is not loss.",
        names,
        ((labels, area.overwritten_bytes) for labels, area in counted),
    )
    yield gauge(
        "collectord_aux_unaccounted_bytes",
        "AUX bytes handed over that are neither stored, lost nor in flight.",
        names,
        ((labels, area.unaccounted_bytes) for labels, area in found),
    )
    yield gauge(
        "collectord_aux_window_bytes",
        "AUX bytes that a snapshot would store now; 0 for streaming sessions.",
        names,
        ((labels, area.window_bytes) for labels, area in found),
    )
    yield counter(
        "collectord_aux_records",
        "AUX records by flag; a record with several flags counts once for each of them.",
        (*names, "flag"),
        (((*labels, flag), area.flagged[flag]) for labels, area in counted for flag in FLAGS),
    )
    yield counter(
        "collectord_aux_lost_records",
        "AUX records that did not fit into the data ring; the trace itself is not lost.",
        names,
        ((labels, area.lost_records) for labels, area in counted),
    )
    yield counter(
        "collectord_aux_orphan_bytes",
        "AUX bytes stored without a record that says where they end; decoders may misread them.",
        names,
        ((labels, area.counters.orphan_bytes) for labels, area in counted),
    )
    yield counter(
        "collectord_aux_disabled_seconds",
        "Seconds for which events were stopped because their AUX area was full.",
        names,
        ((labels, area.counters.disabled_ns / NS_PER_SECOND) for labels, area in counted),
    )


def _divided(reading: Reading, *, in_bytes: bool) -> tuple[list[Part], list[Part]]:
    """Return the balances that a gauge shows, and those that a counter sums up."""
    labelling = reading.labelling
    live, counted = (
        [part for one in balances if one.in_bytes == in_bytes for part in _parts(one, labelling)]
        for balances in (reading.status.sessions, reading.counted)
    )
    return live, counted


def _records(
    parts: Sequence[Part], counted: Sequence[Part], labelling: Labelling
) -> Iterator[Metric]:
    names = labelling.names
    yield counter(
        "collectord_produced_records",
        "Records produced, as counted by the kernel's own counters (basis `exact` only).",
        names,
        ((labels, part.produced) for labels, part in counted),
    )
    yield counter(
        "collectord_stored_records",
        "Records written to segments.",
        names,
        ((labels, part.stored) for labels, part in counted),
    )
    yield _losses(
        "collectord_lost_records", "Records lost, by stage and reason.", counted, labelling
    )
    yield counter(
        "collectord_overwritten_records",
        "Old records that a flight recorder's rings overwrote; this is not loss.",
        names,
        ((labels, part.overwritten) for labels, part in counted),
    )
    yield gauge(
        "collectord_in_flight_records",
        "Records copied from the rings and not yet on disk.",
        names,
        ((labels, part.in_flight) for labels, part in parts),
    )
    yield gauge(
        "collectord_unaccounted_records",
        "Produced records that are neither stored, lost, overwritten nor in flight "
        "(basis `exact` only).",
        names,
        ((labels, part.unaccounted) for labels, part in parts if part.unaccounted is not None),
    )


def _channels(
    parts: Sequence[Part], counted: Sequence[Part], labelling: Labelling
) -> Iterator[Metric]:
    """Yield the families of relay channels of unknown format, whose figures are bytes."""
    yield counter(
        "collectord_channel_stored_bytes",
        "Bytes of relay channels written to segments; the records in them are not counted.",
        labelling.names,
        ((labels, part.stored) for labels, part in counted),
    )
    yield _losses(
        "collectord_channel_lost_bytes",
        "Bytes of relay channels known to be lost, by stage and reason.",
        counted,
        labelling,
    )
    yield gauge(
        "collectord_channel_in_flight_bytes",
        "Bytes read from relay channels and not yet on disk.",
        labelling.names,
        ((labels, part.in_flight) for labels, part in parts),
    )


def _losses(name: str, text: str, parts: Sequence[Part], labelling: Labelling) -> Metric:
    """Return the losses with every pair of the source, even if it never occurred."""
    return counter(
        name,
        text,
        (*labelling.names, "stage", "reason"),
        (
            ((*labels, *pair), part.lost.get(loss_name(pair), 0))
            for labels, part in parts
            for pair in loss_pairs(labels[1])
        ),
    )


def _parts(session: SessionBalance, labelling: Labelling) -> list[Part]:
    """Return the parts of a balance: the session's data rings by CPU, or the session itself."""
    if not labelling.per_cpu:
        return [(of_session(session), session)]
    rings = labelling.rings([session])
    data: list[Part] = [(ls, ring) for ls, ring in rings if ring.label.has_data]
    return data + _shared_part(session)


def _shared_part(session: SessionBalance) -> list[Part]:
    """Return the losses that belong to no single ring, with CPU -1."""
    if not session.shared:
        return []
    lost = sum(session.shared.values())
    part = replace(
        session,
        produced=lost,
        stored=0,
        lost=dict(session.shared),
        overwritten=0,
        in_flight=0,
        unaccounted=0,
    )
    return [((*of_session(session), "-1"), part)]
