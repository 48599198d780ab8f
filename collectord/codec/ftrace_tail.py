# SPDX-License-Identifier: Apache-2.0
"""The new part of a sub-buffer that was handed out twice: nothing is repeated or skipped."""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from collectord.codec.ftrace_page import PAGE_HEADER_BYTES, Position, Walk

if TYPE_CHECKING:
    from collections.abc import Sequence

_HEADER: Final = struct.Struct("<QQ")


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
    return (_HEADER.pack(begin.timestamp_ns, len(data)) + data).ljust(len(page), b"\0")


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
