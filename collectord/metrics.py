# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics: the ledger and the core's counters, read at scrape time.

A scrape reads counters that the daemon keeps anyway: it touches no ring and no kernel counter.
Every series exists at 0 from the first scrape; `produced` and `unaccounted` exist only where the
basis is `exact`, because a 0 there would be a claim. No `_created` series are written.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    SummaryMetricFamily,
)
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from collectord import __version__, metrics_aux, metrics_bpf
from collectord.model import LOSS_PAIRS, Basis, RingRole
from collectord.sink.retention import EvictReason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from prometheus_client.metrics_core import Metric

    from collectord.daemon import DaemonStatus
    from collectord.ledger import RingBalance, SessionBalance

    Labels = tuple[str, ...]
    Sample = tuple[Labels, float]

NS_PER_SECOND: Final = 1_000_000_000
STATES: Final = ("running", "degraded", "stopped", "failed")
WAKEUP_TRIGGERS: Final = ("watermark", "timer")
# Upper bounds of RingBalance.fill_buckets, in its order.
FILL_BOUNDS: Final = ("0.1", "0.2", "0.3", "0.4", "0.5", "0.6", "0.7", "0.8", "0.9", "0.95", "1.0")


def registry(
    status: Callable[[], DaemonStatus], *, kernel_release: str, per_cpu: bool = False
) -> CollectorRegistry:
    """A private registry: the daemon's metrics and the stock `process_*` set.

    Args:
        status: reads the daemon's counters, without touching a ring.
        kernel_release: as in `uname -r`.
        per_cpu: rings are told apart by a `cpu` label; -1 stands for rings of threads.
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
        self._per_cpu = per_cpu

    def collect(self) -> Iterator[Metric]:
        """Yield all families of one reading."""
        status = self._status()
        yield from self._host(status)
        yield from self._ledger(status.sessions)
        yield from self._buffers(status)
        yield from self._draining(status)
        yield from self._sink(status.sessions)
        yield from metrics_aux.families(status.sessions, per_cpu=self._per_cpu)
        yield from metrics_bpf.families(status.bpf)

    def _host(self, status: DaemonStatus) -> Iterator[Metric]:
        yield _gauge(
            "collectord_build_info",
            "1, labelled with what runs.",
            ("version", "kernel"),
            [((__version__, self._kernel_release), 1)],
        )
        yield _gauge(
            "collectord_config_info",
            "1, labelled with the SHA-256 of the configuration in use.",
            ("sha256",),
            [((status.config_sha256,), 1)],
        )
        yield _gauge("collectord_cpus_online", "CPUs online.", (), [((), status.cpus_online)])
        yield _gauge(
            "collectord_cpus_covered",
            "Online CPUs on which every per-CPU session has its rings.",
            (),
            [((), status.cpus_covered)],
        )
        yield _counter(
            "collectord_uncovered_seconds",
            "CPU seconds that a planned CPU was offline or without its rings.",
            (),
            [((), status.uncovered_ns / NS_PER_SECOND)],
        )
        yield _counter(
            "collectord_unclean_stops",
            "Earlier runs that ended without sealing their segments.",
            (),
            [((), status.unclean_stops)],
        )

    def _ledger(self, sessions: tuple[SessionBalance, ...]) -> Iterator[Metric]:
        parts = [part for session in sessions for part in self._parts(session)]
        names = self._label_names()
        yield _highest(
            "collectord_session_state",
            "1 for the state that a session is in.",
            ("session", "source", "state"),
            (
                ((session.name, session.source, state), session.state == state)
                for session in sessions
                for state in STATES
            ),
        )
        yield _counter(
            "collectord_produced_records",
            "Records the kernel's own counters say were produced (basis `exact` only).",
            names,
            ((labels, part.produced) for labels, part in parts if part.produced is not None),
        )
        yield _counter(
            "collectord_stored_records",
            "Records written to segments.",
            names,
            ((labels, part.stored) for labels, part in parts),
        )
        yield _counter(
            "collectord_lost_records",
            "Records lost, by where and why.",
            (*names, "stage", "reason"),
            (
                ((*labels, stage, reason), part.lost.get(f"{stage}/{reason}", 0))
                for labels, part in parts
                for stage, reason in LOSS_PAIRS[labels[1]]
            ),
        )
        yield _counter(
            "collectord_overwritten_records",
            "Records a flight recorder's ring overwrote; not loss.",
            names,
            ((labels, part.overwritten) for labels, part in parts if part.overwritten is not None),
        )
        yield from self._recorders(sessions)
        yield _gauge(
            "collectord_in_flight_records",
            "Records copied from the rings and not yet on disk.",
            names,
            ((labels, part.in_flight) for labels, part in parts),
        )
        yield _gauge(
            "collectord_unaccounted_records",
            "Produced records that are neither stored, lost, overwritten nor in flight "
            "(basis `exact` only).",
            names,
            ((labels, part.unaccounted) for labels, part in parts if part.unaccounted is not None),
        )
        yield _counter(
            "collectord_lost_sideband_records",
            "Lost records about tasks and mappings, without which addresses may not resolve.",
            names,
            (
                (self._labels(s, ring), sum(ring.lost.values()))
                for s in sessions
                for ring in s.rings
                if ring.label.role is RingRole.SIDEBAND
            ),
        )
        yield _highest(
            "collectord_loss_observable",
            "1 where the source reports its loss, 0 where it cannot.",
            ("session", "source"),
            (((s.name, s.source), s.basis is not Basis.NONE) for s in sessions),
        )
        yield _highest(
            "collectord_suppression_possible",
            "1 while a foreign BPF program on one of the events can hide records from all "
            "counters.",
            ("session", "source"),
            (((s.name, s.source), any(r.suppressed_by for r in s.rings)) for s in sessions),
        )

    @staticmethod
    def _recorders(sessions: tuple[SessionBalance, ...]) -> Iterator[Metric]:
        """Of flight recorders; nothing of a stream."""
        names = ("session", "source")
        recorders = [
            ((s.name, s.source), s) for s in sessions if any(is_held(ring) for ring in s.rings)
        ]
        yield _counter(
            "collectord_snapshots",
            "Windows of a flight recorder that were stored.",
            names,
            ((labels, session.snapshots) for labels, session in recorders),
        )
        yield _counter(
            "collectord_repeated_records",
            "Records that a snapshot left out since the one before it has them; not loss.",
            names,
            ((labels, session.repeated) for labels, session in recorders),
        )
        yield _counter(
            "collectord_paused_seconds",
            "Time that a flight recorder's rings stood still for snapshots.",
            names,
            ((labels, session.paused_ns / NS_PER_SECOND) for labels, session in recorders),
        )
        yield _gauge(
            "collectord_recorder_window_bytes",
            "What a flight recorder's rings hold.",
            names,
            (
                (labels, sum(ring.used_bytes for ring in session.rings if is_held(ring)))
                for labels, session in recorders
            ),
        )
        yield _gauge(
            "collectord_recorder_window_seconds",
            "How far back a flight recorder's rings go without a gap; 0 of a stream of ftrace.",
            names,
            (
                ((s.name, s.source), window_ns(s.rings) / NS_PER_SECOND)
                for s in sessions
                if any(ring.transport is not None or is_held(ring) for ring in s.rings)
            ),
        )

    def _buffers(self, status: DaemonStatus) -> Iterator[Metric]:
        rings = self._rings(status.sessions)
        names = self._label_names()
        yield _gauge(
            "collectord_rings", "Ring buffers.", names, ((labels, 1) for labels, _ in rings)
        )
        yield _gauge(
            "collectord_quarantined_rings",
            "Ring buffers that are not read any more because their contents are invalid.",
            names,
            ((labels, ring.quarantined is not None) for labels, ring in rings),
        )
        yield _gauge(
            "collectord_buffer_capacity_bytes",
            "Size of the rings, after rounding and fallback.",
            names,
            ((labels, ring.capacity_bytes) for labels, ring in rings),
        )
        yield _gauge(
            "collectord_buffer_used_bytes",
            "Unread bytes in the rings at the start of the last pass.",
            names,
            ((labels, ring.used_bytes) for labels, ring in rings),
        )
        yield _gauge(
            "collectord_buffer_used_high_watermark_bytes",
            "Highest used bytes of each ring since it was opened, summed.",
            names,
            ((labels, ring.high_watermark_bytes) for labels, ring in rings),
        )
        yield _highest(
            "collectord_buffer_fill_high_watermark_ratio",
            "Fill of the ring that was ever fullest; 1 is full.",
            names,
            ((labels, ring.high_watermark_bytes / ring.capacity_bytes) for labels, ring in rings),
        )
        yield _fill_histogram(names, rings)
        yield from self._ftrace_rings(status.sessions)
        yield _highest(
            "collectord_last_event_timestamp_seconds",
            "Unix time of the youngest record read, 0 before the first.",
            names,
            ((labels, _unix_seconds(status, ring.last_event_ns)) for labels, ring in rings),
        )
        yield _counter(
            "collectord_read_records",
            "Records of any type read from the rings, sideband included.",
            names,
            ((labels, ring.records) for labels, ring in rings),
        )
        yield _counter(
            "collectord_read_bytes",
            "Bytes read from the rings.",
            names,
            ((labels, ring.bytes) for labels, ring in rings),
        )
        yield _counter(
            "collectord_wakeups",
            "Passes over a ring, by what started them.",
            (*names, "trigger"),
            (
                ((*labels, trigger), getattr(ring, f"wakeups_{trigger}"))
                for labels, ring in rings
                for trigger in WAKEUP_TRIGGERS
            ),
        )
        yield _counter(
            "collectord_throttles",
            "Times the kernel throttled an event for its rate; not loss.",
            names,
            ((labels, ring.throttles) for labels, ring in rings),
        )
        yield _counter(
            "collectord_starved_passes",
            "Passes that left a ring alone because no staging chunk was free.",
            names,
            ((labels, ring.starved) for labels, ring in rings),
        )

    def _ftrace_rings(self, sessions: tuple[SessionBalance, ...]) -> Iterator[Metric]:
        """Of rings that stay in the kernel and are told by it."""
        names = self._label_names()
        rings = [
            (self._labels(session, ring), ring)
            for session in sessions
            for ring in session.rings
            if ring.transport is not None
        ]
        yield _highest(
            "collectord_oldest_unread_seconds",
            "Age of the oldest event that is still in an ftrace ring, 0 without one.",
            names,
            ((labels, (ring.oldest_unread_age_ns or 0) / NS_PER_SECOND) for labels, ring in rings),
        )
        yield _gauge(
            "collectord_foreign_read_records",
            "Records that another reader took out of an ftrace ring.",
            names,
            ((labels, ring.foreign_reads) for labels, ring in rings),
        )

    def _draining(self, status: DaemonStatus) -> Iterator[Metric]:
        core = status.core
        drain = SummaryMetricFamily(
            "collectord_drain_duration_seconds", "Time of passes over all rings of a shard."
        )
        drain.add_metric((), count_value=core.passes, sum_value=core.pass_ns / NS_PER_SECOND)
        yield drain
        yield _gauge(
            "collectord_drain_duration_max_seconds",
            "Longest pass so far.",
            (),
            [((), core.pass_ns_max / NS_PER_SECOND)],
        )
        yield _gauge("collectord_staging_chunks", "Staging chunks.", (), [((), core.chunks)])
        yield _gauge(
            "collectord_staging_free_chunks",
            "Staging chunks that are free.",
            (),
            [((), core.chunks_free)],
        )
        yield _gauge(
            "collectord_staging_free_low_watermark_chunks",
            "Fewest free staging chunks ever.",
            (),
            [((), core.chunks_free_min)],
        )
        yield _gauge(
            "collectord_oldest_unwritten_seconds",
            "Age of the oldest chunk that waits for the writer.",
            (),
            [((), core.oldest_unwritten_ns / NS_PER_SECOND)],
        )
        write = SummaryMetricFamily(
            "collectord_write_duration_seconds", "Time of the writes of chunks."
        )
        write.add_metric(
            (), count_value=core.written_chunks, sum_value=core.write_ns / NS_PER_SECOND
        )
        yield write
        yield _counter(
            "collectord_write_bytes", "Bytes written to segments.", (), [((), core.written_bytes)]
        )
        yield _counter(
            "collectord_write_errors", "Writes that failed.", (), [((), core.write_errors)]
        )

    @staticmethod
    def _sink(sessions: tuple[SessionBalance, ...]) -> Iterator[Metric]:
        names = ("session", "source")
        yield _gauge(
            "collectord_segments",
            "Sealed segments kept.",
            names,
            (((s.name, s.source), s.sink.segments) for s in sessions),
        )
        yield _gauge(
            "collectord_segment_bytes",
            "Allocated bytes of the sealed segments kept.",
            names,
            (((s.name, s.source), s.sink.segment_bytes) for s in sessions),
        )
        yield _counter(
            "collectord_segments_deleted",
            "Segments that retention deleted, by the limit that asked for it.",
            (*names, "reason"),
            (
                ((s.name, s.source, reason), s.sink.deleted.get(reason, 0))
                for s in sessions
                for reason in EvictReason
            ),
        )

    def _label_names(self) -> Labels:
        return ("session", "source", "cpu") if self._per_cpu else ("session", "source")

    def _rings(self, sessions: tuple[SessionBalance, ...]) -> list[tuple[Labels, RingBalance]]:
        return [(self._labels(s, ring), ring) for s in sessions for ring in s.rings]

    def _parts(self, session: SessionBalance) -> list[tuple[Labels, SessionBalance | RingBalance]]:
        """What carries the balance: the session's data rings by CPU, or the session itself."""
        if self._per_cpu:
            return [
                (self._labels(session, ring), ring)
                for ring in session.rings
                if ring.label.role is RingRole.DATA
            ] + _of_no_ring(session)
        return [((session.name, session.source), session)]

    def _labels(self, session: SessionBalance, ring: RingBalance) -> Labels:
        if self._per_cpu:
            return (session.name, session.source, str(ring.label.cpu))
        return (session.name, session.source)


