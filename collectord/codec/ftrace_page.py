# SPDX-License-Identifier: Apache-2.0
"""Events of one sub-buffer of ftrace's ring, as read from `trace_pipe_raw` or mapped.

    0   u64 timestamp of the page
    8   u64 commit: bytes of data in bits 0-26, bit 31: events were lost before this page,
        bit 30: their number, a u64, stands right behind the data
    16  data: events, each of u32 {type_len: 5, time_delta: 27}, then by type_len:
        1-28  payload of 4 * type_len bytes
        0     u32 length (itself included), payload
        29    padding: with time_delta 0 the rest of the page is unused, else a discarded event of
              u32 length (itself included)
        30    time extend: u32 high bits of a delta
        31    time stamp: u32 high bits of an absolute stamp of 59 bits

Source: kernel/trace/ring_buffer.c and include/linux/ring_buffer.h of a 64-bit little-endian
kernel. With bit 31 the commit word is sign-extended, so its high half has no meaning. Bits 27-29
are ignored, as by libtraceevent.
"""

from __future__ import annotations

import struct
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from collectord.codec.cursor import U32, U64

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PAGE_HEADER_BYTES: Final = 16
EVENTS_LOST: Final = 1 << 31
LOST_STORED: Final = 1 << 30
LENGTH_MASK: Final = (1 << 27) - 1

TYPE_DATA_MAX: Final = 28
TYPE_PADDING: Final = 29
TYPE_TIME_EXTEND: Final = 30
TYPE_TIME_STAMP: Final = 31
TYPE_BITS: Final = 5
DELTA_BITS: Final = 27
STAMP_BITS: Final = 59

_HEADER: Final = struct.Struct("<QI")
_U64_MASK: Final = (1 << 64) - 1
_WORD_BYTES: Final = 4
# The header of a page that is made here, whose commit word has no flags.
_NEW_HEADER: Final = struct.Struct("<QQ")


class PageFault(StrEnum):
    """The reason why a page could not be walked to its end."""

    SHORT_HEADER = "short_header"  # fewer bytes than the page's header
    DATA_BEYOND_PAGE = "data_beyond_page"  # more data than the page can hold
    SHORT_EVENT = "short_event"  # the data end within an event's header
    BAD_LENGTH = "bad_length"  # an event's length does not include the length itself
    EVENT_BEYOND_DATA = "event_beyond_data"  # an event ends behind the data


class PageEvent(NamedTuple):
    """One event: its time, and the place of its payload.

    Attributes:
        timestamp_ns: absolute, in the clock of the instance.
        offset: of the payload, in bytes from the page's start.
        size_bytes: of the payload, including the padding to 4 of small events.
    """

    timestamp_ns: int
    offset: int
    size_bytes: int


class Position(NamedTuple):
    """The position of a walk.

    Attributes:
        offset: of the first byte that was not walked, from the page's start.
        timestamp_ns: time at that position; a later delta adds to it.
    """

    offset: int
    timestamp_ns: int


class Walk:
    """The events of one page, in order; the iterator ends for any bytes.

    Args:
        page: the sub-buffer, or a part from its beginning.
        start: continue here, where an earlier walk of the same page ended.
        end: walk to this offset instead of the end in the page's header.

    Attributes:
        timestamp_ns: of the page.
        events_lost: events were lost between the page before and this one.
        lost_events: their number; None: the page does not have it.
        data_end: end of the data, in bytes from the page's start.
        position: end of the walk so far; `data_end` if it is complete.
        fault: the fault at `position`, None if there is none. The data before are sound.
    """

    def __init__(
        self, page: bytes, *, start: Position | None = None, end: int | None = None
    ) -> None:
        self._page = page
        self.fault: PageFault | None = None
        self.timestamp_ns = 0
        self.events_lost = False
        self.lost_events: int | None = 0
        self.data_end = 0
        if len(page) < PAGE_HEADER_BYTES:
            self.fault = PageFault.SHORT_HEADER
            self.position = Position(0, 0)
            return
        self.timestamp_ns, commit = _HEADER.unpack_from(page)
        told = PAGE_HEADER_BYTES + (commit & LENGTH_MASK)
        self.events_lost = bool(commit & EVENTS_LOST)
        if self.events_lost:
            self.lost_events = self._stored_count(told) if commit & LOST_STORED else None
        self.data_end = told if end is None else end
        self.position = start or Position(PAGE_HEADER_BYTES, self.timestamp_ns)
        if self.data_end > len(page):
            self.fault = PageFault.DATA_BEYOND_PAGE

    def _stored_count(self, at: int) -> int | None:
        if at + U64.size > len(self._page):
            return None
        count: int = U64.unpack_from(self._page, at)[0]
        return count

    def __iter__(self) -> Iterator[PageEvent]:
        """Yield the next events, and move `position` behind each as it is yielded."""
        while self.fault is None and self.position.offset < self.data_end:
            found = self._read(*self.position)
            if isinstance(found, PageFault):
                self.fault = found
                return
            if found is None:
                self.position = self.position._replace(offset=self.data_end)
                return
            kind, event = found
            past = event.offset + event.size_bytes + -event.size_bytes % _WORD_BYTES
            if past > self.data_end:
                self.fault = PageFault.EVENT_BEYOND_DATA
                return
            self.position = Position(past, event.timestamp_ns)
            if kind <= TYPE_DATA_MAX:
                yield event

    def _read(self, at: int, now: int) -> tuple[int, PageEvent] | PageFault | None:
        """Return type and place of the item at `at`, or None for the unused rest of the page."""
        words = (self.data_end - at) // _WORD_BYTES
        if not words:
            return PageFault.SHORT_EVENT
        word = self._word(at)
        kind, delta = word & ((1 << TYPE_BITS) - 1), word >> TYPE_BITS
        if kind == TYPE_PADDING and not delta:
            return None
        if 0 < kind <= TYPE_DATA_MAX:
            return kind, PageEvent((now + delta) & _U64_MASK, at + _WORD_BYTES, kind * _WORD_BYTES)
        if words == 1:
            return PageFault.SHORT_EVENT
        second, size = self._word(at + _WORD_BYTES), 0
        then = now + delta
        if kind == TYPE_TIME_EXTEND:
            then += second << DELTA_BITS
        elif kind == TYPE_TIME_STAMP:
            then = _stamp(delta + (second << DELTA_BITS), now)
        elif second < _WORD_BYTES:
            return PageFault.BAD_LENGTH
        else:
            size = second - _WORD_BYTES
        return kind, PageEvent(then & _U64_MASK, at + 2 * _WORD_BYTES, size)

    def _word(self, at: int) -> int:
        word: int = U32.unpack_from(self._page, at)[0]
        return word


