# SPDX-License-Identifier: Apache-2.0
"""Records of blktrace that a killed daemon had read get into its files once, by their numbers."""

from __future__ import annotations

import os
import struct
from functools import partial
from typing import TYPE_CHECKING, Final

import pytest

from collectord.codec.blktrace import RECORD
from collectord.kernel.values import kept_trace
from collectord.kernel.values.kept_staging import CHUNK_NOTE_BYTES, LeftStaging, staging_bytes
from collectord.recovery.left_blocks import write_left_blocks
from collectord.recovery.left_staging import Memory
from collectord.sink.repair import repair
from tests.support import daemons, relay_segments
from tests.support.relay_records import note, record
from tests.support.staging import memory

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import ExitStack
    from pathlib import Path

    from collectord.sink.base import OpenSegment

CHUNK: Final = 65536 + 4096
CPUS: Final = 4
DEVICE: Final = "/dev/vdb"
BOTH: Final = (0, 2)


def records(first: int, last: int, cpu: int = 0) -> bytes:
    """Return records of these numbers."""
    return b"".join(record(n, cpu=cpu, time_ns=n * 1000) for n in range(first, last + 1))


class Left:
    """The remains of a killed daemon: a set of files, chunks of staging, and a trace's memory."""

    def __init__(
        self,
        directory: Path,
        stack: ExitStack,
        files: Mapping[int, bytes],
        chunks: Sequence[bytes],
    ) -> None:
        self.directory = directory
        sink = relay_segments.make_sink(directory)
        self.segment: OpenSegment = relay_segments.filled(
            sink, 1, {ring: files.get(cpu, b"") for ring, cpu in ((4, 0), (5, 2))}
        )
        status = self.segment.paths.partial.stat()
        sink.close()
        size = staging_bytes(len(chunks), CHUNK)
        self.chunks = stack.enter_context(memory(size))
        self.trace = stack.enter_context(memory(kept_trace.memory_bytes(CPUS)))
        at = len(chunks) * CHUNK
        for number, data in enumerate(chunks):
            os.pwrite(self.chunks, data, number * CHUNK)
            told = struct.pack("=5Q24x", number + 1, 0, len(data), 0, 0)
            os.pwrite(self.chunks, told, at + number * CHUNK_NOTE_BYTES)
        stream = struct.pack("=3Q8x", 1, status.st_dev, status.st_ino)
        os.pwrite(self.chunks, stream, at + len(chunks) * CHUNK_NOTE_BYTES)
        self.left = LeftStaging(self.chunks, len(chunks), CHUNK, ())

    def read_last(self, chunk: int, begin: int, data: bytes, *, room: int) -> None:
        """Leave a read that got so much, behind what a chunk holds, into a room of this size."""
        at = chunk * CHUNK + begin
        edge = min(RECORD.size, room)
        os.pwrite(self.chunks, bytes(edge), at + room - edge)
        os.pwrite(self.chunks, data[:room], at)
        span = struct.pack("=2Q", chunk + 1, begin << 32 | begin + room)
        os.pwrite(self.trace, span, kept_trace.serial_at(0))

    def note(self, cpu: int, number: int) -> None:
        """Note that records up to a number were taken."""
        ring = kept_trace.TraceRing(1, number, 0, number, 0, 0, 0)
        os.pwrite(self.trace, kept_trace.pair(ring), kept_trace.pair_at(cpu, 1))
        os.pwrite(self.trace, (1).to_bytes(8, "little"), kept_trace.note_at(cpu))
        read = (number * RECORD.size).to_bytes(8, "little")
        os.pwrite(self.trace, read, kept_trace.read_at(CPUS, cpu, 1))

    def noted(self, cpu: int = 0) -> kept_trace.TraceRing:
        """Return the note of a CPU."""
        return kept_trace.decode(os.pread(self.trace, 64, kept_trace.note_at(cpu)))

    def carried(self) -> bytes:
        """Return the start of a record that is noted for CPU 0."""
        ring = self.noted()
        return os.pread(self.trace, ring.carried, kept_trace.slot_at(CPUS, 0, ring.turn))

    def read(self) -> int:
        """Return how many bytes of CPU 0 were read, as it is noted."""
        at = kept_trace.read_at(CPUS, 0, self.noted().turn)
        return int.from_bytes(os.pread(self.trace, 8, at), "little")

    def write(self) -> None:
        """Write it, and repair."""
        write = partial(write_left_blocks, Memory(self.left), traces={DEVICE: self.trace})
        found = repair(self.directory, first=lambda folder: bool(write(folder)))
        assert not [one for one in found if one.damaged]

    def file(self, cpu: int) -> bytes:
        """Return a file's content."""
        (path,) = self.directory.glob(f"*.blktrace.{cpu}")
        return path.read_bytes()

    def staged(self, cpu: int) -> int:
        """Return how many events its manifest says to be of staging."""
        (path,) = self.directory.glob(f"*.blktrace.{cpu}")
        return int(daemons.manifest(path).get("staged", 0))


