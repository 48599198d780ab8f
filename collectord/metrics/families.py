# SPDX-License-Identifier: Apache-2.0
"""Metric families from samples, the reading they show, and the labels of sessions and rings."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from collectord.ledger.record_ledger import RingBalance, SessionBalance
    from collectord.model import RingLabel
    from collectord.session.daemon_status import DaemonStatus

    Labels = tuple[str, ...]
    Row = tuple[Labels, float]
    # None: unknown. A sum of which one part is unknown is unknown, and has no series.
    Known = tuple[Labels, float | None]

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

    @property
    def counted(self) -> tuple[SessionBalance, ...]:
        """The balances that a counter sums up: of the sessions, and of those before them."""
        return (*self.status.sessions, *self.status.before)


class Part(NamedTuple):
    """Series of a family that share a name and the names of their labels.

    Attributes:
        suffix: what the family's name lacks.
        names: of the labels.
        rows: the values of the labels, each set once, with the value of the series.
    """

    suffix: str
    names: Labels
    rows: Sequence[Row]


class Family(Metric):
    """A metric family whose samples are made only for those that ask for them.

    `exposition` writes the parts as they are.
    """

    def __init__(self, name: str, text: str, kind: str, parts: Sequence[Part]) -> None:
        super().__init__(name, text, kind)
        self.parts = parts

    @property
    def samples(self) -> list[Sample]:
        """The samples as the Prometheus client has them."""
        return [
            Sample(self.name + part.suffix, dict(zip(part.names, labels, strict=True)), value)
            for part in self.parts
            for labels, value in part.rows
        ]

    @samples.setter
    def samples(self, _: list[Sample]) -> None:
        """Ignore the empty list that the base class begins with."""


def of_session(session: SessionBalance) -> Labels:
    """Return the labels of a session."""
    return (session.name, session.source)


def counter(name: str, text: str, names: Labels, samples: Iterable[Known]) -> Metric:
    """Return a counter family, named `name` and `_total`; samples with equal labels are added."""
    return Family(name, text, "counter", [Part("_total", names, _sums(samples))])


def gauge(name: str, text: str, names: Labels, samples: Iterable[Known]) -> Metric:
    """Return a gauge family; samples with equal labels are added."""
    return Family(name, text, "gauge", [Part("", names, _sums(samples))])


def highest(name: str, text: str, names: Labels, samples: Iterable[Row]) -> Metric:
    """Return a gauge family; of samples with equal labels the highest counts."""
    return gauge(name, text, names, _chosen(samples, max))


def lowest(name: str, text: str, names: Labels, samples: Iterable[Row]) -> Metric:
    """Return a gauge family; of samples with equal labels the lowest counts."""
    return gauge(name, text, names, _chosen(samples, min))


def _chosen(samples: Iterable[Row], choose: Callable[[float, float], float]) -> Iterable[Row]:
    found: dict[Labels, float] = {}
    for labels, value in samples:
        found[labels] = choose(value, found.get(labels, value))
    return found.items()


def _sums(samples: Iterable[Known]) -> list[Row]:
    sums: dict[Labels, float] = defaultdict(int)
    unknown = set()
    for labels, value in samples:
        if value is None:
            unknown.add(labels)
        else:
            sums[labels] += value
    return [row for row in sums.items() if row[0] not in unknown]
