# SPDX-License-Identifier: Apache-2.0
"""Events that a kernel counts, does not write and does not count as lost: `unaccounted` is those.

A sample may carry its event's count as it was then (PERF_SAMPLE_READ). With period 1 each count is
one more than the last; where one is missing, and nothing was lost, the kernel counted an event and
wrote no sample. Linux 6.18 as some hosted machines have it leaves
out what happens while a thread of one process runs that it shields.
"""

from __future__ import annotations

import mmap
import os
import struct
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

from collectord.codec.perf_attr import EventType, PerfEventAttr, ReadFormat, SampleType
from collectord.codec.tracepoint import Tracepoint
from collectord.kernel.linux import LinuxKernel
from tests.support.recording import recording

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.recording import Start

pytestmark = [pytest.mark.vm, pytest.mark.usefixtures("tracefs")]  # also with Linux 6.12

CONTEXT_SWITCHES: Final = 3  # PERF_COUNT_SW_CONTEXT_SWITCHES
RING_BYTES: Final = 8 << 20
HEAD_AT: Final = 1024
RECORD: Final = struct.Struct("<IHH")
SAMPLE: Final = 9
COUNT_AND_LOST: Final = struct.Struct("<QQ")
WRITES: Final = 300


class Counted(NamedTuple):
    """The kernel's counts of one CPU's event between two samples."""

    counted: int
    samples: int
    lost: int
    left_out: int


class Witness:
    """An event of the test's own on each CPU, whose samples carry its count."""

    def __init__(self, kernel: LinuxKernel, event: str, stack: ExitStack) -> None:
        config = CONTEXT_SWITCHES
        if ":" in event:
            config = kernel.tracefs.event_id(Tracepoint.parse(event))
        attr = PerfEventAttr(
            type=EventType.TRACEPOINT if ":" in event else EventType.SOFTWARE,
            config=config,
            sample_period=1,
            sample_type=SampleType.READ,
            read_format=ReadFormat.LOST,
            disabled=True,
        )
        self._kernel = kernel
        self._rings = []
        for cpu in kernel.online_cpus():
            fd = kernel.perf_event_open(attr, pid=-1, cpu=cpu)
            stack.callback(kernel.close, fd)
            ring = mmap.mmap(fd, mmap.PAGESIZE + RING_BYTES)
            stack.callback(ring.close)
            self._rings.append((fd, ring))
        for fd, _ in self._rings:
            kernel.enable(fd)

    def end(self) -> list[Counted]:
        """Stop, and compare the counts of all samples."""
        for fd, _ in self._rings:
            self._kernel.disable(fd)
        return [_counted(fd, ring) for fd, ring in self._rings]


def _counted(fd: int, ring: mmap.mmap) -> Counted:
    count, lost = COUNT_AND_LOST.unpack(os.read(fd, COUNT_AND_LOST.size))
    head = int.from_bytes(ring[HEAD_AT : HEAD_AT + 8], "little")
    assert head < RING_BYTES, "the ring is full"
    at = samples = left_out = last = 0
    while at < head:
        kind, _, size = RECORD.unpack_from(ring, mmap.PAGESIZE + at)
        if kind == SAMPLE:
            value, lost_then = COUNT_AND_LOST.unpack_from(ring, mmap.PAGESIZE + at + RECORD.size)
            assert (value > last, lost_then) == (True, 0)
            left_out += value - last - 1
            last = value
            samples += 1
        at += size
    return Counted(count, samples, lost, left_out + count - last)


@pytest.mark.parametrize("event", ["context-switches", "irq:irq_handler_entry"])
def test_what_is_unaccounted_the_kernel_left_out(
    event: str, start_cli: Start, tmp_path: Path
) -> None:
    """Another event's samples, of the same occurrences, prove that none of it was dropped here."""
    with ExitStack() as stack:
        witness = Witness(LinuxKernel(), event, stack)
        with recording(start_cli, tmp_path, "-a", "-e", event, "-c", "1") as record:
            fd = os.open(tmp_path / "load", os.O_WRONLY | os.O_CREAT)
            stack.callback(os.close, fd)
            for number in range(WRITES):
                os.pwrite(fd, bytes(4096), number * 4096)
                os.fdatasync(fd)
        seen = witness.end()
    for cpu in seen:
        assert cpu.lost == 0
        assert cpu.counted == cpu.samples + cpu.left_out
    session = record.session
    assert session["ledger_basis"] == "exact"
    assert session["produced"] > 0
    told = session["stored"] + sum(session["lost"].values()) + session["unaccounted"]
    assert session["produced"] == told
    assert 0 <= session["unaccounted"] <= sum(cpu.left_out for cpu in seen)
