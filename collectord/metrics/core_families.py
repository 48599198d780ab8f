# SPDX-License-Identifier: Apache-2.0
"""Metric families of the native core: its drain threads, staging, and writers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import SummaryMetricFamily

from collectord.metrics.families import counter, gauge
from collectord.text.units import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric

    from collectord.metrics.families import Reading


def families(reading: Reading) -> Iterator[Metric]:
    """Yield the families of drain threads, staging and writers."""
    core = reading.status.core
    drain = SummaryMetricFamily(
        "collectord_drain_duration_seconds", "Duration of a drain thread's passes over its rings."
    )
    drain.add_metric((), count_value=core.passes, sum_value=core.pass_ns / NS_PER_SECOND)
    yield drain
    yield counter(
        "collectord_drain_wakeups", "Times that a drain thread woke.", (), [((), core.wakeups)]
    )
    yield gauge(
        "collectord_drain_duration_max_seconds",
        "Duration of the longest pass so far.",
        (),
        [((), core.pass_ns_max / NS_PER_SECOND)],
    )
    yield gauge("collectord_staging_chunks", "Number of staging chunks.", (), [((), core.chunks)])
    yield gauge(
        "collectord_staging_free_chunks",
        "Number of staging chunks that are free.",
        (),
        [((), core.chunks_free)],
    )
    yield gauge(
        "collectord_staging_free_low_watermark_chunks",
        "Lowest number of free staging chunks so far.",
        (),
        [((), core.chunks_free_min)],
    )
    yield gauge(
        "collectord_oldest_unwritten_seconds",
        "Age of the oldest chunk that waits to be written.",
        (),
        [((), core.oldest_unwritten_ns / NS_PER_SECOND)],
    )
    write = SummaryMetricFamily(
        "collectord_write_duration_seconds", "Duration of the writes of chunks to disk."
    )
    write.add_metric((), count_value=core.written_chunks, sum_value=core.write_ns / NS_PER_SECOND)
    yield write
    yield counter(
        "collectord_write_bytes", "Bytes written to segments.", (), [((), core.written_bytes)]
    )
    yield counter("collectord_write_errors", "Writes that failed.", (), [((), core.write_errors)])
