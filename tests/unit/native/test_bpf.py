# SPDX-License-Identifier: Apache-2.0
"""The binding of BPF ring buffers, over a file that is laid out as one."""

from __future__ import annotations

import os
import struct
from contextlib import ExitStack

import pytest

from collectord._native import _core
from tests.support.cores import await_core

_PAGE = os.sysconf("SC_PAGESIZE")
_FIELDS = struct.pack("=IIQII", 10, 11, 1234, 0, 0)  # pid, tid, time, cpu, reserved


def _map_file(stack: ExitStack) -> int:
    """Return a consumer page, a producer page, and a page of data; a record here does not wrap."""
    fd = os.memfd_create("ring")
    stack.callback(os.close, fd)
    os.ftruncate(fd, 4 * _PAGE)
    return fd


def test_records_of_a_bpf_ring_are_samples() -> None:
    """Committed records are counted, and the kernel learns how far they were read."""
    with ExitStack() as stack:
        fd = _map_file(stack)
        wakeup_fd = os.eventfd(0)
        stack.callback(os.close, wakeup_fd)
        core = _core.Core(chunks=4, flush_ns=3600 * 10**9)
        stack.callback(core.stop)
        bpf_map = _core.BpfMap(fd, _PAGE)
        ring = core.add_bpf_ring(
            0, core.add_stream(), bpf_map, wakeup_fd, id=7, fields_bytes=24, time_offset=24
        )
        core.start()
        os.pwrite(fd, struct.pack("=II", 32, 0) + _FIELDS + b"contents", 2 * _PAGE)
        os.pwrite(fd, struct.pack("=Q", 40), _PAGE)
        generation = core.request_flush()
        await_core(core, lambda: core.drained_generation() >= generation)
        counters = ring.counters()
        assert (counters.samples, counters.in_flight, counters.last_sample_ns) == (1, 1, 1234)
        assert os.pread(fd, 8, 0) == struct.pack("=Q", 40)
        with pytest.raises(ValueError, match="running core drains"):
            bpf_map.close()
        await_core(core, lambda: core.remove_ring(ring))
        bpf_map.close()


def test_bpf_rings_that_cannot_be_are_refused() -> None:
    """A size that is none, a map that is closed, and a stream of another kind raise."""
    with ExitStack() as stack:
        fd = _map_file(stack)
        core = _core.Core(chunks=4)
        stack.callback(core.stop)
        with pytest.raises(OSError, match="Invalid argument"):
            _core.BpfMap(fd, _PAGE + 8)
        bpf_map = _core.BpfMap(fd, _PAGE)
        with pytest.raises(OSError, match="Invalid argument"):
            core.add_bpf_ring(
                0, core.add_relay_stream(), bpf_map, -1, id=7, fields_bytes=24, time_offset=24
            )
        with pytest.raises(OSError, match="Invalid argument"):
            core.add_bpf_ring(
                0, core.add_stream(), bpf_map, -1, id=7, fields_bytes=23, time_offset=24
            )
        bpf_map.close()
        with pytest.raises(ValueError, match="not mapped any more"):
            core.add_bpf_ring(
                0, core.add_stream(), bpf_map, -1, id=7, fields_bytes=24, time_offset=24
            )
