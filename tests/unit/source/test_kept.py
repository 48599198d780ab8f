# SPDX-License-Identifier: Apache-2.0
"""Rings that outlive a process: the notes for the next one, and what is left for it to count."""

from __future__ import annotations

import os
import struct
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from collectord.kernel.values.kept_rings import NOTE_BYTES, STATE_BYTES
from collectord.model import Produced, Reason, Stage
from collectord.source.kept_memory import Gone, KeptMemory, memory_bytes
from collectord.source.kept_ring import Before

if TYPE_CHECKING:
    from collections.abc import Iterator

RINGS: Final = 3
PROGRAMS: Final = 2
FULL: Final = (Stage.KERNEL_RING, Reason.RING_FULL)
SKIPPED: Final = (Stage.PROGRAM, Reason.RECURSION)


@contextmanager
def memory() -> Iterator[tuple[int, KeptMemory]]:
    """Provide the memory of a session, and its descriptor."""
    with ExitStack() as stack:
        fd = os.memfd_create("notes")
        stack.callback(os.close, fd)
        os.ftruncate(fd, memory_bytes(RINGS, PROGRAMS))
        yield fd, KeptMemory(fd, RINGS, stack)


def test_the_rest_of_a_reading_is_without_what_was_before() -> None:
    """Each loss is told under its own name, and once; what nobody counts stays unknown."""
    before = Before(taken=50, lost={FULL: 7, SKIPPED: 3}, by_event={11: 7})
    reading = Produced(
        value=100, lost=15, per_event=((11, 90, 9), (12, 10, 0)), losses={FULL: 9, SKIPPED: 6}
    )
    assert before.remainder(reading) == Produced(
        value=40, lost=5, per_event=((11, 90, 2), (12, 10, 0)), losses={FULL: 2, SKIPPED: 3}
    )
    assert replace(before, overwritten=15).remainder(reading).value == 40 - 15
    unknown = before.remainder(Produced(value=None, lost=None))
    assert (unknown.value, unknown.lost) == (None, None)


def test_a_new_ring_goes_on_with_the_note_of_the_old_one() -> None:
    """It is read from its own begin, and the samples of both are counted together."""
    with memory() as (fd, kept):
        at = STATE_BYTES + NOTE_BYTES
        os.pwrite(fd, struct.pack("<8Q", 7, 1, 2, 4096, 55, 0, 0, 9), at)
        gone = Gone(taken=55, counted=9)
        assert [kept.gone(number) for number in range(RINGS)] == [Gone(), gone, Gone()]
        assert kept.restart(1) == gone
        assert kept.gone(1) == gone
        assert os.pread(fd, 24, at) == struct.pack("<3Q", 0, 0, 55)


def test_a_program_counts_from_where_the_first_process_let_it() -> None:
    """Later processes find the number of runs that were skipped by then, be it 0."""
    with memory() as (_, kept):
        assert [kept.missed_before(number) for number in range(PROGRAMS)] == [None, None]
        kept.note_missed(1, 0)
        assert [kept.missed_before(number) for number in range(PROGRAMS)] == [None, 0]
        kept.note_missed(0, 12)
        assert kept.missed_before(0) == 12
        assert [kept.gone(number) for number in range(RINGS)] == [Gone()] * RINGS
        assert kept.text.state == ""
        kept.text.write('{"run":"x"}')
        assert kept.text.state == '{"run":"x"}'
        kept.text.write("{}")
        assert kept.text.state == "{}"
