# SPDX-License-Identifier: Apache-2.0
"""Slots of histograms in BPF maps: the values they hold, and the buckets made from them.

BCC's bpf_log2l() gives the position of a value's highest bit, counted from 1: slot k holds the
values from 2^(k-1) to 2^k - 1, and slot 1 holds 0 too. In a linear histogram slot k holds those
from k * step to (k + 1) * step - 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

LINEAR: Final = "linear"
BOUNDS_MAX: Final = 64
_LOG2_SLOT_MAX: Final = 64  # for values of 64 bits; a program can put anything into a key
# First and last slot that bounds a metric's bucket, by the unit of the values: each bucket costs a
# series. 255 ns to 137 s, 1 us to 134 s, 1 ms to 4.6 h, up to 1 TiB, up to 4294967295.
_LOG2_SLOTS: Final = {"ns": (8, 37), "us": (1, 27), "ms": (1, 24), "bytes": (1, 40)}
_LOG2_SLOTS_OF_OTHERS: Final = (1, 32)


def slot_range(scale: str, slot: int, step: int = 1) -> tuple[int, int]:
    """Return the lowest and highest value that a slot holds."""
    if scale == LINEAR:
        return slot * step, (slot + 1) * step - 1
    if slot <= 1:
        return 0, slot
    slot = min(slot, _LOG2_SLOT_MAX)
    return 1 << (slot - 1), (1 << slot) - 1


@dataclass(frozen=True, slots=True)
class Buckets:
    """Buckets of a metric, each made of one or several slots.

    Attributes:
        bounds: highest value of each bucket but the last, in the unit of the slots.
        first: slot of the first bound; lower slots are in its bucket.
        slots: number of slots per bucket.
    """

    bounds: tuple[int, ...]
    first: int
    slots: int

    def index(self, slot: int) -> int:
        """Return the bucket of a slot; the last one if the slot is above every bound."""
        return min(max(0, slot - self.first) // self.slots, len(self.bounds))


def buckets(scale: str, unit: str, *, step: int = 1, slots: int | None = None) -> Buckets:
    """Return the buckets of a histogram, which stay the same from the first poll to the last.

    Args:
        scale: of the slots, "log2" or "linear".
        unit: of the observed values.
        step: of a linear scale.
        slots: number of slots in the map, None if the map's size does not tell it. The last one
            gets no bound, because programs count too large values there.
    """
    if scale != LINEAR:
        first, last = _LOG2_SLOTS.get(unit, _LOG2_SLOTS_OF_OTHERS)
        if slots is not None:
            last = min(last, slots - 2)
        return Buckets(
            tuple(slot_range(scale, slot)[1] for slot in range(first, last + 1)), first, 1
        )
    bounded = BOUNDS_MAX if slots is None else max(0, slots - 1)
    group = max(1, -(-bounded // BOUNDS_MAX))
    ends = range(group - 1, bounded, group)
    return Buckets(tuple(slot_range(scale, slot, step)[1] for slot in ends), 0, group)
