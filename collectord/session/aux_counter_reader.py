# SPDX-License-Identifier: Apache-2.0
"""The readings of a session's AUX areas, in bytes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from collectord.ledger.aux_ledger import AuxBracket, AuxReading, balance_aux, truncated_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from collectord._native._core import AuxCounters, AuxRing
    from collectord.kernel.port import Kernel
    from collectord.ledger.aux_ledger import AuxBalance
    from collectord.session.counter_reader import Drained
    from collectord.source.ring import AuxHandle


class AuxCounterReader:
    """Reads the counters of AUX areas around full passes, in bytes.

    Reading a counter interrupts its CPU: it is not read while nothing was taken from the area.
    """

    def __init__(self, kernel: Kernel, rings: Iterable[Drained]) -> None:
        self._kernel = kernel
        self._areas = [(area.handle, area.ring) for ring in rings for area in ring.areas]
        self._brackets: list[AuxBracket] = []
        self._next: list[AuxReading] = []
        self._removed: Counter[int] = Counter()
        for handle, ring in self._areas:
            reading = self._read(handle)
            self._brackets.append(AuxBracket(reading, ring.counters(), reading))
            self._next.append(reading)

    def removed(self, sizes: Mapping[int, int]) -> None:
        """Count the bytes of a segment whose file somebody deleted, by the core's AUX ring id."""
        self._removed.update(sizes)

    def _counters(self, ring: AuxRing) -> AuxCounters:
        """Return the core's counters, where deleted bytes count as lost instead of stored."""
        counters, removed = ring.counters(), self._removed[ring.id]
        return counters._replace(
            stored_bytes=counters.stored_bytes - removed,
            lost_dropped_bytes=counters.lost_dropped_bytes + removed,
        )

    def measure(self, *, passed: bool = True) -> None:
        """Take a reading.

        Args:
            passed: a full pass has ended that began after the last reading with `passed` set.

        Raises:
            KernelError: a counter cannot be read.
        """
        for number, (handle, ring) in enumerate(self._areas):
            last = self._brackets[number]
            counters = self._counters(ring)
            idle = counters.taken_bytes == last.counters.taken_bytes
            idle = idle and counters.starved == last.counters.starved
            idle = idle and not counters.quarantined
            still = idle and counters.records == last.counters.records
            reading = last.after if still else self._read(handle)
            before = last.before
            if passed:
                before, self._next[number] = self._next[number], reading
            self._brackets[number] = AuxBracket(
                before, counters, reading, truncated=_truncated(handle, last)
            )

    def close(self) -> None:
        """Take the final reading, once the events are disabled and all is drained and written.

        Raises:
            KernelError: a counter cannot be read.
        """
        for number, (handle, ring) in enumerate(self._areas):
            reading = self._read(handle)
            self._brackets[number] = AuxBracket(
                reading,
                self._counters(ring),
                reading,
                closed=True,
                truncated=_truncated(handle, self._brackets[number]),
            )

    def balances(self) -> tuple[AuxBalance, ...]:
        """Return the balance of each area as of the last reading."""
        return tuple(
            balance_aux(handle.label, handle.plan, bracket)
            for (handle, _), bracket in zip(self._areas, self._brackets, strict=True)
        )

    def _read(self, handle: AuxHandle) -> AuxReading:
        """Read the counters before the head: bytes that are counted may be handed over later."""
        readings = [self._kernel.read_counter(c.fd, c.read_format) for c in handle.counters]
        losses = [reading.lost for reading in readings if reading.lost is not None]
        return AuxReading(
            head=handle.map.head,
            traced=sum(r.value for r in readings) if handle.plan.counts_bytes else None,
            lost_records=sum(losses) if len(losses) == len(readings) else None,
        )


def _truncated(handle: AuxHandle, last: AuxBracket) -> int:
    """Return the bytes that are known to be lost for lack of room."""
    return truncated_bytes(last, handle.plan.data_bytes) or 0
