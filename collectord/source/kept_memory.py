# SPDX-License-Identifier: Apache-2.0
"""The memory that an opener keeps beside a session's rings: what one process tells the next.

It has a page of text, then a note for each ring, then one for each BPF program. Each note has 64
bytes. Where rings have AUX areas there is a second page of text behind the first, and for each
ring a second note behind those of all rings.
"""

from __future__ import annotations

import os
import struct
from contextlib import ExitStack
from dataclasses import dataclass
from mmap import mmap
from typing import TYPE_CHECKING, Final, NamedTuple

from collectord._native._core import RingNote
from collectord.errors import KernelError
from collectord.kernel.values.kept_rings import NOTE_BYTES, STATE_BYTES

if TYPE_CHECKING:
    from collectord.plan.session_plan import SessionPlan

# The parts of a ring's note, see `_core.RingNote`: the turn, and the first pair.
_RING: Final = struct.Struct("<3Q")
# The parts of a program's note: whether it was let to count, and the runs that the kernel had
# skipped by then.
_PROGRAM: Final = struct.Struct("<2Q")


def memory_bytes(rings: int, programs: int, *, areas: bool = False) -> int:
    """Return how much memory the texts and notes of so many rings and programs take.

    Args:
        rings: their number.
        programs: likewise.
        areas: the rings have AUX areas.
    """
    each = 2 if areas else 1
    return STATE_BYTES * each + NOTE_BYTES * (rings * each + programs)


def has_areas(plan: SessionPlan) -> bool:
    """Whether rings of a session have AUX areas."""
    return any(ring.aux is not None for ring in plan.rings)


class Gone(NamedTuple):
    """The samples or bytes taken out of a ring or area, and those overwritten or truncated."""

    taken: int = 0
    counted: int = 0


@dataclass(frozen=True, slots=True)
class KeptText:
    """A page of text in the memory.

    Attributes:
        fd: the memory's descriptor.
        at: its place there.
    """

    fd: int
    at: int = 0

    @property
    def state(self) -> str:
        """The text; "" before it is written."""
        return os.pread(self.fd, STATE_BYTES, self.at).rstrip(b"\0").decode("utf-8", "replace")

    def write(self, state: str) -> None:
        """Write the text. Raises KernelError."""
        try:
            os.pwrite(self.fd, state.encode().ljust(STATE_BYTES, b"\0"), self.at)
        except OSError as error:
            raise KernelError(
                "cannot note what was counted", syscall="pwrite", errno=error.errno or 0
            ) from error


class KeptMemory:
    """The memory of one session, mapped.

    Args:
        fd: its descriptor, which stays the caller's.
        rings: number of the session's rings.
        stack: unmaps it.
        areas: the rings have AUX areas.

    Attributes:
        text: the account of events.
        trace_text: the account of the trace in AUX areas; only if there are any.
    """

    def __init__(self, fd: int, rings: int, stack: ExitStack, *, areas: bool = False) -> None:
        self.text = KeptText(fd)
        self.trace_text = KeptText(fd, STATE_BYTES)
        self._rings = rings
        self._notes_at = STATE_BYTES * (2 if areas else 1)
        self._notes = rings * (2 if areas else 1)
        self._map = stack.enter_context(mmap(fd, 0))

    def ring(self, number: int, stack: ExitStack) -> RingNote:
        """Return the note of a ring, by its place in the plan, for whoever drains it.

        The stack closes it; that is due before the memory is unmapped.
        """
        note = RingNote(self._map, self._at(number))
        stack.callback(note.close)
        return note

    def area(self, number: int, stack: ExitStack) -> RingNote:
        """Return the note of the AUX area of a ring, as `ring` does."""
        return self.ring(self._rings + number, stack)

    def gone(self, number: int) -> Gone:
        """Return what has ever left a ring, in whatever way."""
        with ExitStack() as stack:
            note = self.ring(number, stack)
            return Gone(note.taken, note.counted)

    def gone_trace(self, number: int) -> Gone:
        """Return the bytes that were taken out of the AUX area of a ring, and truncated."""
        with ExitStack() as stack:
            note = self.area(number, stack)
            return Gone(note.position, note.counted)

    def restart(self, number: int) -> Gone:
        """Begin the note of a new ring, which nobody drains yet; return what is gone by now."""
        gone = self.gone(number)
        _RING.pack_into(self._map, self._at(number), 0, 0, gone.taken)
        return gone

    def restart_area(self, number: int) -> None:
        """Begin the note of a new AUX area, which nobody drains yet."""
        at = self._at(self._rings + number)
        self._map[at : at + NOTE_BYTES] = bytes(NOTE_BYTES)

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
        return self._at(self._notes + program)

    def _at(self, note: int) -> int:
        return self._notes_at + NOTE_BYTES * note
