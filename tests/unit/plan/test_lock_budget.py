# SPDX-License-Identifier: Apache-2.0
"""Ring sizes and the mlock budget."""

from __future__ import annotations

import pytest

from collectord.plan.lock_budget import LockBudget, fit
from collectord.plan.ring_sizes import ring_bytes, watermark_bytes
from collectord.text.units import Share
from tests.support.hosts import host, unprivileged

PAGE = 4096


@pytest.mark.parametrize(
    ("asked", "page", "size"),
    [
        (0, PAGE, PAGE),
        (1, PAGE, PAGE),
        (PAGE, PAGE, PAGE),
        (PAGE + 1, PAGE, 2 * PAGE),
        (5 * PAGE, PAGE, 8 * PAGE),
        (1 << 20, PAGE, 1 << 20),
        (1 << 20, 65536, 1 << 20),
        (1, 65536, 65536),
    ],
)
def test_rings_are_powers_of_two_of_pages(asked: int, page: int, size: int) -> None:
    """A size is rounded up to what mmap takes."""
    assert ring_bytes(asked, page) == size


@pytest.mark.parametrize(
    ("watermark", "size", "wakes_at"),
    [
        (Share(percent=25), 65536, 16384),
        (Share(percent=100), 65536, 32768),
        (Share(4096), 65536, 4096),
        (Share(1 << 30), 65536, 32768),
        (Share(13), 65536, 8),
        (Share(), PAGE, 8),
    ],
)
def test_watermarks_lie_between_a_record_and_half_a_ring(
    watermark: Share, size: int, wakes_at: int
) -> None:
    """A watermark of the ring's size would wake nobody before records are lost."""
    assert watermark_bytes(watermark, size) == wakes_at


def test_budget_is_the_free_pool_and_the_limit() -> None:
    """perf_event_mlock_kb counts for each online CPU, RLIMIT_MEMLOCK once."""
    budget = LockBudget.of(unprivileged(rlimit_memlock_bytes=64 << 10))
    assert budget.bytes == 4 * 516 * 1024 + (64 << 10)


def test_no_budget_for_who_locks_freely() -> None:
    """CAP_IPC_LOCK, an unlimited RLIMIT_MEMLOCK and paranoid -1 each lift it."""
    assert LockBudget.of(host()).bytes is None
    assert LockBudget.of(unprivileged(rlimit_memlock_bytes=None)).bytes is None
    assert LockBudget.of(unprivileged(perf_event_paranoid=-1)).bytes is None


def test_what_fits_stays_as_it_is() -> None:
    """Control pages count too: one page less and the largest rings are halved."""
    rings = ((4 * PAGE, 2), (PAGE, 1))
    total = 2 * 5 * PAGE + 2 * PAGE
    assert fit(rings, PAGE, total) == (4 * PAGE, PAGE)
    assert fit(rings, PAGE, total - 1) == (2 * PAGE, PAGE)
    assert fit(rings, PAGE, None) == (4 * PAGE, PAGE)


def test_what_cannot_fit_is_told() -> None:
    """Below one page a ring there is nothing to halve."""
    assert fit(((PAGE, 4),), PAGE, 8 * PAGE - 1) is None
    assert fit((), PAGE, 0) == ()
