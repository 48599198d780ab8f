# SPDX-License-Identifier: Apache-2.0
"""A builder of sub-buffers of ftrace's ring, event by event."""

from __future__ import annotations

import struct
from typing import Final

from collectord.codec.ftrace_page import (
    DELTA_BITS,
    EVENTS_LOST,
    LOST_STORED,
    TYPE_BITS,
    TYPE_DATA_MAX,
    TYPE_PADDING,
    TYPE_TIME_EXTEND,
    TYPE_TIME_STAMP,
)

U32: Final = struct.Struct("<I")
U64: Final = struct.Struct("<Q")
DELTA_MASK: Final = (1 << DELTA_BITS) - 1
UNUSED_REST: Final = U32.pack(TYPE_PADDING)


def _header(kind: int, delta: int) -> bytes:
    assert 0 <= delta <= DELTA_MASK
    return U32.pack(kind | delta << TYPE_BITS)


def event(payload: bytes, delta: int = 0, *, long: bool = False) -> bytes:
    """Return an event with a payload; its length precedes it if `long`, or over 112 bytes."""
    padded = payload + bytes(-len(payload) % 4)
    words = len(padded) // 4
    if long or not 0 < words <= TYPE_DATA_MAX:
        return _header(0, delta) + U32.pack(len(payload) + 4) + padded
    return _header(words, delta) + padded


def discarded(size_bytes: int, delta: int = 1) -> bytes:
    """Return an event discarded after it was written, with `size_bytes` of unused payload."""
    assert delta
    assert not size_bytes % 4
    return _header(TYPE_PADDING, delta) + U32.pack(size_bytes + 4) + b"\xaa" * size_bytes


def time_extend(delta: int) -> bytes:
    """Return a delta of up to 59 bits."""
    return _header(TYPE_TIME_EXTEND, delta & DELTA_MASK) + U32.pack(delta >> DELTA_BITS)


def time_stamp(stamp: int) -> bytes:
    """Return an absolute stamp, of which the low 59 bits are kept."""
    high = stamp >> DELTA_BITS & 0xFFFFFFFF
    return _header(TYPE_TIME_STAMP, stamp & DELTA_MASK) + U32.pack(high)


def page(
    timestamp_ns: int,
    *data: bytes,
    size_bytes: int = 4096,
    lost: int | None = 0,
    sign_extended: bool = False,
) -> bytes:
    """Return a sub-buffer that holds `data`.

    Args:
        timestamp_ns: of the page.
        data: events.
        size_bytes: of the sub-buffer.
        lost: events lost before it; None: some, it is not told how many.
        sign_extended: the commit word is sign-extended, as the kernel does it.
    """
    body = b"".join(data)
    commit = len(body)
    if lost != 0:
        commit |= EVENTS_LOST
    if lost:
        commit |= LOST_STORED
        body += U64.pack(lost)
    if sign_extended and commit & EVENTS_LOST:
        commit |= 0xFFFFFFFF << 32
    whole = U64.pack(timestamp_ns) + U64.pack(commit) + body
    assert len(whole) <= size_bytes
    return whole.ljust(size_bytes, b"\0")
