# SPDX-License-Identifier: Apache-2.0
"""`per_cpu/cpuN/stats`: the counters that the kernel keeps of one CPU's ftrace ring."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Final

from collectord.errors import KernelError

_READ_BYTES: Final = 1024
_NS_PER_S: Final = 1_000_000_000
_NS_PER_US: Final = 1_000
# kernel/trace/trace.c, tracing_stats_read. The two times are seconds and microseconds of the
# trace clock; clocks that do not count ns (counter, x86-tsc) give a bare number instead.
_TEXT: Final = re.compile(
    rb"entries: (?P<entries>\d+)\n"
    rb"overrun: (?P<overrun>\d+)\n"
    rb"commit overrun: (?P<commit_overrun>\d+)\n"
    rb"bytes: (?P<bytes>\d+)\n"
    rb"oldest event ts: *(?P<oldest_s>\d+)\.(?P<oldest_us>\d{6})\n"
    rb"now ts: *(?P<now_s>\d+)\.(?P<now_us>\d{6})\n"
    rb"dropped events: (?P<dropped>\d+)\n"
    rb"read events: (?P<read_events>\d+)\n"
)


@dataclass(frozen=True, slots=True)
class CpuStats:
    """One reading. Counters restart at 0 when the ring is reset (`> trace`, a new clock).

    Attributes:
        entries: events not read yet.
        overrun: events overwritten before they were read, counted by whole sub-buffers.
        commit_overrun: events lost because the writer met its own uncommitted sub-buffer.
        bytes: unread, approximately.
        oldest_event_ns: time of the oldest unread event, to the microsecond; None where there
            is none (the kernel's figure is stale then).
        now_ns: the trace clock, to the microsecond.
        dropped: events refused by a full ring that is set not to overwrite.
        read_events: events handed out, to whichever reader.
    """

    entries: int
    overrun: int
    commit_overrun: int
    bytes: int
    oldest_event_ns: int | None
    now_ns: int
    dropped: int
    read_events: int

    @property
    def written(self) -> int:
        """Events that were put into the ring since its last reset."""
        return self.entries + self.overrun + self.read_events


def parse_stats(text: bytes) -> CpuStats:
    """Read the file's text.

    Raises:
        KernelError: it is not laid out as every kernel so far has it, or its clock is not in ns.
    """
    match = _TEXT.fullmatch(text)
    if match is None:
        raise KernelError(f"statistics of a ring are not understood: {text[:200]!r}")
    value = {name: int(digits) for name, digits in match.groupdict().items()}
    oldest_ns = value["oldest_s"] * _NS_PER_S + value["oldest_us"] * _NS_PER_US
    return CpuStats(
        entries=value["entries"],
        overrun=value["overrun"],
        commit_overrun=value["commit_overrun"],
        bytes=value["bytes"],
        oldest_event_ns=oldest_ns if value["entries"] else None,
        now_ns=value["now_s"] * _NS_PER_S + value["now_us"] * _NS_PER_US,
        dropped=value["dropped"],
        read_events=value["read_events"],
    )


def read_stats(fd: int) -> CpuStats:
    """Read through a descriptor that stays open: the kernel makes the text anew at offset 0.

    Takes the ring's reader lock for a moment.

    Raises:
        KernelError: as `parse_stats`, or the descriptor cannot be read.
    """
    try:
        return parse_stats(os.pread(fd, _READ_BYTES, 0))
    except OSError as error:
        raise KernelError(
            "cannot read a ring's statistics", syscall="pread", errno=error.errno or 0
        ) from error
