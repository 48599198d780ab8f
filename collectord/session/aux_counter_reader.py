# SPDX-License-Identifier: Apache-2.0
"""The readings of a session's AUX areas, in bytes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import structlog

from collectord.errors import KernelError
from collectord.ledger.aux_ledger import (
    AuxBracket,
    AuxReading,
    balance_aux,
    left_balance,
    truncated_bytes,
)
from collectord.session.retired_rings import Part, RetiredRings, add_areas, of_gone

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from collectord._native._core import AuxCounters, AuxRing
    from collectord.kernel.port import Kernel
    from collectord.ledger.aux_ledger import AuxBalance
    from collectord.model import RingLabel
    from collectord.session.counter_reader import Drained, DrainedArea
    from collectord.source.base import SharedLosses
    from collectord.source.ring import AuxHandle

_LOG: Final = structlog.get_logger()


@dataclass(slots=True)
class _Read:
    """An area that is read.

    Attributes:
        area: the area.
        bracket: its last reading.
        next: the reading that the next bracket begins with, once a pass has ended.
        gone: its kernel counters were read for the last time, as `next`.
    """

    area: DrainedArea
    bracket: AuxBracket
    next: AuxReading
    gone: bool = False


class AuxCounterReader:
    """Reads the counters of AUX areas around full passes, in bytes.

    Args:
        kernel: reads them.
        rings: have the areas.
        left: tell what earlier processes lost.

    Reading a counter interrupts its CPU: it is not read while nothing was taken from the area.
    Areas may come and go with their rings. Those of one label are added up; of those that are
    gone, with all their bytes on disk, the sum alone is kept.
    """

    def __init__(
        self, kernel: Kernel, rings: Iterable[Drained], left: Iterable[SharedLosses] = ()
    ) -> None:
        self._kernel = kernel
        self._left = tuple(left)
        self._areas: dict[int, _Read] = {}  # by the core's AUX ring id
        self._handles: dict[RingLabel, AuxHandle] = {}  # of the last area of each place
        self._places: dict[int, RingLabel] = {}  # by the id of their first area, as in segments
        self._retired = RetiredRings(add_areas, _missing, _without)
        self._removed: Counter[int] = Counter()
        for drained in rings:
            self.add(drained)

    def add(self, drained: Drained) -> None:
        """Begin to read the areas of a ring. Raises KernelError."""
        for area in drained.areas:
            reading = self._read(area.handle)
            bracket = AuxBracket(reading, area.ring.counters(), reading)
            self._areas[area.ring.id] = _Read(area, bracket, reading)
            if area.handle.label not in self._handles:
                self._places[area.ring.id] = area.handle.label
            self._handles[area.handle.label] = area.handle

    def retire(self, drained: Drained) -> None:
        """Read the counters of a ring's areas for the last time, before they are closed.

        As `CounterReader.retire`: if they cannot be read, the last reading stays.
        """
        for area in drained.areas:
            one = self._areas[area.ring.id]
            try:
                one.next = self._read(area.handle)
            except KernelError as error:
                _LOG.error("counters_not_read", ring=str(area.handle.label), error=str(error))
                one.next = one.bracket.after
            one.gone = True
            self._finish(one)

    def removed(self, sizes: Mapping[int, int]) -> None:
        """Count the bytes of a file that somebody deleted, by the id of a place's first area."""
        self._removed.update(sizes)
        for number in sizes.keys() & self._places.keys() - self._areas.keys():
            self._retired.removed(self._places[number], sizes[number])

    def _counters(self, ring: AuxRing) -> AuxCounters:
        """Return the core's counters, where deleted bytes count as lost instead of stored."""
        return _counters_without(ring.counters(), self._removed[ring.id])

    def measure(self, *, passed: bool = True) -> None:
        """Take a reading.

        Args:
            passed: a full pass has ended that began after the last reading with `passed` set.

        Raises:
            KernelError: a counter cannot be read.
        """
        for one in tuple(self._areas.values()):
            if one.gone:
                self._finish(one)
                continue
            last, handle = one.bracket, one.area.handle
            counters = self._counters(one.area.ring)
            idle = counters.taken_bytes == last.counters.taken_bytes
            idle = idle and counters.starved == last.counters.starved
            idle = idle and not counters.quarantined
            still = idle and counters.records == last.counters.records
            reading = last.after if still else self._read(handle)
            before = last.before
            if passed:
                before, one.next = one.next, reading
            one.bracket = AuxBracket(before, counters, reading, truncated=_truncated(handle, last))
            handle.note_truncated(_truncated(handle, one.bracket))

    def close(self) -> None:
        """Take the final reading, once the events are disabled and all is drained and written.

        Raises:
            KernelError: a counter cannot be read.
        """
        for one in tuple(self._areas.values()):
            if not one.gone:
                one.next = self._read(one.area.handle)
            self._finish(one, closed=True)

    def _finish(self, one: _Read, *, closed: bool = False) -> None:
        """Take a reading behind the last one of the kernel's counters, which is `next`.

        Args:
            one: the area.
            closed: it is the last reading of all areas.
        """
        counters = self._counters(one.area.ring)
        if one.gone and not counters.in_flight_bytes:
            counters = self._counters(one.area.ring)  # what it has stored was counted before
        handle = one.area.handle
        goes_on = not one.gone and handle.goes_on()
        one.bracket = AuxBracket(
            one.bracket.before if goes_on else one.next,
            of_gone(counters) if one.gone else counters,
            one.next,
            closed=not goes_on and (closed or not counters.in_flight_bytes),
            truncated=_truncated(handle, one.bracket),
        )
        handle.note_truncated(_truncated(handle, one.bracket))
        if one.gone and not counters.in_flight_bytes:
            self._retired.add(one.area.handle, one.bracket)
            del self._areas[one.area.ring.id]

    def balances(self) -> tuple[AuxBalance, ...]:
        """Return the balance of each place's areas as of the last reading."""
        parts = {label: self._retired.of(label) for label in self._handles}
        for one in self._areas.values():
            parts[one.area.handle.label].append(Part(one.bracket))
        areas = tuple(self._balance(self._handles[label], own) for label, own in parts.items())
        lost = {key: n for one in self._left for key, n in one.shared_losses().items()}
        return (*areas, left_balance(areas[0], lost)) if any(lost.values()) else areas

    def _balance(self, handle: AuxHandle, parts: Sequence[Part[AuxBracket]]) -> AuxBalance:
        """Return the balance of a place."""
        bracket = self._retired.whole(parts)
        balance = balance_aux(handle.label, handle.plan, bracket)
        if balance.unaccounted_bytes is None or parts == [Part(bracket)]:
            return balance
        return replace(balance, unaccounted_bytes=self._retired.missing(handle, parts))

    def _read(self, handle: AuxHandle) -> AuxReading:
        """Read the counters before the head: bytes that are counted may be handed over later."""
        readings = [self._kernel.read_counter(c.fd, c.read_format) for c in handle.counters]
        losses = [reading.lost for reading in readings if reading.lost is not None]
        whole = AuxReading(
            head=handle.map.head,
            traced=sum(r.value for r in readings) if handle.plan.counts_bytes else None,
            lost_records=sum(losses) if len(losses) == len(readings) else None,
        )
        return handle.own(whole)


def _missing(handle: AuxHandle, bracket: AuxBracket) -> int:
    """Return the number of unaccounted bytes of an area."""
    return balance_aux(handle.label, handle.plan, bracket).unaccounted_bytes or 0


def _without(bracket: AuxBracket, removed: int) -> AuxBracket:
    """Return a reading with so many deleted bytes as lost instead of stored."""
    return replace(bracket, counters=_counters_without(bracket.counters, removed))


def _counters_without(counters: AuxCounters, removed: int) -> AuxCounters:
    return counters._replace(
        stored_bytes=counters.stored_bytes - removed,
        lost_dropped_bytes=counters.lost_dropped_bytes + removed,
    )


def _truncated(handle: AuxHandle, last: AuxBracket) -> int:
    """Return the bytes that are known to be lost for lack of room."""
    return truncated_bytes(last, handle.plan.data_bytes) or 0
