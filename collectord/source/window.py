# SPDX-License-Identifier: Apache-2.0
"""The size that a flight recorder's rings need to hold the time that they are to keep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# A shorter time gives no rate in a ring that was just emptied; half full it always gives one.
_RATE_FROM_NS: Final = 1_000_000_000
# The rate varies, and the ring gives up whole sub-buffers.
_RESERVE: Final = 1.2
# Smaller steps are not worth the interrupt of the ring's CPU.
_STEP: Final = 1.1
# A step takes memory and time in the kernel; the rest comes with the next reading.
_STEP_MAX: Final = 2


class Held(NamedTuple):
    """The content of one ring.

    Attributes:
        cpu: the ring's CPU.
        used_bytes: bytes of events in it.
        window_ns: age of the oldest event, None for an empty ring.
    """

    cpu: int
    used_bytes: int
    window_ns: int | None


@dataclass(frozen=True, slots=True)
class Fill:
    """One ring: its size in bytes, and its content. See `Held`."""

    cpu: int
    size_bytes: int
    used_bytes: int
    window_ns: int | None


def needed_bytes(fill: Fill, keep_ns: int) -> int:
    """Return the size to hold `keep_ns` at the present content's rate; never less than now."""
    is_short = fill.window_ns is not None and fill.window_ns < _RATE_FROM_NS
    if fill.window_ns is None or (is_short and 2 * fill.used_bytes < fill.size_bytes):
        return fill.size_bytes
    wanted = int(fill.used_bytes * keep_ns / max(1, fill.window_ns) * _RESERVE)
    return max(fill.size_bytes, wanted)


def grown(fills: Iterable[Fill], keep_ns: int, max_bytes: int) -> Mapping[int, int]:
    """Return new sizes, by CPU, of the rings that have to grow.

    The rest of `max_bytes` is shared by need. No ring shrinks: that would overwrite events.

    Args:
        fills: fill of all rings.
        keep_ns: time that each is to hold.
        max_bytes: limit of all rings together.
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
