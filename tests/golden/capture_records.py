# SPDX-License-Identifier: Apache-2.0
"""Captures perf records of the running kernel into tests/golden/kernel-RELEASE/.

    sudo python3 tests/golden/capture_records.py

Each file is the 128 bytes of the event's attr, then the records of its ring. x86-64 only.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import struct
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from collectord._native import _syscalls
from collectord.codec.perf_attr import (
    CLOCK_MONOTONIC,
    EventType,
    OpenFlag,
    PerfEventAttr,
    ReadFormat,
    SampleType,
    SoftwareId,
)

if TYPE_CHECKING:
    from collections.abc import Callable

SYS_PERF_EVENT_OPEN: Final = 298
SYS_BPF: Final = 321
BPF_PROG_LOAD: Final = 5
BPF_PROG_TYPE_SOCKET_FILTER: Final = 1
PAGE_BYTES: Final = mmap.PAGESIZE
GETPPID_ID: Final = Path("/sys/kernel/tracing/events/syscalls/sys_enter_getppid/id")

HEAD_OFFSET: Final = 1024  # data_head of struct perf_event_mmap_page; data_tail follows
RING_PAGES: Final = 16

libc = ctypes.CDLL(None, use_errno=True)

COMMON: Final = PerfEventAttr(
    type=EventType.SOFTWARE,
    config=SoftwareId.DUMMY,
    sample_type=SampleType.IDENTIFIER | SampleType.TID | SampleType.TIME | SampleType.CPU,
    read_format=ReadFormat.ID | ReadFormat.LOST,
    sample_id_all=True,
    disabled=True,
    inherit=True,
    use_clockid=True,
    clockid=CLOCK_MONOTONIC,
)
TASKS: Final = replace(COMMON, comm=True, comm_exec=True, task=True, mmap=True, mmap2=True)


def capture(name: str, attr: PerfEventAttr, work: Callable[[mmap.mmap], None]) -> None:
    """Record `work` on a ring of 16 pages on this CPU, and write what is unread."""
    raw = ctypes.create_string_buffer(attr.encode(), 128)
    (cpu,) = os.sched_getaffinity(0)
    fd = libc.syscall(SYS_PERF_EVENT_OPEN, raw, os.getpid(), cpu, -1, OpenFlag.FD_CLOEXEC)
    if fd < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), name)
    with os.fdopen(fd), mmap.mmap(fd, PAGE_BYTES * (1 + RING_PAGES)) as ring:
        _syscalls.perf_enable(fd)
        work(ring)
        _syscalls.perf_disable(fd)
        head, tail = struct.unpack_from("<QQ", ring, HEAD_OFFSET)
        data = ring[PAGE_BYTES:] + ring[PAGE_BYTES:]
    start = tail % (len(data) // 2)
    release = ".".join(platform.release().split(".")[:2])
    path = Path(__file__).parent / f"kernel-{release}" / f"{name}.bin"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(attr.encode() + data[start : start + head - tail])


def spawn(_: mmap.mmap) -> None:
    """Fork, exec, map and exit."""
    subprocess.run(["/bin/true"], check=True)


def load_bpf(_: mmap.mmap) -> None:
    """Load a socket filter that returns 0, and drop it."""
    program = ctypes.create_string_buffer(struct.pack("<QQ", 0xB7, 0x95))
    licence = ctypes.create_string_buffer(b"GPL")
    where = ctypes.addressof(program), ctypes.addressof(licence)
    packed = struct.pack("<IIQQ", BPF_PROG_TYPE_SOCKET_FILTER, 2, *where).ljust(48, b"\0")
    fd = libc.syscall(SYS_BPF, BPF_PROG_LOAD, ctypes.create_string_buffer(packed), len(packed))
    if fd < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    os.close(fd)


def call(_: mmap.mmap) -> None:
    """Make two calls."""
    os.getppid()
    os.getppid()


def overflow(ring: mmap.mmap) -> None:
    """Overfill the ring, empty it unread, and make one more call, so that LOST is written."""
    for _ in range(2000):
        os.getppid()
    ring[HEAD_OFFSET + 8 : HEAD_OFFSET + 16] = ring[HEAD_OFFSET : HEAD_OFFSET + 8]
    os.getppid()


def main() -> None:
    """Capture every fixture."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    capture("tasks-build-id", replace(TASKS, build_id=True), spawn)
    capture("tasks-inode", TASKS, spawn)
    capture("mmap", replace(COMMON, mmap=True), spawn)
    capture("ksymbol", replace(COMMON, ksymbol=True), load_bpf)
    tracepoint = replace(
        COMMON,
        type=EventType.TRACEPOINT,
        config=int(GETPPID_ID.read_text()),
        inherit=False,
        sample_period=1,
        sample_type=COMMON.sample_type | SampleType.RAW,
    )
    capture("lost", tracepoint, overflow)
    up_to_raw = SampleType.RAW | SampleType.IDENTIFIER | (SampleType.RAW - 1)
    capture("samples", replace(tracepoint, sample_type=up_to_raw, sample_max_stack=4), call)


if __name__ == "__main__":
    main()
