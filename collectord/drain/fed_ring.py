# SPDX-License-Identifier: Apache-2.0
"""A sideband ring that this process writes itself, for what no event of the kernel tells it.

It is drained as the kernel's are: what is fed comes into the file, and into the state that later
segments begin with, in the order of the passes.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from collectord._native._core import RingMap
from collectord.codec.perf_attr import id_cpu_trailer, id_time_trailer, sample_time_offset

if TYPE_CHECKING:
    from contextlib import ExitStack

    from collectord._native._core import Core, Ring, Stream
    from collectord.codec.perf_attr import PerfEventAttr

_DATA_BYTES: Final = 256 << 10


class FedRing:
    """The ring; the stack closes it, after whoever drains it.

    Attributes:
        map: of its memory, laid out as a perf ring.
        wakeup_fd: never ready: what is fed waits for the next full pass.
    """

    def __init__(self, stack: ExitStack) -> None:
        memory = os.memfd_create("collectord-fed-ring", os.MFD_CLOEXEC)
        stack.callback(os.close, memory)
        os.ftruncate(memory, os.sysconf("SC_PAGESIZE") + _DATA_BYTES)
        self.wakeup_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        stack.callback(os.close, self.wakeup_fd)
        self.map = RingMap(memory, _DATA_BYTES)
        stack.callback(self.map.close)

    def register(self, core: Core, stream: Stream, attr: PerfEventAttr) -> Ring:
        """Have the core drain it, with records of an event."""
        return core.add_ring(
            0,
            stream,
            self.map,
            self.wakeup_fd,
            sideband=True,
            time_offset=sample_time_offset(attr),
            time_trailer=id_time_trailer(attr),
            cpu_trailer=id_cpu_trailer(attr),
        )

    def feed(self, records: bytes) -> bool:
        """Write whole records; False, and nothing is written, where they do not fit."""
        return self.map.feed(records)