@pytest.mark.parametrize("there", [1, 5, 8])
def test_what_is_in_the_file_is_not_written_twice(
    tmp_path: Path, stack: ExitStack, there: int
) -> None:
    """A chunk was written in part; each CPU's records go to its own file, behind the others."""
    chunks = [records(2, 5) + records(1, 3, 2), records(6, 8)]
    left = Left(tmp_path, stack, {0: records(1, there), 2: records(1, 1, 2)}, chunks)
    left.note(0, 8)
    left.note(2, 3)
    left.write()
    assert left.file(0) == records(1, 8)
    assert left.file(2) == records(1, 3, 2)
    assert (left.staged(0), left.staged(2)) == (8 - there, 2)
    assert (left.noted().number, left.noted().events) == (8, 8)
    assert left.noted(2).events == 3


def test_notes_without_a_number_are_written_once(tmp_path: Path, stack: ExitStack) -> None:
    """Those behind the last record of the file may be in it already."""
    names = [note(name, time_ns=n) for n, name in enumerate(("one", "two", "three"))]
    chunk = records(1, 2) + b"".join(names) + records(3, 3)
    left = Left(tmp_path, stack, {0: records(1, 2) + names[0] + names[1]}, [chunk])
    left.write()
    assert left.file(0) == chunk
    assert left.staged(0) == 1


def test_a_torn_write_is_cut_off(tmp_path: Path, stack: ExitStack) -> None:
    """A kill during a write leaves a part of a record in the file."""
    left = Left(tmp_path, stack, {0: records(1, 2) + records(3, 3)[:20]}, [records(1, 4)])
    left.write()
    assert left.file(0) == records(1, 4)
    assert left.staged(0) == 2


@pytest.mark.parametrize("cut", [0, 1, 3, 20, 47])
@pytest.mark.parametrize("lag", [False, True])
def test_a_read_that_nobody_counted(
    tmp_path: Path, stack: ExitStack, *, cut: int, lag: bool
) -> None:
    """Its records are written, and the start of one that is cut is left to the next daemon."""
    known = records(1, 3)
    more = records(4, 9)
    left = Left(tmp_path, stack, {0: records(1, 2)}, [known])
    left.note(0, 3)
    room = 5 * RECORD.size + cut if not lag else 5 * RECORD.size
    left.read_last(0, len(known), more, room=room)
    if lag:  # the chunk's note tells of it, the trace's does not
        used = len(known) + 5 * RECORD.size
        os.pwrite(left.chunks, used.to_bytes(8, "little"), CHUNK + 16)
    left.write()
    assert left.file(0) == records(1, 8)
    ring = left.noted()
    assert (ring.number, ring.events, ring.serial) == (8, 8, 0)
    assert left.carried() == (more[5 * RECORD.size :][:cut] if not lag else b"")
    assert left.read() == 8 * RECORD.size + (cut if not lag else 0)


def test_old_bytes_behind_a_read_are_not_taken(tmp_path: Path, stack: ExitStack) -> None:
    """The chunk was used before: records and notes of an earlier time follow."""
    known = records(5, 6)
    old = records(2, 3) + note("old", time_ns=2500)
    left = Left(tmp_path, stack, {0: records(1, 4)}, [known])
    left.note(0, 6)
    left.read_last(0, len(known), records(7, 7) + old, room=20 * RECORD.size)
    left.write()
    assert left.file(0) == records(1, 7)
    assert (left.noted().number, left.noted().carried) == (7, 0)

    again = Left(tmp_path / "notes", stack, {0: records(1, 4)}, [known])
    again.note(0, 6)
    again.read_last(
        0, len(known), records(7, 7) + note("old", time_ns=2500), room=20 * RECORD.size
    )
    again.write()
    assert again.file(0) == records(1, 7)


def test_it_may_be_killed_and_run_again(tmp_path: Path, stack: ExitStack) -> None:
    """Files that are written and notes that are not: the next one writes nothing twice."""
    left = Left(tmp_path, stack, {0: records(1, 8)}, [records(4, 6)])
    left.note(0, 6)
    left.read_last(0, 3 * RECORD.size, records(7, 9)[:-10], room=3 * RECORD.size - 10)
    left.write()
    assert left.file(0) == records(1, 8)
    assert (left.noted().number, left.noted().events) == (8, 8)
    assert left.carried() == records(9, 9)[:-10]
    assert left.read() == 9 * RECORD.size - 10


def test_the_start_of_a_record_that_was_noted_stays(tmp_path: Path, stack: ExitStack) -> None:
    """The note lags behind the chunk by records, and no read is under way."""
    left = Left(tmp_path, stack, {0: records(1, 1)}, [records(1, 4)])
    ring = kept_trace.TraceRing(1, 3, 9, 3, 0, 0, 0)
    os.pwrite(left.trace, kept_trace.pair(ring), kept_trace.pair_at(0, 1))
    os.pwrite(left.trace, (1).to_bytes(8, "little"), kept_trace.note_at(0))
    os.pwrite(left.trace, b"beginning", kept_trace.slot_at(CPUS, 0, 1))
    left.write()
    assert left.noted().events == 4
    assert left.carried() == b"beginning"


@pytest.mark.parametrize("cpus", [1, 3, 256])
def test_the_memory_has_room_for_all(cpus: int) -> None:
    """Slots follow each other behind the notes, and the size tells the number of CPUs."""
    size = kept_trace.memory_bytes(cpus)
    assert kept_trace.cpus_of(size) == cpus
    assert kept_trace.slots_at(cpus, 0) >= kept_trace.note_at(cpus)
    assert kept_trace.slots_at(cpus, cpus - 1) + 2 * kept_trace.SLOT_BYTES == size
