# SPDX-License-Identifier: Apache-2.0
"""The length of the whole part of a data section that may be torn."""

from __future__ import annotations

import struct
from typing import Final

from collectord.codec.perf_attr import RecordType
from collectord.codec.perf_record import HEADER_BYTES, PAGE_BYTES, payload_bytes

_HEADER: Final = struct.Struct("<IHH")
_KERNEL_TYPE_MAX: Final = int(RecordType.AUX_OUTPUT_HW_ID)
_KNOWN_TYPES: Final = frozenset(
    (*range(1, _KERNEL_TYPE_MAX + 1), *range(RecordType.HEADER_ATTR, RecordType.FINISHED_INIT + 1))
)
_AUXTRACE: Final = int(RecordType.AUXTRACE)


class WholeRecordWalk:
    """Finds where the last whole record of a data section ends, fed piece by piece.

    A header is invalid when its size is under 8 or no multiple of 8, or when its type is 0,
    above 21 and below 64, or above 82: nothing that this program stores. An AUXTRACE record is
    whole with all its payload. It takes about 0.3 s per million records and the GIL for as long;
    segments are walked natively, and this is the reference for that walk.
    """

    def __init__(self) -> None:
        self.stopped = False
        self._end = 0
        self._last_start = 0
        self._carry = b""

    def feed(self, piece: bytes | memoryview) -> bool:
        """Continue the walk; False after an invalid header, when more data are of no use."""
        if self.stopped:
            return False
        data = self._carry + bytes(piece) if self._carry else piece
        unpack, known, end, at, last = _HEADER.unpack_from, _KNOWN_TYPES, len(data), 0, -1
        while end - at >= HEADER_BYTES:
            kind, _, size = unpack(data, at)
            if size < HEADER_BYTES or size & 7 or kind not in known:
                self.stopped = True
                break
            if kind == _AUXTRACE and size <= end - at:
                payload = payload_bytes(data, at)
                if payload < 0:
                    self.stopped = True
                    break
                size += payload
            if size > end - at:
                break
            last, at = at, at + size
        if last >= 0:
            self._last_start = self._end + last
        self._end += at
        self._carry = bytes(data[at:])
        return not self.stopped

    @property
    def whole(self) -> int:
        """The offset past the last whole record, from the start of the data section."""
        return self._end

    @property
    def end(self) -> int:
        """The offset past the last record to keep, from the start of the data section.

        Writers write whole pages, so a walk that ends inside a page met a write that was cut.
        Then a last record that lies on two pages may have its second part missing: it goes too.
        """
        crosses = self._last_start // PAGE_BYTES < (self._end - 1) // PAGE_BYTES
        if self._end % PAGE_BYTES and crosses:
            return self._last_start
        return self._end


def last_whole_record(data: bytes | memoryview) -> int:
    """Return the offset past the last record to keep of a data section that may be torn."""
    walk = WholeRecordWalk()
    walk.feed(data)
    return walk.end
