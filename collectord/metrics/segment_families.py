# SPDX-License-Identifier: Apache-2.0
"""Metric families of segments: those that are kept, and those that were deleted or given up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collectord.metrics.families import SESSION, counter, gauge, lowest, of_session
from collectord.model import EvictReason
from collectord.text.units import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric

    from collectord.metrics.families import Reading


def families(reading: Reading) -> Iterator[Metric]:
    """Yield the families of all sessions' segments."""
    sessions = reading.status.sessions
    yield gauge(
        "collectord_segments",
        "Number of sealed segments that are kept.",
        SESSION,
        ((of_session(s), s.sink.segments) for s in sessions),
    )
    yield gauge(
        "collectord_segment_bytes",
        "Bytes of disk space that the kept sealed segments take.",
        SESSION,
        ((of_session(s), s.sink.segment_bytes) for s in sessions),
    )
    yield gauge(
        "collectord_segment_uncompressed_bytes",
        "Bytes of disk space that the kept sealed segments would take without compression.",
        SESSION,
        ((of_session(s), s.sink.uncompressed_bytes) for s in sessions),
    )
    yield counter(
        "collectord_compress_errors",
        "Attempts to compress a segment that failed; it stays as it is, and is tried again.",
        SESSION,
        ((of_session(s), s.sink.compress_errors) for s in sessions),
    )
    yield lowest(
        "collectord_store_oldest_timestamp_seconds",
        "Unix time of the last write to the oldest sealed segment that is kept.",
        SESSION,
        (
            (of_session(s), s.sink.oldest_ns / NS_PER_SECOND)
            for s in sessions
            if s.sink.oldest_ns is not None
        ),
    )
    yield gauge(
        "collectord_store_limit_bytes",
        "Most disk space that all segments may take together, 0 for no limit.",
        (),
        [((), reading.status.store_limit_bytes)],
    )
    yield counter(
        "collectord_segments_unsealed",
        "Segments that could not be sealed and were given up.",
        SESSION,
        ((of_session(s), s.sink.unsealed) for s in reading.counted),
    )
    yield counter(
        "collectord_segments_early",
        "Segments that ended before all records that name their samples were read.",
        SESSION,
        ((of_session(s), s.sink.early) for s in reading.counted),
    )
    yield counter(
        "collectord_segments_deleted",
        "Segments that retention deleted, by the limit that required it.",
        (*SESSION, "reason"),
        (
            ((*of_session(s), reason), s.sink.deleted.get(reason, 0))
            for s in sessions
            for reason in EvictReason
        ),
    )
