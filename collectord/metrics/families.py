# SPDX-License-Identifier: Apache-2.0
"""Metric families from samples, the reading they show, and the labels of sessions and rings."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from prometheus_client.metrics_core import Metric

    from collectord.ledger.record_ledger import RingBalance, SessionBalance
    from collectord.model import RingLabel
    from collectord.session.daemon_status import DaemonStatus

    Labels = tuple[str, ...]
    # None: unknown. A sum of which one part is unknown is unknown, and has no series.
    Sample = tuple[Labels, float | None]

SESSION: Final = ("session", "source")


@dataclass(frozen=True, slots=True)
class Labelling:
    """The labels of rings.

    Attributes:
        per_cpu: with the ring's CPU too; -1 stands for rings of threads.
    """

    per_cpu: bool

    @property
    def names(self) -> Labels:
        """The names of the labels."""
        return (*SESSION, "cpu") if self.per_cpu else SESSION

    def of(self, session: SessionBalance, ring: RingLabel) -> Labels:
        """Return the labels of a ring, or of an AUX area."""
        if self.per_cpu:
            return (session.name, session.source, str(ring.cpu))
        return of_session(session)

    def rings(self, sessions: Iterable[SessionBalance]) -> list[tuple[Labels, RingBalance]]:
        """Return all rings of the sessions, with their labels."""
        return [(self.of(s, ring.label), ring) for s in sessions for ring in s.rings]


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading of the daemon, of which a scrape makes all families.

    Attributes:
        status: the figures.
        labelling: the labels of rings.
        kernel_release: as in `uname -r`.
    """

    status: DaemonStatus
    labelling: Labelling
    kernel_release: str


def of_session(session: SessionBalance) -> Labels:
    """Return the labels of a session."""
    return (session.name, session.source)


def counter(name: str, text: str, names: Sequence[str], samples: Iterable[Sample]) -> Metric:
    """Return a counter family, named `name` and `_total`; samples with equal labels are added."""
    family = CounterMetricFamily(name, text, labels=names)
    for labels, value in _sums(samples).items():
        family.add_metric(labels, value)
    return family


def gauge(name: str, text: str, names: Sequence[str], samples: Iterable[Sample]) -> Metric:
    """Return a gauge family; samples with equal labels are added."""
    family = GaugeMetricFamily(name, text, labels=names)
    for labels, value in _sums(samples).items():
        family.add_metric(labels, value)
    return family


def highest(
    name: str, text: str, names: Sequence[str], samples: Iterable[tuple[Labels, float]]
) -> Metric:
    """Return a gauge family; of samples with equal labels the highest counts."""
    found: dict[Labels, float] = {}
    for labels, value in samples:
        found[labels] = max(value, found.get(labels, value))
    return gauge(name, text, names, found.items())


def lowest(
    name: str, text: str, names: Sequence[str], samples: Iterable[tuple[Labels, float]]
) -> Metric:
    """Return a gauge family; of samples with equal labels the lowest counts."""
    found: dict[Labels, float] = {}
    for labels, value in samples:
        found[labels] = min(value, found.get(labels, value))
    return gauge(name, text, names, found.items())


def _sums(samples: Iterable[Sample]) -> dict[Labels, float]:
    sums: dict[Labels, float] = defaultdict(int)
    unknown = set()
    for labels, value in samples:
        if value is None:
            unknown.add(labels)
        else:
            sums[labels] += value
    return {labels: value for labels, value in sums.items() if labels not in unknown}
