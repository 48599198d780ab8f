# SPDX-License-Identifier: Apache-2.0
"""Sizes of rings: defaults, rounding and watermarks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from collectord.errors import PlanError
from collectord.text.units import Least, show_bytes

if TYPE_CHECKING:
    from collectord.text.units import Share

# The kernel's limit for a ring is far higher (order-0 pages, an array of pointers to them); a
# gigabyte per CPU is a typo.
RING_MAX_BYTES: Final = 1 << 30

# Data ring of events without a bounded rate. A pass that comes 10 ms late (a busy second CPU)
# meets 1.2 MB of 120-byte records at a million a second; 2 MiB holds that.
EVENT_RING_BYTES: Final = 2 << 20
# Data ring of events sampled by the clock. Their rate is bounded: 4000 Hz with call chains of
# 1 KiB is 4 MiB/s, so this is an eighth of a second, and minutes of the default profile.
SAMPLING_RING_BYTES: Final = 512 << 10
# The most that the rings of a flight recorder take without another limit, in all and on each CPU.
RECORDER_MAX: Final = Least(256 << 20, 1.0)
_RECORDER_CPU_BYTES: Final = 4 << 20
# The time that a flight recorder is to reach back without another one.
KEEP_NS: Final = 30_000_000_000
# A sample with a copy of the stack has 8 KiB and more.
STACK_RING_BYTES: Final = 8 << 20


def recorder_limit(cpus: int) -> Least:
    """Return the most that the rings of a flight recorder on so many CPUs take by default."""
    return replace(RECORDER_MAX, bytes=min(RECORDER_MAX.bytes, _RECORDER_CPU_BYTES * cpus))


def ring_bytes(requested_bytes: int, page_size: int) -> int:
    """Return `requested_bytes` rounded up to a power of two of pages, one at least (perf_mmap)."""
    pages = max(1, -(-requested_bytes // page_size))
    return page_size << (pages - 1).bit_length()


def check_size(data_bytes: int, what: str = "ring", words: str = "a ring") -> int:
    """Return the size of a ring or an AUX area, if it is plausible.

    Raises:
        PlanError: the size is a typo.
    """
    if data_bytes > RING_MAX_BYTES:
        limit = show_bytes(RING_MAX_BYTES)
        raise PlanError(f"{words} of {show_bytes(data_bytes)}", what=what, hint=f"at most {limit}")
    return data_bytes


def watermark_bytes(watermark: Share, data_bytes: int) -> int:
    """Return the fill at which a ring of `data_bytes` wakes us, a multiple of 8, at least 8.

    The kernel reduces a larger watermark to the ring's size, and then wakes nobody before the ring
    is full: half the ring is the most.
    """
    return max(8, min(_wanted_bytes(watermark, data_bytes), data_bytes // 2) & ~7)


def is_late(watermark: Share, data_bytes: int) -> bool:
    """Whether the watermark is above the most that a ring of `data_bytes` gets."""
    return _wanted_bytes(watermark, data_bytes) > data_bytes // 2


def _wanted_bytes(watermark: Share, data_bytes: int) -> int:
    return watermark.bytes or int(data_bytes * watermark.percent / 100)
