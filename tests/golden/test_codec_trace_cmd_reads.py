# SPDX-License-Identifier: Apache-2.0
"""Files built by the codec, read by the stock trace-cmd: the distribution's, and 3.3."""

from __future__ import annotations

import os
import shutil
import struct
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from collectord.codec.ftrace_page import Walk
from collectord.codec.trace_dat import FIRST_BYTES, build_head, head_bytes, parse_head
from collectord.codec.trace_dat_head import Metadata
from tests.support.ftrace_pages import discarded, event, page, time_extend, time_stamp

if TYPE_CHECKING:
    from collections.abc import Sequence

    from collectord.codec.trace_dat_head import Head, Patch
    from tests.support.trace_cmds import TraceCmd

KERNEL: Final = Path(__file__).parent / "kernel-6.18"
GETPPID_ID: Final = 305
PRINT_ID: Final = 5
MIB: Final = 1 << 20
METADATA: Final = Metadata(
    header_page=(KERNEL / "header_page").read_bytes(),
    header_event=(KERNEL / "header_event").read_bytes(),
    events={
        "syscalls": [(KERNEL / "sys_enter_getppid.format").read_bytes()],
        "raw_syscalls": [(KERNEL / f"{n}.format").read_bytes() for n in ("sys_enter", "sys_exit")],
    },
    ftrace_events=[(KERNEL / "print.format").read_bytes()],
    uname="Linux host 6.18",
    version="collectord test",
)
LARGE: Final = replace(METADATA, header_page=(KERNEL / "header_page-64KiB").read_bytes())


def _getppid(delta: int = 1000, pid: int = 42) -> bytes:
    return event(struct.pack("<HBBii", GETPPID_ID, 0, 0, pid, 110), delta)


def _mark(text: bytes) -> bytes:
    return event(struct.pack("<HBBiQ", PRINT_ID, 0, 0, 42, 0) + text + b"\n\0", 1000)


class File:
    """A file on disk that is written as a segment is: the head and the length, then in place."""

    def __init__(self, path: Path, head: Head) -> None:
        self.path, self.head = path, head
        path.write_bytes(head.image)
        os.truncate(path, head.file_bytes)

    def write(self, offset: int, data: bytes) -> None:
        """Write in place."""
        with self.path.open("r+b", buffering=0) as out:
            out.seek(offset)
            out.write(data)

    def patch(self, patch: Patch) -> None:
        """Write what the head gave."""
        self.write(patch.offset, patch.data)

    def put(self, cpu: int, pages: Sequence[bytes], at: int = 0) -> int:
        """Write pages behind the first `at` bytes of a CPU; returns where they end."""
        data = b"".join(pages)
        self.write(self.head.extents[cpu].offset + at, data)
        return at + len(data)


@pytest.mark.parametrize("metadata", [METADATA, LARGE], ids=["4KiB", "64KiB"])
def test_every_instant(
    trace_cmds: tuple[TraceCmd, ...], metadata: Metadata, tmp_path: Path
) -> None:
    """The file opens after each single write, and shows what is claimed by then."""
    head = build_head(metadata, (0, 1), MIB)
    file = File(tmp_path / "trace.dat", head)
    step = head.sub_buffer_bytes
    partial = page(5000, _getppid(), size_bytes=step)
    grown = page(5000, _getppid(), _getppid(), _getppid(), size_bytes=step)

    def shows(count: int) -> None:
        for tool in trace_cmds:
            assert len(tool.report(file.path)) == count, tool.version

    shows(0)
    end = file.put(0, [partial])
    shows(0)
    file.patch(head.size_patch(0, end))
    shows(1)
    file.put(0, [grown])
    shows(3)
    end = file.put(0, [page(9000, _mark(b"hello"), size_bytes=step)], end)
    shows(3)
    file.patch(head.sizes_patch({0: end}))
    shows(4)
    # pages that are claimed and not written yet are empty
    file.patch(head.sizes_patch({0: end, 1: 4 * step}))
    shows(4)
    file.put(1, [page(7000, _getppid(), size_bytes=step)], 2 * step)
    shows(5)
    file.patch(head.cpustat_patch(1, "CPU: 1\nlost: 5\n"))
    file.patch(head.cmdlines_patch([(42, b"a task"), (1, b"")]))
    for tool in trace_cmds:
        lines = tool.report(file.path)
        assert len(lines) == 5
        assert all("a task-42" in line for line in lines)
        assert sum("print: " in line and "hello" in line for line in lines) == 1
        assert sum("sys_enter_getppid" in line for line in lines) == 4
        stat = tool.stat(file.path)
        assert "CPU: 0\n" in stat
        assert "CPU: 1\nlost: 5\n" in stat
        assert "collectord test" in tool.run("report", "--version", "-i", file.path).stdout
        assert "Linux host 6.18" in tool.run("report", "--uname", "-i", file.path).stdout


def test_copies_taken_meanwhile(trace_cmds: tuple[TraceCmd, ...], tmp_path: Path) -> None:
    """A copy that is taken while pages are written shows what was claimed before it, or more."""
    head = build_head(METADATA, (0, 1), 4 * MIB)
    file = File(tmp_path / "trace.dat", head)
    claimed = 0
    enough = threading.Event()

    def write() -> None:
        nonlocal claimed
        for index in range(1024):
            for cpu in (0, 1):
                file.put(cpu, [page(10_000 * index, _getppid())], index * 4096)
            file.patch(head.sizes_patch(dict.fromkeys((0, 1), (index + 1) * 4096)))
            claimed = 2 * (index + 1)
            if enough.is_set():
                return

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for tool in 3 * trace_cmds:
            before = claimed
            copy = shutil.copyfile(file.path, tmp_path / "copy.dat")
            assert before <= len(tool.report(copy)) <= claimed + 2
    finally:
        enough.set()
        writer.join()