def _of_no_ring(session: SessionBalance) -> list[tuple[Labels, SessionBalance | RingBalance]]:
    """What was lost of all rings together has no CPU."""
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
    return [((session.name, session.source, "-1"), part)]


def window_ns(rings: Iterable[RingBalance]) -> int:
    """What all rings of a flight recorder hold: since the last event that one of them gave up.

    A ring that gave up none goes back to the beginning, however old its oldest event is.
    """
    held = [ring for ring in rings if is_held(ring)]
    full = [ring.window_ns or 0 for ring in held if _has_given_up(ring)]
    if full:
        return min(full)
    return max((ring.window_ns or 0 for ring in held), default=0)


def is_held(ring: RingBalance) -> bool:
    """Whether it is a flight recorder's."""
    return ring.held


def _has_given_up(ring: RingBalance) -> bool:
    """Whether it holds less than all: an overwritable ring is full from then on."""
    return bool(ring.overwritten) or ring.used_bytes >= ring.capacity_bytes


def _unix_seconds(status: DaemonStatus, monotonic_ns: int) -> float:
    if monotonic_ns == 0:
        return 0.0
    offset_ns = status.clocks.realtime_ns - status.clocks.monotonic_ns
    return (monotonic_ns + offset_ns) / NS_PER_SECOND


