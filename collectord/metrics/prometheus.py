# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics: the ledger and the core's counters, read at scrape time.

A scrape reads counters that the daemon keeps anyway: it reads no ring and no kernel counter. Every
series exists at 0 from the first scrape; `produced` and `unaccounted` exist only if the basis is
`exact`, because a 0 there would be a claim. No `_created` series are written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from collectord.metrics import (
    bpf_families,
    core_families,
    cost_families,
    host_families,
    incident_families,
    ledger_families,
    ring_families,
    segment_families,
    service_families,
    ship_families,
)
from collectord.metrics.families import Labelling, Reading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client.metrics_core import Metric

    from collectord.session.daemon_status import DaemonStatus

    Families = Callable[[Reading], Iterator[Metric]]

# In the order in which a scrape shows them.
_FAMILIES: Final[tuple[Families, ...]] = (
    host_families.families,
    service_families.families,
    ledger_families.families,
    ring_families.recorders,
    ring_families.families,
    core_families.families,
    cost_families.families,
    segment_families.families,
    ship_families.families,
    incident_families.families,
    ledger_families.areas,
    bpf_families.families,
)


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
        reading = Reading(self._status(), self._labelling, self._kernel_release)
        for families in _FAMILIES:
            yield from families(reading)
