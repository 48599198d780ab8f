# SPDX-License-Identifier: Apache-2.0
"""Counters of an ftrace ring that never go back, whoever resets the ring."""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Final

from collectord.kernel.values.ring_stats import CpuStats, read_stats

_TRIES_MAX: Final = 8


class MonotonicStats:
    """A ring's counters that never decrease, whoever resets the ring.

    Args:
        fd: `stats`, open.
        taken: the counters as an earlier process left them; its events are not counted.

    A counter that decreased shows a reset; so does `written`, but only from one steady reading to
    another: see `_steady_stats`.

    Attributes:
        resets: how often the ring was seen to be reset.
    """

    def __init__(self, fd: int, taken: CpuStats | None = None) -> None:
        self._fd = fd
        self._taken = taken
        self._last: CpuStats | None = taken
        self._written = 0  # as of the last steady reading since the last reset
        self._before: tuple[int, ...] = (0, 0, 0, 0, 0)
        self.resets = 0

    def read(self) -> CpuStats:
        """Take a reading. Raises as `read_stats`."""
        last = self._last
        now, steady = _steady_stats(self._fd, last)
        if last is not None:
            fell = any(map(operator.lt, _counts(now), _counts(last)))
            if fell or (steady and now.written < self._written):
                seen = (*_counts(last), last.entries)
                self._before = tuple(map(sum, zip(self._before, seen, strict=True)))
                self.resets += 1
                self._written = 0
            else:
                unread = last.written - now.overrun - now.read_events
                now = replace(now, entries=max(now.entries, unread))
        if steady:
            self._written = now.written
        self._last = now
        if not self.resets:
            return now.since(self._taken)
        overrun, commit_overrun, dropped, read_events, cleared = self._before
        whole = replace(
            now,
            overrun=now.overrun + overrun,
            commit_overrun=now.commit_overrun + commit_overrun,
            dropped=now.dropped + dropped,
            read_events=now.read_events + read_events,
            cleared=cleared,
        )
        return whole.since(self._taken)

    @property
    def taken(self) -> CpuStats | None:
        """The kernel's own counters at the last reading, for the next process."""
        return self._last.taken if self._last is not None else None


def _counts(stats: CpuStats) -> tuple[int, ...]:
    """Return the kernel's own counters, which only grow until a reset."""
    return (
        stats.overrun,
        stats.commit_overrun,
        stats.dropped,
        stats.read_events,
    )


def _steady_stats(fd: int, last: CpuStats | None) -> tuple[CpuStats, bool]:
    """Read until no event left the ring between two readings, or a few times.

    The text is not of one instant. The kernel takes `entries` first, `overrun` and `read_events`
    after it: events that are overwritten or read meanwhile are in two of them, and a mapped ring
    whose backlog is drained counts event by event. `entries` with the other two of the reading
    before is no more than was written by then; a reading that is not steady says no more than
    that.

    Args:
        fd: `stats`.
        last: the reading before, however long ago; None if there is none.

    Returns:
        the reading, and whether it is steady.
    """
    now = read_stats(fd)
    for _ in range(_TRIES_MAX):
        if last is not None and _departed(now) == _departed(last):
            return now, True
        last, now = now, read_stats(fd)
    overrun, read_events = map(operator.sub, _departed(now), _departed(last or now))
    if not overrun and not read_events:
        return now, True
    counted_twice = max(0, overrun) + max(0, read_events)
    return replace(now, entries=max(0, now.entries - counted_twice)), False


def _departed(stats: CpuStats) -> tuple[int, int]:
    """Return the events that have left the ring: overwritten, and read."""
    return stats.overrun, stats.read_events
