# SPDX-License-Identifier: Apache-2.0
"""MONOTONIC, REALTIME and the perf clock, read within one bracket.

The perf clock (`local_clock()`) has no system call. Events whose attr has `use_clockid` do not
stamp with it, so for them MONOTONIC is the time of their records; the perf clock matters for
rings that cannot set a clockid. It is read by making one record: a page-fault event on the
calling thread alone, stamped by the kernel while it handles a fault on a page made for that.
No other session sees it, unless that one counts this process's page faults itself.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import struct
import time
from typing import TYPE_CHECKING, Final

from collectord.codec.perf_attr import (
    IOC_DISABLE,
    IOC_ENABLE,
    EventType,
    PerfEventAttr,
    SampleType,
    SoftwareId,
)
from collectord.model import ClockReading

if TYPE_CHECKING:
    from collections.abc import Callable

_ATTR: Final = PerfEventAttr(
    type=EventType.SOFTWARE,
    config=SoftwareId.PAGE_FAULTS,
    sample_period=1,
    sample_type=SampleType.TIME | SampleType.ADDR,
    disabled=True,
    exclude_kernel=True,
    exclude_hv=True,
).encode()
_HEAD_OFFSET: Final = 1024
_SAMPLE: Final = struct.Struct("<IHHQQ")  # header, time, address


def read_clocks(perf_event_open: Callable[[bytes, int, int], int]) -> ClockReading:
    """Read all three clocks; `monotonic_ns` is the middle of the bracket.

    `perf_ns` is 0 where the perf clock cannot be read (no permission, or locked memory, whose
    pages do not fault).
    """
    try:
        fd = perf_event_open(_ATTR, 0, -1)
    except OSError:
        return _bracket(None)[0]
    try:
        with mmap.mmap(fd, 2 * mmap.PAGESIZE) as ring, mmap.mmap(-1, mmap.PAGESIZE) as page:
            fcntl.ioctl(fd, IOC_ENABLE, 0)
            reading, address = _bracket(page)
            fcntl.ioctl(fd, IOC_DISABLE, 0)
            perf_ns = _fault_time(ring, address)
    except OSError:
        return _bracket(None)[0]
    finally:
        os.close(fd)
    return ClockReading(reading.monotonic_ns, reading.realtime_ns, perf_ns, reading.bracket_ns)


def _bracket(page: mmap.mmap | None) -> tuple[ClockReading, int]:
    """Read the clocks, and touch the page between them; also gives the page's address."""
    first_byte = ctypes.c_char.from_buffer(page) if page is not None else ctypes.c_char()
    address = ctypes.addressof(first_byte)
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    first_byte.value = b"\1"
    realtime = time.clock_gettime_ns(time.CLOCK_REALTIME)
    after = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    return ClockReading((before + after) // 2, realtime, 0, after - before), address


def _fault_time(ring: mmap.mmap, address: int) -> int:
    """Time of the sample of the fault at `address`, 0 if there is none."""
    (head,) = struct.unpack_from("<Q", ring, _HEAD_OFFSET)
    for at in range(0, min(head, mmap.PAGESIZE), _SAMPLE.size):
        *_, time_ns, faulted = _SAMPLE.unpack_from(ring, mmap.PAGESIZE + at)
        if faulted == address:
            return int(time_ns)
    return 0
