# SPDX-License-Identifier: Apache-2.0
"""A sub-buffer that was handed out before adds what the file lacks, and only that."""

from __future__ import annotations

import struct
from typing import Final

import pytest

from collectord.codec.ftrace_page import Walk
from collectord.codec.ftrace_tail import unstored
from tests.support import ftrace_pages
from tests.support.ftrace_pages import event, page, time_extend

START: Final = 5_000_000_000
# Deltas of 0 make equal times, one long and one small event alike bytes.
EVENTS: Final = (
    event(b"one.", 0),
    event(b"two.", 0),
    event(b"twin", 0),
    time_extend(1 << 28) + event(b"far.", 7),
    event(b"x" * 200, 3),
    event(b"twin", 0),
    event(b"twin", 0),
    event(b"end.", 9),
)


def payloads(*pages: bytes | None) -> list[bytes]:
    """Return the payloads of the pages' events, with their times."""
    return [
        struct.pack("<Q", found.timestamp_ns) + one[found.offset :][: found.size_bytes]
        for one in pages
        if one is not None
        for found in Walk(one)
    ]


def time_after(count: int) -> int:
    """Return the time of the last of the first events."""
    walk = Walk(page(START, *EVENTS[:count]))
    for _ in walk:
        pass
    return walk.position.timestamp_ns


@pytest.mark.parametrize("stored", range(len(EVENTS) + 1))
def test_the_beginning_is_stored(stored: int) -> None:
    """Whatever number of first events the file has, the others are given, at their times."""
    whole = page(START, *EVENTS)
    rest = unstored(whole, page(START, *EVENTS[:stored]))
    assert payloads(page(START, *EVENTS[:stored]), rest) == payloads(whole)
    assert (rest is None) == (stored == len(EVENTS))
    assert rest is None or len(rest) == len(whole)


@pytest.mark.parametrize("begin", range(6))
def test_a_piece_is_stored(begin: int) -> None:
    """The file's last page may be a piece of the sub-buffer that began in another file."""
    piece = page(time_after(begin), *EVENTS[begin:6])
    rest = unstored(page(START, *EVENTS), piece)
    assert payloads(rest) == payloads(page(START, *EVENTS))[6:]


def test_an_earlier_page_is_stored() -> None:
    """If the file has nothing of the sub-buffer, all of it is returned, with its flags."""
    whole = page(START, *EVENTS, lost=7)
    assert unstored(whole, page(START - 100, event(b"before", 1))) == whole
    assert unstored(whole, b"") == whole


def test_earlier_events_in_one_page() -> None:
    """The file's last page may begin with events of the sub-buffer before, at the same time."""
    joined = page(START - 10, event(b"before", 10), *EVENTS[:3])
    rest = unstored(page(START, *EVENTS), joined)
    assert payloads(rest) == payloads(page(START, *EVENTS))[3:]


def test_bytes_agree_nowhere() -> None:
    """If the file has other events, only later ones count as new."""
    other = page(START, event(b"else", 0), time_extend(time_after(4) - START), event(b"more"))
    assert payloads(unstored(page(START, *EVENTS), other)) == payloads(page(START, *EVENTS))[4:]
    late = page(START, event(b"late", (1 << 26)), time_extend(1 << 40) + event(b"late", 0))
    assert unstored(page(START, *EVENTS), late) is None


def test_what_cannot_be_walked_is_left_out() -> None:
    """Up to a damage all is given, from there on nothing."""
    damaged = page(START, *EVENTS[:2], ftrace_pages.event(b"", long=True), EVENTS[2])
    broken = damaged.replace(struct.pack("<II", 0, 4), struct.pack("<II", 0, 1))
    rest = unstored(broken, page(START, EVENTS[0]))
    assert payloads(rest) == payloads(page(START, *EVENTS[:2]))[1:]
    assert unstored(b"short", b"") is None


def test_nothing_was_handed_out() -> None:
    """An empty sub-buffer adds nothing."""
    assert unstored(page(START), b"") is None
    assert unstored(page(START), page(START, *EVENTS)) is None
