# SPDX-License-Identifier: Apache-2.0
"""Part of the program `bcc_worker`: whether a function counts each event that it submits.

Its instructions decide, as they are given to the kernel, so that it does not matter how its text
came to them. Registers and stack are followed along every path. Each submission must be to the
ring of collectord_submit(), and behind an addition of 1 to its count of attempts, which nothing
else may change. What cannot be followed counts as a submission that is not counted.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    _Registers = tuple["_Value | None", ...]

# struct bpf_insn: opcode, destination and source register, offset, immediate.
_INSTRUCTION: Final = struct.Struct("<BBhi")
_LD, _LDX, _ST, _STX, _ALU, _JMP, _JMP32, _ALU64 = range(8)
_SIZES: Final = {0x00: 4, 0x08: 2, 0x10: 1, 0x18: 8}
_WIDE_CONSTANT: Final = 0x18
_LOAD_8, _STORE_8, _ATOMIC_8 = 0x79, 0x7B, 0xDB
_ATOMIC: Final = 0xC0
_ADD: Final = (0, 1)  # of atomics: without and with the old value
_FETCH: Final = 1
_MOVE, _MOVE_NUMBER, _MOVE_LOW_NUMBER, _ADD_NUMBER = 0xBF, 0xB7, 0xB4, 0x07
_JUMP, _CALL, _EXIT = 0x00, 0x80, 0x90
_STACK_REGISTER: Final = 10
_SCRATCHED: Final = 6  # registers that a call overwrites
_LOOKUP, _TAIL_CALL = 1, 12
# Functions of the kernel that submit, and the register that has the map: perf_event_output,
# skb_output, xdp_output; ringbuf_output, ringbuf_reserve, ringbuf_reserve_dynptr.
_SUBMITTING: Final = {25: 2, 111: 2, 121: 2, 130: 1, 131: 1, 198: 1}
_COUNT_BYTES: Final = 8  # attempts, the first of struct collectord_counts


class _Value(NamedTuple):
    """A known content: a number; a map; an address in the stack, or in an entry of a map."""

    kind: str
    number: int
    offset: int = 0


_ONE: Final = _Value("number", 1)


class _State(NamedTuple):
    """Known contents before an instruction.

    Attributes:
        registers: their contents, None if unknown.
        stack: known contents of 8 bytes each, by their place.
        counted: an attempt has been counted, and not submitted yet.
    """

    registers: _Registers
    stack: frozenset[tuple[int, _Value]]
    counted: bool

    def put(self, register: int, value: _Value | None) -> _State:
        """Return the state with another content of a register."""
        before = self.registers
        return self._replace(registers=(*before[:register], value, *before[register + 1 :]))

    def joined(self, other: _State) -> _State:
        """Return what is known on both paths."""
        pairs = zip(self.registers, other.registers)  # noqa: B905 - not before Python 3.10
        registers = tuple(a if a == b else None for a, b in pairs)
        return _State(registers, self.stack & other.stack, self.counted)


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


class _Uncounted(Exception):
    """A submission may not be counted."""


def counts_submissions(code: bytes, *, ring: int, counts: int) -> bool:
    """Whether each event that a function submits goes to the ring, and is counted before.

    Args:
        code: its instructions, with descriptors of maps.
        ring: descriptor of the ring's map; -1 if there is none.
        counts: likewise of the counts.
    """
    program = [_Instruction(*fields) for fields in _INSTRUCTION.iter_unpack(code)]
    registers = (None,) * _STACK_REGISTER + (_Value("stack", 0),)
    ways = [(0, _State(registers, frozenset(), counted=False))]
    reached: dict[int, _State] = {}
    follow = _Function(program, _Value("map", ring), counts).after
    try:
        while ways:
            at, state = ways.pop()
            before = reached.get(at)
            if before is not None:
                if before.counted != state.counted:
                    return False
                state = before.joined(state)
                if state == before:
                    continue
            reached[at] = state
            ways += follow(at, state)
    except (_Uncounted, IndexError):
        return False
    return True


class _Function:
    """A function whose instructions are followed; a path that may not count raises _Uncounted."""

    def __init__(self, program: list[_Instruction], ring: _Value, counts: int) -> None:
        self._program = program
        self._ring = ring
        self._counts = counts

    def after(self, at: int, state: _State) -> list[tuple[int, _State]]:
        """Return the paths after an instruction."""
        one = self._program[at]
        kind = one.code & 7
        if kind in (_JMP, _JMP32):
            return self._branch(at, one, state)
        if one.code == _WIDE_CONSTANT:
            kinds = {0: "number", 1: "map", 2: "entry"}
            high = self._program[at + 1].immediate
            offset = high if one.source else 0
            value = _Value(kinds.get(one.source, "other"), one.immediate, offset)
            return [(at + 2, state.put(one.destination, value))]
        if kind in (_ALU, _ALU64):
            return [(at + 1, state.put(one.destination, _result(one, state)))]
        if kind in (_ST, _STX):
            return [(at + 1, self._store(one, state))]
        if kind == _LD:  # reads a packet; overwrites registers as a call does
            return [(at + 1, _scratched(state))]
        return [(at + 1, state.put(one.destination, _loaded(one, state)))]

    def _branch(self, at: int, one: _Instruction, state: _State) -> list[tuple[int, _State]]:
        operation = one.code & 0xF0
        if operation == _EXIT:
            if state.counted:
                raise _Uncounted
            return []
        if operation == _CALL:
            return [(at + 1, self._call(one, state))]
        far = one.immediate if operation == _JUMP and one.code & 7 == _JMP32 else one.offset
        there = (at + 1 + far, state)
        return [there] if operation == _JUMP else [there, (at + 1, state)]

    def _call(self, one: _Instruction, state: _State) -> _State:
        if one.source or one.immediate == _TAIL_CALL:  # others' instructions
            raise _Uncounted
        table = state.registers[_SUBMITTING.get(one.immediate, 1)]
        after = _scratched(state)
        if one.immediate in _SUBMITTING:
            if table != self._ring or not state.counted:
                raise _Uncounted
            return after._replace(counted=False)
        if one.immediate == _LOOKUP and table is not None and table.kind == "map":
            return after.put(0, _Value("entry", table.number))
        return after

    def _store(self, one: _Instruction, state: _State) -> _State:
        place, value = state.registers[one.destination], state.registers[one.source]
        size = _SIZES[one.code & 0x18]
        atomic = one.code & 7 == _STX and one.code & 0xE0 == _ATOMIC
        if place is None:
            # It may be in the stack, and addresses are of 8 bytes.
            stack = frozenset[tuple[int, _Value]]() if size == _COUNT_BYTES else state.stack
            after = state._replace(stack=stack)
        else:
            at = place.offset + one.offset
            after = state
            if place.kind == "stack":
                kept = ((n, v) for n, v in state.stack if n + _COUNT_BYTES <= at or at + size <= n)
                given = [(at, value)] if one.code == _STORE_8 and value is not None else []
                after = state._replace(stack=frozenset([*kept, *given]))
            elif place[:2] == ("entry", self._counts) and -size < at < _COUNT_BYTES:
                added = one.code == _ATOMIC_8 and one.immediate in _ADD and value == _ONE
                if at or not added or state.counted:
                    raise _Uncounted
                after = state._replace(counted=True)
        if atomic and one.immediate & _FETCH:
            return after.put(0, None).put(one.source, None)
        return after


def _result(one: _Instruction, state: _State) -> _Value | None:
    """Return the result of arithmetic, as far as compilers make addresses and numbers by it."""
    known = state.registers[one.destination]
    if one.code == _MOVE and not one.offset:
        return state.registers[one.source]
    if one.code in (_MOVE_NUMBER, _MOVE_LOW_NUMBER):
        return _Value("number", one.immediate)
    if one.code == _ADD_NUMBER and known is not None and known.kind in ("stack", "entry"):
        return known._replace(offset=known.offset + one.immediate)
    return None


def _loaded(one: _Instruction, state: _State) -> _Value | None:
    place = state.registers[one.source]
    if one.code != _LOAD_8 or place is None or place.kind != "stack":
        return None
    return dict(state.stack).get(place.offset + one.offset)


def _scratched(state: _State) -> _State:
    return state._replace(registers=(None,) * _SCRATCHED + state.registers[_SCRATCHED:])
