# SPDX-License-Identifier: Apache-2.0
"""A drain that is killed at any instant, beside memory that outlives it; and memory that lies."""

from __future__ import annotations

import mmap
import os
import random
import signal
import struct
import time
from collections import Counter
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectord._native import _core
from collectord.codec.perf_attr import RecordType, sample_time_offset
from collectord.codec.perf_record import iter_records
from collectord.folders.trust import Trust
from collectord.folders.walk import open_folder
from collectord.kernel.values.kept_rings import NOTE_BYTES, STATE_BYTES
from collectord.kernel.values.kept_staging import LeftStaging, staging_bytes
from collectord.model import STREAMS_MAX
from collectord.reader.verify import verify
from collectord.recovery.left_staging import Memory, write_left
from collectord.sink.manifest import Manifest, decode
from collectord.sink.repair import repair, repair_steps
from collectord.sink.segment import group_files
from tests.support import segments
from tests.support.examples import examples
from tests.support.staging import (
    CHUNK_BYTES,
    CHUNKS,
    NOTES_BYTES,
    RINGS,
    SAMPLE,
    left_memory,
    memory,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from collectord.sink.segment import Group

pytestmark = pytest.mark.slow

PAGE: Final = mmap.PAGESIZE
RING_BYTES: Final = 64 << 10
KILLS: Final = 30
NUMBER_AT: Final = SAMPLE.index(b"\xee" * 12)
NUMBER: Final = struct.Struct("=IQ")


class Shared:
    """Memory that the opener and the kernel keep: staging, notes, and rings of two CPUs."""

    def __init__(self, stack: ExitStack) -> None:
        self.fds = {
            name: stack.enter_context(memory(size))
            for name, size in {
                "staging": staging_bytes(CHUNKS, CHUNK_BYTES),
                "notes": NOTES_BYTES,
                "made": RINGS * 8,
                **{f"ring{one}": PAGE + RING_BYTES for one in range(RINGS)},
            }.items()
        }

    def drain(self, directory: Path, dice: random.Random, *, reserved: bool = False) -> None:
        """Feed the rings and drain them for ever, as a daemon.

        `reserved`: as one that has not sealed yet what another one left, so it writes nothing.
        """
        staging, notes, made = (
            mmap.mmap(self.fds[name], 0) for name in ("staging", "notes", "made")
        )
        sink = segments.make_sink(directory)
        core = _core.Core(
            chunks=CHUNKS,
            chunk_bytes=CHUNK_BYTES,
            flush_ns=dice.choice((2, 20, 200)) * 1_000_000,
            floor_bytes=4096,
        )
        core.keep_staging(staging)
        stream = core.add_stream(sideband_bytes=1 << 20)
        maps = [_core.RingMap(self.fds[f"ring{one}"], RING_BYTES) for one in range(RINGS)]
        for number, ring_map in enumerate(maps):
            note = _core.RingNote(notes, STATE_BYTES + NOTE_BYTES * number)
            core.add_ring(
                0,
                stream,
                ring_map,
                os.eventfd(0),
                sideband=False,
                time_offset=sample_time_offset(segments.ATTR),
                time_trailer=0,
                note=note,
            )
        segment = sink.next_segment(1, segments.OPENING)
        if reserved:
            status = os.fstat(segment.fd)
            stream.reserve(status.st_dev, status.st_ino)
        else:
            stream.prepare(
                1,
                segment.fd,
                segment.data_offset,
                1 << 30,
                table=segment.table,
                size=(segment.meta_fd, *segment.size_word),
            )
        core.start()
        while True:
            for number, ring_map in enumerate(maps):
                (serial,) = struct.unpack_from("=Q", made, number * 8)
                record = _record(number, serial)
                # Counted first: one that was not written is the last, and is not looked for.
                # At once: pack_into() clears its place first.
                made[number * 8 : number * 8 + 8] = struct.pack("=Q", serial + 1)
                while not ring_map.feed(record):
                    time.sleep(0)

    def renew(self) -> None:
        """Give the staging memory up for new."""
        os.ftruncate(self.fds["staging"], 0)
        os.ftruncate(self.fds["staging"], staging_bytes(CHUNKS, CHUNK_BYTES))

    def left(self) -> LeftStaging:
        """Return it as the successor gets it."""
        return LeftStaging(self.fds["staging"], CHUNKS, CHUNK_BYTES, (self.fds["notes"],))

    def unread(self) -> Iterator[tuple[int, int]]:
        """Yield the ring and the number of each record that is behind its note."""
        for number in range(RINGS):
            note = os.pread(self.fds["notes"], NOTE_BYTES, STATE_BYTES + NOTE_BYTES * number)
            turn, *two = struct.unpack_from("=5Q", note)
            at = two[2 * (turn & 1)]
            ring = os.pread(self.fds[f"ring{number}"], PAGE + RING_BYTES, 0)
            (head,) = struct.unpack_from("=Q", ring, 1024)
            data = ring[PAGE:]
            for start in range(at, head, len(SAMPLE)):
                record = bytes(data[(start + i) % RING_BYTES] for i in range(len(SAMPLE)))
                yield NUMBER.unpack_from(record, NUMBER_AT)


def _record(ring: int, serial: int) -> bytes:
    return SAMPLE[:NUMBER_AT] + NUMBER.pack(ring, serial) + SAMPLE[NUMBER_AT + NUMBER.size :]


def stored(directory: Path) -> Iterator[tuple[int, int]]:
    """Yield the ring and the number of each sample in sealed segments."""
    for path in directory.glob("*.perf.data"):
        manifest = decode(path.with_name(path.name + ".json").read_bytes(), Manifest)
        assert manifest is not None
        assert not manifest.cut
        data = path.read_bytes()[manifest.data_offset :][: manifest.data_bytes]
        found = 0
        for header in iter_records(data):
            if header.type == RecordType.SAMPLE:
                found += 1
                yield NUMBER.unpack_from(data, header.offset + NUMBER_AT)
        assert found == manifest.samples


def recover(left: LeftStaging, directory: Path, steps: int) -> None:
    """Write what was left, and begin the repair as far as so many steps."""
    with open_folder(directory, Trust.WRITE) as folder:
        write_left(Memory(left), folder)
        for group in group_files(folder):
            for _ in islice(repair_steps(folder, group), steps):
                pass


@pytest.mark.parametrize("seed", range(examples(KILLS)))
def test_a_kill_at_any_instant_leaves_each_record_once(tmp_path: Path, seed: int) -> None:
    """In the segment, or in the ring behind its note; also if the successor is killed as well."""
    dice = random.Random(seed)  # noqa: S311  # no secret
    with ExitStack() as stack:
        shared = Shared(stack)
        made = mmap.mmap(shared.fds["made"], 0)
        killed_drain(shared, tmp_path, dice)
        for steps in dice.choice([(), (0,), (0, dice.randrange(1, 10)), (dice.randrange(1, 10),)]):
            segments.killed(partial(recover, shared.left(), tmp_path, steps))
        repair(tmp_path, first=partial(write_left, Memory(shared.left())))
        check_each_once(shared, tmp_path, made)


def killed_drain(
    shared: Shared, directory: Path, dice: random.Random, *, reserved: bool = False
) -> None:
    """Drain in a process that is killed after some records."""
    made = mmap.mmap(shared.fds["made"], 0)
    least = struct.unpack_from("=Q", made)[0] + dice.randrange(100, 2000 if reserved else 4000)
    child = os.fork()
    if child == 0:
        try:
            shared.drain(directory, dice, reserved=reserved)
        finally:
            os._exit(1)
    while struct.unpack_from("=Q", made)[0] < least:
        time.sleep(0)
    os.kill(child, signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL


def check_each_once(shared: Shared, directory: Path, made: mmap.mmap, *, kills: int = 1) -> None:
    """Assert that each record is in a segment or in its ring, but the last before each kill."""
    found = Counter([*stored(directory), *shared.unread()])
    assert set(found.values()) == {1}
    for ring, count in enumerate(struct.unpack("=2Q", made[: 8 * RINGS])):
        own = {number for which, number in found if which == ring}
        assert own <= set(range(count))
        # The last one may not have been written.
        assert len(own) >= count - kills


@pytest.mark.parametrize("seed", range(examples(KILLS)))
def test_a_kill_of_who_drains_before_it_seals_leaves_each_record_once(
    tmp_path: Path, seed: int
) -> None:
    """Its chunks go behind those of the one before, whose segment may be half sealed by then."""
    dice = random.Random(seed)  # noqa: S311  # no secret
    with ExitStack() as stack:
        shared = Shared(stack)
        made = mmap.mmap(shared.fds["made"], 0)
        killed_drain(shared, tmp_path, dice)
        segments.killed(partial(recover, shared.left(), tmp_path, 0))
        old = [group.paths.name for group in groups(tmp_path)]
        shared.renew()
        killed_drain(shared, tmp_path, dice, reserved=True)
        steps = dice.choice([0, 0, *range(1, 10)])
        segments.killed(partial(repaired, tmp_path, old, steps))
        for more in dice.choice([(), (0,), (0, 3)]):
            segments.killed(partial(recover, shared.left(), tmp_path, more))
        repair(tmp_path, first=partial(write_left, Memory(shared.left())))
        check_each_once(shared, tmp_path, made, kills=2)


def groups(directory: Path) -> list[Group]:
    """Return the segments of a folder."""
    with open_folder(directory, Trust.WRITE) as folder:
        return group_files(folder)


def repaired(directory: Path, names: list[str], steps: int) -> None:
    """Repair segments as far as so many steps."""
    with open_folder(directory, Trust.WRITE) as folder:
        for group in group_files(folder):
            if group.paths.name in names:
                for _ in islice(repair_steps(folder, group), steps):
                    pass


WORDS: Final = st.one_of(
    st.integers(0, (1 << 64) - 1),
    st.integers(0, 64).map(lambda page: page * PAGE),
    st.sampled_from([0, 1, len(SAMPLE), 8 * len(SAMPLE), CHUNK_BYTES, 1 << 40, 1 << 63]),
)


@settings(max_examples=examples(80), deadline=None)
@given(st.data())
def test_memory_that_lies_harms_nothing(data: st.DataObject) -> None:
    """Whatever its notes say: other files stay, and the segment is one that verifies."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory()))
        orphan = segments.orphan(directory)
        sealed = directory / "sealed"
        sealed.mkdir()
        segments.write_segment(segments.make_sink(sealed))
        others = {path: path.read_bytes() for path in sealed.iterdir()}
        status = orphan.stat()
        names = st.sampled_from([status.st_ino, *(p.stat().st_ino for p in others)])
        word = st.one_of(WORDS, names)
        notes = bytearray()
        for _ in range(CHUNKS):
            words = data.draw(st.tuples(WORDS, st.integers(0, 3), WORDS, word, WORDS))
            notes += struct.pack("=5Q24x", *words)
        for number in range(STREAMS_MAX):
            stream = data.draw(st.integers(0, 4)) if number < 4 else 0
            file = data.draw(word) if stream else 0
            notes += struct.pack("=3Q8x", stream, status.st_dev, file)
        rings = struct.pack("=7Q8x", *data.draw(st.tuples(*[WORDS] * 7))) * RINGS
        left = left_memory(stack, bytes(notes), rings)
        for each in (directory, sealed):
            recover(left, each, 0)
        size = orphan.stat().st_size
        assert size <= status.st_size + (CHUNKS + 1) * (CHUNK_BYTES + PAGE)
        repair(directory)
        assert {path: path.read_bytes() for path in sealed.iterdir()} == others
        assert not [one for one in verify([directory]) if one.finding is not None]
