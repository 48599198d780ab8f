# SPDX-License-Identifier: Apache-2.0
"""Captures formats and sub-buffers of the running kernel into tests/golden/kernel-RELEASE/.

    sudo python3 tests/golden/capture_ftrace.py

Each sub-buffer is the first one of a small ring that was overwritten, so it tells of lost events:
that of sys_enter, which is full to the last byte, not of how many, that of sys_exit, which is not
full, of their number. They hold calls of a number that is no system call; in sys_enter the first
argument counts them.
"""

from __future__ import annotations

import ctypes
import os
import platform
from contextlib import ExitStack
from pathlib import Path
from typing import Final

TRACEFS: Final = Path("/sys/kernel/tracing")
FORMATS: Final = (
    "ftrace/kernel_stack",
    "ftrace/print",
    "raw_syscalls/sys_enter",
    "raw_syscalls/sys_exit",
    "sched/sched_process_exec",
    "sched/sched_switch",
)
CALLS: Final = 2000
NUMBER: Final = 3999
LARGE_SUB_BUFFER: Final = "64"


def main() -> None:
    """Write the files."""
    release = ".".join(platform.release().split(".")[:2])
    folder = Path(__file__).with_name(f"kernel-{release}")
    folder.mkdir(exist_ok=True)
    for name in FORMATS:
        text = (TRACEFS / "events" / name / "format").read_bytes()
        (folder / f"{name.rpartition('/')[2]}.format").write_bytes(text)
    with ExitStack() as stack:
        instance = TRACEFS / "instances/collectord-capture"
        instance.mkdir()
        stack.callback(instance.rmdir)
        size = instance / "buffer_subbuf_size_kb"
        normal = size.read_text()
        size.write_text(LARGE_SUB_BUFFER)
        text = (instance / "events/header_page").read_bytes()
        (folder / "header_page-64KiB").write_bytes(text)
        size.write_text(normal)
        (instance / "buffer_size_kb").write_text("8")
        (instance / "trace_clock").write_text("mono")
        os.sched_setaffinity(0, {0})
        for name in ("sys_enter", "sys_exit"):
            (folder / f"{name}.page").write_bytes(capture(instance, name))


def capture(instance: Path, name: str) -> bytes:
    """Return the oldest sub-buffer that the calls leave in the ring of CPU 0."""
    (instance / "trace").write_text("")
    event = instance / "events/raw_syscalls" / name
    (event / "filter").write_text(f"id == {NUMBER}")
    (event / "enable").write_text("1")
    libc = ctypes.CDLL(None)
    for index in range(CALLS):
        libc.syscall(NUMBER, index)
    (event / "enable").write_text("0")
    fd = os.open(instance / "per_cpu/cpu0/trace_pipe_raw", os.O_RDONLY | os.O_NONBLOCK)
    page = os.read(fd, 4096)
    os.close(fd)
    print(name, (instance / "per_cpu/cpu0/stats").read_text())  # noqa: T201
    return page


if __name__ == "__main__":
    main()
