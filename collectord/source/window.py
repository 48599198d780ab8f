# SPDX-License-Identifier: Apache-2.0
"""How large a flight recorder's rings must be to hold the time that they are to keep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# A shorter time tells no rate, in a ring that was just emptied: half full it tells one always.
_RATE_FROM_NS: Final = 1_000_000_000
# The rate varies, and the ring gives up whole sub-buffers.
_RESERVE: Final = 1.2
# Smaller steps are not worth the interrupt of the ring's CPU.
_STEP: Final = 1.1
# A step takes memory and time in the kernel; the rest comes with the next reading.
_STEP_MAX: Final = 2


class Held(NamedTuple):
    """What one ring holds.

    Attributes:
        cpu: whose ring it is.
        used_bytes: of it, events.
        window_ns: age of the oldest event, None of an empty ring.
    """

    cpu: int
    used_bytes: int
    window_ns: int | None


@dataclass(frozen=True, slots=True)
class Fill:
    """One ring: its size in bytes, and what it holds. See `Held`."""

    cpu: int
    size_bytes: int
    used_bytes: int
    window_ns: int | None


def needed_bytes(fill: Fill, keep_ns: int) -> int:
    """What the ring takes to hold `keep_ns` at the rate of what it holds; never less than now."""
    is_short = fill.window_ns is not None and fill.window_ns < _RATE_FROM_NS
    if fill.window_ns is None or (is_short and 2 * fill.used_bytes < fill.size_bytes):
        return fill.size_bytes
    wanted = int(fill.used_bytes * keep_ns / max(1, fill.window_ns) * _RESERVE)
    return max(fill.size_bytes, wanted)


def grown(fills: Iterable[Fill], keep_ns: int, max_bytes: int) -> Mapping[int, int]:
    """New sizes, by CPU, of the rings that have to grow.

    What `max_bytes` leaves is shared by need. No ring shrinks: that would overwrite events.

    Args:
        fills: of all rings.
        keep_ns: what each is to hold.
        max_bytes: of all rings together.
    """
    rings = list(fills)
    missing = {ring.cpu: needed_bytes(ring, keep_ns) - ring.size_bytes for ring in rings}
    free = max(0, max_bytes - sum(ring.size_bytes for ring in rings))
    share = min(1.0, free / max(1, sum(missing.values())))
    sizes = {}
    for ring in rings:
        size = ring.size_bytes + int(missing[ring.cpu] * share)
        if size >= ring.size_bytes * _STEP:
            sizes[ring.cpu] = min(size, ring.size_bytes * _STEP_MAX)
    return sizes
