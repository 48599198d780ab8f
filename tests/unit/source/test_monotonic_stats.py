# SPDX-License-Identifier: Apache-2.0
"""Counters of an ftrace ring never go back, and nothing is counted twice."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from collectord.kernel.values.ring_stats import parse_stats
from collectord.model import Reason, Stage
from collectord.source import monotonic_stats, trace_counts
from collectord.source.monotonic_stats import MonotonicStats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


def text(entries: int, overrun: int = 0, dropped: int = 0, read: int = 0) -> str:
    """Return a `stats` file."""
    return (
        f"entries: {entries}\noverrun: {overrun}\ncommit overrun: 2\nbytes: {entries * 40}\n"
        f"oldest event ts:  10.000001\nnow ts:  12.500000\n"
        f"dropped events: {dropped}\nread events: {read}\n"
    )


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[tuple[MonotonicStats, Callable[[str], object]]]:
    """Counters over a file, and what writes the file anew."""
    path = tmp_path / "stats"
    path.write_text(text(0))
    fd = os.open(path, os.O_RDONLY)
    yield MonotonicStats(fd), path.write_text
    os.close(fd)


def test_what_earlier_processes_had_is_not_counted(tmp_path: Path) -> None:
    """Unread events are the next process's; a reset between both leaves what came after it."""
    path = tmp_path / "stats"
    path.write_text(text(10, overrun=5, dropped=3, read=100))
    fd = os.open(path, os.O_RDONLY)
    first = MonotonicStats(fd)
    first.read()
    second, third = MonotonicStats(fd, first.taken), MonotonicStats(fd, first.taken)
    assert (second.read().written, second.read().read_events) == (10, 0)
    path.write_text(text(4, overrun=6, dropped=4, read=110))
    now = second.read()
    assert (now.entries, now.overrun, now.dropped, now.read_events) == (4, 1, 1, 10)
    assert (now.commit_overrun, now.written, second.resets) == (0, 15, 0)
    path.write_text(text(4, read=1))
    now = third.read()
    assert (now.written, now.overrun, now.read_events, third.resets) == (5, 0, 1, 1)
    os.close(fd)


def test_a_reset_is_seen(ring: tuple[MonotonicStats, Callable[[str], object]]) -> None:
    """After a reset all go on from where they were, unread events that it took included."""
    stats, write = ring
    write(text(10, overrun=5, dropped=3, read=100))
    assert stats.read().written == 115
    write(text(4, read=1))
    after = stats.read()
    assert (after.overrun, after.dropped, after.read_events) == (5, 3, 101)
    assert (after.entries, after.cleared, after.written) == (4, 10, 120)
    assert after.commit_overrun == 4
    assert stats.resets == 1
    write(text(0, read=5))
    assert (stats.read().written, stats.resets) == (120, 1)


def replay(monkeypatch: pytest.MonkeyPatch, *readings: tuple[int, int]) -> MonotonicStats:
    """Counters over texts that come one after the other, as (entries, read events)."""
    texts = iter([text(entries, read=read).encode() for entries, read in readings])
    monkeypatch.setattr(monotonic_stats, "read_stats", lambda _fd: parse_stats(next(texts)))
    return MonotonicStats(-1)


@pytest.mark.parametrize("entries", [43200, 43150])
def test_a_backlog_that_drains_is_no_reset(monkeypatch: pytest.MonkeyPatch, entries: int) -> None:
    """Events that are read within or between the readings count once, and no reset is seen."""
    draining = [(entries - 106 * n, 956906 + 106 * n) for n in range(18)]
    quiet = [(28000, 972000)] * 2
    stats = replay(monkeypatch, *[(57840, 942160)] * 2, *draining, *quiet)
    found = [stats.read() for _ in range(4)]
    assert [reading.written for reading in found] == [1_000_000] * 4
    assert [reading.read_events for reading in found] == [942160, 957754, 958708, 972000]
    assert stats.resets == 0


def test_new_events_beside_a_backlog(monkeypatch: pytest.MonkeyPatch) -> None:
    """The written bytes are known up to a text's length, never too high, and never go back."""
    busy = [(1000, 10 * n) for n in range(1, 10)]
    stats = replay(monkeypatch, (900, 0), (900, 0), *busy, *[(0, 90)] * 9, (1000, 90), (1000, 90))
    found = [stats.read() for _ in range(2)]
    assert [(one.written, one.read_events) for one in found] == [(900, 0), (1080, 90)]


def test_a_reset_within_a_backlog(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reset is seen between readings none of which is steady, by the counters that went back."""
    after = [(50, 10 * n) for n in range(9)]
    stats = replay(monkeypatch, (10, 990), (10, 990), *after)
    stats.read()
    found = stats.read()
    assert (stats.resets, found.read_events, found.cleared) == (1, 990 + 80, 10)
    assert found.written == 1000 + 80 + 40


def test_one_look_does_where_nothing_has_left_the_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    """Since the reading before, however much was written: a second one would say the same."""
    stats = replay(monkeypatch, (10, 5), (10, 5), (1000, 5), (900, 105), (900, 105))
    found = [stats.read() for _ in range(3)]
    assert [reading.written for reading in found] == [15, 1005, 1005]


def test_reading_is_no_reset(ring: tuple[MonotonicStats, Callable[[str], object]]) -> None:
    """Events that are read leave `entries` and nothing else goes down."""
    stats, write = ring
    write(text(10))
    stats.read()
    write(text(0, read=10))
    assert (stats.read().written, stats.resets) == (10, 0)


@pytest.mark.parametrize("recorder", [False, True])
def test_what_the_ledger_gets(
    ring: tuple[MonotonicStats, Callable[[str], object]], *, recorder: bool
) -> None:
    """Overwriting is a loss of a stream and the purpose of a recorder."""
    stats, write = ring
    write(text(10, overrun=5, dropped=3, read=100))
    found = trace_counts.produced(stats.read(), recorder=recorder)
    assert found.value == 10 + 5 + 3 + 100 + 2
    assert found.losses == {
        (Stage.KERNEL_RING, Reason.OVERRUN): 0 if recorder else 5,
        (Stage.KERNEL_RING, Reason.COMMIT_OVERRUN): 2,
        (Stage.KERNEL_RING, Reason.DROPPED): 3,
        (Stage.KERNEL_RING, Reason.UNCOVERED): 0,
        (Stage.STAGING, Reason.DROPPED): 0,
    }
    assert found.lost == sum(found.losses.values())
    assert found.overwritten == (5 if recorder else 0)
    assert (found.read_events, found.unread, found.unread_bytes) == (100, 10, 400)
    assert found.oldest_unread_age_ns == 2_499_999_000


def test_an_empty_ring_has_no_age(ring: tuple[MonotonicStats, Callable[[str], object]]) -> None:
    """The kernel's figures of an empty ring are stale, and not told."""
    stats, write = ring
    write(text(0, read=10).replace("bytes: 0", "bytes: 32"))
    found = trace_counts.produced(stats.read(), recorder=False)
    assert (found.oldest_unread_age_ns, found.unread_bytes) == (None, 0)
