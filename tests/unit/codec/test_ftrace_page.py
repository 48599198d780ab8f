# SPDX-License-Identifier: Apache-2.0
"""The walk of one sub-buffer, and the part that is new, over pages built here and the kernel's."""

from __future__ import annotations

import struct
from typing import Final

import pytest

from collectord.codec.ftrace_format import parse_format
from collectord.codec.ftrace_page import PageEvent, PageFault, Position, Walk, unstored
from tests.support import ftrace_pages
from tests.support.ftrace_pages import (
    U32,
    U64,
    UNUSED_REST,
    discarded,
    event,
    page,
    time_extend,
    time_stamp,
)
from tests.support.ftrace_records import decode
from tests.support.golden import GOLDEN

BASE: Final = 1_000_000
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


def _stamps(*data: bytes, base: int = BASE) -> list[int]:
    walk = Walk(page(base, *data))
    found = [one.timestamp_ns for one in walk]
    assert walk.fault is None
    assert walk.position.offset == walk.data_end
    return found


def test_events() -> None:
    """Small and large events are found where they are, each at the sum of the deltas."""
    walk = Walk(page(BASE, event(b"abcd", 5), event(b"x" * 130, 7), event(b"y" * 112)))
    assert list(walk) == [
        PageEvent(BASE + 5, 20, 4),
        PageEvent(BASE + 12, 32, 130),
        PageEvent(BASE + 12, 168, 112),
    ]
    assert (walk.timestamp_ns, walk.fault) == (BASE, None)
    assert walk.position == Position(280, BASE + 12)
    assert (walk.events_lost, walk.lost_events) == (False, 0)


def test_empty_pages() -> None:
    """A page without data, and one of zeros, are walked to their end at once."""
    for empty in (page(BASE), bytes(4096)):
        walk = Walk(empty)
        assert not list(walk)
        assert (walk.fault, walk.position.offset) == (None, 16)


@pytest.mark.parametrize("sign_extended", [False, True])
def test_loss(*, sign_extended: bool) -> None:
    """A page tells of loss with its number or without, sign-extended or not."""
    walk = Walk(page(BASE, event(b"abcd"), lost=7, sign_extended=sign_extended))
    assert (walk.events_lost, walk.lost_events, len(list(walk))) == (True, 7, 1)
    walk = Walk(page(BASE, event(b"abcd"), lost=None, sign_extended=sign_extended))
    assert (walk.events_lost, walk.lost_events, len(list(walk))) == (True, None, 1)
    assert walk.fault is None


def test_loss_without_room_for_its_number() -> None:
    """A number that would stand behind the page is not read."""
    built = page(BASE, event(b"abcd"), lost=7)
    assert Walk(built[:32]).lost_events == 7
    walk = Walk(built[:31])
    assert (walk.lost_events, len(list(walk)), walk.fault) == (None, 1, None)


def test_time() -> None:
    """Discarded events and extends move the time, and are no events."""
    data = (event(b"abcd", 1), discarded(8, 10), time_extend(1 << 40), event(b"abcd", 2))
    assert _stamps(*data) == [BASE + 1, BASE + 13 + (1 << 40)]


def test_absolute_stamps() -> None:
    """The upper 5 bits come from the time before; one that is far back has wrapped."""
    step = 1 << 59
    assert _stamps(time_stamp(BASE + 9), event(b"abcd", 1)) == [BASE + 10]
    assert _stamps(time_stamp(5), event(b"abcd"), base=3 * step + 2) == [3 * step + 5]
    assert _stamps(time_stamp(5), event(b"abcd"), base=3 * step - 1) == [3 * step + 5]
    # an event that another one interrupted
    assert _stamps(time_stamp(BASE - 9), event(b"abcd")) == [BASE - 9]
    assert _stamps(time_stamp(5), event(b"abcd"), base=(1 << 64) - 1) == [5]


def test_time_has_64_bits() -> None:
    """A time that passes its 64 bits starts again, as it does in the kernel."""
    for data in (time_extend(5), discarded(8, 5), event(b"abcd", 5)):
        walk = Walk(page((1 << 64) - 1, data))
        list(walk)
        assert walk.position.timestamp_ns == 4


