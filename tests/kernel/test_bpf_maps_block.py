# SPDX-License-Identifier: Apache-2.0
"""The program that counts block requests finds exactly those that were made, by device."""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.support import bpf_load, segments
from tests.support.bpf_counts import (
    DEVICE,
    IN_FLIGHT,
    OPERATION,
    counting,
    program,
    requests,
    total,
    unprobed,
)
from tests.support.bpf_load import request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.bpf_counts import Counted, Start

    Require = Callable[[str], None]

pytestmark = [pytest.mark.usefixtures("tracefs", "bcc"), pytest.mark.beside]

BLOCK: Final = 4096
DISK_BYTES: Final = 16 << 20
READS: Final = 1000
WRITES: Final = 500
THREADS: Final = 8
TIMES: Final = 20
BLKDISCARD: Final = 0x1277
PROGRAM: Final = "biolatency"
# Some hosts issue or complete a request now and then without telling tracepoints.
UNSEEN_MAX: Final = 5


@contextmanager
def _disk(image: Path) -> Iterator[Path]:
    """Provide a block device that nobody else touches."""
    with bpf_load.loop_device(image, DISK_BYTES) as device, unprobed(device):
        yield device


def _number(device: Path) -> int:
    """Return a device number in the kernel's format: 12 bits and 20."""
    number = device.stat().st_rdev
    return os.major(number) << 20 | os.minor(number)


def _of(counted: Counted, device: Path) -> dict[str, dict[str, Any]]:
    """Return the totals of a device by operation, as the histogram has them too."""
    latency, _, totals, _ = counted.answers(PROGRAM)
    rows = {r["operation"]: r for r in totals["rows"] if r["device"] == _number(device)}
    slots = {
        section["by"][OPERATION]: total(section)
        for section in latency["sections"]
        if section["by"][DEVICE] == device.name
    }
    assert slots == {operation: row["requests"] for operation, row in rows.items()}
    return rows


def _depth(counted: Counted, device: Path) -> Counter[int]:
    """Return the queue depths of a device at issue, with their frequencies."""
    depth = counted.answers(PROGRAM)[1]
    (section,) = (s for s in depth["sections"] if s["by"] == {DEVICE: device.name})
    assert all(slot["low"] == slot["high"] for slot in section["slots"])
    return Counter({slot["low"]: slot["count"] for slot in section["slots"]})


def _not_counted(counted: Counted) -> dict[str, int]:
    (row,) = counted.answers(PROGRAM)[3]["rows"]
    return dict(row)


def _recursion(counted: Counted) -> int:
    """Return the runs that the kernel left out and counted."""
    return sum(
        function["recursion_misses"]
        for one in counted.session["programs"]
        for function in one["functions"]
    )


def _check_seen(counted: Counted, found: Counter[str], caused: Counter[str]) -> None:
    """Assert that what was caused is there but for what no program was told of."""
    missing = (caused - found).total()
    assert not found - caused
    assert missing <= UNSEEN_MAX + _recursion(counted), f"missing: {caused - found}"


def _check(counted: Counted, device: Path, **caused: int) -> None:
    """Assert that a device had so many requests of each operation, and no others."""
    rows = _of(counted, device)
    found = Counter({operation: row["requests"] for operation, row in rows.items()})
    _check_seen(counted, found, Counter(caused))
    issued = Counter({"any": _depth(counted, device).total()})
    _check_seen(counted, issued, Counter({"any": sum(caused.values())}))
    assert not any(row["errors"] for row in rows.values())
    assert all(row["ns"] > 0 for row in rows.values())
    left = _not_counted(counted)
    assert left["untracked"] == left["unrecorded"] == 0  # other devices may have unmatched ones


def _of_others(device: Path, before: dict[str, Counter[str]]) -> int:
    """Return how many requests other devices may have begun or completed since `before`."""
    now = requests()
    return sum(
        counts.total() - before[name].total() + before[name][IN_FLIGHT]
        for name, counts in now.items()
        if name != device.name
    )


@pytest.mark.parametrize("queued", ["false", "true"])
def test_requests(start_cli: Start, tmp_path: Path, *, require: Require, queued: str) -> None:
    """Each read and write, its size, and that it was alone; with the time in queues or without."""
    require("loop devices")
    with _disk(tmp_path / "image") as device:
        words = program(PROGRAM, queued=queued)
        with counting(start_cli, tmp_path, *words, "--json") as counted:
            request(device, range(0, READS * BLOCK, BLOCK), BLOCK, write=False)
            request(device, range(0, WRITES * BLOCK, BLOCK), BLOCK, write=True)
        _check(counted, device, read=READS, write=WRITES)
        for row in _of(counted, device).values():
            assert row["bytes"] == row["requests"] * BLOCK
        # One that was not seen to complete is there until its memory is used again.
        assert set(_depth(counted, device)) <= set(range(1, UNSEEN_MAX + 2))


