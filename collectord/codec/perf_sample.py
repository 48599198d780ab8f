# SPDX-License-Identifier: Apache-2.0
"""PERF_RECORD_SAMPLE: its fields up to RAW.

The order is that of perf_output_sample() in kernel/events/core.c. Fields behind RAW (branch stack,
registers, user stack, weights and later ones) are not read: tools decode them.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from collectord.codec.perf_attr import PerfEventAttr, SampleType
from collectord.codec.perf_record import HEADER_BYTES
from collectord.errors import CodecError

RAW_SAMPLE_NEEDS: Final = (
    SampleType.IDENTIFIER | SampleType.TID | SampleType.TIME | SampleType.CPU | SampleType.RAW
)
# The one-word fields before READ, in the record's order.
_WORDS: Final = (
    SampleType.IDENTIFIER,
    SampleType.IP,
    SampleType.TID,
    SampleType.TIME,
    SampleType.ADDR,
    SampleType.ID,
    SampleType.STREAM_ID,
    SampleType.CPU,
    SampleType.PERIOD,
)


class RawSample(NamedTuple):
    """The fields of a sample that `RawSamples` reads."""

    pid: int
    tid: int
    time_ns: int
    cpu: int
    raw: bytes


class RawSamples:
    """Reads samples fast, for an event with all fields up to RAW at fixed offsets.

    Args:
        attr: the event; it carries RAW_SAMPLE_NEEDS, neither READ nor CALLCHAIN.

    Raises:
        CodecError: it carries other fields.
    """

    def __init__(self, attr: PerfEventAttr) -> None:
        needed = attr.sample_type & (RAW_SAMPLE_NEEDS | SampleType.READ | SampleType.CALLCHAIN)
        if needed != RAW_SAMPLE_NEEDS:
            raise CodecError(f"sample_type {attr.sample_type:#x}", offset=24, reason="sample_type")
        codes = {SampleType.TID: "II", SampleType.TIME: "Q", SampleType.CPU: "I4x"}
        words = "".join(codes.get(bit, "8x") for bit in _WORDS if attr.sample_type & bit)
        self._fields = struct.Struct(f"<{HEADER_BYTES}x{words}I")

    def decode(self, data: bytes | memoryview, at: int, size: int) -> RawSample:
        """Read the sample of `size` bytes at `at`. Raises CodecError if it is too short."""
        start = at + self._fields.size
        if start > at + size:
            raise CodecError("sample too short", offset=at, reason="short")
        pid, tid, time_ns, cpu, raw_bytes = self._fields.unpack_from(data, at)
        if start + raw_bytes > at + size:
            raise CodecError("raw data too long", offset=at, reason="raw")
        return RawSample(pid, tid, time_ns, cpu, bytes(data[start : start + raw_bytes]))
