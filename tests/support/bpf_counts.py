# SPDX-License-Identifier: Apache-2.0
"""Counts of a block by BPF programs, and children whose switches the kernel counts."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tests.support.daemons import wait_for
from tests.support.recording import GATE, result_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import IO

    Start = Callable[..., subprocess.Popen[str]]

COMM: Final = "sleeper"
DEVICE: Final = "DEVICE"
OPERATION: Final = "OPERATION"
IN_FLIGHT: Final = "in flight"
# Columns of /proc/diskstats since Linux 5.5.
_DISKSTATS: Final = {"read": 3, "write": 7, IN_FLIGHT: 11, "discard": 14, "flush": 18}
_SWITCHES: Final = re.compile(r"^(?:non)?voluntary_ctxt_switches:\t(\d+)$", re.MULTILINE)
# Each of its threads takes orders from a pipe of its own, and tells when one is done. What they
# need is done once before, so that no page of it is missing then.
_CHILD: Final = """
import os, select, signal, sys, threading, time
stop = threading.Event()
signal.signal(signal.SIGUSR1, lambda *_: stop.set())
def sleep(times):
    for _ in range(times):
        time.sleep(0.001)
def block(times):
    for _ in range(times):
        select.select([], [], [], 0.001)
def spin(_):
    while not stop.is_set():
        pass
def obey(fd):
    with open(fd) as orders:
        sleep(2), block(2), os.write(1, b"ready\\n")
        for order in orders:
            name, times = order.split()
            {"sleep": sleep, "select": block, "spin": spin}[name](int(times))
            os.write(1, b"done\\n")
open("/proc/self/comm", "wb").write(bytes.fromhex(sys.argv[1]))
first, *others = map(int, sys.argv[2:])
for fd in others:
    threading.Thread(target=obey, args=(fd,), daemon=True).start()
obey(first)
"""


@dataclass(slots=True)
class Counted:
    """A recording, with its output after its block."""

    stdout: str = ""

    @property
    def session(self) -> dict[str, Any]:
        """The session of the --json result."""
        return result_of(self.stdout)

    def answers(self, program: str) -> list[dict[str, Any]]:
        """Return a program's --json answers, in the order of its manifest; all are complete."""
        answers = json.loads(self.stdout)["answers"]
        found = [answer for answer in answers if answer["program"] == program]
        assert all(answer["complete"] for answer in found)
        return found


@contextmanager
def counting(start_cli: Start, directory: Path, *words: str) -> Iterator[Counted]:
    """Run `collectord record WORDS...` for the length of a block.

    Its programs count when the block begins. The log must be empty.
    """
    gate = directory / "gate"
    os.mkfifo(gate)
    process = start_cli("record", *words, "--", "sh", "-c", GATE, gate)
    assert process.stderr is not None
    first = process.stderr.readline()
    if first != "open\n":
        raise AssertionError(first + process.communicate()[1])
    counted = Counted()
    try:
        yield counted
    finally:
        key = os.open(gate, os.O_RDWR)  # waits for no reader, should the command be gone
        try:
            os.write(key, b"\n")
            counted.stdout, stderr = process.communicate()
        finally:
            os.close(key)
            gate.unlink()
    assert (process.returncode, stderr) == (0, "")


def program(name: str, **arguments: int | str) -> list[str]:
    """Return options of `record` for a program with these arguments."""
    words = (f"{key}={value}" for key, value in arguments.items())
    return ["--bpf", name, *(part for word in words for part in ("--bpf-arg", word))]


def total(section: dict[str, Any]) -> int:
    """Return the number of values in a section of a histogram."""
    return sum(slot["count"] for slot in section["slots"])


class Switches(NamedTuple):
    """Numbers of switches: threads that blocked, and threads that were preempted."""

    voluntary: int
    involuntary: int

    def since(self, earlier: Switches) -> Switches:
        """Return how many switches were added since an earlier reading."""
        return Switches(self.voluntary - earlier.voluntary, self.involuntary - earlier.involuntary)


class Child:
    """A process that performs orders, and blocks in between."""

    def __init__(self, process: subprocess.Popen[str], orders: Sequence[IO[str]]) -> None:
        self.pid = process.pid
        self._process = process
        self._orders = orders
        self._await("ready\n")
        self.tids = sorted(int(path.name) for path in self._tasks().iterdir())
        assert len(self.tids) == len(orders)

    def do(self, order: str, times: int) -> None:
        """Let each thread do something so often, and wait until all block again.

        Args:
            order: "sleep" or "select" for 1 ms, or "spin" until `stop`; none blocks otherwise.
            times: how often.
        """
        self.begin(order, times)
        self.finish()

    def begin(self, order: str, times: int = 1) -> None:
        """Start like `do`, without waiting."""
        for pipe in self._orders:
            pipe.write(f"{order} {times}\n")
            pipe.flush()

    def finish(self) -> None:
        """Wait until all have done what `begin` began, and block again."""
        self._await("done\n")

    def stop(self) -> None:
        """End what `begin("spin")` began, and wait until all block again."""
        os.kill(self.pid, signal.SIGUSR1)
        self.finish()

    def is_running(self) -> bool:
        """Return whether the process has not ended."""
        return self._process.poll() is None

    def switches(self, tid: int | None = None) -> Switches:
        """Return the switches of all threads, or of one."""
        texts = [(self._tasks() / str(one) / "status").read_text() for one in self.tids]
        found = {
            one: Switches(*map(int, _SWITCHES.findall(text)))
            for one, text in zip(self.tids, texts, strict=True)
        }
        if tid is not None:
            return found[tid]
        return Switches(*map(sum, zip(*found.values(), strict=True)))

    def _tasks(self) -> Path:
        return Path(f"/proc/{self.pid}/task")

    def _await(self, line: str) -> None:
        assert self._process.stdout is not None
        for _ in self._orders:
            assert self._process.stdout.readline() == line
        wait_for(self._blocked, "threads that wait for orders")

    def _blocked(self) -> bool:
        return all(
            (task / "wchan").read_text().endswith("pipe_read") for task in self._tasks().iterdir()
        )


@contextmanager
def child(
    *, threads: int = 1, cpu: int | None = None, comm: bytes = COMM.encode()
) -> Iterator[Child]:
    """A process whose threads all wait for orders, on one CPU or any; it ends with the block.

    Its first thread has this name, of up to 15 bytes.
    """
    with ExitStack() as stack:
        readers, orders = [], []
        for _ in range(threads):
            reader, writer = os.pipe()
            readers.append(stack.enter_context(os.fdopen(reader)))
            orders.append(stack.enter_context(os.fdopen(writer, "w")))
        fds = [reader.fileno() for reader in readers]
        process = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", _CHILD, comm.hex(), *map(str, fds)],
                pass_fds=fds,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        stack.callback(process.kill)
        if cpu is not None:
            os.sched_setaffinity(process.pid, {cpu})
        yield Child(process, orders)


@contextmanager
def unprobed(device: Path) -> Iterator[None]:
    """Keep udev off a device for a block: it reads devices after each write."""
    fd = os.open(device, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def requests() -> dict[str, Counter[str]]:
    """Return completed requests by operation, and those in flight, by device."""
    lines = (line.split() for line in Path("/proc/diskstats").read_text().splitlines())
    return {
        line[2]: Counter({name: int(line[column]) for name, column in _DISKSTATS.items()})
        for line in lines
    }
