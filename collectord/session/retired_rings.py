# SPDX-License-Identifier: Apache-2.0
"""Sums over the rings that one place has had, one after the other.

When a CPU goes offline its rings are closed, and when it comes back it gets new ones, which count
from 0. The balance of the place goes on: it is that of all its rings together, under one label. So
no counter falls, and a manifest of the time in between tells of both.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from collectord.ledger.aux_ledger import AuxBracket, AuxReading
from collectord.ledger.counter_sums import PRESENT, Counters, add_counters
from collectord.ledger.record_ledger import Bracket
from collectord.model import sum_known

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from collectord._native._core import RingCounters
    from collectord.model import LossKey, Produced, RingLabel


class _Labelled(Protocol):
    @property
    def label(self) -> RingLabel:
        """The place of a ring."""


H = TypeVar("H", bound=_Labelled)
R = TypeVar("R")


class Part(NamedTuple, Generic[R]):
    """The last reading of a ring, or the sum over several that are gone.

    Attributes:
        bracket: the reading.
        unaccounted: of such a sum, the records or bytes that each of them lacked or had too much;
            None for a ring.
    """

    bracket: R
    unaccounted: int | None = None


@dataclass(frozen=True, slots=True)
class RetiredRings(Generic[H, R]):
    """The sums over a session's rings that are gone, and of which nothing is in flight.

    Attributes:
        add_two: returns the reading of a place by those of two of its rings, the later one second.
        missing_of: returns the number of unaccounted records or bytes of a ring by its reading.
        without: returns a reading with so many deleted records or bytes as lost instead of stored.
    """

    add_two: Callable[[R, R], R]
    missing_of: Callable[[H, R], int]
    without: Callable[[R, int], R]
    _sums: dict[RingLabel, Part[R]] = field(default_factory=dict)

    def add(self, handle: H, bracket: R) -> None:
        """Add the last reading of a ring."""
        parts = [*self.of(handle.label), Part(bracket)]
        self._sums[handle.label] = Part(self.whole(parts), self.missing(handle, parts))

    def of(self, label: RingLabel) -> list[Part[R]]:
        """Return the sum of a place, as the first of its parts; nothing if none of it is gone."""
        return [self._sums[label]] if label in self._sums else []

    def whole(self, parts: Iterable[Part[R]]) -> R:
        """Return the reading of a place by those of its rings, in their order."""
        return reduce(self.add_two, (part.bracket for part in parts))

    def missing(self, handle: H, parts: Iterable[Part[R]]) -> int:
        """Return what is unaccounted of a place; one ring does not make up for another.

        Args:
            handle: of a ring of the place.
            parts: its rings.
        """
        return sum(
            self.missing_of(handle, part.bracket) if part.unaccounted is None else part.unaccounted
            for part in parts
        )

    def brackets(self) -> Iterator[tuple[RingLabel, R]]:
        """Yield the sum of each place."""
        yield from ((label, part.bracket) for label, part in self._sums.items())

    def removed(self, label: RingLabel, count: int) -> None:
        """Count the records or bytes of a file that somebody deleted."""
        part = self._sums[label]
        self._sums[label] = part._replace(bracket=self.without(part.bracket, count))


def without(counters: RingCounters, removed: int) -> RingCounters:
    """Return the counters with so many deleted records as lost instead of stored."""
    if not removed:
        return counters
    return counters._replace(
        stored=counters.stored - removed, lost_dropped=counters.lost_dropped + removed
    )


def of_gone(counters: Counters) -> Counters:
    """Return the counters of a ring that is gone, without what they say about the present."""
    zeros: dict[str, Any] = dict.fromkeys(PRESENT.intersection(counters._fields), 0)
    return counters._replace(**zeros)


def add_readings(before: Produced, last: Produced) -> Produced:
    """Return the sum of the counters of two rings that one place had, the later one second."""
    losses: dict[LossKey, int] = {
        key: before.losses.get(key, 0) + last.losses.get(key, 0)
        for key in {**before.losses, **last.losses}
    }
    return replace(
        last,
        value=sum_known((before.value, last.value)),
        lost=sum_known((before.lost, last.lost)),
        per_event=_by_event(before, last),
        losses=losses,
        overwritten=sum_known((before.overwritten, last.overwritten)),
        read_events=sum_known((before.read_events, last.read_events)),
        unread=before.unread + last.unread,
        unread_bytes=before.unread_bytes + last.unread_bytes,
        resets=before.resets + last.resets,
        uncounted=before.uncounted or last.uncounted,
    )


def _by_event(before: Produced, last: Produced) -> tuple[tuple[int, int, int], ...]:
    values: Counter[int] = Counter()
    losses: Counter[int] = Counter()
    for event_id, value, lost in (*before.per_event, *last.per_event):
        values[event_id] += value
        losses[event_id] += lost
    return tuple((event_id, value, losses[event_id]) for event_id, value in values.items())


def add_brackets(before: Bracket, last: Bracket) -> Bracket:
    """Return the reading of a place by those of two of its rings, the later one second."""
    unseen = before.walked is not None or last.walked is not None
    return Bracket(
        add_readings(before.before, last.before),
        add_counters(before.counters, last.counters),
        add_readings(before.after, last.after),
        closed=before.closed and last.closed,
        walked=before.stored + last.stored if unseen else None,
    )


def add_areas(before: AuxBracket, last: AuxBracket) -> AuxBracket:
    """Return the reading of a place by those of two of its AUX areas, the later one second."""
    return AuxBracket(
        _add_aux_readings(before.before, last.before),
        add_counters(before.counters, last.counters),
        _add_aux_readings(before.after, last.after),
        closed=before.closed and last.closed,
        truncated=before.truncated + last.truncated,
    )


def _add_aux_readings(before: AuxReading, last: AuxReading) -> AuxReading:
    return AuxReading(
        head=before.head + last.head,
        traced=sum_known((before.traced, last.traced)),
        lost_records=sum_known((before.lost_records, last.lost_records)),
    )
