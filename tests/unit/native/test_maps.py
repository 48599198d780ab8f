# SPDX-License-Identifier: Apache-2.0
"""Mappings of rings live as long as something reads through them."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from typing import Final

import pytest

from collectord._native import _core

_PAGE: Final = os.sysconf("SC_PAGESIZE")
# Its thread reads the heads of all rings all the time.
_GARBAGE: Final = """
import gc, os
from collectord._native import _core

page = os.sysconf("SC_PAGESIZE")
core = _core.Core(chunks=4, flush_ns=1)
stream = core.add_stream()
wakeup_fd = os.eventfd(0)
for _ in range(300):
    fd = os.memfd_create("ring")
    os.ftruncate(fd, 4 * page)
    ring = core.add_bpf_ring(
        0, stream, _core.BpfMap(fd, page), os.dup(wakeup_fd), id=7, fields_bytes=24, time_offset=24
    )
    os.close(fd)
core.start()
del core, stream, ring
gc.collect()
"""


def test_a_core_that_is_garbage_ends_before_its_rings_are_unmapped() -> None:
    """A core that was never stopped is collected, and its thread never uses an unmapped ring."""
    for _ in range(5):
        subprocess.run([sys.executable, "-c", _GARBAGE], timeout=60, check=True)


def test_a_ring_is_unmapped_after_its_aux_area() -> None:
    """The area's head is in the ring's control page: that stays until the area is closed."""
    with ExitStack() as stack:
        fd = os.memfd_create("ring")
        stack.callback(os.close, fd)
        os.ftruncate(fd, 4 * _PAGE)
        ring_map = _core.RingMap(fd, _PAGE)
        aux_map = _core.AuxMap(fd, ring_map, 2 * _PAGE, snapshot=False)
        with pytest.raises(ValueError, match="AUX area is mapped"):
            ring_map.close()
        aux_map.close()
        aux_map.close()
        ring_map.close()
        with pytest.raises(ValueError, match="not mapped any more"):
            _ = aux_map.head
        other = _core.AuxMap(fd, again := _core.RingMap(fd, _PAGE), 2 * _PAGE, snapshot=False)
        del other
        again.close()
