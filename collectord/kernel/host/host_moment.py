# SPDX-License-Identifier: Apache-2.0
"""The state of the host now, from procfs: load, pressure and processes."""

from __future__ import annotations

import mmap
import os
import re
import time
from itertools import islice
from typing import TYPE_CHECKING, Final

from collectord.kernel.host import process_traits
from collectord.kernel.host.pressure import read_pressures
from collectord.kernel.values.moment import DeviceReading, Moment, ProcessReading
from collectord.text.units import NS_PER_SECOND

if TYPE_CHECKING:
    from pathlib import Path

# Some hundred milliseconds of reading.
_PROCESSES_MAX: Final = 32_768
_OOM_KILL: Final = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)
_LOAD: Final = re.compile(r"([\d.]+) ([\d.]+) ([\d.]+) (\d+)/(\d+)")
# The ninth figure is of requests in flight (Documentation/admin-guide/iostats.rst).
_DEVICE: Final = re.compile(r"^ *(\d+) +(\d+) (\S+)(?: \d+){8} (\d+)", re.MULTILINE)
# Fields of `stat` behind the name (proc_pid_stat(5), less 3).
_STATE, _USER, _SYSTEM, _START, _RESIDENT = 0, 11, 12, 19, 21


def read_moment(proc: Path) -> Moment:
    """See `Kernel.moment`."""
    realtime_ns, monotonic_ns = time.time_ns(), time.monotonic_ns()
    load = _LOAD.match(_text(proc / "loadavg"))
    pids = process_traits.running(proc)
    found = (_process(pid, proc) for pid in islice(pids, _PROCESSES_MAX))
    return Moment(
        realtime_ns=realtime_ns,
        monotonic_ns=monotonic_ns,
        load=tuple(float(load[number]) for number in (1, 2, 3)) if load else (),
        running=int(load[4]) if load else 0,
        threads=int(load[5]) if load else 0,
        pressures=read_pressures(proc),
        processes=tuple(one for one in found if one is not None),
        left_out=max(0, len(pids) - _PROCESSES_MAX),
        devices=_busy_devices(proc),
    )


def oom_kills(proc: Path) -> int | None:
    """See `Kernel.oom_kills`."""
    match = _OOM_KILL.search(_text(proc / "vmstat"))
    return int(match[1]) if match else None


def _busy_devices(proc: Path) -> tuple[DeviceReading, ...]:
    found = _DEVICE.findall(_text(proc / "diskstats"))
    return tuple(
        DeviceReading(f"{major}:{minor}", name, int(in_flight))
        for major, minor, name, in_flight in found
        if int(in_flight)
    )


def _process(pid: int, proc: Path) -> ProcessReading | None:
    """Read a process; None if it has ended, or may not be seen."""
    try:
        line = (proc / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    comm, fields = process_traits.name_and_fields(line)
    ticks = int(fields[_USER]) + int(fields[_SYSTEM])
    return ProcessReading(
        pid=pid,
        comm=comm,
        state=fields[_STATE].decode(),
        cpu_ns=ticks * NS_PER_SECOND // os.sysconf("SC_CLK_TCK"),
        started_ticks=int(fields[_START]),
        resident_bytes=int(fields[_RESIDENT]) * mmap.PAGESIZE,
    )


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
