# SPDX-License-Identifier: Apache-2.0
"""The memory that an opener keeps beside a session's rings: what one process tells the next.

It has a page of text, then a note for each ring, then one for each BPF program. Each note has 64
bytes.
"""

from __future__ import annotations

import os
import struct
from mmap import mmap
from typing import TYPE_CHECKING, Final, NamedTuple

from collectord._native._core import RingNote
from collectord.errors import KernelError
from collectord.kernel.values.kept_rings import NOTE_BYTES, STATE_BYTES

if TYPE_CHECKING:
    from contextlib import ExitStack

# Of a ring, see `_core.RingNote`: the turn, and the first pair.
_RING: Final = struct.Struct("<3Q")
# Of a program: whether it was let to count, and the runs that the kernel had skipped by then.
_PROGRAM: Final = struct.Struct("<2Q")


def memory_bytes(rings: int, programs: int) -> int:
    """Return how much memory the notes of so many rings and programs take."""
    return STATE_BYTES + NOTE_BYTES * (rings + programs)


class Gone(NamedTuple):
    """The samples of a ring that were taken out of it, and those that a recorder's overwrote."""

    taken: int = 0
    overwritten: int = 0


class KeptMemory:
    """The memory of one session, mapped.

    Args:
        fd: its descriptor, which stays the caller's.
        rings: number of the session's rings.
        stack: unmaps it.
    """

    def __init__(self, fd: int, rings: int, stack: ExitStack) -> None:
        self._fd = fd
        self._rings = rings
        self._map = stack.enter_context(mmap(fd, 0))

    @property
    def state(self) -> str:
        """The text; "" before it is written."""
        return self._map[:STATE_BYTES].rstrip(b"\0").decode("utf-8", "replace")

    def write(self, state: str) -> None:
        """Write the text. Raises KernelError."""
        try:
            os.pwrite(self._fd, state.encode().ljust(STATE_BYTES, b"\0"), 0)
        except OSError as error:
            raise KernelError(
                "cannot note what was counted", syscall="pwrite", errno=error.errno or 0
            ) from error

    def ring(self, number: int, stack: ExitStack) -> RingNote:
        """Return the note of a ring, by its place in the plan, for whoever drains it.

        The stack closes it; that is due before the memory is unmapped.
        """
        note = RingNote(self._map, STATE_BYTES + NOTE_BYTES * number)
        stack.callback(note.close)
        return note

    def gone(self, number: int) -> Gone:
        """Return what has ever left a ring, in whatever way."""
        note = RingNote(self._map, STATE_BYTES + NOTE_BYTES * number)
        try:
            return Gone(note.taken, note.overwritten)
        finally:
            note.close()

    def restart(self, number: int) -> Gone:
        """Begin the note of a new ring, which nobody drains yet; return what is gone by now."""
        gone = self.gone(number)
        at = STATE_BYTES + NOTE_BYTES * number
        _RING.pack_into(self._map, at, 0, 0, gone.taken)
        return gone

    def missed_before(self, program: int) -> int | None:
        """Return the skipped runs of a program before it was let to count; None: it was not yet.

        Args:
            program: its place in the plan.
        """
        begun, missed = _PROGRAM.unpack_from(self._map, self._program_at(program))
        return int(missed) if begun else None

    def note_missed(self, program: int, missed: int) -> None:
        """Note that a program is let to count now, and its skipped runs before that."""
        _PROGRAM.pack_into(self._map, self._program_at(program), 1, missed)

    def _program_at(self, program: int) -> int:
        return STATE_BYTES + NOTE_BYTES * (self._rings + program)
