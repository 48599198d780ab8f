# SPDX-License-Identifier: Apache-2.0
"""Metric families of AUX areas: their ledger in bytes, and what the kernel flagged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collectord.ledger.aux_ledger import AUX_LOSS_PAIRS, FLAGS
from collectord.metrics.families import Labelling, counter, gauge
from collectord.model import loss_name
from collectord.text.units import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from prometheus_client.metrics_core import Metric

    from collectord.ledger.record_ledger import SessionBalance


def families(sessions: Sequence[SessionBalance], labelling: Labelling) -> Iterator[Metric]:
    """Yield all families for the sessions that have AUX areas.

    `produced` and `unaccounted` exist if the PMU counts them, independently of this program.
    """
    names = labelling.names
    areas = [(labelling.of(s, area.label), area) for s in sessions for area in s.aux]
    yield counter(
        "collectord_aux_produced_bytes",
        "AUX bytes that were traced, or handed over where the PMU does not count them.",
        names,
        ((labels, area.produced_bytes) for labels, area in areas),
    )
    yield counter(
        "collectord_aux_stored_bytes",
        "AUX bytes written to segments.",
        names,
        ((labels, area.counters.stored_bytes) for labels, area in areas),
    )
    yield counter(
        "collectord_aux_lost_bytes",
        "AUX bytes lost, by where and why; truncated ones only where the PMU counts bytes.",
        (*names, "stage", "reason"),
        (
            ((*labels, *pair), area.lost_bytes[loss_name(pair)])
            for labels, area in areas
            for pair in AUX_LOSS_PAIRS
        ),
    )
    yield counter(
        "collectord_aux_overwritten_bytes",
        "AUX bytes that a flight recorder overwrote before a snapshot took them; not loss.",
        names,
        ((labels, area.overwritten_bytes) for labels, area in areas),
    )
    yield gauge(
        "collectord_aux_unaccounted_bytes",
        "AUX bytes handed over that are neither stored, lost nor in flight.",
        names,
        ((labels, area.unaccounted_bytes) for labels, area in areas),
    )
    yield gauge(
        "collectord_aux_window_bytes",
        "AUX bytes that a snapshot would store now; 0 of a stream.",
        names,
        ((labels, area.window_bytes) for labels, area in areas),
    )
    yield counter(
        "collectord_aux_records",
        "AUX records by the flag that the kernel gave them; each flag counts for itself.",
        (*names, "flag"),
        (((*labels, flag), area.flagged[flag]) for labels, area in areas for flag in FLAGS),
    )
    yield counter(
        "collectord_aux_lost_records",
        "AUX records that did not fit the data ring; no trace is lost by that.",
        names,
        ((labels, area.lost_records) for labels, area in areas),
    )
    yield counter(
        "collectord_aux_orphan_bytes",
        "AUX bytes stored without a record that says where they end: decoders may lose their way.",
        names,
        ((labels, area.counters.orphan_bytes) for labels, area in areas),
    )
    yield counter(
        "collectord_aux_disabled_seconds",
        "Time that events were stopped because their AUX area was full.",
        names,
        ((labels, area.counters.disabled_ns / NS_PER_SECOND) for labels, area in areas),
    )
