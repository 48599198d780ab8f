# SPDX-License-Identifier: Apache-2.0
"""The readings of a session's rings: counters of the kernel and of the core."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from collectord.ledger.record_ledger import Bracket, losses_of
from collectord.model import Basis, RingRole
from collectord.session.loss_watch import LossReading
from collectord.session.suppression import Suppression
from collectord.source.window import Held

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from collectord._native._core import AuxRing, Ring, RingCounters
    from collectord.ledger.record_ledger import RingBalance
    from collectord.model import LossKey, Produced, RingLabel
    from collectord.plan.event_attrs import EventPlan
    from collectord.source.base import OpenSource
    from collectord.source.ring import AuxHandle, RingHandle

# A ring is quiet if less than this was added between two readings.
_QUIET_BYTES: Final = 32 << 10
_QUIET_RECORDS: Final = 4096


@dataclass(frozen=True, slots=True)
class DrainedArea:
    """An AUX area: its source's handle and the core's ring."""

    handle: AuxHandle
    ring: AuxRing


@dataclass(frozen=True, slots=True)
class Drained:
    """A ring: its source's handle, the core's ring, and its AUX area if it has one."""

    handle: RingHandle
    ring: Ring
    areas: tuple[DrainedArea, ...] = ()


class CounterReader:
    """Reads the counters around full passes and keeps the last bracket of each ring.

    Reading a kernel counter interrupts the CPU that runs the event. So each is read once per call,
    as the end of one bracket and the beginning of the next, and not at all while its ring is idle.
    """

    def __init__(
        self, source: OpenSource, rings: Iterable[Drained], events: Iterable[EventPlan]
    ) -> None:
        self._source = source
        self._rings = {drained.handle.label: drained for drained in rings}
        self._losing = source.abilities.shared
        self.suppression = Suppression(source.abilities.suppressible, events)
        self._told_lost: dict[int, int] = {}
        self._found: Counter[int] = Counter()
        self._removed: Counter[int] = Counter()
        self._brackets: dict[RingLabel, Bracket] = {}
        self._next: dict[RingLabel, Produced] = {}
        self._overwritten: Counter[RingLabel] = Counter()
        self.lost = 0  # a sum that rises with each loss and with each sign of its cause
        self.is_quiet = False  # little was added to any ring between the last two readings
        self._shared = self._shared_before = self._lost_of_all()
        for label, drained in self._rings.items():
            counters = self._counters(drained)
            reading = self._read(drained, counters)
            self._brackets[label] = Bracket(reading, counters, reading)
            self._next[label] = reading

    def _counters(self, drained: Drained) -> RingCounters:
        """Return the core's counters, where deleted records count as lost instead of stored."""
        counters, removed = drained.ring.counters(), self._removed.get(drained.ring.id, 0)
        if not removed:
            return counters
        return counters._replace(
            stored=counters.stored - removed, lost_dropped=counters.lost_dropped + removed
        )

    def _all_counters(self) -> list[tuple[Drained, RingCounters]]:
        """Return the core's counters of each ring, read before any of the kernel's counters.

        A source may read those of several rings at once; records that arrive meanwhile are not in
        them.
        """
        return [(drained, self._counters(drained)) for drained in self._rings.values()]

    @property
    def brackets(self) -> Mapping[RingLabel, Bracket]:
        """The last bracket of each ring."""
        return self._brackets

    @property
    def shared_losses(self) -> Mapping[LossKey, int]:
        """The losses that belong to no single ring, as of the last reading."""
        return self._shared

    @property
    def shared_bounds(self) -> tuple[int, int]:
        """The sums of the shared losses as of the last two readings, the older one first."""
        return sum(self._shared_before.values()), sum(self._shared.values())

    def _read(self, drained: Drained, counters: RingCounters) -> Produced:
        handle = drained.handle
        reading = self._source.read_produced(handle)
        return handle.produced(reading, counters, self._overwritten[handle.label])

    def _read_shared(self) -> None:
        self._shared_before, self._shared = self._shared, self._lost_of_all()

    def _lost_of_all(self) -> dict[LossKey, int]:
        return {key: n for one in self._losing for key, n in one.shared_losses().items()}

    def measure(self, *, passed: bool = True) -> bool:
        """Take a reading.

        Args:
            passed: a full pass has ended that began after the last reading with `passed` set.

        Returns:
            whether anything has changed; if not, all balances are as they were.
        """
        new = False
        quiet = True
        for drained, counters in self._all_counters():
            label = drained.handle.label
            last = self._brackets[label]
            idle = drained.handle.is_idle(counters, last.counters)
            if idle and counters == last.counters:
                continue
            new = True
            before, after = last.before, last.after
            if not idle:
                after = self._read(drained, counters)
                if passed:
                    before, self._next[label] = self._next[label], after
            walked = drained.handle.handed_on(after, counters)
            quiet &= counters.bytes - last.counters.bytes < _QUIET_BYTES
            quiet &= (after.value or 0) - (last.after.value or 0) < _QUIET_RECORDS
            self._brackets[label] = Bracket(before, counters, after, walked=walked)
            self.lost += _told(counters, after) - _told(last.counters, last.after)
        self.is_quiet = quiet
        before_last = self._shared_before
        self._read_shared()
        if self._shared != self._shared_before:
            new = True
            self.lost += sum(self._shared.values()) - sum(self._shared_before.values())
        if not passed:
            self._shared_before = before_last
        return new

    def close(self) -> None:
        """Take the final reading, once the events are disabled and all is drained and written."""
        self.suppression.end()
        self.count_overwritten()
        for drained, counters in self._all_counters():
            label = drained.handle.label
            reading = self._read(drained, counters)
            walked = drained.handle.handed_on(reading, counters)
            self._brackets[label] = Bracket(reading, counters, reading, closed=True, walked=walked)
        self._read_shared()

    def before_windows(self) -> Mapping[RingLabel, Produced]:
        """Read the counters of overwritable rings, for a later call of `count_overwritten`."""
        return {
            label: self._source.read_produced(drained.handle)
            for label, drained in self._rings.items()
            if drained.handle.has_window
        }

    def count_overwritten(self, before: Mapping[RingLabel, Produced] | None = None) -> None:
        """Count the records that were overwritten before any window was taken of them.

        The kernel counts a ring's records as they are written, and the core counts them as a
        window is taken; nobody counts the records in the ring between two windows. So the first
        reading has to be made shortly before the windows are taken, or when no more records
        arrive.

        Args:
            before: of `before_windows`; None: the events are disabled and the last windows are
                taken.
        """
        readings = before if before is not None else self.before_windows()
        for label, reading in readings.items():
            if reading.value is None:
                continue
            counters = self._rings[label].ring.counters()
            lost = reading.lost if reading.lost is not None else counters.lost_records
            gone = reading.value - lost - counters.window_taken
            self._overwritten[label] = max(gone, self._overwritten[label])

    def found(self, samples: Mapping[int, int]) -> None:
        """Count the events that the seal of a segment found, by the core's ring id."""
        self._found.update(samples)

    def removed(self, samples: Mapping[int, int]) -> None:
        """Count the events of a file that somebody deleted, by the core's ring id."""
        self._removed.update(samples)

    def settle(self, last: Mapping[int, int]) -> None:
        """Set the passed events to those found in segments, once all events are in segments.

        Args:
            last: events of the last segment, by the core's ring id, unless `found` has them
                already.
        """
        for label, drained in self._rings.items():
            if drained.handle.is_unseen:
                found = self._found[drained.ring.id] + last.get(drained.ring.id, 0)
                self._brackets[label] = replace(self._brackets[label], walked=found)

    def take_losses(self) -> dict[int, int]:
        """Return the losses by event id since the last call, from the kernel's exact counters."""
        taken = {}
        for bracket in self._brackets.values():
            for event_id, _, lost in bracket.after.per_event:
                if lost > self._told_lost.get(event_id, 0):
                    taken[event_id] = lost - self._told_lost.get(event_id, 0)
                    self._told_lost[event_id] = lost
        return taken

    def balances(self, since_ns: int | None = None) -> tuple[RingBalance, ...]:
        """Return the balance of each ring as of the last reading.

        Args:
            since_ns: the basis holds for the time from then on, 0 for all time. None: for now.
        """
        return tuple(
            drained.handle.balance(
                self._brackets[label],
                self._basis(drained.handle, since_ns),
                self._programs(drained.handle),
            )
            for label, drained in self._rings.items()
        )

    def foreign_reads(self) -> int:
        """Return how many events other readers took out of the rings, as of the last reading."""
        return sum(
            drained.handle.foreign_reads(self._brackets[label])
            for label, drained in self._rings.items()
        )

    def resets(self) -> int:
        """Return how often others emptied the rings, as of the last reading."""
        return sum(
            drained.handle.resets(self._brackets[label]) for label, drained in self._rings.items()
        )

    def held(self) -> list[Held]:
        """Return what the rings of an ftrace flight recorder hold, as of the last reading."""
        readings = ((label.cpu, self._brackets[label].after) for label in self._rings)
        return [Held(cpu, one.unread_bytes, one.oldest_unread_age_ns) for cpu, one in readings]

    def losses(self) -> LossReading:
        """Return the losses as of the last reading, with the counters that show their cause."""
        lost = Counter(self._shared)
        starved = records = size_bytes = 0
        for bracket in self._brackets.values():
            lost.update(losses_of(bracket.counters, bracket.after))
            starved += bracket.counters.starved
            records += bracket.counters.records
            size_bytes += bracket.counters.bytes
        unit = (
            "bytes"
            if any(drained.handle.in_bytes for drained in self._rings.values())
            else "records"
        )
        return LossReading(lost, starved, records, size_bytes, unit)

    def _basis(self, handle: RingHandle, since_ns: int | None) -> Basis:
        """Return the basis: lost_only if events were hidden, reset, or added while a ring grew."""
        if self._brackets[handle.label].after.uncounted:
            return Basis.LOST_ONLY
        hidden = self.suppression.hid((c.event_index for c in handle.counters), since_ns)
        if hidden and handle.basis is Basis.EXACT:
            return Basis.LOST_ONLY
        return handle.basis

    def _programs(self, handle: RingHandle) -> tuple[int, ...]:
        if handle.label.role is not RingRole.DATA:
            return ()
        return self.suppression.programs(counter.event_index for counter in handle.counters)


def _told(counters: RingCounters, kernel: Produced) -> int:
    """Sum all counters that indicate a loss; some losses are in several of them."""
    return (
        (kernel.lost or 0)
        + sum(kernel.losses.values())
        + counters.lost_records
        + counters.lost_samples
        + counters.lost_disk_full
        + counters.lost_dropped
        + counters.faults
        + counters.starved
    )