def test_loss_and_time(trace_cmds: tuple[TraceCmd, ...], tmp_path: Path) -> None:
    """Losses are told with their number or without, and stamps are those of our own walk."""
    head = build_head(METADATA, (0, 2), MIB)
    file = File(tmp_path / "trace.dat", head)
    long = (_getppid(), discarded(12, 500), time_extend(1 << 33), _getppid(7))
    absolute = (_getppid(), time_stamp(20 * 10**9), _getppid(9))
    pages = [
        page(10**9, *long),
        page(11 * 10**9, _getppid(), lost=7),
        page(12 * 10**9, *absolute, lost=None, sign_extended=True),
        page(21 * 10**9, _getppid(), lost=9, sign_extended=True),
    ]
    file.patch(head.size_patch(2, file.put(2, pages)))
    stamps = [one.timestamp_ns for built in pages for one in Walk(built)]
    for tool in trace_cmds:
        assert tool.losses(file.path) == [(2, 7), (2, None), (2, 9)]
        lines = tool.report(file.path, "-t")
        assert len(lines) == len(stamps) == 6
        for line, stamp in zip(lines, stamps, strict=True):
            assert f" {stamp // 10**9}.{stamp % 10**9:09}: " in line
            assert "[002]" in line


def test_pages_of_the_kernel(trace_cmds: tuple[TraceCmd, ...], tmp_path: Path) -> None:
    """trace-cmd finds in captured pages as many events, and the loss, that our walk finds."""
    head = build_head(METADATA, (0,), MIB)
    file = File(tmp_path / "trace.dat", head)
    pages = [(KERNEL / f"{name}.page").read_bytes() for name in ("sys_enter", "sys_exit")]
    file.patch(head.size_patch(0, file.put(0, pages)))
    walks = [Walk(raw) for raw in pages]
    count = sum(len(list(walk)) for walk in walks)
    for tool in trace_cmds:
        assert len(tool.report(file.path)) == count == 205
        assert tool.losses(file.path) == [(0, None), (0, 1595)]


def test_clock(trace_cmds: tuple[TraceCmd, ...], tmp_path: Path) -> None:
    """Stamps of a clock that does not count nanoseconds are shown as they are."""
    head = build_head(replace(METADATA, clock="counter"), (0,), MIB)
    file = File(tmp_path / "trace.dat", head)
    file.patch(head.size_patch(0, file.put(0, [page(5_000_000_000, _getppid(1))])))
    for tool in trace_cmds:
        (line,) = tool.report(file.path)
        assert " 5000000001: sys_enter_getppid" in line


def test_256_cpus(trace_cmds: tuple[TraceCmd, ...], tmp_path: Path) -> None:
    """A file for 256 CPUs is sparse, and opens whether all, few or none of them claim pages."""
    head = build_head(METADATA, range(256), 64 * MIB)
    file = File(tmp_path / "trace.dat", head)
    assert file.path.stat().st_size == head.file_bytes > 16 << 30
    assert file.path.stat().st_blocks * 512 < 2 * MIB
    for cpu in range(256):
        file.put(cpu, [page(1000 + cpu, _getppid())])
    for claimed in (range(0), range(7, 9), range(256)):
        file.patch(head.sizes_patch(dict.fromkeys(claimed, 4096)))
        for tool in trace_cmds:
            assert len(tool.report(file.path)) == len(claimed)


def test_cut_file(trace_cmds: tuple[TraceCmd, ...], tmp_path: Path) -> None:
    """A file that was cut opens again once it has its length back, with what is left."""
    head = build_head(METADATA, (0, 1), MIB)
    file = File(tmp_path / "trace.dat", head)
    for cpu in (0, 1):
        file.put(cpu, [page(1000 * index, _getppid()) for index in range(1, 5)])
    file.patch(head.sizes_patch({0: 4 * 4096, 1: 4 * 4096}))
    for cut, left in (
        (head.extents[1].offset + 4 * 4096, 8),
        (head.extents[1].offset + 4096, 5),
        (head.extents[0].offset + 2 * 4096, 2),
        (head.extents[0].offset, 0),
    ):
        os.truncate(file.path, cut)
        data = file.path.read_bytes()
        known = parse_head(data[: head_bytes(data[:FIRST_BYTES])])
        assert known.file_bytes == head.file_bytes
        os.truncate(file.path, known.file_bytes)
        for tool in trace_cmds:
            assert len(tool.report(file.path)) == left


def test_sections_have_names(trace_cmds: tuple[TraceCmd, ...], tmp_path: Path) -> None:
    """`trace-cmd dump` finds every section by its header, and nothing else in the file."""
    file = File(tmp_path / "trace.dat", build_head(METADATA, (0, 1), MIB))
    for tool in trace_cmds:
        done = tool.run("dump", "--summary", "-i", file.path)
        assert (done.returncode, done.stderr) == (0, "")
        for said in (
            '[buffer "", "mono" clock, 4096 page size, 2 cpus, 0 bytes flyrecord data]',
            "[Saved command lines, 262144 bytes]",
            "[Events format, 2 systems]",
            "[Ftrace format, 1 events]",
            "[9 sections]",
        ):
            assert said in done.stdout, tool.version
