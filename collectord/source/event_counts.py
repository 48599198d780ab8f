# SPDX-License-Identifier: Apache-2.0
"""The events that count for a ring of perf, and what they have counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from collectord.kernel.port import Kernel
    from collectord.source.ring import CounterFd, RingHandle


class EventCount(NamedTuple):
    """The count of one event in one ring; `event_id` is the one that files know."""

    event_index: int
    event_id: int
    value: int
    lost: int | None


class EventCounts(Protocol):
    """The counters of the rings of a session."""

    def of(self, ring: RingHandle) -> Sequence[CounterFd]:
        """Return the open counters of a ring."""

    def read(self, ring: RingHandle) -> Sequence[EventCount]:
        """Return what was counted for a ring. Raises KernelError."""


def read(kernel: Kernel, counter: CounterFd) -> EventCount:
    """Read one counter. Raises KernelError."""
    reading = kernel.read_counter(counter.fd, counter.read_format)
    return EventCount(counter.event_index, counter.event_id, reading.value, reading.lost)


class OwnCounts:
    """Counters that were opened with the rings. See `EventCounts`."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    @staticmethod
    def of(ring: RingHandle) -> Sequence[CounterFd]:
        """See `EventCounts`."""
        return ring.counters

    def read(self, ring: RingHandle) -> Sequence[EventCount]:
        """See `EventCounts`."""
        return [read(self._kernel, counter) for counter in ring.counters]
