# SPDX-License-Identifier: Apache-2.0
"""`per_cpu/cpuN/stats`: the counters that the kernel keeps of one CPU's ftrace ring."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from typing import Final

from collectord.errors import KernelError
from collectord.text.units import NS_PER_SECOND, NS_PER_US

_READ_BYTES: Final = 1024
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

    @property
    def taken(self) -> CpuStats:
        """Its counts without the unread events, which are left to whoever reads the ring next."""
        return replace(self, entries=0, bytes=0, oldest_event_ns=None, cleared=0)

    def since(self, taken: CpuStats | None) -> CpuStats:
        """Return its counts since an earlier reading's `taken`; all of them after a reset."""
        if taken is None:
            return self
        new = replace(
            self,
            overrun=self.overrun - taken.overrun,
            commit_overrun=self.commit_overrun - taken.commit_overrun,
            dropped=self.dropped - taken.dropped,
            read_events=self.read_events - taken.read_events,
        )
        fell = min(new.overrun, new.commit_overrun, new.dropped, new.read_events) < 0
        return self if fell else new


def parse_stats(text: bytes) -> CpuStats:
    """Parse the file's text.

    Raises:
        KernelError: its layout is not that of every kernel so far, or its clock is not in ns.
    """
    match = _TEXT.fullmatch(text)
    if match is None:
        raise KernelError(f"cannot parse the statistics of a ring: {text[:200]!r}")
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
    oldest_ns = oldest_s * NS_PER_SECOND + oldest_us * NS_PER_US
    return CpuStats(
        entries=entries,
        overrun=overrun,
        commit_overrun=commit_overrun,
        bytes=size_bytes,
        oldest_event_ns=oldest_ns if entries else None,
        now_ns=now_s * NS_PER_SECOND + now_us * NS_PER_US,
        dropped=dropped,
        read_events=read_events,
    )


def read_stats(fd: int) -> CpuStats:
    """Read through a descriptor that stays open: the kernel makes the text anew at offset 0.

    Takes the ring's reader lock for a moment.

    Raises:
        KernelError: as `parse_stats`, or the descriptor cannot be read.
    """
    return parse_stats(_read(fd))


def stats_text(cpu: int, fd: int) -> str:
    """Return the file's text as trace-cmd keeps it in a trace.dat. Raises KernelError."""
    return with_heading(cpu, _read(fd))


def with_heading(cpu: int, text: bytes) -> str:
    """Return the text of a CPU's file as trace-cmd keeps it in a trace.dat."""
    return f"CPU: {cpu}\n{text.decode(errors='replace')}"


def _read(fd: int) -> bytes:
    try:
        return os.pread(fd, _READ_BYTES, 0)
    except OSError as error:
        raise KernelError(
            "cannot read a ring's statistics", syscall="pread", errno=error.errno or 0
        ) from error
