# SPDX-License-Identifier: Apache-2.0
"""`per_cpu/cpuN/stats`: the counters that the kernel keeps of one CPU's ftrace ring."""

from __future__ import annotations

import operator
import os
import re
from dataclasses import dataclass, replace
from typing import Final

from collectord.errors import KernelError
from collectord.text.units import NS_PER_SECOND

_READ_BYTES: Final = 1024
_TRIES_MAX: Final = 8
_NS_PER_US: Final = 1_000
# kernel/trace/trace.c, tracing_stats_read. The two times are seconds and microseconds of the
# trace clock; clocks that do not count ns (counter, x86-tsc) give a bare number instead.
_TEXT: Final = re.compile(
    rb"entries: (\d+)\n"
    rb"overrun: (\d+)\n"
    rb"commit overrun: (\d+)\n"
    rb"bytes: (\d+)\n"
    rb"oldest event ts: *(\d+)\.(\d{6})\n"
    rb"now ts: *(\d+)\.(\d{6})\n"
    rb"dropped events: (\d+)\n"
    rb"read events: (\d+)\n"
)


@dataclass(frozen=True, slots=True)
class CpuStats:
    """A reading of a ring's counters, which restart at 0 when it is reset.

    Attributes:
        entries: events not read yet.
        overrun: events overwritten before they were read, counted by whole sub-buffers.
        commit_overrun: events lost because the writer met its own uncommitted sub-buffer.
        bytes: unread, approximately.
        oldest_event_ns: time of the oldest unread event, to the microsecond; None where there is
            none (the kernel's figure is stale then).
        now_ns: the trace clock, to the microsecond.
        dropped: events refused by a full ring that is set not to overwrite.
        read_events: events handed out to any reader.
        cleared: unread events that a reset took away, as far as is known; see `MonotonicStats`.
    """

    entries: int
    overrun: int
    commit_overrun: int
    bytes: int
    oldest_event_ns: int | None
    now_ns: int
    dropped: int
    read_events: int
    cleared: int = 0

    @property
    def written(self) -> int:
        """Number of events that were put into the ring."""
        return self.entries + self.overrun + self.read_events + self.cleared


def parse_stats(text: bytes) -> CpuStats:
    """Parse the file's text.

    Raises:
        KernelError: its layout is not that of every kernel so far, or its clock is not in ns.
    """
    match = _TEXT.fullmatch(text)
    if match is None:
        raise KernelError(f"statistics of a ring are not understood: {text[:200]!r}")
    (
        entries,
        overrun,
        commit_overrun,
        size_bytes,
        oldest_s,
        oldest_us,
        now_s,
        now_us,
        dropped,
        read_events,
    ) = map(int, match.groups())
    oldest_ns = oldest_s * NS_PER_SECOND + oldest_us * _NS_PER_US
    return CpuStats(
        entries=entries,
        overrun=overrun,
        commit_overrun=commit_overrun,
        bytes=size_bytes,
        oldest_event_ns=oldest_ns if entries else None,
        now_ns=now_s * NS_PER_SECOND + now_us * _NS_PER_US,
        dropped=dropped,
        read_events=read_events,
    )


class MonotonicStats:
    """A ring's counters that never decrease, whoever resets the ring.

    Args:
        fd: `stats`, open.

    A counter that decreased shows a reset; so does `written`, but only from one steady reading to
    another: see `_steady_stats`.

    Attributes:
        resets: how often the ring was seen to be reset.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._last: CpuStats | None = None
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
            return now
        overrun, commit_overrun, dropped, read_events, cleared = self._before
        return replace(
            now,
            overrun=now.overrun + overrun,
            commit_overrun=now.commit_overrun + commit_overrun,
            dropped=now.dropped + dropped,
            read_events=now.read_events + read_events,
            cleared=cleared,
        )


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
        if last is not None and _left(now) == _left(last):
            return now, True
        last, now = now, read_stats(fd)
    overrun, read_events = map(operator.sub, _left(now), _left(last or now))
    if not overrun and not read_events:
        return now, True
    counted_twice = max(0, overrun) + max(0, read_events)
    return replace(now, entries=max(0, now.entries - counted_twice)), False


def _left(stats: CpuStats) -> tuple[int, int]:
    """Return the events that have left the ring: overwritten, and read."""
    return stats.overrun, stats.read_events


def read_stats(fd: int) -> CpuStats:
    """Read through a descriptor that stays open: the kernel makes the text anew at offset 0.

    Takes the ring's reader lock for a moment.

    Raises:
        KernelError: as `parse_stats`, or the descriptor cannot be read.
    """
    return parse_stats(_read(fd))


def stats_text(cpu: int, fd: int) -> str:
    """Return the file's text as trace-cmd keeps it in a trace.dat. Raises KernelError."""
    return f"CPU: {cpu}\n{_read(fd).decode(errors='replace')}"


def _read(fd: int) -> bytes:
    try:
        return os.pread(fd, _READ_BYTES, 0)
    except OSError as error:
        raise KernelError(
            "cannot read a ring's statistics", syscall="pread", errno=error.errno or 0
        ) from error
