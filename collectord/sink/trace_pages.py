# SPDX-License-Identifier: Apache-2.0
"""Sink stage: find the sound pages of one CPU in a trace.dat file, and cut damage out.

A page (an ftrace sub-buffer) begins with its time and the length of its events, which fill that
length exactly. A damaged page becomes one without events, in its place: readers go on with the
next one. If no checksum shows how far damage reaches, the pages before and behind it are cut out
too: the damage may reach into them invisibly.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from collectord._native import _core
from collectord.sink.sparse import written
from collectord.sink.stored_file import CUT, Part

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from collectord.codec.trace_dat_head import Place

_WORD: Final = 8
_STAMP: Final = struct.Struct("<Q")
# The mark of a page without events made by a repair: no time, no length, and this.
_CUT: Final = int.from_bytes(CUT, "little")
_EMPTY: Final = struct.Struct("<QQQ")


class Kept(NamedTuple):
    """The pages of one CPU that can be kept; offsets are those of the file.

    Attributes:
        bytes: size from the first page on; the data behind are given up.
        cuts: damaged pages among them.
        samples: events that are kept.
        first_ns, last_ns: times of the first and the last event, 0 if there is none.
        fault: why pages are not kept, "" if they end where nothing was written.
    """

    bytes: int
    cuts: tuple[Part, ...]
    samples: int
    first_ns: int
    last_ns: int
    fault: str


def examine(
    fd: int, view: memoryview, place: Place, step_bytes: int, unsound: Sequence[Part] | None
) -> Kept:
    """Find the sound pages.

    Args:
        fd: the file, whose holes are skipped.
        view: its bytes.
        place: where the pages are, or may be.
        step_bytes: size of a page.
        unsound: the parts that do not match their checksums; None: there are no checksums.
    """
    end = min(place.offset + place.bytes, len(view))
    bad = sorted([*(unsound or ()), *_cut_before(fd, view, (place.offset, end), step_bytes)])
    ranges: list[Part] = []
    fault, last_ns = "", 0
    at: int | None = place.offset
    while at is not None:
        until = min([end, *(part.offset for part in bad if part.end > at)])
        with view[at : max(at, until)] as data:
            found = _core.scan_pages(data, step_bytes)
        if found.end:
            ranges.append(Part(at, found.end))
        stopped = at + found.end
        fault = fault or ("" if found.fault == "ok" else found.fault)
        touching = (p.end for p in bad if p.offset < stopped + step_bytes and stopped < p.end)
        behind = max(touching, default=stopped)
        last_ns = max(last_ns, found.last_ns)
        where = Part(behind, max(end - behind, 0))
        at = _next_page(fd, view, where, (place.offset, step_bytes, last_ns))
    if len(ranges) > 1 and unsound is None:
        ranges = [*_without_margins(ranges, step_bytes)]
    return _together(view, place.offset, step_bytes, ranges, fault)


def _cut_before(
    fd: int, view: memoryview, bounds: tuple[int, int], step_bytes: int
) -> Iterator[Part]:
    """Yield the pages that an earlier repair has made."""
    start, end = bounds
    step = step_bytes // _WORD
    for first, past in written(fd, start, end):
        at = first - (first - start) % step_bytes
        size = (past - at) // step_bytes * step_bytes
        with view[at : at + size] as whole, whole.cast("Q") as words:
            for page, word in enumerate(words[2::step]):
                if word == _CUT and not words[page * step + 1]:
                    yield Part(at + page * step_bytes, step_bytes)


def _next_page(fd: int, view: memoryview, where: Part, pages: tuple[int, int, int]) -> int | None:
    """Find the first page that was written, is sound, and is not older than those before.

    Args:
        fd: the file.
        view: its bytes.
        where: the part to search.
        pages: offset of the very first page, size of a page, and time of the pages before.
    """
    start, step_bytes, last_ns = pages
    for first, past in written(fd, where.offset, where.end):
        begin = (first - start) // step_bytes * step_bytes
        least = -(-(where.offset - start) // step_bytes) * step_bytes
        for at in range(start + max(begin, least), past, step_bytes):
            with view[at : min(at + step_bytes, where.end)] as page:
                sound = _core.scan_pages(page, step_bytes).end > 0
                if sound and _STAMP.unpack_from(page)[0] >= last_ns:
                    return at
    return None


def _without_margins(ranges: list[Part], step_bytes: int) -> Iterator[Part]:
    for number, part in enumerate(ranges):
        first = part.offset + (step_bytes if number else 0)
        last = part.end - (step_bytes if number + 1 < len(ranges) else 0)
        if first < last:
            yield Part(first, last - first)


def _together(
    view: memoryview, start: int, step_bytes: int, ranges: list[Part], fault: str
) -> Kept:
    end, samples, cuts, times = start, 0, [], []
    for part in ranges:
        with view[part.offset : part.end] as data:
            found = _core.scan_pages(data, step_bytes)
        if part.offset > end:
            cuts.append(Part(end, part.offset - end))
        end = part.end
        samples += found.events
        if found.first_ns:
            times += [found.first_ns, found.last_ns]
    first_ns, last_ns = min(times, default=0), max(times, default=0)
    return Kept(end - start, tuple(cuts), samples, first_ns, last_ns, fault)


def empty_pages(view: memoryview, cut: Part, step_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Yield offsets and bytes of pages without events, with the time of the page behind."""
    (time_ns,) = _STAMP.unpack_from(view, cut.end)
    for at in range(cut.offset, cut.end, step_bytes):
        yield at, _EMPTY.pack(time_ns, 0, _CUT)
