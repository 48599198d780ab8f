# SPDX-License-Identifier: Apache-2.0
"""The memory beside the note of a block trace that goes on after its process.

It has a page of text and a note for each CPU, as `kept_rings` has for each ring, and behind them,
for each CPU, two slots for the start of a record whose end is not read yet. A note is a struct
relay_note of the core: the turn, two pairs of position and number of events, the chunk that is
read into, and the span there. The position has the last number in its lower 32 bits, and above
them the length of the record's start. The last word of a slot has the bytes that were read.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from collectord.kernel.values.kept_rings import NOTE_BYTES, STATE_BYTES

SLOT_BYTES: Final = 69632
_PAGE_BYTES: Final = 4096
_WORD: Final = 8
_NOTE: Final = struct.Struct("<7Q")
_NUMBER_BITS: Final = 32
NUMBER_MASK: Final = (1 << _NUMBER_BITS) - 1


def slots_at(cpus: int, cpu: int) -> int:
    """Return where the slots of a CPU are, in the memory for so many CPUs."""
    notes_end = STATE_BYTES + NOTE_BYTES * cpus
    return notes_end + -notes_end % _PAGE_BYTES + 2 * SLOT_BYTES * cpu


def memory_bytes(cpus: int) -> int:
    """Return the size of the memory for so many CPUs."""
    return slots_at(cpus, cpus)


def cpus_of(size_bytes: int) -> int:
    """Return for how many CPUs memory of a size is."""
    cpus = size_bytes // (2 * SLOT_BYTES)
    while cpus and memory_bytes(cpus) > size_bytes:
        cpus -= 1
    return cpus


def note_at(cpu: int) -> int:
    """Return where the note of a CPU is."""
    return STATE_BYTES + NOTE_BYTES * cpu


class TraceRing(NamedTuple):
    """A note, as of its valid turn.

    Attributes:
        turn: of the pair and the slot that are valid, in its lowest bit.
        number: the last one that was read.
        carried: bytes of the record whose start alone was read, in the slot.
        events: those that were read.
        serial: of the chunk that is being read into; 0: none is.
        begin, end: what is read goes there, behind the start of a record.
    """

    turn: int
    number: int
    carried: int
    events: int
    serial: int
    begin: int
    end: int

    @property
    def missing(self) -> int:
        """The numbers that were passed without a record: the first one is 1."""
        return (self.number - self.events) & NUMBER_MASK


def decode(data: bytes, offset: int = 0) -> TraceRing:
    """Decode a note."""
    turn, *pairs, serial, span = _NOTE.unpack_from(data, offset)
    position, events = pairs[2 * (turn & 1) :][:2]
    number, carried = position & NUMBER_MASK, position >> _NUMBER_BITS
    return TraceRing(
        turn, number, carried, events, serial, span >> _NUMBER_BITS, span & NUMBER_MASK
    )


def pair(ring: TraceRing) -> bytes:
    """Encode the position and the events of a note."""
    return struct.pack("<2Q", ring.carried << _NUMBER_BITS | ring.number, ring.events)


def pair_at(cpu: int, turn: int) -> int:
    """Return where the pair of a turn is."""
    return note_at(cpu) + 8 + 16 * (turn & 1)


def slot_at(cpus: int, cpu: int, turn: int) -> int:
    """Return where the slot of a turn is."""
    return slots_at(cpus, cpu) + SLOT_BYTES * (turn & 1)


def read_at(cpus: int, cpu: int, turn: int) -> int:
    """Return where the number of bytes that were read is, of a turn."""
    return slot_at(cpus, cpu, turn) + SLOT_BYTES - _WORD


def serial_at(cpu: int) -> int:
    """Return where the serial is."""
    return note_at(cpu) + 40
