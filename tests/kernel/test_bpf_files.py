# SPDX-License-Identifier: Apache-2.0
"""The program that tells of slow files finds exactly the system calls that were made."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.support.bpf_counts import program
from tests.support.bpf_load import check_found, events_of, own_comm, table_of
from tests.support.recording import check_balance, recording

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    from tests.support.perf_tools import Perf
    from tests.support.recording import Start

    Run = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = [pytest.mark.usefixtures("tracefs", "bcc", "btf"), pytest.mark.beside]

TIMES: Final = 20
NAME: Final = "slow\x1b[2J"
HARMLESS: Final = r"slow\x1b[2J"


def _use(path: Path) -> list[tuple[str, int, int]]:
    """Write, sync and read a file in all ways; returns operation, bytes asked for, and result."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    read_only = os.open(path, os.O_RDONLY)
    caused = []
    try:
        for _ in range(TIMES):
            os.fsync(fd)
            os.fdatasync(fd)
            caused += [
                ("write", 5, os.write(fd, b"12345")),
                ("write", 3, os.pwrite(fd, b"123", 5)),
                ("write", 0, os.writev(fd, [b"1", b"23"])),
                ("write", 0, os.pwritev(fd, [b"1", b"23"], 0)),
                ("sync", 0, 0),
                ("sync", 0, 0),
                ("read", 4, len(os.read(read_only, 4))),
                ("read", 100, len(os.pread(fd, 100, 2 * 1024 * 1024))),
                ("read", 0, os.readv(read_only, [bytearray(2), bytearray(1)])),
                ("read", 0, os.preadv(fd, [bytearray(2), bytearray(1)], 0)),
            ]
            with pytest.raises(OSError, match="Bad file"):
                os.write(read_only, b"12")
            caused.append(("write", 2, -errno.EBADF))
    finally:
        os.close(fd)
        os.close(read_only)
    return caused


def test_files_that_are_used(start_cli: Start, run_cli: Run, tmp_path: Path, perf: Perf) -> None:
    """From 0 ns on each call has its file, its bytes and its time; what is no file has none."""
    path = tmp_path / NAME
    reader, writer = os.pipe()
    words = program("fileslower", pid=os.getpid(), min_time="0ns")
    with recording(start_cli, tmp_path, *words) as running:
        caused = _use(path)
        os.write(writer, b"not a file")
        os.read(reader, 10)
    os.close(reader)
    os.close(writer)
    check_balance(running.session, (perf,))
    inode = path.stat().st_ino
    events = events_of(run_cli, running.session)
    ours = [event for event in events if event["inode"] == inode]
    found = [(event["operation"], event["asked"], event["result"]) for event in ours]
    check_found(running.session, found, caused)
    assert {(e["name"], e["pid"], e["comm"], e["uid"]) for e in ours} == {
        (NAME, os.getpid(), own_comm(), os.getuid())
    }
    assert all(event["latency_ns"] > 0 for event in ours)
    number = path.stat().st_dev
    assert {event["dev"] for event in ours} == {os.major(number) << 20 | os.minor(number)}
    assert 10 not in {event["asked"] for event in events if event["inode"] != inode}
    table = table_of(run_cli, running.session)
    assert all(line.isprintable() for line in table.split("\n"))
    assert f"  {HARMLESS}\n" in table


@pytest.mark.parametrize("filters", [{"min_time": "1h"}, {"filesystem": "nosuchfs"}])
def test_what_is_not_wanted(
    start_cli: Start, run_cli: Run, tmp_path: Path, *, perf: Perf, filters: dict[str, str]
) -> None:
    """The kernel leaves out what took less time, and files of other file systems."""
    given: dict[str, int | str] = {"pid": os.getpid(), "min_time": "0ns", **filters}
    words = program("fileslower", **given)
    with recording(start_cli, tmp_path, *words) as running:
        _use(tmp_path / NAME)
    check_balance(running.session, (perf,))
    assert not events_of(run_cli, running.session)


def test_one_file_system(start_cli: Start, run_cli: Run, tmp_path: Path, perf: Perf) -> None:
    """Files of the wanted type of file system are all there."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    below = [mount for mount in mounts if tmp_path.is_relative_to(mount[1])]
    kind = max(below, key=lambda mount: len(mount[1]))[2]
    words = program("fileslower", pid=os.getpid(), min_time="0ns", filesystem=kind)
    with recording(start_cli, tmp_path, *words) as running:
        caused = _use(tmp_path / NAME)
    check_balance(running.session, (perf,))
    events = events_of(run_cli, running.session)
    assert {event["filesystem"] for event in events} == {kind}
    found = [(e["operation"], e["asked"], e["result"]) for e in events if e["name"] == NAME]
    check_found(running.session, found, caused)
