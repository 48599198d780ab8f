# SPDX-License-Identifier: Apache-2.0
"""A PMU with the kernel's AUX protocol, in memory."""

from __future__ import annotations

import mmap
import os
import random
import struct
from dataclasses import dataclass, field
from typing import Final

from collectord._native import _core

# Places in its records, whose trailer has the time alone.
TIME_OFFSET: Final = 16
TIME_TRAILER: Final = 8

_PAGE: Final = os.sysconf("SC_PAGESIZE")
_DATA_BYTES: Final = 16 * _PAGE
# perf_event_mmap_page
_DATA_HEAD_AT, _DATA_TAIL_AT, _AUX_HEAD_AT, _AUX_TAIL_AT = 1024, 1032, 1056, 1064
_AUX, _AUX_BYTES, _TRUNCATED = 11, 40, 1


@dataclass(slots=True)
class Pmu:
    """The kernel's side of one AUX area and its data ring, and all that was traced."""

    cpu: int
    aux_bytes: int
    fd: int
    wakeup_fd: int
    memory: mmap.mmap
    source: random.Random
    trace: bytearray = field(default_factory=bytearray)  # handed over
    records: list[tuple[int, int]] = field(default_factory=list)  # begin and end of each
    data_head: int = 0

    @staticmethod
    def new(cpu: int, pages: int) -> Pmu:
        """Make control page, data and area in a memfd."""
        fd = os.memfd_create("aux")
        size = _PAGE + _DATA_BYTES + pages * _PAGE
        os.ftruncate(fd, size)
        wakeup_fd = os.eventfd(0, os.EFD_NONBLOCK)
        source = random.Random(cpu)  # noqa: S311 - bytes that tell one place from another
        return Pmu(cpu, pages * _PAGE, fd, wakeup_fd, mmap.mmap(fd, size), source)

    def maps(self) -> tuple[_core.RingMap, _core.AuxMap]:
        """Map both as the core takes them; the caller closes them in reverse order."""
        ring_map = _core.RingMap(self.fd, _DATA_BYTES)
        return ring_map, _core.AuxMap(self.fd, ring_map, self.aux_bytes, snapshot=False)

    def run(self, wanted: int, *, told: bool) -> None:
        """Trace up to so many bytes, as room permits, with or without an AUX record."""
        head = len(self.trace)
        # Native: one access. The standard forms go byte by byte, and a drain may see half a head.
        (tail,) = struct.unpack_from("@Q", self.memory, _AUX_TAIL_AT)
        size = min(wanted, self.aux_bytes - 1 - (head - tail))
        fresh = self.source.randbytes(size)
        first = min(size, self.aux_bytes - head % self.aux_bytes)
        at = _PAGE + _DATA_BYTES
        begin = at + head % self.aux_bytes
        self.memory[begin : begin + first] = fresh[:first]
        self.memory[at : at + size - first] = fresh[first:]
        self.trace += fresh
        if told:
            self._tell(head, size, _TRUNCATED if size < wanted else 0)
        # At once: pack_into() clears its place first, and the drain may look meanwhile.
        self.memory[_AUX_HEAD_AT : _AUX_HEAD_AT + 8] = struct.pack("@Q", len(self.trace))

    def _tell(self, offset: int, size: int, flags: int) -> None:
        (tail,) = struct.unpack_from("@Q", self.memory, _DATA_TAIL_AT)
        if _DATA_BYTES - 1 - (self.data_head - tail) < _AUX_BYTES:
            return
        record = struct.pack("=IHHQQQQ", _AUX, 0, _AUX_BYTES, offset, size, flags, 1)
        place = self.data_head % _DATA_BYTES
        first = min(_AUX_BYTES, _DATA_BYTES - place)
        self.memory[_PAGE + place : _PAGE + place + first] = record[:first]
        self.memory[_PAGE : _PAGE + _AUX_BYTES - first] = record[first:]
        self.data_head += _AUX_BYTES
        self.records.append((offset, offset + size))
        self.memory[_DATA_HEAD_AT : _DATA_HEAD_AT + 8] = struct.pack("@Q", self.data_head)

    def close(self) -> None:
        """Release the memory."""
        self.memory.close()
        os.close(self.fd)
        os.close(self.wakeup_fd)
