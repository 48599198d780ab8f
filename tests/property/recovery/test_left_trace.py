# SPDX-License-Identifier: Apache-2.0
"""A drain of an AUX area that is killed at any instant, beside memory that outlives it."""

from __future__ import annotations

import mmap
import os
import random
import signal
import struct
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Final

import pytest

from collectord._native import _core
from collectord.codec.aux_record import AuxPiece, iter_pieces
from collectord.kernel.values.kept_rings import NOTE_BYTES, STATE_BYTES
from collectord.kernel.values.kept_staging import LeftStaging, staging_bytes
from collectord.recovery.left_staging import Memory, write_left
from collectord.sink.manifest import Manifest, decode
from collectord.sink.repair import repair
from tests.support import segments
from tests.support.aux_pmu import TIME_OFFSET, TIME_TRAILER, Pmu
from tests.support.examples import examples
from tests.support.staging import memory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

PAGES: Final = 32
CHUNKS: Final = 8
CHUNK_BYTES: Final = 2 * PAGES * mmap.PAGESIZE
CASES: Final = 6
KILLS: Final = 3
RING, AREA = range(2)
NOTES_BYTES: Final = STATE_BYTES + 2 * NOTE_BYTES


class Shared:
    """Memory that the opener and the kernel keep: staging, notes, and an area with its ring."""

    def __init__(self, stack: ExitStack, kind: str) -> None:
        self.kind = kind
        self.pmu = Pmu.new(0, PAGES)
        stack.callback(self.pmu.close)
        self.notes = stack.enter_context(memory(NOTES_BYTES))
        self.staging = stack.enter_context(memory(staging_bytes(CHUNKS, CHUNK_BYTES)))

    def drain(self, directory: Path, dice: random.Random) -> None:
        """Drain for ever, as a daemon."""
        notes = mmap.mmap(self.notes, 0)
        sink = segments.make_sink(directory)
        core = _core.Core(
            chunks=CHUNKS,
            chunk_bytes=CHUNK_BYTES,
            flush_ns=dice.choice((2, 20, 200)) * 1_000_000,
            floor_bytes=dice.choice((64, 4096)),
        )
        core.keep_staging(mmap.mmap(self.staging, 0))
        stream = core.add_stream(sideband_bytes=1 << 20)
        ring_map, aux_map = self.pmu.maps()
        ring = core.add_ring(
            0,
            stream,
            ring_map,
            self.pmu.wakeup_fd,
            sideband=False,
            time_offset=TIME_OFFSET,
            time_trailer=TIME_TRAILER,
            note=_core.RingNote(notes, STATE_BYTES + RING * NOTE_BYTES),
        )
        core.add_aux_ring(
            ring,
            aux_map,
            framing="hidden" if self.kind == "hidden" else "auxtrace",
            whole_records=self.kind == "whole",
            idx=0,
            cpu=0,
            tid=-1,
            note=_core.RingNote(notes, STATE_BYTES + AREA * NOTE_BYTES),
        )
        segment = sink.next_segment(1, segments.OPENING)
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
            signal.pause()

    def position(self) -> int:
        """Return how far the area was read."""
        note = os.pread(self.notes, NOTE_BYTES, STATE_BYTES + AREA * NOTE_BYTES)
        turn, *two = struct.unpack_from("=5Q", note)
        return int(two[2 * (turn & 1)])

    def left(self) -> LeftStaging:
        """Return the staging as the successor gets it."""
        return LeftStaging(self.staging, CHUNKS, CHUNK_BYTES, (self.notes,))

    def renew(self) -> None:
        """Give the staging memory up for new."""
        os.ftruncate(self.staging, 0)
        os.ftruncate(self.staging, staging_bytes(CHUNKS, CHUNK_BYTES))

    def kill_a_drain(self, directory: Path, dice: random.Random) -> None:
        """Trace while another process drains, and kill that."""
        child = os.fork()
        if child == 0:
            try:
                self.drain(directory, dice)
            finally:
                os._exit(1)
        enough = len(self.pmu.trace) + dice.randrange(1, 2_000_000)
        while len(self.pmu.trace) < enough:
            self.pmu.run(dice.randrange(1, 20_000), told=dice.random() > 0.1)
            if dice.random() < 0.1:
                os.eventfd_write(self.pmu.wakeup_fd, 1)
        os.kill(child, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL


def stored(directory: Path) -> Iterator[tuple[AuxPiece, bytes]]:
    """Yield the pieces of trace in sealed segments, in the order of their offsets."""
    found = []
    for path in directory.glob("*.perf.data"):
        manifest = decode(path.with_name(path.name + ".json").read_bytes(), Manifest)
        assert manifest is not None
        assert not manifest.cut
        data = path.read_bytes()[manifest.data_offset :][: manifest.data_bytes]
        found += [(one, data[one.at : one.at + one.size]) for one in iter_pieces(data)]
    yield from sorted(found, key=lambda one: one[0].offset)


@pytest.mark.parametrize("kind", ["auxtrace", "hidden", "whole"])
@pytest.mark.parametrize("seed", range(examples(CASES)))
def test_a_kill_at_any_instant_leaves_each_byte_once(tmp_path: Path, seed: int, kind: str) -> None:
    """In a segment, or in the area behind its note; a record that must not be cut is whole."""
    dice = random.Random(f"{seed} {kind}")  # noqa: S311 - no secret
    with ExitStack() as stack:
        shared = Shared(stack, kind)
        for _ in range(KILLS):
            shared.kill_a_drain(tmp_path, dice)
            repair(tmp_path, first=partial(write_left, Memory(shared.left())))
            shared.renew()
        found = bytearray()
        ends = set()
        for piece, data in stored(tmp_path):
            assert piece.offset == len(found)
            found += data
            ends.add(len(found))
        assert len(found) == shared.position() > 0
        assert found == shared.pmu.trace[: len(found)]
        if kind == "whole":
            for begin, end in shared.pmu.records:
                assert not any(begin < cut < end for cut in ends), (begin, end)
