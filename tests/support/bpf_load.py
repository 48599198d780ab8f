# SPDX-License-Identifier: Apache-2.0
"""Known numbers of events for the shipped BPF programs, and the programs' reports."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import platform
import signal
import socket
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack, contextmanager, suppress
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.support import features
from tests.support.daemons import wait_for
from tests.support.patience import patient
from tests.support.recording import segments_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

    Run = Callable[..., subprocess.CompletedProcess[str]]

SECTOR_BYTES: Final = 512
# A hang is a failure, and not a slow machine.
PATIENCE_S: Final = patient(60)
AT_FDCWD: Final = -100
_EXECVEAT: Final = {"x86_64": 322, "aarch64": 281}
_OPENAT: Final = {"x86_64": 257, "aarch64": 56}
_OPENAT2: Final = 437
_RECURSION: Final = "program/recursion"
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_TIME_WAIT: Final = "06"
_LISTEN: Final = "0A"

_CLIENT: Final = """
import socket, sys
open("/proc/self/comm", "w").write("tcp-client")
address, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
for _ in range(count):
    with socket.create_connection((address, port)) as connection:
        print(connection.getsockname()[1])
"""
_THREAD: Final = """
import os, sys, threading
def run():
    print(threading.get_native_id(), flush=True)
    os.execv(sys.argv[1], sys.argv[1:])
thread = threading.Thread(target=run)
thread.start()
thread.join()
"""
# In its cgroup it takes memory, tells when it has it, and sleeps until a line comes.
_EATER: Final = """
import sys
cgroup, name, score, size = sys.argv[1:]
open(cgroup + "/cgroup.procs", "w").write("0")
open("/proc/self/comm", "w").write(name)
open("/proc/self/oom_score_adj", "w").write(score)
memory = b"x" * int(size)
print("ate", flush=True)
sys.stdin.readline()
"""


def events_of(run_cli: Run, session: dict[str, Any], *words: str) -> list[dict[str, Any]]:
    """Return the fields of each event of a result's segments, by `collectord events --json`."""
    done = run_cli("events", "--json", *words, *segments_of(session))
    assert (done.returncode, done.stderr) == (0, "")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return [line["fields"] for line in lines if "event" in line]


def table_of(run_cli: Run, session: dict[str, Any]) -> str:
    """Return the table that `collectord events` prints for people."""
    done = run_cli("events", *segments_of(session))
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def check_found(
    session: dict[str, Any], found: Iterable[Hashable], caused: Iterable[Hashable]
) -> None:
    """Assert that exactly the caused events were found.

    While a program runs on a CPU, or a system call reads its maps there, the kernel leaves others
    out and counts that. So many of the caused may be missing, or be there with less known of them.
    """
    for loss, count in session["lost"].items():
        assert loss == _RECURSION or not count, session["lost"]
    missing = Counter(caused)
    missing.subtract(found)
    extra = -missing
    assert (+extra).total() <= (+missing).total() <= session["lost"][_RECURSION], (
        f"missing {+missing}, too many {+extra}"
    )


def own_comm() -> str:
    """Return this thread's name, as the kernel has it."""
    return Path("/proc/thread-self/comm").read_text().removesuffix("\n")


def tool(path: Path) -> Path:
    """Return a program of that name that does nothing, whatever its arguments."""
    path.symlink_to("/bin/true")
    return path


def execute(*words: str | Path) -> int:
    """Execute a program that succeeds; returns its pid."""
    with subprocess.Popen(words) as process:
        assert process.wait() == 0
    return process.pid