def _stamp(bits: int, previous_ns: int) -> int:
    """Restore the high 5 bits of an absolute stamp from the stamp before it.

    A stamp more than half the range of 59 bits before the previous one has wrapped; one that is a
    little earlier is from an event that was interrupted by the other.
    """
    low = bits & ((1 << STAMP_BITS) - 1)
    full = (previous_ns >> STAMP_BITS << STAMP_BITS) | low
    if previous_ns - full > 1 << (STAMP_BITS - 1):
        full += 1 << STAMP_BITS
    return full


def unstored(handed: bytes, stored: bytes) -> bytes | None:
    """Return the events of a sub-buffer that come after those in a file.

    The bytes of the events are compared, because times may be equal: the longest common piece
    counts, the first one of equally long ones. If they have none in common, later times count as
    new.

    Args:
        handed: the sub-buffer, with all that was handed out of it.
        stored: the last sub-buffer of the same ring in the file, or b"". It may begin before
            `handed` or within it, and end within it.

    Returns:
        a sub-buffer of the same size, None if the file has it all.
    """
    handed_bounds = _bounds(handed)
    first, last = handed_bounds[0], handed_bounds[-1]
    if not stored:
        return handed if last != first else None
    bounds = _bounds(stored)
    before, end = bounds[0].offset, bounds[-1].offset
    rest, longest = _after(handed_bounds, bounds[-1].timestamp_ns), -1
    for bound in handed_bounds:
        common = min(bound.offset - first.offset, end - before)
        if (
            bound.timestamp_ns == bounds[-1].timestamp_ns
            and common > longest
            and handed[bound.offset - common : bound.offset] == stored[end - common : end]
        ):
            rest, longest = bound, common
    if rest == first and last != first:
        return handed
    if rest is None or rest.offset >= last.offset:
        return None
    return _piece(handed, rest, last)


def last_events(page: bytes, count: int) -> bytes | None:
    """Return the last events of a sub-buffer, as one of the same size.

    Args:
        page: a sub-buffer.
        count: the maximum number; if it has no more, the page is returned unchanged.

    Returns:
        None if there is no such event.
    """
    walk = Walk(page)
    begins = []
    end = walk.position
    for _ in walk:
        begins.append(end)
        end = walk.position
    if not begins or count <= 0:
        return None
    return page if len(begins) <= count else _piece(page, begins[-count], end)


def _piece(page: bytes, begin: Position, end: Position) -> bytes:
    data = page[begin.offset : end.offset]
    return (_NEW_HEADER.pack(begin.timestamp_ns, len(data)) + data).ljust(len(page), b"\0")


def _after(bounds: Sequence[Position], time_ns: int) -> Position | None:
    """Return the start of the first event that is later than `time_ns`."""
    for before, behind in pairwise(bounds):
        if behind.timestamp_ns > time_ns:
            return before
    return None


def _bounds(page: bytes) -> list[Position]:
    """Return the page's beginning and the ends of its events, up to what cannot be walked."""
    walk = Walk(page)
    bounds = [Position(PAGE_HEADER_BYTES, walk.timestamp_ns)]
    bounds += [walk.position for _ in walk]
    if walk.fault is None:
        bounds.append(walk.position)  # behind items that are not events
    return bounds
