# SPDX-License-Identifier: Apache-2.0
"""A PMU with the kernel's AUX protocol, the native drain, and the codec that reads it back."""

from __future__ import annotations

import os
from typing import Final

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from collectord._native import _core
from collectord.codec.aux_record import HIDDEN_MAGIC, AuxPiece, auxtrace_index, iter_pieces
from tests.support.aux_pmu import TIME_OFFSET, TIME_TRAILER, Pmu
from tests.support.drained import Drained
from tests.support.examples import examples

_PAGE: Final = os.sysconf("SC_PAGESIZE")


def test_both_sides_have_one_mark_for_hidden_pieces() -> None:
    """The codec finds the pieces that the core hides."""
    assert _core.AUX_HIDDEN_MAGIC == HIDDEN_MAGIC


class AuxDrain(Drained):
    """PMUs trace, shards are woken, flushed and rotated in any order; the drain runs beside."""

    def __init__(self) -> None:
        super().__init__()
        self.pmus: list[Pmu] = []

    @initialize(
        pages=st.lists(st.sampled_from([1, 4, 32]), min_size=1, max_size=3),
        shards=st.integers(1, 2),
        chunks=st.sampled_from([2, 16]),
        limit_bytes=st.sampled_from([4096, 500_000, 1 << 30]),
        kind=st.sampled_from(["auxtrace", "hidden", "whole"]),
    )
    def begin(
        self, pages: list[int], shards: int, chunks: int, limit_bytes: int, kind: str
    ) -> None:
        """Open the areas and start the core."""
        self.kind = kind
        self.start(
            shards=shards,
            chunks=chunks,
            chunk_bytes=2 * 32 * _PAGE,
            floor_bytes=2048,
            limit_bytes=limit_bytes,
        )
        self.maps: list[_core.RingMap | _core.AuxMap] = []
        self.areas = [self._open(Pmu.new(cpu, count), shards) for cpu, count in enumerate(pages)]
        self.prepare()
        self.core.start()

    def _open(self, pmu: Pmu, shards: int) -> _core.AuxRing:
        self.pmus.append(pmu)
        ring_map, aux_map = pmu.maps()
        self.maps = [aux_map, ring_map, *self.maps]
        ring = self.core.add_ring(
            pmu.cpu % shards,
            self.stream,
            ring_map,
            pmu.wakeup_fd,
            sideband=False,
            time_offset=TIME_OFFSET,
            time_trailer=TIME_TRAILER,
        )
        return self.core.add_aux_ring(
            ring,
            aux_map,
            framing="hidden" if self.kind == "hidden" else "auxtrace",
            whole_records=self.kind == "whole",
            idx=pmu.cpu,
            cpu=pmu.cpu,
            tid=-1,
        )

    @rule(data=st.data(), sizes=st.lists(st.integers(0, 60_000), min_size=1, max_size=20))
    def trace(self, data: st.DataObject, sizes: list[int]) -> None:
        """Run one PMU some times; a tenth of its AUX records is lost."""
        pmu = data.draw(st.sampled_from(self.pmus))
        for size in sizes:
            pmu.run(size, told=size % 10 > 0)

    @rule(data=st.data())
    def wake(self, data: st.DataObject) -> None:
        """The watermark of one area is reached."""
        os.eventfd_write(data.draw(st.sampled_from(self.pmus)).wakeup_fd, 1)

    @rule()
    def flush(self) -> None:
        """The contents of the areas are written, and the counters agree."""
        for _ in range(3):  # where a record was lost a full pass more is waited for it
            self.await_generation()
        for area, pmu in zip(self.areas, self.pmus, strict=True):
            counters = area.counters()
            assert counters.taken_bytes == counters.stored_bytes == len(pmu.trace)
            assert counters.in_flight_bytes == 0
            assert counters.records == len(pmu.records)
            assert not counters.quarantined
            assert not counters.lost_disk_full_bytes + counters.lost_dropped_bytes

    def teardown(self) -> None:
        """Finish, and compare the files with what was traced."""
        if self.pmus:
            self.end(self.maps, self.pmus)
            del self.areas, self.maps
            self.pmus = []

    def await_end(self) -> None:
        """See `Drained`."""
        self.flush()
        self.stream.finish()
        while not any(closed.final for closed in self.closed.values()):
            self.serve()

    def compare(self) -> None:
        """See `Drained`."""
        found = [bytearray() for _ in self.pmus]
        pieces: list[list[AuxPiece]] = [[] for _ in self.pmus]
        for token in sorted(self.closed):
            closed = self.closed[token]
            data = os.pread(self.files[token], closed.end_offset, 0)
            sizes = dict.fromkeys((area.id for area in self.areas), 0)
            count = 0
            for piece in iter_pieces(data):
                count += 1
                assert (piece.idx, piece.tid, piece.reference) == (piece.cpu, -1, 0)
                assert piece.offset == len(found[piece.cpu])
                assert piece.hidden == (self.kind == "hidden")
                found[piece.cpu] += data[piece.at : piece.at + piece.size]
                pieces[piece.cpu].append(piece)
                sizes[self.areas[piece.cpu].id] += piece.size
            assert {ring: size for ring, size, _ in closed.aux} == sizes
            assert closed.aux_index == tuple(auxtrace_index(data))
            scan = _core.scan_records(data)
            assert (scan.end, scan.fault) == (len(data), "ok")
            assert (scan.aux_pieces, scan.aux_bytes) == (count, sum(sizes.values()))
        for pmu in self.pmus:
            assert found[pmu.cpu] == pmu.trace
            if self.kind == "whole":
                self._check_whole(pmu, pieces[pmu.cpu])

    @staticmethod
    def _check_whole(pmu: Pmu, pieces: list[AuxPiece]) -> None:
        """No record that the core saw is cut in two."""
        ends = {piece.offset + piece.size for piece in pieces}
        for begin, end in pmu.records:
            assert not any(begin < cut < end for cut in ends), (begin, end)


AuxDrain.TestCase.settings = settings(max_examples=examples(100), stateful_step_count=30)
TestAuxDrain = AuxDrain.TestCase
