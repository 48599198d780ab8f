# SPDX-License-Identifier: Apache-2.0
"""The state of a host from a procfs of files: odd names, processes that end, no pressure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from collectord.config.pressure_limit import PressureLimit
from collectord.daemon.incidents.host_state import host_state
from collectord.errors import MissingFeature
from collectord.kernel.host.host_moment import oom_kills, read_moment
from collectord.kernel.host.pressure import open_limit, stalled_ns
from collectord.kernel.values.moment import Moment, ProcessReading

if TYPE_CHECKING:
    from pathlib import Path

LIMIT = PressureLimit.parse("io some 1s/2s")


def process(proc: Path, pid: int, comm: bytes, state: str = "S", ticks: int = 0) -> None:
    """Make the files of a process that has run for so many ticks, half of them in the kernel."""
    (proc / str(pid)).mkdir()
    fields = [state, *["0"] * 10, str(ticks // 2), str(ticks - ticks // 2), *["0"] * 6, "77"]
    rest = " ".join([*fields, "4096", "3", *["0"] * 20])
    (proc / str(pid) / "stat").write_bytes(b"%d (%b) " % (pid, comm) + rest.encode())


def test_processes(tmp_path: Path) -> None:
    """A name may have anything, also what looks like the fields behind it."""
    process(tmp_path, 7, b"a) R 1 (\x1b[2J\xff", "D", ticks=150)
    process(tmp_path, 8, b"", "Z")
    (tmp_path / "9").mkdir()  # it has ended since the list was made
    (tmp_path / "net").mkdir()
    (tmp_path / "loadavg").write_text("1.50 2.25 3.00 4/567 890\n")
    moment = read_moment(tmp_path)
    assert (moment.load, moment.running, moment.threads) == ((1.5, 2.25, 3.0), 4, 567)
    assert [(one.pid, one.comm, one.state) for one in moment.processes] == [
        (7, "a) R 1 (\x1b[2J\udcff", "D"),
        (8, "", "Z"),
    ]
    assert (moment.processes[0].cpu_ns, moment.processes[0].started_ticks) == (1_500_000_000, 77)
    assert moment.processes[0].resident_bytes == 3 * 4096
    assert moment.pressures == ()


def test_pressure(tmp_path: Path) -> None:
    """All lines that there are; a limit has the total of its own."""
    (tmp_path / "pressure").mkdir()
    (tmp_path / "pressure/io").write_text(
        "some avg10=1.50 avg60=0.25 avg300=0.00 total=7000\n"
        "full avg10=0.00 avg60=0.00 avg300=0.00 total=30\n"
    )
    moment = read_moment(tmp_path)
    assert [(one.resource, one.share, one.avg10, one.total_ns) for one in moment.pressures] == [
        ("io", "some", 1.5, 7_000_000),
        ("io", "full", 0.0, 30_000),
    ]
    assert stalled_ns(LIMIT, tmp_path) == 7_000_000
    with pytest.raises(MissingFeature, match="does not count memory full"):
        stalled_ns(PressureLimit.parse("memory full 1s/2s"), tmp_path)


def test_a_kernel_without_pressure(tmp_path: Path) -> None:
    """It is a feature that is missing, and what turns it on is said."""
    with pytest.raises(MissingFeature, match="psi=1"):
        open_limit(LIMIT, tmp_path)


def test_devices_with_requests(tmp_path: Path) -> None:
    """The fullest come first; one without requests is left out, as is what is no such line."""
    lines = (
        " 254       0 vda 9 8 7 6 5 4 3 2 0 1 1 0 0 0 0 0 0",
        "   7       1 loop1 1 0 8 0 2 0 16 9 1 5000 5000 0 0 0 0 0 0",
        " 259       3 nvme0n1p1 1 0 8 0 2 0 16 9 12 5 5",
        "rubbish",
    )
    (tmp_path / "diskstats").write_text("\n".join(lines))
    moment = read_moment(tmp_path)
    told = host_state(moment, moment)
    assert [(one["number"], one["name"], one["in_flight"]) for one in told["devices"]] == [
        ("259:3", "nvme0n1p1", 12),
        ("7:1", "loop1", 1),
    ]


def test_oom_kills(tmp_path: Path) -> None:
    """A kernel that does not count them is no kernel that kills none."""
    assert oom_kills(tmp_path) is None
    (tmp_path / "vmstat").write_text("pgfault 1\nnr_oom_kill 9\noom_kill 41\noom_kill_x 2\n")
    assert oom_kills(tmp_path) == 41


def reading(pid: int, cpu_ns: int, *, state: str = "S", began: int = 1) -> ProcessReading:
    """Return a process that has taken so much processor time."""
    return ProcessReading(pid, f"p{pid}", state, cpu_ns, began, pid << 20)


def moment_of(at_ns: int, *processes: ProcessReading) -> Moment:
    """Return a host with these processes."""
    return Moment(at_ns, at_ns, (0.0,), 0, 0, (), processes, 2)


def test_what_stands_out() -> None:
    """By the time between two readings; a process with the id of another has its own time."""
    first = moment_of(
        1000, reading(1, 900), reading(2, 100, state="D"), reading(3, 5000), reading(4, 0)
    )
    second = moment_of(
        3000, reading(1, 950), reading(2, 300), reading(3, 20, began=9), reading(5, 70, state="R")
    )
    told = host_state(first, second)
    assert told["interval_ns"] == 2000
    assert [(one["pid"], one["cpu_ns"]) for one in told["busiest"]] == [
        *((2, 200), (5, 70), (1, 50), (3, 20)),
    ]
    assert [one["pid"] for one in told["blocked"]] == [2]
    assert [one["pid"] for one in told["largest"]] == [5, 3, 2, 1]
    assert told["runnable"] == []
    assert (told["processes"], told["left_out"]) == (6, 2)
