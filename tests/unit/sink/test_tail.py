# SPDX-License-Identifier: Apache-2.0
"""A full disk leaves a segment the room of its tail, however long that will be."""

from __future__ import annotations

import os
import select
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import pytest

from collectord._native import _core
from collectord.codec.perf_data import AttrSection
from collectord.codec.perf_features import Features
from collectord.plan.sink_plan import SinkPlan
from collectord.reader.verify import verify
from collectord.sink.perf_data_sink import PerfDataSink
from tests.support import segments as support
from tests.support.aux_files import PMU_TYPE, AuxFile
from tests.support.aux_pmu import TIME_OFFSET, TIME_TRAILER, Pmu

if TYPE_CHECKING:
    from pathlib import Path

    from collectord.sink.base import OpenSegment

_FILE: Final = AuxFile()
_CORE: Final = {"shards": 1, "chunks": 8, "chunk_bytes": 1 << 18, "floor_bytes": 0}
_NEVER_NS: Final = 3600 * 1_000_000_000
_WAIT_MS: Final = 10_000
# Each gives a piece in each pass.
_CPUS: Final = 64
# The bytes of an entry of the index, of a record of losses at least, and those that were once kept
# for all of them.
_ENTRY_BYTES: Final = 16
_LOSS_BYTES: Final = 48
_ONCE_BYTES: Final = 128 << 10


def _sink(directory: Path, ids: int) -> PerfDataSink:
    return PerfDataSink(
        SinkPlan(format="perf.data", directory=str(directory)),
        support.IDENTITY,
        attrs=(
            AttrSection(_FILE.owner, tuple(range(1, ids)), "traced//"),
            AttrSection(_FILE.dummy, (ids,), "dummy:u"),
        ),
        features=Features(hostname="h", osrelease="6.12.0", pmu_mappings=(("traced", PMU_TYPE),)),
        aux_info=_FILE.info(),
    )


class Recording:
    """A segment that a core writes, of a PMU that hands over small pieces."""

    def __init__(self, stack: ExitStack, segment: OpenSegment) -> None:
        self.pmus = [Pmu.new(cpu, pages=1) for cpu in range(_CPUS)]
        self.core = _core.Core(flush_ns=_NEVER_NS, **_CORE)
        self.stream = self.core.add_stream(sideband_bytes=1 << 16)
        for pmu in self.pmus:
            self._add(pmu, stack)
        stack.callback(self.core.stop)
        self.stream.prepare(
            segment.token,
            segment.fd,
            segment.data_offset,
            segment.limit_bytes,
            segment.step_bytes,
            segment.tail_bytes,
            segment.table,
        )
        self.core.start()
        self.full = False
        self.closed: _core.SegmentClosed | None = None

    def _add(self, pmu: Pmu, stack: ExitStack) -> None:
        stack.callback(pmu.close)
        ring_map, aux_map = pmu.maps()
        stack.callback(ring_map.close)
        stack.callback(aux_map.close)
        ring = self.core.add_ring(
            0,
            self.stream,
            ring_map,
            pmu.wakeup_fd,
            sideband=False,
            time_offset=TIME_OFFSET,
            time_trailer=TIME_TRAILER,
        )
        self.core.add_aux_ring(
            ring,
            aux_map,
            framing="auxtrace",
            whole_records=False,
            idx=pmu.cpu,
            cpu=pmu.cpu,
            tid=-1,
        )

    def _serve(self) -> None:
        """Wait for a notice; there is never more room, and no other segment."""
        poll = select.poll()
        poll.register(self.core.notify_fd, select.POLLIN)
        assert poll.poll(_WAIT_MS), self.core.counters()
        os.eventfd_read(self.core.notify_fd)
        for event in self.core.events():
            if isinstance(event, _core.SpaceWanted):
                self.full = True
                self.stream.space(False)  # noqa: FBT003 - the binding's
            elif isinstance(event, _core.SegmentClosed):
                self.closed = event

    def trace(self, piece_bytes: int) -> None:
        """Hand over a piece of each, and have them written or given up."""
        for pmu in self.pmus:
            pmu.run(piece_bytes, told=True)
        generation = self.core.request_flush()
        while self.stream.written_generation() < generation:
            self._serve()

    def end(self) -> _core.SegmentClosed:
        """Close the segment."""
        self.stream.finish()
        while self.closed is None:
            self._serve()
        return self.closed


@pytest.mark.parametrize(
    ("ids", "rounds"),
    [(2, 140), (3_000, 0)],
    ids=["AUX pieces", "ids"],
)
def test_tail_has_room_on_a_full_disk(tmp_path: Path, ids: int, rounds: int) -> None:
    """The index of all pieces, and the losses of all ids, are sealed where no block is free."""
    with (
        support.mounted("tmpfs", tmp_path / "small", "size=4m") as directory,
        ExitStack() as stack,
    ):
        sink = _sink(directory, ids)
        stack.callback(sink.close)
        segment = sink.next_segment(1, support.OPENING)
        recording = Recording(stack, segment)
        for _ in range(rounds):
            recording.trace(8)
        assert not recording.full
        while not recording.full:
            recording.trace(2000)
        support.fill_disk(directory)
        closed = recording.end()
        assert len(closed.aux_index) >= rounds * _CPUS
        assert max(len(closed.aux_index) * _ENTRY_BYTES, ids * _LOSS_BYTES) > _ONCE_BYTES
        lost = dict.fromkeys(range(1, ids + 1), 1 << 60)
        info = sink.seal(segment, closed, support.closing(lost_samples=lost))
        assert info is not None
        assert len(info.manifest.lost_samples) == ids
        (verdict,) = verify([directory])
        assert verdict.finding is None
