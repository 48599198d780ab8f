# SPDX-License-Identifier: Apache-2.0
"""Causes that answers must name: a program that makes one after the other, in about two seconds.

It runs in processes and threads whose names say what they do. It needs nothing of the project.
"""

from __future__ import annotations

import math
import mmap
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

HOG_S: Final = 0.6
STALL_S: Final = 0.4
CALLS: Final = 60_000
OPENS: Final = 4_000
PAGES: Final = 16_384
ROUNDS: Final = 5_000
PROGRAMS: Final = 200
PACKETS: Final = 20_000
REFUSED: Final = 300
_PAGE_BYTES: Final = mmap.PAGESIZE
_SCRIPT: Final = f"i=0; while [ $i -lt {PROGRAMS} ]; do /bin/true; i=$((i+1)); done"


def _name(name: str) -> None:
    Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(name)


def _started(name: str, work: Callable[[], None], cpu: int) -> int:
    """Start a process on one CPU."""
    pid = os.fork()
    if pid == 0:
        try:
            _name(name)
            os.sched_setaffinity(0, {cpu})
            time.sleep(0.001)  # it comes back to the CPU under its name
            work()
        finally:
            os._exit(0)
    return pid


def _ended(*pids: int) -> None:
    for pid in pids:
        os.waitpid(pid, 0)


def _spin(seconds: float) -> None:
    """Use so much time of a CPU, with few system calls that read the clock of it."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        for _ in range(50_000):
            pass


def starve(cpus: list[int]) -> None:
    """Have a program keep the CPU that another one would use."""
    ready, tell = os.pipe()

    def wait() -> None:
        os.write(tell, b".")
        _spin(math.inf)

    def hog() -> None:
        # Before all that others run there, on a busy host too.
        os.nice(-20)
        with suppress(PermissionError):  # where a cgroup has no time for it
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        _spin(HOG_S)

    victim = _started("cpu-victim", wait, cpus[0])
    os.read(ready, 1)
    _ended(_started("cpu-hog", hog, cpus[0]))
    os.kill(victim, signal.SIGKILL)
    _ended(victim)
    os.close(ready)
    os.close(tell)


def stall() -> None:
    """Have a thread hold a lock while another one waits for it."""
    lock, held, comes = threading.Lock(), threading.Event(), threading.Event()

    def hold() -> None:
        _name("stall-holder")
        with lock:
            held.set()
            comes.wait()
            _spin(STALL_S)

    def wait() -> None:
        _name("stall-waiter")
        held.wait()
        comes.set()
        with lock:
            pass

    threads = [threading.Thread(target=work) for work in (hold, wait)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def call() -> None:
    """Make system calls that do nothing."""
    for _ in range(CALLS):
        os.getppid()


def open_files() -> None:
    """Open a file that does not exist."""
    for _ in range(OPENS):
        with suppress(FileNotFoundError):
            os.open("/nonexistent", os.O_RDONLY)


def touch() -> None:
    """Write to pages for the first time."""
    with mmap.mmap(-1, PAGES * _PAGE_BYTES) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        for at in range(0, len(memory), _PAGE_BYTES):
            memory[at] = 1


def wake_each_other(cpu: int) -> None:
    """Have two processes wake each other, over two pipes."""
    there, back = os.pipe(), os.pipe()

    def ping() -> None:
        for _ in range(ROUNDS):
            os.write(there[1], b".")
            os.read(back[0], 1)

    def pong() -> None:
        for _ in range(ROUNDS):
            os.read(there[0], 1)
            os.write(back[1], b".")

    _ended(_started("ping", ping, cpu), _started("pong", pong, cpu))
    for fd in (*there, *back):
        os.close(fd)


def receive() -> None:
    """Send packets to the host itself: they arrive in the softirq NET_RX."""
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as to,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as from_,
    ):
        to.bind(("127.0.0.1", 0))
        for _ in range(PACKETS):
            from_.sendto(b".", to.getsockname())


def connect() -> None:
    """Connect to a port where nobody listens."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        for _ in range(REFUSED):
            with socket.socket() as one, suppress(ConnectionRefusedError):
                one.connect(unused.getsockname())


def hold_connections() -> None:
    """Connect to a port where somebody listens, and close both ends."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        for _ in range(REFUSED):
            with (
                socket.create_connection(listening.getsockname()),
                listening.accept()[0],
            ):
                pass


def main() -> None:
    """Make all causes, or those of files and connections, or of waits for a CPU, alone."""
    cpus = sorted(os.sched_getaffinity(0))
    if sys.argv[1:] == ["cpu"]:
        starve(cpus)
        wake_each_other(cpus[-1])
        return
    if sys.argv[1:] == ["files"]:
        for name, work in (("opener", open_files), ("connector", hold_connections)):
            _ended(_started(name, work, cpus[-1]))
        return
    starve(cpus)
    stall()
    wake_each_other(cpus[-1])
    for name, work in (
        ("caller", call),
        ("opener", open_files),
        ("toucher", touch),
        ("receiver", receive),
        ("refused", connect),
    ):
        _ended(_started(name, work, cpus[-1]))
    subprocess.run(["/bin/sh", "-c", _SCRIPT], check=True)


if __name__ == "__main__":
    main()
