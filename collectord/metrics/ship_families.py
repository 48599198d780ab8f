# SPDX-License-Identifier: Apache-2.0
"""Metric families of shipping: what was put into the store, and what waits for it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from collectord.metrics.families import counter, gauge
from collectord.text.units import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric

    from collectord.metrics.families import Reading

_SESSION: Final = ("session",)
# Those that are there from the first scrape on, as `StoreError` and its kinds name them.
_REASONS: Final = ("unavailable", "refused", "missing", "conflict", "failed", "unreadable")


def families(reading: Reading) -> Iterator[Metric]:
    """Yield all families; none has a series where nothing is shipped."""
    shipping = reading.status.shipping
    sessions = [((name,), one) for name, one in shipping.sessions.items()]
    yield counter(
        "collectord_shipped_segments",
        "Segments that were put into the store.",
        _SESSION,
        ((labels, one.segments) for labels, one in sessions),
    )
    yield counter(
        "collectord_shipped_records",
        "Rows of records that were put into the store.",
        _SESSION,
        ((labels, one.rows) for labels, one in sessions),
    )
    yield counter(
        "collectord_shipped_bytes",
        "Bytes that were put into the store.",
        _SESSION,
        ((labels, one.bytes) for labels, one in sessions),
    )
    yield gauge(
        "collectord_ship_pending_segments",
        "Sealed segments that are kept and not shipped yet.",
        _SESSION,
        ((labels, one.waiting) for labels, one in sessions),
    )
    yield gauge(
        "collectord_ship_pending_bytes",
        "Disk space of the segments that are not shipped yet.",
        _SESSION,
        ((labels, one.waiting_bytes) for labels, one in sessions),
    )
    yield gauge(
        "collectord_ship_pending_seconds",
        "Age of the oldest segment that is not shipped yet, by its last write; 0 if none waits.",
        _SESSION,
        ((labels, _age_s(one.since_ns)) for labels, one in sessions),
    )
    yield counter(
        "collectord_ship_deleted_segments",
        "Segments that retention deleted before they were shipped.",
        _SESSION,
        ((labels, one.deleted) for labels, one in sessions),
    )
    yield counter(
        "collectord_ship_errors",
        "Attempts to ship something that failed, by the reason; they are made again.",
        ("reason",),
        (
            ((reason,), count)
            for reason, count in (dict.fromkeys(_REASONS, 0) | dict(shipping.errors)).items()
            if sessions
        ),
    )


def _age_s(since_ns: int | None) -> float:
    return 0.0 if since_ns is None else max(time.time_ns() - since_ns, 0) / NS_PER_SECOND
