# SPDX-License-Identifier: Apache-2.0
"""The return values of a BPF program, derived from its instructions."""

from __future__ import annotations

import struct
from typing import Final

import pytest

from collectord.codec.bpf_returns import always_returns


def op(code: int, to: int = 0, of: int = 0, offset: int = 0, number: int = 0) -> bytes:
    """Return an instruction: opcode, registers, offset, immediate."""
    return struct.pack("<BBhi", code, to | of << 4, offset, number)


def put(register: int, number: int) -> bytes:
    """Return an instruction that sets a register to a number."""
    return op(0xB7, register, number=number)


EXIT: Final = op(0x95)
ONE: Final = put(0, 1) + EXIT
ZERO: Final = put(0, 0) + EXIT
CALL: Final = op(0x85, number=14)
OWN_CALL: Final = op(0x85, of=1, number=2)


def if_equal(register: int, number: int, skip: int) -> bytes:
    """Return a jump over so many instructions if a register holds a number."""
    return op(0x15, register, offset=skip, number=number)


@pytest.mark.parametrize(
    "code",
    [
        ONE,
        op(0xB4, 0, number=1) + EXIT,
        if_equal(1, 5, 2) + ONE + ONE,
        put(0, 1) + if_equal(1, 5, 1) + put(2, 0) + EXIT,
        put(6, 1) + CALL + op(0xBF, 0, 6) + EXIT,
        CALL + if_equal(0, 1, 1) + put(0, 1) + EXIT,
        CALL + op(0x55, 0, offset=0, number=1) + put(0, 1) + EXIT,
        CALL + op(0x55, 0, offset=1, number=1) + EXIT + ONE,
        put(0, 1) + op(0x05, offset=1) + put(0, 0) + EXIT,
        put(0, 1) + op(0x06, number=1) + put(0, 0) + EXIT,
        put(6, 9) + op(0x07, 6, number=-1) + op(0x55, 6, offset=-2) + ONE,
        OWN_CALL + ONE + ZERO,
        op(0x18, 0, number=1) + op(0) + EXIT,
        put(11, 7) + op(0xA7, 11, number=6) + op(0xBF, 0, 11) + EXIT,
        op(0x61, 1, 6) + op(0x7B, 10, 1, -8) + ONE,
    ],
)
def test_one_on_every_way(code: bytes) -> None:
    """Whichever way it takes, the constant comes from the program itself."""
    assert always_returns(code, 1)


@pytest.mark.parametrize(
    "code",
    [
        b"",
        ONE[:-1],
        bytes(len(ONE)),
        ZERO,
        put(0, -1) + EXIT,
        EXIT,
        if_equal(1, 5, 2) + ONE + ZERO,
        if_equal(1, 5, 2) + ZERO + ONE,
        put(0, 1) + if_equal(1, 5, 1) + put(0, 0) + EXIT,
        put(0, 1) + if_equal(1, 5, 1) + CALL + EXIT,
        put(0, 1) + CALL + EXIT,
        put(0, 1) + OWN_CALL + EXIT + ONE,
        CALL + if_equal(0, 2, 1) + put(0, 1) + EXIT,
        put(0, 1) + op(0x85, number=12) + ONE,
        put(0, 1) + op(0x85, of=2, number=77) + ONE,
        put(0, 1) + op(0x61, 0, 1) + EXIT,
        put(0, 1) + op(0x07, 0, number=1) + EXIT,
        put(0, 1) + op(0x30) + EXIT,
        put(0, 1) + op(0xDB, 6, 0, number=1) + EXIT,
        put(1, 1) + op(0xBF, 0, 1, offset=8) + EXIT,
        op(0x18, 0, 1, number=1) + op(0) + EXIT,
        put(0, 1),
        op(0x05, offset=5) + ONE,
    ],
)
def test_another_value_on_some_way(code: bytes) -> None:
    """A value that is not proven to be the constant may be anything."""
    assert not always_returns(code, 1)
