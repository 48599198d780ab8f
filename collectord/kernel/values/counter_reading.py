# SPDX-License-Identifier: Apache-2.0
"""A reading of a perf event's counter."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CounterReading:
    """A reading of a perf event by read(2); times in ns.

    Attributes:
        value: events counted, those of inherited children included. Events that the event's own
            filter refuses are not counted.
        time_enabled_ns: 0 unless the event's read_format asks for it.
        time_running_ns: 0 unless the event's read_format asks for it.
        event_id: the id that samples carry, 0 unless asked for.
        lost: records that did not fit the ring, None where the read_format has no LOST.
    """

    value: int
    time_enabled_ns: int
    time_running_ns: int
    event_id: int
    lost: int | None