def _sums(samples: Iterable[Sample]) -> dict[Labels, float]:
    sums: dict[Labels, float] = defaultdict(int)
    for labels, value in samples:
        sums[labels] += value
    return sums


def _counter(name: str, text: str, names: Labels, samples: Iterable[Sample]) -> Metric:
    """A counter family; samples with equal labels are added. `_total` is appended to `name`."""
    family = CounterMetricFamily(name, text, labels=names)
    for labels, value in _sums(samples).items():
        family.add_metric(labels, value)
    return family


def _gauge(name: str, text: str, names: Labels, samples: Iterable[Sample]) -> Metric:
    """A gauge family; samples with equal labels are added."""
    family = GaugeMetricFamily(name, text, labels=names)
    for labels, value in _sums(samples).items():
        family.add_metric(labels, value)
    return family


def _highest(name: str, text: str, names: Labels, samples: Iterable[Sample]) -> Metric:
    """A gauge family; of samples with equal labels the highest counts."""
    highest: dict[Labels, float] = {}
    for labels, value in samples:
        highest[labels] = max(value, highest.get(labels, value))
    return _gauge(name, text, names, highest.items())


def _fill_histogram(names: Labels, rings: list[tuple[Labels, RingBalance]]) -> Metric:
    # No _sum: the core counts passes by fill, and a sum made from bucket bounds would be a guess.
    family = HistogramMetricFamily(
        "collectord_buffer_fill_ratio", "Fill of a ring at the start of a pass.", labels=names
    )
    passes: dict[Labels, list[int]] = defaultdict(lambda: [0] * len(FILL_BOUNDS))
    for labels, ring in rings:
        passes[labels] = [
            total + count for total, count in zip(passes[labels], ring.fill_buckets, strict=True)
        ]
    for labels, counts in passes.items():
        cumulative = list(accumulate(counts))
        buckets = [*zip(FILL_BOUNDS, cumulative, strict=True), ("+Inf", cumulative[-1])]
        family.add_metric(labels, buckets, sum_value=None)
    return family
