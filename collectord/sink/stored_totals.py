# SPDX-License-Identifier: Apache-2.0
"""The totals of events in the sealed segments of a run, which each manifest tells."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from collectord.sink.base import Opening
    from collectord.sink.manifest import RingEntry


class StoredTotals:
    """The events stored so far, of all rings and of each. Calls may come from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stored = 0
        self._by_ring: Counter[int] = Counter()  # by ring id

    @property
    def stored(self) -> int:
        """The events of all rings."""
        return self._stored

    def go_on(self, opening: Opening) -> None:
        """Continue the counts of an earlier process."""
        with self._lock:
            self._stored = max(self._stored, opening.stored_before)
            for entry in opening.rings:
                self._by_ring[entry.ring] = max(self._by_ring[entry.ring], entry.stored_total)

    def add(self, samples: int, rings: Iterable[RingEntry]) -> None:
        """Add the totals of a sealed segment."""
        with self._lock:
            self._stored += samples
            self._by_ring.update({entry.ring: entry.samples for entry in rings})

    def set_in(self, rings: Iterable[RingEntry]) -> tuple[RingEntry, ...]:
        """Return entries with the total of each ring, including what the entry itself has."""
        return tuple(
            msgspec.structs.replace(entry, stored_total=self._by_ring[entry.ring] + entry.amount)
            for entry in rings
        )
