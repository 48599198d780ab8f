# SPDX-License-Identifier: Apache-2.0
"""A ring of sideband that this process feeds itself."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from collectord._native._core import RingMap
from collectord.codec.perf_attr import SampleType, id_trailer_from, sample_time_offset
from collectord.model import Basis, Geometry
from collectord.source.perf_ring import PerfRing

if TYPE_CHECKING:
    from contextlib import ExitStack

    from collectord.codec.perf_attr import PerfEventAttr
    from collectord.model import RingLabel

_FED_BYTES: Final = 256 << 10


def fed_ring(attr: PerfEventAttr, label: RingLabel, stack: ExitStack) -> PerfRing:
    """Make a sideband ring that this process feeds, by its map, with what no event reports.

    It is drained like the kernel's rings: its records reach the file, and the state that later
    segments begin with, in the order of the passes. Its descriptor is never ready: records wait
    for the next full pass.

    Args:
        attr: attributes of the event whose records they are.
        label: label of a ring of that event.
        stack: closes the ring, after whoever drains it.
    """
    memory = os.memfd_create("collectord-fed-ring", os.MFD_CLOEXEC)
    stack.callback(os.close, memory)
    os.ftruncate(memory, os.sysconf("SC_PAGESIZE") + _FED_BYTES)
    fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    stack.callback(os.close, fd)
    ring_map = RingMap(memory, _FED_BYTES)
    stack.callback(ring_map.close)
    return PerfRing(
        map=ring_map,
        fd=fd,
        basis=Basis.NONE,
        geometry=Geometry(_FED_BYTES, 0, _FED_BYTES),
        label=label,
        time_offset=sample_time_offset(attr),
        time_trailer=id_trailer_from(attr, SampleType.TIME),
        cpu_trailer=id_trailer_from(attr, SampleType.CPU),
    )
