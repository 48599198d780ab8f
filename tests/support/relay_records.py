# SPDX-License-Identifier: Apache-2.0
"""Handmade records of blktrace."""

from __future__ import annotations

import struct
from typing import Final

from collectord.codec.blktrace import MAGIC, RECORD, Action, action_mask

SECOND_NS: Final = 1_000_000_000
_CGROUP: Final = 1 << 8


def record(
    sequence: int,
    *,
    time_ns: int = SECOND_NS,
    what: int = 7,
    classes: tuple[Action, ...] = (Action.WRITE, Action.ISSUE),
    size: int = 4096,
    pid: int = 1,
    cpu: int = 0,
    error: int = 0,
) -> bytes:
    """Return an event of a request at sector 8."""
    action = action_mask(classes) << 16 | what
    return RECORD.pack(MAGIC, sequence, time_ns, 8, size, action, pid, 7 << 20 | 1, cpu, error, 0)


def note(text: str, *, what: int = 0, pid: int = 1, cgroup: int = 0, time_ns: int = 1) -> bytes:
    """Return a note, by default a process's name."""
    data = text.encode().ljust(16, b"\0")
    action = action_mask((Action.NOTIFY,)) << 16 | what
    if cgroup:
        data = struct.pack("@Q", cgroup) + data
        action |= _CGROUP
    return RECORD.pack(MAGIC, 0xDEAD, time_ns, 0, 0, action, pid, 0, 0, 0, len(data)) + data


def requests(count: int) -> list[bytes]:
    """Return records of so many issued requests, every fiftieth replaced by a name."""
    return [
        note(f"task{number}") if number % 50 == 0 else record(number, time_ns=number * 1000)
        for number in range(count)
    ]
