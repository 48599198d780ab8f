# SPDX-License-Identifier: Apache-2.0
"""The readings of a session's rings: counters of the kernel and of the core."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import structlog

from collectord.errors import KernelError
from collectord.ledger.present_loss import LossReading
from collectord.ledger.record_ledger import Bracket, losses_of
from collectord.model import Basis
from collectord.session.pause import Pauses
from collectord.session.retired_rings import Part, RetiredRings, add_brackets, of_gone, without
from collectord.session.suppression import Suppression
from collectord.source.window import Held

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from collectord._native._core import AuxRing, Ring, RingCounters
    from collectord.ledger.record_ledger import RingBalance
    from collectord.model import LossKey, Produced, RingLabel
    from collectord.plan.event_attrs import EventPlan
    from collectord.source.base import OpenSource
    from collectord.source.ring import AuxHandle, RingHandle

_LOG: Final = structlog.get_logger()
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


@dataclass(slots=True)
class _Read:
    """A ring that is read.

    Attributes:
        drained: the ring.
        bracket: its last reading.
        next: the reading that the next bracket begins with, once a pass has ended.
        overwritten: events that were overwritten before any window was taken of them.
        gone: its kernel counters were read for the last time, as `next`.
    """

    drained: Drained
    bracket: Bracket
    next: Produced
    overwritten: int = 0
    gone: bool = False


class CounterReader:
    """Reads the counters around full passes and keeps the last bracket of each ring.

    Reading a kernel counter interrupts the CPU that runs the event. So each is read once per call,
    as the end of one bracket and the beginning of the next, and not at all while its ring is idle.

    Rings may come and go. Those of one label are added up, so that its figures only grow.
    """

    def __init__(
        self, source: OpenSource, rings: Iterable[Drained], events: Iterable[EventPlan]
    ) -> None:
        self._source = source
        self._rings: dict[int, _Read] = {}  # by the core's ring id
        self._handles: dict[RingLabel, RingHandle] = {}  # of the last ring of each place
        self._places: dict[int, RingLabel] = {}  # by the id of their first ring, as in segments
        self._retired = RetiredRings(add_brackets, _missing, _bracket_without)
        self._losing = source.abilities.shared
        self.suppression = Suppression(source.abilities.suppressible, events)
        self.pauses = Pauses()
        self._told_lost: Counter[int] = Counter()
        self._found: Counter[int] = Counter()
        self._removed: Counter[int] = Counter()
        self.lost = 0  # a sum that rises with each loss and with each sign of its cause
        self.is_quiet = False  # little was added to any ring between the last two readings
        self._shared = self._shared_before = self._lost_of_all()
        for drained in rings:
            self.add(drained)

    def add(self, drained: Drained) -> None:
        """Begin to read a ring, before its events are enabled. Raises KernelError."""
        counters = self._counters(drained)
        reading = self._produced(drained, counters, 0)
        self._rings[drained.ring.id] = _Read(drained, Bracket(reading, counters, reading), reading)
        if drained.handle.label not in self._handles:
            self._places[drained.ring.id] = drained.handle.label
        self._handles[drained.handle.label] = drained.handle

    def retire(self, drained: Drained) -> None:
        """Read the kernel's counters of a ring for the last time, before they are closed.

        Its events do not count any more, and the core has removed it. What it has delivered may
        still be in flight. If its counters cannot be read nothing is claimed for its place.
        """
        one = self._rings[drained.ring.id]
        counters = self._counters(drained)
        try:
            if drained.handle.has_window:
                self._count_overwritten(one, self._reading(drained))
            one.next = self._read(one, counters)
        except KernelError as error:
            _LOG.error("counters_not_read", ring=str(drained.handle.label), error=str(error))
            one.next = replace(one.bracket.after, uncounted=True)
        one.gone = True
        self._follow(one)

    def _follow(self, one: _Read, *, closed: bool = False) -> bool:
        """Take a reading of a ring that is gone; return whether it has changed.

        Args:
            one: the ring.
            closed: it is the last reading of all rings.
        """
        counters = self._counters(one.drained)
        if not counters.in_flight:
            counters = self._counters(one.drained)  # what it has stored was counted before
        handle, last = one.drained.handle, one.bracket
        one.bracket = Bracket(
            one.next,
            of_gone(counters),
            one.next,
            closed=closed or not counters.in_flight,
            walked=handle.handed_on(one.next, counters),
        )
        self.lost += _loss_sum(one.bracket) - _loss_sum(last)
        if one.bracket != last:
            return True
        # The figures of one that passes records unseen are completed at the end.
        if not counters.in_flight and not handle.is_unseen:
            self._retired.add(handle, one.bracket)
            del self._rings[one.drained.ring.id]
        return False

    def _counters(self, drained: Drained) -> RingCounters:
        """Return the core's counters, where deleted records count as lost instead of stored."""
        return without(drained.ring.counters(), self._removed.get(drained.ring.id, 0))

    def _all_counters(self) -> list[tuple[_Read, RingCounters]]:
        """Return the core's counters of each ring, read before any of the kernel's counters.

        A source may read those of several rings at once; records that arrive meanwhile are not in
        them.
        """
        return [(one, self._counters(one.drained)) for one in self._rings.values()]

    @property
    def brackets(self) -> Mapping[RingLabel, Bracket]:
        """The last reading of each place: that of its rings together."""
        return {label: self._retired.whole(parts) for label, parts in self._parts().items()}

    def _parts(self) -> dict[RingLabel, list[Part[Bracket]]]:
        """Return the last brackets of each place's rings, in their order."""
        parts = {label: self._retired.of(label) for label in self._handles}
        for one in self._rings.values():
            parts[one.drained.handle.label].append(Part(one.bracket))
        return parts

    @property
    def shared_losses(self) -> Mapping[LossKey, int]:
        """The losses that belong to no single ring, as of the last reading."""
        return self._shared

    @property
    def shared_bounds(self) -> tuple[int, int]:
        """The sums of the shared losses as of the last two readings, the older one first."""
        return sum(self._shared_before.values()), sum(self._shared.values())

    def _read(self, one: _Read, counters: RingCounters) -> Produced:
        return self._produced(one.drained, counters, one.overwritten)

    def _produced(self, drained: Drained, counters: RingCounters, gone: int) -> Produced:
        return drained.handle.produced(self._reading(drained), counters, gone)

    def _reading(self, drained: Drained) -> Produced:
        return drained.handle.own(self._source.read_produced(drained.handle))

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
        for one, counters in self._all_counters():
            if one.gone:
                new |= self._follow(one)
                continue
            handle, last = one.drained.handle, one.bracket
            idle = handle.is_idle(counters, last.counters)
            if idle and counters == last.counters:
                continue
            new = True
            before, after = last.before, last.after
            if not idle:
                after = self._read(one, counters)
                if passed:
                    before, one.next = one.next, after
            walked = handle.handed_on(after, counters)
            quiet &= counters.bytes - last.counters.bytes < _QUIET_BYTES
            quiet &= (after.value or 0) - (last.after.value or 0) < _QUIET_RECORDS
            one.bracket = Bracket(before, counters, after, walked=walked)
            self.lost += _loss_sum(one.bracket) - _loss_sum(last)
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
        self._count_last_overwritten()
        for one, counters in self._all_counters():
            if one.gone:
                self._follow(one, closed=True)
                continue
            reading = self._read(one, counters)
            walked = one.drained.handle.handed_on(reading, counters)
            goes_on = one.drained.handle.goes_on()
            before = one.bracket.before if goes_on else reading
            one.bracket = Bracket(before, counters, reading, closed=not goes_on, walked=walked)
        self._read_shared()

    def before_windows(self) -> Mapping[int, Produced]:
        """Read the counters of overwritable rings, for a later call of `count_overwritten`."""
        return {
            number: self._reading(one.drained)
            for number, one in self._rings.items()
            if one.drained.handle.has_window and not one.gone
        }

    def count_overwritten(self, before: Mapping[int, Produced]) -> None:
        """Count the records that were overwritten before any window was taken of them.

        The kernel counts a ring's records as they are written, and the core counts them as a
        window is taken; nobody counts the records in the ring between two windows. So the first
        reading has to be made shortly before the windows are taken, or when no more records
        arrive.

        Args:
            before: of `before_windows`.
        """
        for number, reading in before.items():
            one = self._rings.get(number)
            if one is not None and not one.gone:
                self._count_overwritten(one, reading)

    def _count_last_overwritten(self) -> None:
        """Count them in rings whose events are disabled, and whose last windows are taken."""
        self.count_overwritten(
            {
                number: reading
                for number, reading in self.before_windows().items()
                if not self._rings[number].drained.handle.goes_on()
            }
        )

    def _count_overwritten(self, one: _Read, reading: Produced) -> None:
        if reading.value is None:
            return
        counters = one.drained.ring.counters()
        lost = reading.lost if reading.lost is not None else counters.lost_records
        one.overwritten = max(reading.value - lost - counters.window_taken, one.overwritten)
        one.drained.handle.note_overwritten(one.overwritten)

    def found(self, samples: Mapping[int, int]) -> None:
        """Count the events that the seal of a segment found, by the core's ring id."""
        self._found.update(samples)

    def removed(self, samples: Mapping[int, int]) -> None:
        """Count the events of a file that somebody deleted, by the id of a place's first ring."""
        self._removed.update(samples)
        gone = samples.keys() & self._places.keys() - self._rings.keys()
        for number in gone:
            self._retired.removed(self._places[number], samples[number])
        self.lost += sum(samples[number] for number in gone)

    def settle(self, last: Mapping[int, int]) -> None:
        """Set the passed events to those found in segments, once all events are in segments.

        Args:
            last: events of the last segment, by the core's ring id, unless `found` has them
                already.
        """
        for number, one in self._rings.items():
            if one.drained.handle.is_unseen:
                found = self._found[number] + last.get(number, 0)
                one.bracket = replace(one.bracket, walked=found)

    def take_losses(self) -> dict[int, int]:
        """Return the losses by event id since the last call, from the kernel's exact counters."""
        lost: Counter[int] = Counter()
        for bracket in self.brackets.values():
            for event_id, _, count in bracket.after.per_event:
                lost[event_id] += count  # CPUs that came late share ids with another
        taken = {event_id: n - self._told_lost[event_id] for event_id, n in lost.items()}
        self._told_lost |= lost
        return {event_id: n for event_id, n in taken.items() if n > 0}

    def balances(self, since_ns: int | None = None) -> tuple[RingBalance, ...]:
        """Return the balance of each place as of the last reading.

        Args:
            since_ns: the basis is for the time since then, 0: for the whole session. None: for
                this moment.
        """
        return tuple(
            self._balance(self._handles[label], parts, since_ns)
            for label, parts in self._parts().items()
        )

    def _balance(
        self, handle: RingHandle, parts: Sequence[Part[Bracket]], since_ns: int | None
    ) -> RingBalance:
        """Return the balance of a place."""
        bracket = self._retired.whole(parts)
        basis = self._basis(handle, bracket, since_ns)
        balance = handle.balance(bracket, basis, self._programs(handle))
        if balance.unaccounted is None or parts == [Part(bracket)]:
            return balance
        return replace(balance, unaccounted=self._retired.missing(handle, parts))

    def events(self) -> int:
        """Return how many events the data rings were offered; reads the counters of held ones.

        Those rings count nothing until a snapshot, unless the kernel counts their events.
        """
        gone = (bracket for label, bracket in self._retired.brackets() if label.has_data)
        live = (one for one in self._rings.values() if one.drained.handle.label.has_data)
        return sum(bracket.happened for bracket in gone) + sum(map(self._happened, live))

    def _happened(self, one: _Read) -> int:
        if not one.drained.handle.has_window or one.gone:
            return one.bracket.happened
        with suppress(KernelError):  # the next snapshot reports it
            return self._reading(one.drained).value or 0
        return one.bracket.after.value or 0

    def foreign_reads(self) -> int:
        """Return how many events other readers took out of the rings, as of the last reading."""
        return sum(self._handles[label].foreign_reads(b) for label, b in self.brackets.items())

    def resets(self) -> int:
        """Return how often others emptied the rings, as of the last reading."""
        return sum(self._handles[label].resets(b) for label, b in self.brackets.items())

    def held(self) -> list[Held]:
        """Return what the rings of an ftrace flight recorder hold, as of the last reading."""
        rings = [one for one in self._rings.values() if not one.gone]
        readings = ((one.drained.handle.label.cpu, one.bracket.after) for one in rings)
        return [Held(cpu, one.unread_bytes, one.oldest_unread_age_ns) for cpu, one in readings]

    def losses(self) -> LossReading:
        """Return the losses as of the last reading, with the counters that show their cause."""
        lost = Counter(self._shared)
        starved = records = size_bytes = 0
        for bracket in self.brackets.values():
            lost.update(losses_of(bracket.counters, bracket.after))
            starved += bracket.counters.starved
            records += bracket.counters.records
            size_bytes += bracket.counters.bytes
        in_bytes = any(handle.in_bytes for handle in self._handles.values())
        unit = "bytes" if in_bytes else "records"
        return LossReading(lost, starved, records, size_bytes, unit)

    def _basis(self, handle: RingHandle, bracket: Bracket, since_ns: int | None) -> Basis:
        """Return the basis: lost_only if events were hidden, reset, paused, or a ring grew."""
        if bracket.after.uncounted:
            return Basis.LOST_ONLY
        hidden = self.suppression.hid((c.event_index for c in handle.counters), since_ns)
        if (hidden or self.pauses.were(since_ns)) and handle.is_exact:
            return Basis.LOST_ONLY
        return handle.basis

    def _programs(self, handle: RingHandle) -> tuple[int, ...]:
        if not handle.label.has_data:
            return ()
        return self.suppression.programs(counter.event_index for counter in handle.counters)


def _missing(handle: RingHandle, bracket: Bracket) -> int:
    """Return the number of unaccounted records of a ring."""
    return handle.balance(bracket, handle.basis).unaccounted or 0


def _bracket_without(bracket: Bracket, removed: int) -> Bracket:
    """Return a reading with so many deleted records as lost instead of stored."""
    return replace(bracket, counters=without(bracket.counters, removed))


def _loss_sum(bracket: Bracket) -> int:
    """Sum all counters that indicate a loss; some losses are in several of them."""
    counters, kernel = bracket.counters, bracket.after
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
