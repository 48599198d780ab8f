# SPDX-License-Identifier: Apache-2.0
"""Programs that count softirqs and interrupts find as many as the kernel counts itself."""

from __future__ import annotations

import os
import socket
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.support.bpf_counts import counting, program, total

if TYPE_CHECKING:
    from tests.support.bpf_counts import Counted, Start

pytestmark = [pytest.mark.usefixtures("tracefs", "bcc", "btf"), pytest.mark.beside]

PACKETS: Final = 500
WRITES: Final = 20
LOOPBACK: Final = "127.0.0.1"


def _softirqs() -> Counter[str]:
    """Return how often the kernel says that each softirq ran."""
    lines = Path("/proc/softirqs").read_text().splitlines()[1:]
    parts = (line.split() for line in lines)
    return Counter({name.rstrip(":"): sum(map(int, counts)) for name, *counts in parts})


def _interrupts() -> Counter[int]:
    """Return how often the kernel says that each numbered interrupt came, by number."""
    head, *lines = Path("/proc/interrupts").read_text().splitlines()
    cpus = len(head.split())
    parts = (line.split() for line in lines)
    return Counter(
        {
            int(name.rstrip(":")): sum(map(int, rest[:cpus]))
            for name, *rest in parts
            if name.rstrip(":").isdecimal()
        }
    )


def _check(counted: Counted, name: str, field: str, bounds: dict[int | str, range]) -> None:
    """Assert that rows are within what the kernel counted, and that histograms have the same."""
    histogram, table = counted.answers(name)
    for row in table["rows"]:
        assert row["times"] in bounds[row[field]], (row, bounds[row[field]])
        assert row["ns"] > 0
    assert sum(map(total, histogram["sections"])) == sum(row["times"] for row in table["rows"])


def test_softirqs(start_cli: Start, tmp_path: Path) -> None:
    """Packets to oneself make softirqs run; there are as many of each as the kernel counts."""
    names = list(_softirqs())
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        receiver.bind((LOOPBACK, 0))
        outer = _softirqs()
        with counting(start_cli, tmp_path, *program("softirqs"), "--json") as counted:
            inner = _softirqs()
            for _ in range(PACKETS):
                sender.sendto(b"x", receiver.getsockname())
                receiver.recv(1)
            inner_end = _softirqs()
        outer_end = _softirqs()
    least, most = inner_end - inner, outer_end - outer
    assert least["NET_RX"] >= PACKETS
    # One that runs when it is counted has begun, and may not have ended.
    cpus = os.sysconf("SC_NPROCESSORS_ONLN")
    bounds: dict[int | str, range] = {
        number: range(least[name] - cpus, most[name] + 1) for number, name in enumerate(names)
    }
    _check(counted, "softirqs", "number", bounds)
    (_, table) = counted.answers("softirqs")
    assert names.index("NET_RX") in {row["number"] for row in table["rows"]}


def test_interrupts(start_cli: Start, tmp_path: Path) -> None:
    """Writes make a disk interrupt; there are as many of each as the kernel counts."""
    outer = _interrupts()
    with counting(start_cli, tmp_path, *program("hardirqs"), "--json") as counted:
        inner = _interrupts()
        with (tmp_path / "written").open("wb") as file:
            for _ in range(WRITES):
                file.write(b"x" * 4096)
                file.flush()
                os.fsync(file.fileno())
        inner_end = _interrupts()
    outer_end = _interrupts()
    least, most = inner_end - inner, outer_end - outer
    assert least.total() > 0
    cpus = os.sysconf("SC_NPROCESSORS_ONLN")
    bounds: dict[int | str, range] = {
        number: range(least[number] - cpus, most[number] + 1) for number in outer_end
    }
    _check(counted, "hardirqs", "number", bounds)
    (_, table) = counted.answers("hardirqs")
    lines = Path("/proc/interrupts").read_text().splitlines()
    named = {line.split()[0].rstrip(":"): line for line in lines}
    assert all(row["name"] in named[str(row["number"])] for row in table["rows"])
    busiest = max(least, key=lambda number: least[number])
    assert busiest in {row["number"] for row in table["rows"]}


def test_one_interrupt(start_cli: Start, tmp_path: Path) -> None:
    """With `irq` the kernel leaves out all others."""
    before = _interrupts()
    busiest = max(before, key=lambda number: before[number])
    words = program("hardirqs", irq=busiest)
    with counting(start_cli, tmp_path, *words, "--json") as counted:
        inner = _interrupts()
        while not (_interrupts() - inner)[busiest]:
            with (tmp_path / "written").open("wb") as file:
                file.write(b"x")
                file.flush()
                os.fsync(file.fileno())
    (_, table) = counted.answers("hardirqs")
    assert {row["number"] for row in table["rows"]} == {busiest}
