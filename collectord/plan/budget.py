# SPDX-License-Identifier: Apache-2.0
"""Sizes of rings: rounding, watermarks, and the memory that the kernel lets a user pin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from collectord.errors import PlanError
from collectord.text.units import show_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from collectord.facts.kernel_facts import KernelFacts
    from collectord.text.units import Share

_KIB: Final = 1024
# The kernel's limit for a ring is far higher (order-0 pages, an array of pointers to them); a
# gigabyte per CPU is a typo.
RING_MAX_BYTES: Final = 1 << 30

# Data ring of events without a bounded rate. A pass that comes 10 ms late (a busy second CPU)
# meets 1.2 MB of 120-byte records at a million a second; 2 MiB holds that.
EVENT_RING_BYTES: Final = 2 << 20
# Data ring of events sampled by the clock. Their rate is bounded: 4000 Hz with call chains of
# 1 KiB is 4 MiB/s, so this is an eighth of a second, and minutes of the default profile.
SAMPLING_RING_BYTES: Final = 512 << 10
# A sample with a copy of the stack has 8 KiB and more.
STACK_RING_BYTES: Final = 8 << 20


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


def pinned_bytes(data_bytes: int, page_size: int) -> int:
    """Return what a ring counts against the budget: its data and its control page."""
    return data_bytes + page_size


@dataclass(frozen=True, slots=True)
class LockBudget:
    """The memory that a user may pin (perf_mmap in kernel/events/core.c).

    Attributes:
        free_bytes: perf_event_mlock_kb for each online CPU, shared by all the user's processes.
        memlock_bytes: RLIMIT_MEMLOCK, for what exceeds that; None for no limit.
        unlimited: neither applies.
    """

    free_bytes: int
    memlock_bytes: int | None
    unlimited: bool

    @classmethod
    def of(cls, facts: KernelFacts) -> LockBudget:
        """Return the budget by the facts, with nothing pinned yet."""
        pages_per_cpu = facts.perf_event_mlock_kb * _KIB // facts.page_size
        return cls(
            free_bytes=pages_per_cpu * facts.page_size * len(facts.cpus_online),
            memlock_bytes=facts.rlimit_memlock_bytes,
            unlimited=facts.locks_freely,
        )

    @property
    def bytes(self) -> int | None:
        """The memory that may be pinned in all, None for no limit."""
        if self.unlimited or self.memlock_bytes is None:
            return None
        return self.free_bytes + self.memlock_bytes


def fit(
    rings: Sequence[tuple[int, int]], page_size: int, limit_bytes: int | None
) -> tuple[int, ...] | None:
    """Return sizes of rings after halving the largest ones until all of them fit the budget.

    Args:
        rings: (data bytes of one ring, how many such rings are pinned: with 0 the size stays).
        page_size: bytes.
        limit_bytes: the budget, None for no limit.

    Returns:
        data bytes for each entry, or None if one page each is still too much.
    """
    sizes = [size for size, _ in rings]
    if limit_bytes is None:
        return tuple(sizes)
    while True:
        total = sum(
            pinned_bytes(size, page_size) * count
            for size, (_, count) in zip(sizes, rings, strict=True)
        )
        if total <= limit_bytes:
            return tuple(sizes)
        counts = [count for _, count in rings]
        largest = max((s for s, count in zip(sizes, counts, strict=True) if count), default=0)
        if largest <= page_size:
            return None
        sizes = [
            size // 2 if size == largest and count else size
            for size, count in zip(sizes, counts, strict=True)
        ]
