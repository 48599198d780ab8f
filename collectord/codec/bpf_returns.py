# SPDX-License-Identifier: Apache-2.0
"""The return value of a BPF program, derived from its instructions as loaded in the kernel.

Constants are followed through registers along every path from the first instruction. On a path
where the value comes from anywhere else it counts as unknown, so that a "yes" holds for any input
of the program.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

# struct bpf_insn: opcode, destination and source register, offset, immediate.
_INSTRUCTION: Final = struct.Struct("<BBhi")
_LOW: Final = 0xFFFFFFFF
_REGISTERS: Final = 16
_SCRATCHED: Final = range(6)  # registers that a call overwrites
_LD, _LDX, _ST, _STX, _ALU, _JMP, _JMP32, _ALU64 = range(8)
_WIDE_CONSTANT: Final = 0x18
_ATOMIC: Final = 0xC0
_BY_REGISTER: Final = 0x08
_MOVE: Final = 0xB0
_XOR: Final = 0xA0
_JUMP, _IF_EQUAL, _IF_DIFFERENT, _CALL, _EXIT = 0x00, 0x10, 0x50, 0x80, 0x90
_OF_KERNEL_FUNCTION: Final = 2
_TAIL_CALL: Final = 12  # BPF_FUNC_tail_call

_Constants = tuple[int | None, ...]  # the low half of each register, None if unknown


class _Instruction(NamedTuple):
    code: int
    registers: int
    offset: int
    immediate: int

    @property
    def destination(self) -> int:
        return self.registers & 0xF

    @property
    def source(self) -> int:
        return self.registers >> 4


def always_returns(code: bytes, value: int) -> bool:
    """Whether a program returns this value, of 32 bits, on every path.

    Args:
        code: its instructions as returned by BPF_OBJ_GET_INFO_BY_FD, with those of the functions
            that it calls behind its own.
        value: 0 or more.
    """
    if not code or len(code) % _INSTRUCTION.size:
        return False
    program = [_Instruction(*fields) for fields in _INSTRUCTION.iter_unpack(code)]
    reached: dict[int, _Constants] = {}
    ways: list[tuple[int, _Constants]] = [(0, (None,) * _REGISTERS)]
    while ways:
        at, constants = ways.pop()
        if not 0 <= at < len(program):
            return False
        before = reached.get(at)
        if before is not None:
            constants = _common(before, constants)
            if constants == before:
                continue
        reached[at] = constants
        one = program[at]
        if one.code & 7 in (_JMP, _JMP32) and one.code & 0xF0 == _EXIT:
            if constants[0] != value:
                return False
            continue
        after = _step(at, one, constants)
        if not after:
            return False
        ways += after
    return True


def _common(one: _Constants, other: _Constants) -> _Constants:
    return tuple(a if a == b else None for a, b in zip(one, other, strict=True))


def _step(at: int, one: _Instruction, constants: _Constants) -> list[tuple[int, _Constants]]:
    """Return the paths after an instruction; none if they cannot be determined."""
    kind = one.code & 7
    if kind in (_JMP, _JMP32):
        return _branch(at, one, constants)
    if kind in (_ALU, _ALU64):
        return [(at + 1, _put(constants, one.destination, _result(one, constants)))]
    if not one.code:
        return []  # no instruction: the kernel hides the program's code from this process
    if one.code == _WIDE_CONSTANT:
        given = None if one.source else one.immediate & _LOW  # else it is an address
        return [(at + 2, _put(constants, one.destination, given))]
    if kind == _LD:  # reads a packet; overwrites registers like a call
        constants = _scratched(constants)
    elif kind == _LDX:
        constants = _put(constants, one.destination, None)
    elif kind == _STX and one.code & 0xE0 == _ATOMIC:  # it may fetch the old value
        for register in (0, one.source, one.destination):
            constants = _put(constants, register, None)
    return [(at + 1, constants)]


def _branch(at: int, one: _Instruction, constants: _Constants) -> list[tuple[int, _Constants]]:
    operation = one.code & 0xF0
    if operation == _CALL:
        if one.source == _OF_KERNEL_FUNCTION or (not one.source and one.immediate == _TAIL_CALL):
            return []  # it may never return: an exception, or another program's value
        return [(at + 1, _scratched(constants))]
    if operation == _JUMP:
        far = one.immediate if one.code & 7 == _JMP32 else one.offset
        return [(at + 1 + far, constants)]
    there = here = constants
    if not one.code & _BY_REGISTER:
        if operation == _IF_EQUAL:
            there = _put(constants, one.destination, one.immediate & _LOW)
        elif operation == _IF_DIFFERENT:
            here = _put(constants, one.destination, one.immediate & _LOW)
    return [(at + 1, here), (at + 1 + one.offset, there)]


def _result(one: _Instruction, constants: _Constants) -> int | None:
    """Return the result of arithmetic, as compilers and the kernel's blinding make constants."""
    operation = one.code & 0xF0
    if operation == _MOVE and one.code & _BY_REGISTER:
        return None if one.offset else constants[one.source]  # else it extends a sign
    if operation == _MOVE:
        return one.immediate & _LOW
    known = constants[one.destination]
    if operation == _XOR and not one.code & _BY_REGISTER and known is not None:
        return known ^ (one.immediate & _LOW)
    return None


def _put(constants: _Constants, register: int, value: int | None) -> _Constants:
    return (*constants[:register], value, *constants[register + 1 :])


def _scratched(constants: _Constants) -> _Constants:
    return (None,) * len(_SCRATCHED) + constants[len(_SCRATCHED) :]
