# SPDX-License-Identifier: Apache-2.0
"""A flight recorder's rings grow to what they are to keep, and no further than they may."""

from __future__ import annotations

from typing import Final

from collectord.source.window import Fill, grown, needed_bytes

SECOND: Final = 1_000_000_000
MIB: Final = 1 << 20


def test_rate_tells_the_size() -> None:
    """A full ring that holds 5 s needs six times its size for 25 s and a reserve."""
    full = Fill(0, MIB, MIB, 5 * SECOND)
    assert needed_bytes(full, 25 * SECOND) == 6 * MIB


def test_long_enough_needs_no_more() -> None:
    """A ring that holds longer than it must keeps its size, one that is empty as well."""
    assert needed_bytes(Fill(0, MIB, MIB, 60 * SECOND), 30 * SECOND) == MIB
    assert needed_bytes(Fill(0, MIB, 0, None), 30 * SECOND) == MIB


def test_short_times_tell_nothing() -> None:
    """Bytes of less than a second give no rate yet, unless they fill the ring."""
    assert needed_bytes(Fill(0, MIB, MIB // 3, SECOND - 1), 30 * SECOND) == MIB
    assert needed_bytes(Fill(0, MIB, MIB, SECOND // 100), 30 * SECOND) > 1000 * MIB


def test_growth_comes_in_steps() -> None:
    """A ring at most doubles at once, and small steps are left out."""
    fills = [
        Fill(0, MIB, MIB, 2 * SECOND),
        Fill(1, MIB, MIB, 34 * SECOND),
        Fill(2, MIB, MIB // 100, 30 * SECOND),
    ]
    assert grown(fills, 30 * SECOND, 1000 * MIB) == {0: 2 * MIB}


def test_the_limit_is_shared_by_need() -> None:
    """Over the limit each gets its part of what is left, and all together never more."""
    fills = [Fill(0, 4 * MIB, 4 * MIB, 12 * SECOND), Fill(1, 4 * MIB, 4 * MIB, 6 * SECOND)]
    sizes = grown(fills, 30 * SECOND, 12 * MIB)
    assert set(sizes) == {0, 1}
    assert 11 * MIB < sum(sizes.values()) <= 12 * MIB
    assert sizes[1] - 4 * MIB > 2 * (sizes[0] - 4 * MIB)


def test_nothing_grows_at_the_limit() -> None:
    """Rings that have all they may have, or more, are left as they are."""
    fills = [Fill(0, 8 * MIB, 8 * MIB, 2 * SECOND), Fill(1, 8 * MIB, 0, None)]
    assert grown(fills, 30 * SECOND, 16 * MIB) == {}
    assert grown(fills, 30 * SECOND, 4 * MIB) == {}