def test_unused_rest() -> None:
    """Padding without a delta ends the page, whatever stands behind it."""
    walk = Walk(page(BASE, event(b"abcd"), UNUSED_REST, b"\0" * 64))
    assert len(list(walk)) == 1
    assert (walk.fault, walk.position.offset) == (None, walk.data_end)


@pytest.mark.parametrize(
    ("built", "fault", "at"),
    [
        (b"", PageFault.SHORT_HEADER, 0),
        (bytes(15), PageFault.SHORT_HEADER, 0),
        (U64.pack(1) + U64.pack(4081) + bytes(4080), PageFault.DATA_BEYOND_PAGE, 16),
        (page(BASE, event(b"abcd"), b"\1\0\0"), PageFault.SHORT_EVENT, 24),
        (page(BASE, event(b"abcd"), event(b"x" * 200)[:4]), PageFault.SHORT_EVENT, 24),
        (page(BASE, event(b"abcd"), time_extend(1)[:4]), PageFault.SHORT_EVENT, 24),
        (page(BASE, event(b"abcd"), bytes(8)), PageFault.BAD_LENGTH, 24),
        (page(BASE, event(b"abcd"), U32.pack(0) + U32.pack(3)), PageFault.BAD_LENGTH, 24),
        (page(BASE, event(b"abcd"), U32.pack(29 | 32) + bytes(4)), PageFault.BAD_LENGTH, 24),
        (page(BASE, event(b"abcd"), event(b"x" * 8)[:-1]), PageFault.EVENT_BEYOND_DATA, 24),
        (page(BASE, event(b"abcd"), event(b"x" * 200)[:-1]), PageFault.EVENT_BEYOND_DATA, 24),
        (page(BASE, event(b"abcd"), b"\0" * 4 + b"\xff" * 4), PageFault.EVENT_BEYOND_DATA, 24),
        (page(BASE, event(b"abcd"), discarded(8)[:-4]), PageFault.EVENT_BEYOND_DATA, 24),
    ],
)
def test_faults(built: bytes, fault: PageFault, at: int) -> None:
    """Events before a fault are returned, and the fault is reported with its place."""
    walk = Walk(built)
    assert len(list(walk)) == int(at > 16)
    assert (walk.fault, walk.position.offset) == (fault, at)
    assert not list(walk)


def test_growing_page() -> None:
    """A walk goes on where an earlier one of the same page ended."""
    data = (event(b"abcd", 1), time_extend(1 << 30), event(b"efgh", 2), event(b"ijkl", 3))
    built = page(BASE, *data)
    first = Walk(built, end=32)
    assert [one.timestamp_ns for one in first] == [BASE + 1]
    second = Walk(built, start=first.position)
    assert [*Walk(built)] == [PageEvent(BASE + 1, 20, 4), *second]
    assert Walk(built, end=4097).fault is PageFault.DATA_BEYOND_PAGE


@pytest.mark.parametrize(
    ("name", "count", "lost"), [("sys_enter", 60, None), ("sys_exit", 145, 1595)]
)
def test_pages_of_the_kernel(name: str, count: int, lost: int | None) -> None:
    """A full page has no room for the number of lost events; all events are of the known kind."""
    layout = parse_format((GOLDEN / f"{name}.format").read_bytes())
    raw = (GOLDEN / f"{name}.page").read_bytes()
    walk = Walk(raw)
    records = [raw[one.offset : one.offset + one.size_bytes] for one in walk]
    assert (len(records), walk.fault, walk.position.offset) == (count, None, walk.data_end)
    assert (walk.events_lost, walk.lost_events) == (True, lost)
    assert {int.from_bytes(record[:2], "little") for record in records} == {layout.id}
    decoded = [decode(record, layout) for record in records]
    assert {values["id"] for values in decoded} == {3999}
    if name == "sys_enter":
        args = [values["args"] for values in decoded]
        assert [one[0] for one in args if isinstance(one, tuple)] == [*range(1860, 1920)]


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
