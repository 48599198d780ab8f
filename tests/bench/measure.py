# SPDX-License-Identifier: Apache-2.0
"""Measurement of a run: CPU time, page cache, records on disk."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

NS_PER_S: Final = 1e9
# perf.data: header {magic, size, attr_size, attrs, data{offset, size}}, and the record types
# that count here (perf_event.h, and perf's file format).
_DATA_SECTION: Final = struct.Struct("=40xQQ")
_RECORD: Final = struct.Struct("=IHH")
_LOST: Final = 2
_SAMPLE: Final = 9
_LOST_SAMPLES: Final = 13
# Clock id of another process's CPU time (clock_getcpuclockid).
_CPUCLOCK_SCHED: Final = 2


def cpu_seconds_of(pid: int) -> float:
    """Return the CPU time of all threads of a living process, ended ones included."""
    return time.clock_gettime((~pid << 3) | _CPUCLOCK_SCHED)


def fsync_all(paths: Iterable[Path]) -> float:
    """Put files on disk; return this thread's CPU time for it, in seconds."""
    begun = time.thread_time()
    for path in paths:
        fd = os.open(path, os.O_RDWR)
        os.fsync(fd)
        os.close(fd)
    return time.thread_time() - begun


def resident_bytes(path: Path) -> int:
    """Return how many bytes of a file are in the page cache."""
    size = path.stat().st_size
    if size == 0:
        return 0
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    pages = (ctypes.c_ubyte * (-(-size // mmap.PAGESIZE)))()
    with path.open("rb") as file:
        address = ctypes.c_void_p(
            libc.mmap(
                None,
                ctypes.c_size_t(size),
                mmap.PROT_READ,
                mmap.MAP_SHARED,
                file.fileno(),
                ctypes.c_long(0),
            )
        )
        status = libc.mincore(address, ctypes.c_size_t(size), pages)
        code = ctypes.get_errno()
        libc.munmap(address, ctypes.c_size_t(size))
    if status:
        raise OSError(code, os.strerror(code), str(path))
    return bytes(pages).count(1) * mmap.PAGESIZE


@dataclass(frozen=True, slots=True)
class Stored:
    """Contents of perf.data files."""

    samples: int
    sample_bytes: int
    lost: int

    def __add__(self, other: Stored) -> Stored:
        return Stored(
            self.samples + other.samples,
            self.sample_bytes + other.sample_bytes,
            self.lost + other.lost,
        )


def stored_in(path: Path) -> Stored:
    """Count the records of a perf.data file.

    Loss is told twice, by LOST as it happens and by LOST_SAMPLES at the end: the higher counts.
    """
    samples = sample_bytes = lost = lost_samples = 0
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        offset, size = _DATA_SECTION.unpack_from(data)
        end = offset + size
        unpack = _RECORD.unpack_from
        while offset < end:
            kind, _, length = unpack(data, offset)
            if kind == _SAMPLE:
                samples += 1
                sample_bytes += length
            elif kind == _LOST:
                lost += struct.unpack_from("=Q", data, offset + 16)[0]
            elif kind == _LOST_SAMPLES:
                lost_samples += struct.unpack_from("=Q", data, offset + 8)[0]
            if length < _RECORD.size:
                message = f"{path}: record of {length} bytes at {offset}"
                raise ValueError(message)
            offset += length
    return Stored(samples, sample_bytes, max(lost, lost_samples))


def own_memory_bytes(pid: int) -> int:
    """Return the resident memory of a process without its rings and staging."""
    total = 0
    counted = True
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        head = re.match(r"[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \S+ *(.*)", line)
        if head:
            counted = not head[1].startswith(("anon_inode:[perf_event]", "/memfd:"))
        elif counted and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


def voluntary_switches(pid: int) -> int:
    """Return how often the threads of a process went to sleep: each time is one wake-up."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        found = re.search(
            r"^voluntary_ctxt_switches:\s*(\d+)", (task / "status").read_text(), re.MULTILINE
        )
        assert found
        total += int(found[1])
    return total
