# SPDX-License-Identifier: Apache-2.0
"""A function's instructions tell of its submissions; see tests/kernel/test_bpf_check.py too."""

from __future__ import annotations

import struct
from typing import Final

import pytest

from collectord.source.bcc_submissions import counts_submissions

RING: Final = 7
COUNTS: Final = 8
OTHER: Final = 9


def _one(code: int, to: int = 0, by: int = 0, offset: int = 0, immediate: int = 0) -> bytes:
    return struct.pack("<BBhi", code, by << 4 | to, offset, immediate)


def _map(register: int, fd: int) -> bytes:
    return _one(0x18, register, 1, immediate=fd) + _one(0)


def _call(number: int) -> bytes:
    return _one(0x85, immediate=number)


EXIT: Final = _one(0x95)
FOUND: Final = _map(1, COUNTS) + _call(1)
ADD: Final = _one(0xB7, 1, immediate=1) + _one(0xDB, 0, 1)
SEND: Final = _map(2, RING) + _call(25)
RESERVE: Final = _map(1, RING) + _call(131)
KEEP: Final = _one(0x7B, 10, 0, -8)
FETCH: Final = _one(0x79, 0, 10, -8)


@pytest.mark.parametrize(
    ("code", "counted"),
    [
        (EXIT, True),
        (FOUND + ADD + SEND + EXIT, True),
        (FOUND + ADD + RESERVE + EXIT, True),
        (2 * (FOUND + ADD + SEND) + EXIT, True),
        # Behind a gate; and where the count's address was put by meanwhile.
        (_one(0x15, 0, offset=9) + FOUND + ADD + SEND + 2 * _one(0xB7) + EXIT, True),
        (FOUND + KEEP + _call(5) + FETCH + ADD + SEND + EXIT, True),
        (FOUND + KEEP + _call(5) + _one(0x62, 10, 0, -6) + FETCH + ADD + SEND + EXIT, False),
        (SEND + EXIT, False),
        (FOUND + ADD + SEND + SEND + EXIT, False),
        (FOUND + ADD + EXIT, False),
        (FOUND + ADD + ADD + SEND + EXIT, False),
        (FOUND + SEND + EXIT, False),
        (FOUND + _one(0xB7, 1, immediate=2) + _one(0xDB, 0, 1) + SEND + EXIT, False),
        (FOUND + ADD + _map(2, OTHER) + _call(25) + EXIT, False),
        (_map(1, OTHER) + _call(1) + ADD + SEND + EXIT, False),
        (FOUND + _one(0x15, 1, offset=2) + ADD + SEND + EXIT, False),
        # An entry of the counts, or what others do, that cannot be followed.
        (FOUND + _one(0x7B, 0, 1) + EXIT, False),
        (FOUND + ADD + _call(12) + SEND + EXIT, False),
        (_one(0x85, 0, 1) + EXIT, False),
        (_one(0x05, offset=7) + EXIT, False),
    ],
)
def test_instructions(code: bytes, *, counted: bool) -> None:
    """Each path adds 1 to the attempts, and submits to the ring then, and not otherwise."""
    assert counts_submissions(code, ring=RING, counts=COUNTS) is counted
