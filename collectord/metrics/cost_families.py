# SPDX-License-Identifier: Apache-2.0
"""Metric families of the cost: the daemon's own, that of its probes, and their budget."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collectord.metrics.families import SESSION, counter, gauge
from collectord.metrics.service_families import pinned_bytes
from collectord.text.units import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric

    from collectord.metrics.families import Reading


def families(reading: Reading) -> Iterator[Metric]:
    """Yield the families of the cost."""
    cost = reading.status.cost
    yield counter(
        "collectord_own_cpu_seconds",
        "CPU seconds of the daemon's threads, and of the processes that it has run.",
        (),
        [((), cost.own_ns / NS_PER_SECOND)],
    )
    yield counter(
        "collectord_imposed_cpu_seconds",
        "CPU seconds that the session's probes took in the recorded threads: an estimate by the "
        "number of events, or the run time of BPF programs where the kernel counts it.",
        SESSION,
        ((session, ns / NS_PER_SECOND) for session, ns in cost.imposed_ns.items()),
    )
    yield gauge(
        "collectord_cost_ratio",
        "CPU time of the daemon and its probes, as a share of all CPUs over the last minute.",
        (),
        [((), cost.ratio)],
    )
    yield gauge(
        "collectord_budget_ratio",
        "Share of all CPUs that `budget` allows the daemon and its probes, 0 for no limit.",
        (),
        [((), cost.budget)],
    )
    pinned = sum(pinned_bytes(session) for session in reading.status.sessions)
    yield gauge(
        "collectord_memory_bytes",
        "Memory of the process that it shares with no other, staging included, and of the rings.",
        (),
        [((), cost.private_bytes + pinned)],
    )
    yield gauge(
        "collectord_memory_limit_bytes",
        "The most memory that `memory` in [daemon] allows, 0 for no limit.",
        (),
        [((), cost.memory_limit_bytes)],
    )
