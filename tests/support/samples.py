# SPDX-License-Identifier: Apache-2.0
"""Samples as the kernel writes them, encoded and decoded field by field."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from collectord.codec.perf_attr import PerfEventAttr, ReadFormat, RecordType, SampleType
from collectord.codec.perf_record import HEADER_BYTES, RecordHeader, frame
from collectord.errors import CodecError

_TWO_U32: Final = struct.Struct("<II")
_U64: Final = struct.Struct("<Q")
_U32: Final = struct.Struct("<I")
_BEHIND_RAW: Final = ~((SampleType.RAW << 1) - 1 | SampleType.IDENTIFIER)
# The one-word fields before READ, in the record's order, with the attribute that holds each. As
# plain numbers: tests encode a hundred thousand samples, and an operation of flags takes a
# microsecond.
_TID: Final = int(SampleType.TID)
_CPU: Final = int(SampleType.CPU)
_WORDS: Final = (
    (int(SampleType.IDENTIFIER), "id"),
    (int(SampleType.IP), "ip"),
    (_TID, ""),
    (int(SampleType.TIME), "time_ns"),
    (int(SampleType.ADDR), "addr"),
    (int(SampleType.ID), "id"),
    (int(SampleType.STREAM_ID), "stream_id"),
    (_CPU, ""),
    (int(SampleType.PERIOD), "period"),
)


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample; fields that its event does not carry are 0 or empty.

    Attributes:
        misc: the header's misc: CPU mode, and EXACT_IP.
        callchain: innermost first, with the kernel's PERF_CONTEXT_* marks.
        raw: the tracepoint's bytes as the kernel wrote them, padding included.
    """

    misc: int = 0
    id: int = 0
    ip: int = 0
    pid: int = 0
    tid: int = 0
    time_ns: int = 0
    addr: int = 0
    stream_id: int = 0
    cpu: int = 0
    period: int = 0
    callchain: tuple[int, ...] = ()
    raw: bytes = b""


def encode_sample(sample: Sample, attr: PerfEventAttr) -> bytes:
    """Return the record as the kernel would write it.

    RAW is padded so that the record stays a multiple of 8, and its size says so.

    Raises:
        CodecError: a value does not fit, or the event carries READ or a field behind RAW.
    """
    beyond = attr.sample_type & (_BEHIND_RAW | SampleType.READ)
    if beyond:
        raise CodecError(f"sample_type {beyond:#x}", offset=24, reason="sample_type")
    fields = int(attr.sample_type)
    parts: list[bytes] = []
    try:
        for bit, name in _WORDS:
            if not fields & bit:
                continue
            if bit == _TID:
                parts.append(_TWO_U32.pack(sample.pid, sample.tid))
            elif bit == _CPU:
                parts.append(_TWO_U32.pack(sample.cpu, 0))
            else:
                parts.append(_U64.pack(getattr(sample, name)))
        if attr.sample_type & SampleType.CALLCHAIN:
            parts.extend(map(_U64.pack, (len(sample.callchain), *sample.callchain)))
    except struct.error as error:
        raise CodecError(f"sample: {error}", offset=8, reason="record_value") from error
    if attr.sample_type & SampleType.RAW:
        padding = -(_U32.size + len(sample.raw)) % 8
        size = _U32.pack(len(sample.raw) + padding)
        parts.extend((size, sample.raw, bytes(padding)))
    return frame(RecordType.SAMPLE, sample.misc, b"".join(parts))


def decode_sample(data: bytes | memoryview, header: RecordHeader, attr: PerfEventAttr) -> Sample:
    """Read a SAMPLE's fields up to RAW.

    Raises:
        CodecError: the record is shorter than its fields, or a count in it is impossible.
    """
    body = bytes(data[header.offset + HEADER_BYTES : header.offset + header.size])
    try:
        return _decode(body, header, attr)
    except struct.error as error:
        raise CodecError("sample too short", offset=header.offset, reason="short") from error


def _decode(body: bytes, header: RecordHeader, attr: PerfEventAttr) -> Sample:
    words, at = _decode_words(body, attr.sample_type)
    callchain: tuple[int, ...] = ()
    raw = b""
    if attr.sample_type & SampleType.READ:
        at += _read_bytes(body, at, attr.read_format)
        if at > len(body):
            raise CodecError("read values too long", offset=header.offset, reason="read")
    if attr.sample_type & SampleType.CALLCHAIN:
        (count,) = _U64.unpack_from(body, at)
        at += 8
        if count > (len(body) - at) // 8:
            raise CodecError("callchain too long", offset=header.offset, reason="callchain")
        callchain = struct.unpack_from(f"<{count}Q", body, at)
        at += 8 * count
    if attr.sample_type & SampleType.RAW:
        (size,) = _U32.unpack_from(body, at)
        at += 4
        if size > len(body) - at:
            raise CodecError("raw data too long", offset=header.offset, reason="raw")
        raw = body[at : at + size]
    return Sample(misc=header.misc, callchain=callchain, raw=raw, **words)


def _decode_words(body: bytes, sample_type: int) -> tuple[dict[str, int], int]:
    """Return values of the one-word fields, and where the next field begins."""
    words: dict[str, int] = {}
    at = 0
    for bit, name in _WORDS:
        if not sample_type & bit:
            continue
        low, high = _TWO_U32.unpack_from(body, at)
        if bit == _TID:
            words |= {"pid": low, "tid": high}
        elif bit == _CPU:
            words["cpu"] = low
        else:
            words[name] = low | high << 32
        at += 8
    return words, at


def _read_bytes(body: bytes, at: int, read_format: int) -> int:
    """Return the size of the READ field: the values of one event, or of a group."""
    times = (ReadFormat.TOTAL_TIME_ENABLED, ReadFormat.TOTAL_TIME_RUNNING)
    per_event = 1 + sum(bool(read_format & bit) for bit in (ReadFormat.ID, ReadFormat.LOST))
    shared = sum(bool(read_format & bit) for bit in times)
    if not read_format & ReadFormat.GROUP:
        return 8 * (per_event + shared)
    (count,) = _U64.unpack_from(body, at)
    return 8 * (1 + shared + int(count) * per_event)
