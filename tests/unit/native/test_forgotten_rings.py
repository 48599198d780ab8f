# SPDX-License-Identifier: Apache-2.0
"""Rings that were removed, and that nobody refers to any more."""

from __future__ import annotations

import os
import select
import struct
from contextlib import ExitStack

from collectord._native import _core
from collectord.codec.perf_attr import PerfEventAttr, SampleType
from collectord.model import RingLabel, RingRole
from collectord.source.fed_ring import fed_ring
from tests.support.cores import await_core

_SAMPLE = struct.pack("=IHHQ", 9, 0, 16, 5)
_LIMIT = 1 << 40


def _recorded(core: _core.Core, stream: _core.Stream, stack: ExitStack) -> int:
    """Make a ring with a sample, remove it, and return its id."""
    attr = PerfEventAttr(sample_type=SampleType.TIME, sample_id_all=True)
    handle = fed_ring(attr, RingLabel("one", "perf", RingRole.DATA, 0), stack)
    ring = core.add_ring(
        0,
        stream,
        handle.map,
        handle.fd,
        sideband=False,
        time_offset=handle.time_offset,
        time_trailer=handle.time_trailer,
    )
    assert handle.map.feed(_SAMPLE)
    await_core(core, lambda: core.remove_ring(ring))
    return ring.id


def _closed(core: _core.Core) -> dict[int, int]:
    """Return the samples by ring of the segment that closes next."""
    while True:
        for event in core.events():
            if isinstance(event, _core.SegmentClosed):
                return {ring: samples for ring, samples, _ in event.rings}
        select.select([core.notify_fd], [], [], 10)
        os.read(core.notify_fd, 8)


def test_a_forgotten_ring_is_in_the_segment_that_has_its_data_and_in_no_later_one() -> None:
    """The core has only the rings of the running segment, however many came and went before."""
    with ExitStack() as stack:
        file = stack.enter_context(os.fdopen(os.memfd_create("segment"), "wb"))
        core = _core.Core(chunks=4)
        core.start()
        stack.callback(core.stop)
        stream = core.add_stream(sideband_bytes=1 << 20)
        stream.prepare(1, file.fileno(), 0, _LIMIT)
        for token in range(2, 5):
            recorded = {_recorded(core, stream, stack) for _ in range(3)}
            generation = core.request_flush()
            await_core(core, lambda g=generation: stream.written_generation() >= g)  # type: ignore[misc]
            stream.prepare(token, file.fileno(), 0, _LIMIT)
            stream.rotate()
            assert _closed(core) == dict.fromkeys(recorded, 1)