@pytest.mark.parametrize("queued", ["false", "true"])
def test_requests_at_the_same_sector(
    start_cli: Start, tmp_path: Path, *, require: Require, queued: str
) -> None:
    """Several threads at once: each of their requests is one."""
    require("loop devices")
    with _disk(tmp_path / "image") as device:
        words = program(PROGRAM, queued=queued)
        with counting(start_cli, tmp_path, *words, "--json") as counted:
            _read_at_once(device)
        _check(counted, device, read=THREADS * TIMES)


def _read_at_once(device: Path, times: int = TIMES) -> None:
    """Let THREADS threads read the same block so often each."""
    with ThreadPoolExecutor(THREADS) as pool:
        made = [
            pool.submit(request, device, [0] * times, BLOCK, write=False) for _ in range(THREADS)
        ]
        for one in made:
            one.result()


def test_other_operations(start_cli: Start, tmp_path: Path, require: Require) -> None:
    """Discards, flushes, and writes that each bring a flush with them."""
    require("loop devices")
    with ExitStack() as stack:
        directory = stack.enter_context(segments.mounted("tmpfs", tmp_path / "quiet", "size=32m"))
        device = stack.enter_context(_disk(directory / "image"))
        fd = os.open(device, os.O_RDWR | os.O_DIRECT | os.O_DSYNC)
        stack.callback(os.close, fd)
        block = stack.enter_context(mmap.mmap(-1, BLOCK))
        with counting(start_cli, tmp_path, *program(PROGRAM), "--json") as counted:
            before = requests()
            for number in range(READS):
                fcntl.ioctl(fd, BLKDISCARD, struct.pack("=QQ", number * BLOCK, BLOCK))
                os.fsync(fd)
                os.pwritev(fd, [block], number * BLOCK)
            flushes = requests()[device.name]["flush"] - before[device.name]["flush"]
            others = _of_others(device, before)
        assert flushes >= 2 * READS
        _check(counted, device, discard=READS, write=READS, flush=flushes)
        assert _of(counted, device)["flush"]["bytes"] == 0
    # The second completion of a write that waited for its flush is none that is not known.
    assert _not_counted(counted)["unmatched"] <= others + UNSEEN_MAX


@pytest.mark.parametrize("queued", ["false", "true"])
def test_two_devices(start_cli: Start, tmp_path: Path, *, require: Require, queued: str) -> None:
    """Each is counted by itself; with `major` and `minor`, only that one."""
    require("loop devices")
    with _disk(tmp_path / "one") as one, _disk(tmp_path / "other") as other:
        number = one.stat().st_rdev
        for arguments in ({}, {"major": os.major(number), "minor": os.minor(number)}):
            words = program(PROGRAM, queued=queued, **arguments)
            with counting(start_cli, tmp_path, *words, "--json") as counted:
                request(one, [0] * READS, BLOCK, write=False)
                request(other, [0] * WRITES, 2 * BLOCK, write=True)
            _check(counted, one, read=READS)
            if arguments:
                for answer in counted.answers(PROGRAM)[:2]:
                    assert {s["by"][DEVICE] for s in answer["sections"]} == {one.name}
                (row,) = counted.answers(PROGRAM)[2]["rows"]
                assert row["device"] == _number(one)
            else:
                _check(counted, other, write=WRITES)


def test_more_requests_than_are_followed(
    start_cli: Start, tmp_path: Path, require: Require
) -> None:
    """Each is counted, or is issued without being followed and completes as unknown.

    There is more than one place: a request of another disk that is not seen to complete keeps its
    own until its memory is used again.
    """
    require("loop devices")
    with _disk(tmp_path / "image") as device:
        before = requests()
        words = program(PROGRAM, max_requests=THREADS // 2)
        with counting(start_cli, tmp_path, *words, "--json") as counted:
            _read_at_once(device, READS)
        others = _of_others(device, before)
        read = _of(counted, device)["read"]["requests"]
    left = _not_counted(counted)
    assert left["untracked"] > 0
    unseen = UNSEEN_MAX + _recursion(counted)
    for name in ("untracked", "unmatched"):
        assert -unseen <= read + left[name] - THREADS * READS <= others + unseen, (read, left)


def test_requests_that_fail(start_cli: Start, tmp_path: Path, require: Require) -> None:
    """They are counted beside successful ones."""
    require("loop devices")
    with (
        segments.mounted("tmpfs", tmp_path / "small", "size=64k") as directory,
        _disk(directory / "image") as device,
    ):
        with counting(start_cli, tmp_path, *program(PROGRAM), "--json") as counted:
            request(device, [0], BLOCK, write=True)
            segments.fill_disk(directory)
            for _ in range(TIMES):
                with pytest.raises(OSError, match=r"space|error"):
                    request(device, [DISK_BYTES // 2], BLOCK, write=True)
        rows = _of(counted, device)
    found = Counter(requests=rows["write"]["requests"], errors=rows["write"]["errors"])
    _check_seen(counted, found, Counter(requests=TIMES + 1, errors=TIMES))
    assert set(rows) == {"write"}
