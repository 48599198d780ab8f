# SPDX-License-Identifier: Apache-2.0
"""MONOTONIC, REALTIME and the perf clock, read within one bracket.

The perf clock (`local_clock()`) has no system call. Events whose attr has `use_clockid` do not
stamp with it, so MONOTONIC is the time of their records; the perf clock matters for rings that
cannot set a clockid. It is read by making one record: a page-fault event on the calling thread
alone, stamped by the kernel while it handles a fault on a page made for that. Other sessions do
not see it, unless they count this process's page faults themselves.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import replace
from typing import Final

from collectord._native import _syscalls
from collectord.codec.aux_pmu import TimeConversion
from collectord.codec.perf_attr import DUMMY, SampleType, SoftwareId
from collectord.folders.folder import opened
from collectord.kernel.values.host import Discipline
from collectord.model import ClockReading

_ATTR: Final = replace(
    DUMMY,
    config=SoftwareId.PAGE_FAULTS,
    sample_period=1,
    sample_type=SampleType.TIME | SampleType.ADDR,
).encode()
_HEAD_OFFSET: Final = 1024
_SAMPLE: Final = struct.Struct("<IHHQQ")  # header, time, address
# The clock of each event, whichever it is; an event that has a clockid has no time_zero.
_DUMMY: Final = DUMMY.encode()
# struct perf_event_mmap_page: capabilities; time_shift, time_mult; time_zero; time_cycles,
# time_mask.
_CAPABILITIES: Final = (40, struct.Struct("<Q"))
_SHIFT_MULT: Final = (50, struct.Struct("<HI"))
_ZERO: Final = (64, struct.Struct("<Q"))
_CYCLES_MASK: Final = (80, struct.Struct("<QQ"))
_CAP_USER_TIME_ZERO: Final = 1 << 4
_CAP_USER_TIME_SHORT: Final = 1 << 5


def read_clocks() -> ClockReading:
    """Read all three clocks; `monotonic_ns` is the middle of the bracket.

    `perf_ns` is 0 where the perf clock cannot be read (no permission, or locked memory, whose
    pages do not fault).
    """
    try:
        with (
            opened(_syscalls.perf_event_open(_ATTR, 0, -1)) as fd,
            mmap.mmap(fd, 2 * mmap.PAGESIZE) as ring,
            mmap.mmap(-1, mmap.PAGESIZE) as page,
        ):
            _syscalls.perf_enable(fd)
            reading, address = _bracket(page)
            _syscalls.perf_disable(fd)
            perf_ns = _fault_time(ring, address)
    except OSError:
        return _bracket(None)[0]
    return ClockReading(reading.monotonic_ns, reading.realtime_ns, perf_ns, reading.bracket_ns)


def read_discipline() -> Discipline | None:
    """Return the state of the wall clock; None if it may not be read."""
    try:
        synchronized, most_us, likely_us = _syscalls.clock_discipline()
    except OSError:
        return None
    return Discipline(synchronized, max(most_us, 0), max(likely_us, 0))


def read_time_conversion(page_bytes: int) -> TimeConversion:
    """Return how the CPU's counter becomes perf's clock; empty where the kernel does not tell."""
    try:
        with (
            opened(_syscalls.perf_event_open(_DUMMY, 0, -1)) as fd,
            mmap.mmap(fd, page_bytes, prot=mmap.PROT_READ) as page,
        ):
            words = [
                word
                for offset, layout in (_CAPABILITIES, _SHIFT_MULT, _ZERO, _CYCLES_MASK)
                for word in layout.unpack_from(page, offset)
            ]
    except OSError:
        return TimeConversion()
    capabilities, shift, mult, zero, cycles, mask = words
    return TimeConversion(
        shift=shift,
        mult=mult,
        zero=zero,
        cycles=cycles,
        mask=mask,
        zero_known=bool(capabilities & _CAP_USER_TIME_ZERO),
        short=bool(capabilities & _CAP_USER_TIME_SHORT),
    )


def _bracket(page: mmap.mmap | None) -> tuple[ClockReading, int]:
    """Read the clocks, touching the page between them; also return the page's address."""
    before, realtime, after, address = _syscalls.touch_between_clocks(page)
    return ClockReading((before + after) // 2, realtime, 0, after - before), address


def _fault_time(ring: mmap.mmap, address: int) -> int:
    """Return the time of the sample of the fault at `address`, 0 if there is none."""
    (head,) = struct.unpack_from("<Q", ring, _HEAD_OFFSET)
    for at in range(0, min(head, mmap.PAGESIZE), _SAMPLE.size):
        *_, time_ns, faulted = _SAMPLE.unpack_from(ring, mmap.PAGESIZE + at)
        if faulted == address:
            return int(time_ns)
    return 0
