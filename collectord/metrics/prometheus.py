# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics: the ledger and the core's counters, read at scrape time.

A scrape reads counters that the daemon keeps anyway: it reads no ring and no kernel counter. Every
series exists at 0 from the first scrape; `produced` and `unaccounted` exist only if the basis is
`exact`, because a 0 there would be a claim. No `_created` series are written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import SummaryMetricFamily
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from collectord import __version__
from collectord.metrics import bpf_families, ledger_families, ring_families
from collectord.metrics.families import SESSION, Labelling, counter, gauge, of_session
from collectord.sink.state_dir import EvictReason
from collectord.text.units import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from prometheus_client.metrics_core import Metric

    from collectord._native._core import CoreCounters
    from collectord.ledger.record_ledger import SessionBalance
    from collectord.session.daemon_status import DaemonStatus


def registry(
    status: Callable[[], DaemonStatus], *, kernel_release: str, per_cpu: bool = False
) -> CollectorRegistry:
    """Return a private registry with the daemon's metrics and the stock `process_*` set.

    Args:
        status: reads the daemon's counters, without touching a ring.
        kernel_release: as in `uname -r`.
        per_cpu: rings are distinguished by a `cpu` label; -1 stands for rings of threads.
    """
    made = CollectorRegistry()
    made.register(DaemonCollector(status, kernel_release=kernel_release, per_cpu=per_cpu))
    ProcessCollector(registry=made)
    return made


class DaemonCollector(Collector):
    """Turns one `DaemonStatus` into metric families, per scrape."""

    def __init__(
        self, status: Callable[[], DaemonStatus], *, kernel_release: str, per_cpu: bool
    ) -> None:
        self._status = status
        self._kernel_release = kernel_release
        self._labelling = Labelling(per_cpu)

    def collect(self) -> Iterator[Metric]:
        """Yield all families of one reading."""
        status = self._status()
        sessions, labelling = status.sessions, self._labelling
        yield from _host(status, self._kernel_release)
        yield from ledger_families.families(sessions, labelling)
        yield from ring_families.recorders(sessions)
        yield from ring_families.families(sessions, status.clocks, labelling)
        yield from _draining(status.core)
        yield from _segments(sessions)
        yield from ledger_families.areas(sessions, labelling)
        yield from bpf_families.families(status.bpf)


def _host(status: DaemonStatus, kernel_release: str) -> Iterator[Metric]:
    yield gauge(
        "collectord_build_info",
        "Always 1; the labels have the versions of collectord and of the kernel.",
        ("version", "kernel"),
        [((__version__, kernel_release), 1)],
    )
    yield gauge(
        "collectord_config_info",
        "Always 1; the label has the SHA-256 of the configuration in use.",
        ("sha256",),
        [((status.config_sha256,), 1)],
    )
    yield gauge("collectord_cpus_online", "Number of online CPUs.", (), [((), status.cpus_online)])
    yield gauge(
        "collectord_cpus_covered",
        "Number of online CPUs on which every per-CPU session has its rings.",
        (),
        [((), status.cpus_covered)],
    )
    yield counter(
        "collectord_uncovered_seconds",
        "Seconds that planned CPUs were offline or without rings, summed over the CPUs.",
        (),
        [((), status.uncovered_ns / NS_PER_SECOND)],
    )
    yield counter(
        "collectord_unclean_stops",
        "Earlier runs that ended without sealing their segments.",
        (),
        [((), status.unclean_stops)],
    )
    yield counter(
        "collectord_records_left_behind",
        "Records of block traces that were lost because a killed run had not read them, or "
        "because the ring was full afterwards.",
        (),
        [((), status.left_records)],
    )
    yield gauge(
        "collectord_damaged_files",
        "Segments and manifests found damaged at the daemon's start, and left alone or set aside.",
        (),
        [((), status.damaged_files)],
    )


def _draining(core: CoreCounters) -> Iterator[Metric]:
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


def _segments(sessions: Sequence[SessionBalance]) -> Iterator[Metric]:
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
    yield counter(
        "collectord_segments_unsealed",
        "Segments that could not be sealed and were given up.",
        SESSION,
        ((of_session(s), s.sink.unsealed) for s in sessions),
    )
    yield counter(
        "collectord_segments_early",
        "Segments that ended before all records that name their samples were read.",
        SESSION,
        ((of_session(s), s.sink.early) for s in sessions),
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
