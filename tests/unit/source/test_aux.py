# SPDX-License-Identifier: Apache-2.0
"""Flushes of AUX areas in the perf source, without hardware."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from collectord.kernel.values.counter_reading import CounterReading
from collectord.source.aux import flush, flush_interval_ns
from collectord.source.ring import CounterFd


@dataclass
class Events:
    """Stands for the kernel's events: how long each was enabled, and what was asked for."""

    enabled_ns: dict[int, int]
    asked: list[tuple[str, int]] = field(default_factory=list)

    def read_counter(self, fd: int, _read_format: int) -> CounterReading:
        """Return the event's times."""
        return CounterReading(0, self.enabled_ns[fd], 0, 0, 0)

    def disable(self, fd: int) -> None:
        """Note it."""
        self.asked.append(("disable", fd))

    def enable(self, fd: int) -> None:
        """Note it."""
        self.asked.append(("enable", fd))


def ring(flush_ns: int, *fds: int) -> Any:  # noqa: ANN401 - as much of a RingHandle as is looked at
    """Return a ring with an AUX area that these events write into."""
    counters = tuple(CounterFd(fd, 0, fd, 0) for fd in fds)
    area = SimpleNamespace(plan=SimpleNamespace(flush_ns=flush_ns), counters=counters)
    return SimpleNamespace(areas=(area,))


def test_a_flush_stops_and_starts_what_runs() -> None:
    """An event that waits for exec was never enabled, and is not started by that."""
    kernel: Any = Events({3: 5_000, 4: 0, 5: 7_000, 9: 1})
    rings = [ring(200, 3, 4), ring(100, 5), ring(0, 9)]
    assert flush_interval_ns(rings) == 100
    flush(kernel, rings)
    assert kernel.asked == [("disable", 3), ("enable", 3), ("disable", 5), ("enable", 5)]


def test_without_areas_nothing_is_flushed() -> None:
    """No timer is needed either."""
    without: Any = SimpleNamespace(areas=())
    assert flush_interval_ns([without, ring(0, 9)]) == 0
