# SPDX-License-Identifier: Apache-2.0
"""The soak tells what grew from what a look at a daemon happens to find."""

from __future__ import annotations

import pytest

from tests.soak.soak import GROWTH_BYTES, RETAINED_BYTES, Look, grown

FLAT = Look(
    second=0,
    rss_bytes=1 << 26,
    fds=50,
    mappings=300,
    disk_bytes=0,
    produced=1,
    lost=0,
    unaccounted=0,
)
CYCLES = 30


def test_a_warm_up_and_noise_are_no_growth() -> None:
    """Before the warm-up is over all may grow; later single looks may find more, or less."""
    looks = [FLAT._replace(rss_bytes=0, fds=10)] * (CYCLES // 3) + [FLAT] * (CYCLES - CYCLES // 3)
    looks[CYCLES // 2] = FLAT._replace(fds=60, mappings=310, rss_bytes=1 << 30)
    looks[CYCLES // 3] = FLAT._replace(mappings=298)
    assert grown(looks) == []


@pytest.mark.parametrize(
    ("field", "step", "told"),
    [
        ("rss_bytes", GROWTH_BYTES // 10, "rss_bytes grew by 2936010 to 72142024"),
        ("fds", 1, "fds grew by 14 to 76"),
        ("mappings", 1, "mappings grew by 14 to 326"),
    ],
)
def test_what_grows_is_told(field: str, step: int, told: str) -> None:
    """A little in each cycle is too much behind the warm-up."""
    looks = [FLAT._replace(**{field: getattr(FLAT, field) + n * step}) for n in range(CYCLES)]
    assert grown(looks) == [told]


def test_limits_are_for_each_look() -> None:
    """One look over the limit of the disk, or with unaccounted records, is told."""
    full, missing = FLAT._replace(disk_bytes=2 * RETAINED_BYTES), FLAT._replace(unaccounted=1)
    disk, ledger = grown([FLAT, full, FLAT, missing, FLAT])
    assert disk.startswith("disk: 134217728 bytes")
    assert ledger == "1 unaccounted"
