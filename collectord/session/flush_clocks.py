# SPDX-License-Identifier: Apache-2.0
"""Clock readings at flushes, spread over the segment that is being written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from collectord.model import ClockReading

# The clocks drift apart slowly and steadily, by 0.5 ms a second at most where NTP slews one. A
# reading takes 0.7 ms of a CPU, and waits for RCU: it opens an event of one thread.
_MAX: Final = 16
_FIRST_STRIDE: Final = 8


class FlushClocks:
    """The readings of one segment: at every eighth flush at first, more rarely as it grows."""

    def __init__(self) -> None:
        self._readings: list[ClockReading] = []
        self._flushes = 0
        self._stride = _FIRST_STRIDE

    def flushed(self, read: Callable[[], ClockReading]) -> None:
        """Read the clocks, if a reading is due at this flush."""
        self._flushes += 1
        if self._flushes % self._stride:
            return
        self._readings.append(read())
        if len(self._readings) == _MAX:
            del self._readings[::2]
            self._stride *= 2

    def take(self) -> tuple[ClockReading, ...]:
        """Return the readings in order, and begin anew for another segment."""
        taken = tuple(self._readings)
        self._readings.clear()
        self._flushes, self._stride = 0, _FIRST_STRIDE
        return taken