def execute_in_thread(*words: str | Path) -> tuple[int, int]:
    """Execute a program from a thread that is not its process's first; returns pid and tid."""
    command = [sys.executable, "-c", _THREAD, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        told, _ = process.communicate()
        assert process.returncode == 0
    return process.pid, int(told)


def fail_to_execute(path: Path, *words: str, at: bool = False) -> int:
    """Try to execute a missing or non-executable file in this process.

    Returns the errno. `at`: by execveat.
    """
    assert not os.access(path, os.X_OK)
    arguments = (ctypes.c_char_p * (len(words) + 2))(os.fsencode(path), *map(str.encode, words))
    name = ctypes.c_char_p(os.fsencode(path))
    if at:
        return _error_of(_EXECVEAT[platform.machine()], AT_FDCWD, name, arguments, None, 0)
    result = _LIBC.execve(name, arguments, None)
    return ctypes.get_errno() if result < 0 else 0


def open_at(directory: int, path: bytes, flags: int, mode: int = 0) -> int:
    """Call `openat`; return the descriptor."""
    return opened(_OPENAT[platform.machine()], directory, ctypes.c_char_p(path), flags, mode)


def open_at2(directory: int, path: bytes, flags: int, mode: int = 0) -> int:
    """Call `openat2`; return the descriptor."""
    how = (ctypes.c_uint64 * 3)(flags, mode, 0)
    return opened(_OPENAT2, directory, ctypes.c_char_p(path), how, ctypes.sizeof(how))


def system_call(number: int, *arguments: int) -> None:
    """Make a system call that does not exist."""
    assert _error_of(number, *map(ctypes.c_uint64, arguments))


def opened(number: int, *arguments: Any) -> int:  # noqa: ANN401  # as ctypes takes them
    """Make a system call that opens a file; returns the descriptor."""
    result: int = _LIBC.syscall(ctypes.c_long(number), *arguments)
    assert result >= 0, os.strerror(ctypes.get_errno())
    return result


def _error_of(number: int, *arguments: Any) -> int:  # noqa: ANN401  # as ctypes takes them
    result: int = _LIBC.syscall(ctypes.c_long(number), *arguments)
    return ctypes.get_errno() if result < 0 else 0


def listening(family: socket.AddressFamily, address: str) -> socket.socket:
    """Return a socket that takes connections, on a port of the kernel's choice."""
    listener = socket.create_server((address, 0), family=family)
    listener.settimeout(PATIENCE_S)
    return listener


def connect(listener: socket.socket, times: int) -> tuple[int, list[int]]:
    """Let another process connect, close first, and be closed to; one connection at a time.

    Returns:
        The pid of that process, whose name is `tcp-client`, and its port of each connection.
    """
    address, port = listener.getsockname()[:2]
    command = [sys.executable, "-c", _CLIENT, address, str(port), str(times)]
    with _process(command) as process:
        for _ in range(times):
            connection, _ = listener.accept()
            with connection:
                assert connection.recv(1) == b""
        told, _ = process.communicate()
        assert process.returncode == 0
    wait_for(lambda: _all_closed(port), "the end of all connections")
    return process.pid, [*map(int, told.split())]


def _all_closed(port: int) -> bool:
    """Return whether all connections with this port have told their end."""
    for table in ("tcp", "tcp6"):
        with suppress(FileNotFoundError):
            lines = Path("/proc/net", table).read_text().splitlines()[1:]
            for local, remote, state in (line.split()[1:4] for line in lines):
                ports = {int(end.rpartition(":")[2], 16) for end in (local, remote)}
                if port in ports and state not in {_TIME_WAIT, _LISTEN}:
                    return False
    return True


@contextmanager
def loop_device(image: Path, size: int) -> Iterator[Path]:
    """Provide a block device of `size` bytes backed by the file `image`, for a block."""
    with image.open("wb") as file:
        file.truncate(size)
    command: list[str | Path] = ["losetup", "--find", "--show", image]
    made = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    device = Path(made.stdout.strip())
    try:
        yield device
    finally:
        subprocess.run(["losetup", "--detach", device], check=True)
        backing = Path("/sys/block", device.name, "loop/backing_file")
        wait_for(lambda: not backing.exists(), "the end of the loop device")


def request(device: Path, offsets: Sequence[int], size: int, *, write: bool) -> None:
    """Read or write `size` bytes at each offset, one after the other, past the page cache."""
    with mmap.mmap(-1, size) as buffer, ExitStack() as stack:
        fd = os.open(device, os.O_RDWR | os.O_DIRECT)
        stack.callback(os.close, fd)
        move = os.pwritev if write else os.preadv
        for offset in offsets:
            assert move(fd, [buffer], offset) == size


@contextmanager
def memory_cgroup(name: str, limit: int) -> Iterator[Path]:
    """Provide a cgroup whose processes have `limit` bytes of memory, swap included."""
    found = features.memory_cgroups()
    assert found
    directory = found.root / name
    directory.mkdir()
    try:
        (directory / found.limit).write_text(str(limit))
        with suppress(FileNotFoundError):  # a kernel without swap accounting
            (directory / found.swap_limit[0]).write_text(found.swap_limit[1].format(limit=limit))
        yield directory
    finally:
        for pid in (directory / "cgroup.procs").read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        wait_for(lambda: _removed(directory), f"the end of {directory}")


def _removed(directory: Path) -> bool:
    """Remove a cgroup when the block ends, unless it is in use."""
    with suppress(OSError):
        directory.rmdir()
    return not directory.exists()


@contextmanager
def eater(
    cgroup: Path, name: str, size: int, *, score: int = 0
) -> Iterator[subprocess.Popen[str]]:
    """Provide a process that takes so much memory in a cgroup, prints `ate`, and waits for a line.

    `score` is its oom_score_adj: of 1000 it is the first to go.
    """
    command: list[str | Path] = [sys.executable, "-c", _EATER, cgroup, name, str(score), str(size)]
    with _process(command) as process:
        yield process


@contextmanager
def _process(command: Sequence[str | Path]) -> Iterator[subprocess.Popen[str]]:
    """Provide a process that ends with the block, whatever happens there."""
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def mapped_address(address: str) -> str:
    """Return an address as events have it: 16 bytes in hex, IPv4 mapped into IPv6."""
    parsed = ip_address(address)
    wide = parsed if isinstance(parsed, IPv6Address) else IPv6Address(f"::ffff:{parsed}")
    return wide.packed.hex()
