# SPDX-License-Identifier: Apache-2.0
"""Records of a perf.data data section in the order of time.

Rings of several CPUs share the section, each with its records in their own order. A FINISHED_ROUND
means that no later record is older than those before the round before it, so these can be sorted
and returned.

Of a round only runs of records that are already in order are kept; the records themselves are read
again when they are due. That is a few numbers for each piece of a ring, independent of the number
of its records.
"""

from __future__ import annotations

import heapq
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from collectord.codec.perf_attr import (
    PerfEventAttr,
    RecordType,
    SampleType,
    id_trailer_from,
    sample_time_offset,
)
from collectord.codec.perf_record import HEADER_BYTES, PAGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ALWAYS: Final = 1 << 64  # beyond all times

_HEADER: Final = struct.Struct("<IHH")
_U64: Final = struct.Struct("<Q")
_SAMPLE: Final = int(RecordType.SAMPLE)
_ROUND: Final = int(RecordType.FINISHED_ROUND)
_KNOWN: Final = frozenset(map(int, RecordType))
_BY_KERNEL: Final = range(1, RecordType.AUX_OUTPUT_HW_ID + 1)


class Stop(NamedTuple):
    """The end of a walk: behind a round, at the end, or at an invalid record, with the reason."""

    at: int
    is_round: bool = False
    reason: str = ""


class TimeOrder:
    """Sorts records, fed from the front of a section to its end.

    Args:
        attrs: of the events by their ids; other records are skipped.
        samples: ids of events whose samples are returned.
        others: types of the other records that are returned.

    Attributes:
        newest_ns: the highest time of the records fed.
        with_samples: False: only the others are returned; no run may be left when it changes.
    """

    def __init__(
        self, attrs: Mapping[int, PerfEventAttr], samples: frozenset[int], others: frozenset[int]
    ) -> None:
        self.newest_ns = 0
        self.with_samples = True
        self._ids = attrs.keys()
        self._trailers = {
            number: id_trailer_from(attr, SampleType.TIME) for number, attr in attrs.items()
        }
        self._offsets = {number: sample_time_offset(attrs[number]) for number in samples}
        self._others = others
        self._runs: list[tuple[int, int, int]] = []  # a heap: time, offset, end

    @property
    def waits(self) -> bool:
        """Whether there are records that were fed and not taken."""
        return bool(self._runs)

    def feed(self, data: memoryview, at: int, end: int) -> Stop:
        """Note the records from `at` to behind the next round, or to `end`."""
        first = last_ns = -1
        start_ns = 0
        reason = ""
        is_round = False
        while at < end and not is_round:
            kind, size, reason = _header(data, at, end)
            if reason:
                break
            time_ns = self._time(data, at, kind, size)
            if time_ns >= 0:
                if time_ns < last_ns or first < 0:
                    self._end_run(start_ns, first, at, last_ns)
                    first, start_ns = at, time_ns
                last_ns = time_ns
            at += size
            is_round = kind == _ROUND
        self._end_run(start_ns, first, at, last_ns)
        return Stop(at, is_round, reason)

    def take(self, data: memoryview, until_ns: int) -> Iterator[int]:
        """Yield the offsets of the records up to a time, and forget them."""
        runs = self._runs
        while runs and runs[0][0] <= until_ns:
            _, at, end = heapq.heappop(runs)
            bound_ns = min(until_ns, runs[0][0] - 1) if runs else until_ns
            time_ns = -1
            while at < end and time_ns <= bound_ns:
                yield at
                at, time_ns = self._next(data, at, end)
            if at < end:
                heapq.heappush(runs, (time_ns, at, end))

    def resume(self, data: memoryview, at: int, end: int) -> int:
        """Return the first page behind `at` that begins with a record of a known event, or `end`.

        Writers begin a chunk at the start of a page.
        """
        for page in range(at + PAGE_BYTES - at % PAGE_BYTES, end, PAGE_BYTES):
            kind, size, reason = _header(data, page, end)
            if reason or kind not in _BY_KERNEL or size < HEADER_BYTES + _U64.size:
                continue
            of_id = page + (HEADER_BYTES if kind == _SAMPLE else size - _U64.size)
            if _U64.unpack_from(data, of_id)[0] in self._ids:
                return page
        return end

    def _end_run(self, start_ns: int, first: int, end: int, last_ns: int) -> None:
        if first >= 0:
            heapq.heappush(self._runs, (start_ns, first, end))
            self.newest_ns = max(self.newest_ns, last_ns)

    def _next(self, data: memoryview, at: int, end: int) -> tuple[int, int]:
        """Return offset and time of the next record of a run behind the one at `at`."""
        size = _HEADER.unpack_from(data, at)[2]
        while size >= HEADER_BYTES and at + size < end:
            at += size
            kind, _, size = _HEADER.unpack_from(data, at)
            time_ns = self._time(data, at, kind, size)
            if time_ns >= 0:
                return at, time_ns
        return end, ALWAYS

    def _time(self, data: memoryview, at: int, kind: int, size: int) -> int:
        """Return the time of a record that is to be returned, -1 for others."""
        if kind == _SAMPLE:
            if size < HEADER_BYTES + _U64.size or not self.with_samples:
                return -1
            offset = self._offsets.get(_U64.unpack_from(data, at + HEADER_BYTES)[0], 0)
            if not offset or size < offset + _U64.size:
                return -1
            return int(_U64.unpack_from(data, at + offset)[0])
        if kind not in self._others or size < HEADER_BYTES + _U64.size:
            return -1
        trailer = self._trailers.get(_U64.unpack_from(data, at + size - _U64.size)[0], 0)
        if not trailer or size < HEADER_BYTES + trailer:
            return -1
        return int(_U64.unpack_from(data, at + size - trailer)[0])


def past_last_round(data: bytes | memoryview) -> tuple[int, int]:
    """Walk over records that may end in the middle of one, or be followed by zeros.

    Returns:
        offsets past the last whole record, and past the last FINISHED_ROUND, 0 for none.
    """
    at, settled, end = 0, 0, len(data)
    while at < end:
        kind, size, reason = _header(data, at, end)
        if reason:
            break
        at += size
        if kind == _ROUND:
            settled = at
    return at, settled


def _header(data: bytes | memoryview, at: int, end: int) -> tuple[int, int, str]:
    """Return type and size of a record, and its fault, "" if it has none."""
    if end - at < HEADER_BYTES:
        return 0, 0, "a record header is cut short"
    kind, _, size = _HEADER.unpack_from(data, at)
    if size < HEADER_BYTES or size & 7:
        return kind, size, f"a record has size {size}"
    if kind not in _KNOWN:
        return kind, size, f"a record has type {kind}"
    if size > end - at:
        return kind, size, "a record is cut short"
    return kind, size, ""
