# SPDX-License-Identifier: Apache-2.0
"""The binding of rings whose events files know by other ids than the kernel does."""

from __future__ import annotations

import os
import struct
from contextlib import ExitStack

import pytest

from collectord._native import _core
from tests.support.cores import await_core

_PAGE = os.sysconf("SC_PAGESIZE")
_SAMPLE, _LOST = 9, 2


def _records(*ids: int) -> bytes:
    """Return a sample of each event, {id, time}, and its losses, which end in {time, CPU, id}."""
    samples = [struct.pack("=IHHQQ", _SAMPLE, 0, 24, one, 100) for one in ids]
    lost = [struct.pack("=IHHQQQQQ", _LOST, 0, 48, one, 7, 100, 0, one) for one in ids]
    return b"".join((*samples, *lost))


@pytest.mark.parametrize(
    ("ids", "filed", "relabelled"),
    [
        ({21: 21, 22: 22}, (21, 22, 21), 1),
        ({22: 6, 21: 5}, (5, 6, 5), 1),
        ({21: 5, 22: 6, 23: 23}, (5, 6, 23), 0),
    ],
    ids=["the same", "others", "some"],
)
def test_files_have_the_ids_that_they_know(
    ids: dict[int, int], filed: tuple[int, int, int], relabelled: int
) -> None:
    """In samples and in what else has an id; the id of a stranger becomes one of the ring's."""
    with ExitStack() as stack:
        memory, fd = os.memfd_create("ring"), os.memfd_create("segment")
        wakeup_fd = os.eventfd(0)
        for one in (memory, fd, wakeup_fd):
            stack.callback(os.close, one)
        os.ftruncate(memory, 2 * _PAGE)
        core = _core.Core(chunks=4, flush_ns=3600 * 10**9)
        stack.callback(core.stop)
        stream = core.add_stream()
        ring_map = _core.RingMap(memory, _PAGE)
        ring = core.add_ring(
            0,
            stream,
            ring_map,
            wakeup_fd,
            sideband=False,
            time_offset=16,
            time_trailer=24,
            ids=ids,
        )
        stream.prepare(1, fd, 0, 1 << 40)
        core.start()
        told = _records(21, 22, 23)
        assert ring_map.feed(told)
        generation = core.request_flush()
        await_core(core, lambda: stream.written_generation() >= generation)
        counters = ring.counters()
        assert (counters.samples, counters.lost_records) == (3, 21)
        assert counters.relabelled == relabelled
        found = os.pread(fd, len(told), 0)
        samples = _records(*filed)[:72]
        assert found[:72] == samples
        # Only a sample's unknown id is replaced.
        others = _records(ids.get(21, 21), ids.get(22, 22), ids.get(23, 23))[72:]
        assert found[72:] == others
