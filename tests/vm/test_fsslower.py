# SPDX-License-Identifier: Apache-2.0
"""The program that times a file system's own functions finds exactly the calls that were made."""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections import Counter
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.support.bpf_counts import counting, program
from tests.support.bpf_load import check_found, events_of, own_comm, table_of
from tests.support.daemons import wait_for
from tests.support.disks import ext4, suspendable_ext4, suspended
from tests.support.recording import check_listed, recording

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator, Sequence

    from tests.support.perf_tools import Perf
    from tests.support.recording import Start

    Run = Callable[..., subprocess.CompletedProcess[str]]
    Fields = dict[str, Any]
    # Operation, bytes asked for, result, and place in the file.
    Call = tuple[str, int, int, int]

pytestmark = pytest.mark.usefixtures("tracefs", "bcc")

TIMES: Final = 20
DISK_BYTES: Final = 64 << 20
NAME: Final = "slow\x1b[2J"
BLOCK: Final = 4096
# No call is as slow by itself, however slow the machine is; the disk stands still for longer.
SLOW_S: Final = 4
HELD_S: Final = 5
# The kernel has room for so many returns of a function at once, or for two on each CPU.
ROOM_MIN: Final = 10
WITHOUT_ROOM: Final = 6
STATUS_MISSING: Final = 5


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Provide an ext4 that only this test uses."""
    with ext4(tmp_path / "disk", DISK_BYTES) as root:
        yield root


def _use(path: Path, times: int = TIMES) -> list[Call]:
    """Open, write, sync and read a file and a directory; returns the calls of the file system."""
    caused: list[Call] = []
    with ExitStack() as stack:

        def opened(where: Path, flags: int) -> int:
            fd = os.open(where, flags)
            stack.callback(os.close, fd)
            return fd

        fd = opened(path, os.O_RDWR | os.O_CREAT)
        appended = opened(path, os.O_WRONLY | os.O_APPEND)
        synced = opened(path, os.O_WRONLY | os.O_DSYNC)
        caused += [("open", 0, 0, 0)] * 3
        directory = opened(path.parent, os.O_RDONLY | os.O_DIRECTORY)  # not by this function
        for _ in range(times):
            os.ftruncate(fd, 10)
            os.fsync(fd)
            os.fdatasync(fd)
            os.fsync(directory)
            os.close(os.open(path, os.O_RDONLY))
            caused += [
                ("sync", 0, 0, 0),
                ("sync", 0, 0, 0),
                ("sync", 0, 0, 0),
                ("open", 0, 0, 0),
                ("write", 5, os.pwrite(fd, b"12345", 2), 2),
                ("write", 3, os.pwritev(fd, [b"1", b"23"], 4), 4),
                ("write", 4, os.write(appended, b"1234"), 10),
                # its sync is a call of its own, before it returns
                ("write", 6, os.pwrite(synced, b"123456", 1), 1),
                ("sync", 0, 0, 1),
                ("read", 4, len(os.pread(fd, 4, 3)), 3),
                ("read", 100, len(os.pread(fd, 100, 10)), 10),
                ("read", 3, os.preadv(fd, [bytearray(2), bytearray(1)], 0), 0),
                ("read", 8, len(os.pread(fd, 8, 1 << 20)), 1 << 20),
            ]
            # refused before it reaches the file system
            with pytest.raises(OSError, match="Bad file"):
                os.read(appended, 1)
    return caused


def _calls(events: Sequence[Fields]) -> list[Call]:
    return [(e["operation"], e["asked"], e["result"], e["offset"]) for e in events]


def _on(disk: Path, events: Sequence[Fields]) -> list[Fields]:
    """Return the events of files on a disk."""
    number = disk.stat().st_dev
    dev = os.major(number) << 20 | os.minor(number)
    return [event for event in events if event["dev"] == dev]


@pytest.mark.parametrize("transport", ["perf", "ringbuf"])
def test_files_that_are_used(  # noqa: PLR0917  # fixtures
    start_cli: Start, run_cli: Run, tmp_path: Path, disk: Path, perf: Perf, transport: str
) -> None:
    """From 0 ns on each call of the functions is there once, with its file, bytes and place."""
    path = disk / NAME
    words = program("fsslower", pid=os.getpid(), min_time="0ns")
    with recording(start_cli, tmp_path, *words, "--transport", transport) as running:
        caused = _use(path)
    session = running.session
    assert (session["ledger_basis"], session["unaccounted"]) == ("lost_only", None)
    check_listed(session, (perf,))
    ours = _on(disk, events_of(run_cli, session))
    check_found(session, _calls(ours), caused)
    assert {(e["pid"], e["tid"], e["comm"], e["uid"]) for e in ours} == {
        (os.getpid(), threading.get_native_id(), own_comm(), os.getuid())
    }
    assert {(e["filesystem"], e["name"]) for e in ours} == {("ext4", NAME), ("ext4", "/")}
    assert {e["inode"] for e in ours if e["name"] == NAME} == {path.stat().st_ino}
    assert all(event["latency_ns"] > 0 for event in ours)
    table = table_of(run_cli, session)
    assert all(line.isprintable() for line in table.split("\n"))
    assert r"  slow\x1b[2J" + "\n" in table


def test_what_is_not_wanted(start_cli: Start, run_cli: Run, tmp_path: Path, disk: Path) -> None:
    """The kernel leaves out what other threads do."""
    begin = threading.Event()
    caused: list[Call] = []

    def use() -> None:
        begin.wait()
        caused.extend(_use(disk / "theirs"))

    thread = threading.Thread(target=use)
    thread.start()
    try:
        assert thread.native_id is not None
        given: dict[str, int | str] = {"tid": thread.native_id, "comm": f"{own_comm()[:3]}*"}
        words = program("fsslower", min_time="0ns", **given)
        with recording(start_cli, tmp_path, *words) as running:
            _use(disk / "ours")
            begin.set()
            thread.join()
    finally:
        begin.set()
        thread.join()
    found = events_of(run_cli, running.session)
    assert {event["tid"] for event in found} == {thread.native_id}
    check_found(running.session, _calls(_on(disk, found)), caused)


class _SlowCalls:
    """Threads that each call the file system once, and of which those that read do so again."""

    def __init__(self, root: Path, readers: int, stack: ExitStack) -> None:
        self._again, self._turn = threading.Event(), threading.Lock()
        self._fds = {}
        for name, flags in (
            ("read", os.O_RDONLY | os.O_DIRECT),
            ("written", os.O_WRONLY | os.O_DIRECT),
            ("synced", os.O_WRONLY),
        ):
            (root / name).write_bytes(bytes(readers * BLOCK))
            self._fds[name] = os.open(root / name, flags)
            stack.callback(os.close, self._fds[name])
        os.sync()
        os.pwrite(self._fds["synced"], b"dirty", 0)
        self._pages = [stack.enter_context(mmap.mmap(-1, BLOCK)) for _ in range(readers)]
        actions: list[Callable[[], None]] = [self._write]
        actions.append(partial(os.fsync, self._fds["synced"]))
        actions += [partial(self._read_twice, number) for number in range(readers)]
        self._threads = [threading.Thread(target=action) for action in actions]
        stack.callback(self._again.set)

    def _read(self, number: int) -> None:
        assert os.preadv(self._fds["read"], [self._pages[number]], number * BLOCK) == BLOCK

    def _read_twice(self, number: int) -> None:
        self._read(number)
        self._again.wait()
        with self._turn:
            self._read(number)

    def _write(self) -> None:
        assert os.pwritev(self._fds["written"], [self._pages[0]], BLOCK) == BLOCK

    def begin(self) -> None:
        """Start them on a disk that stands still, and wait until all wait for it."""
        for thread in self._threads:
            thread.start()
        tids = [thread.native_id or 0 for thread in self._threads]
        wait_for(lambda: all(map(_sleeps, tids)), "calls that wait for the disk")

    def finish(self) -> None:
        """Let them end on a disk that works again: one read after the other."""
        self._again.set()
        for thread in self._threads:
            thread.join()


def _sleeps(tid: int) -> bool:
    """Return whether a thread of this process waits for a disk."""
    state = Path(f"/proc/self/task/{tid}/stat").read_text().rpartition(")")[2].split()[0]
    return state == "D"


def test_a_slow_disk(start_cli: Start, run_cli: Run, tmp_path: Path) -> None:
    """Only slow calls are told; of those whose return the kernel had no room for, the number."""
    possible = Path("/sys/devices/system/cpu/possible").read_text().rpartition("-")[2]
    readers = max(ROOM_MIN, 2 * (int(possible) + 1)) + WITHOUT_ROOM
    words = program("fsslower", pid=os.getpid(), min_time=f"{SLOW_S}s")
    words += ["--output-dir", str(tmp_path / "out"), "--json"]
    with ExitStack() as stack:
        root, device = stack.enter_context(suspendable_ext4(tmp_path / "disk", DISK_BYTES))
        slow = _SlowCalls(root, readers, stack)
        with counting(start_cli, tmp_path, *words) as counted:
            _use(root / "quick")
            with suspended(device):
                slow.begin()
                time.sleep(HELD_S)  # so slow are these calls
            slow.finish()
        events = _on(root, events_of(run_cli, counted.session))
    assert all(event["latency_ns"] >= SLOW_S * 1_000_000_000 for event in events)
    calls = Counter((e["operation"], e["result"], e["name"]) for e in events)
    seen = calls.pop(("read", BLOCK, "read"))
    assert calls == {("write", BLOCK, "written"): 1, ("sync", 0, "synced"): 1}
    (table,) = counted.answers("fsslower")
    (row,) = table["rows"]
    assert 0 < row["value"] == readers - seen


def test_a_file_system_that_is_not_here(run_cli: Run) -> None:
    """The error names the function, and that a module may have it."""
    assert "f2fs" not in Path("/proc/filesystems").read_text()
    done = run_cli("bpf", "check", "fsslower", "--bpf-arg", "filesystem=f2fs")
    assert done.returncode == STATUS_MISSING
    assert "no function f2fs_file_read_iter; one of a module" in done.stderr
