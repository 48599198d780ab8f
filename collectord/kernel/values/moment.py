# SPDX-License-Identifier: Apache-2.0
"""The state of a host at a moment: load, pressure, and what its processes are doing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pressure:
    """A line of pressure stall information.

    Attributes:
        resource: such as "io".
        share: "some" or "full".
        avg10, avg60, avg300: percent of the last seconds.
        total_ns: since boot.
    """

    resource: str
    share: str
    avg10: float
    avg60: float
    avg300: float
    total_ns: int


@dataclass(frozen=True, slots=True)
class ProcessReading:
    """A process at a moment.

    Attributes:
        comm: the name that it has given itself, bytes that are not UTF-8 as surrogates.
        state: a letter, as ps shows it: R runs or may run, D waits and cannot be woken.
        cpu_ns: processor time of all its threads since it began.
        started_ticks: its start, which tells it from another of the same id.
        resident_bytes: memory.
    """

    pid: int
    comm: str
    state: str
    cpu_ns: int
    started_ticks: int
    resident_bytes: int


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """A block device that has requests at a moment.

    Attributes:
        number: MAJOR:MINOR, as records have it.
        name: as in /dev.
        in_flight: requests that were begun and have not ended.
    """

    number: str
    name: str
    in_flight: int


@dataclass(frozen=True, slots=True)
class Moment:
    """A reading of the whole host.

    Attributes:
        realtime_ns: UTC.
        load: the load averages of 1, 5 and 15 minutes; empty if they are unknown.
        running: threads that run or may run.
        threads: all threads.
        left_out: processes beyond the limit, which were not looked at.
        devices: those that have requests in flight.
    """

    realtime_ns: int
    monotonic_ns: int
    load: tuple[float, ...]
    running: int
    threads: int
    pressures: tuple[Pressure, ...]
    processes: tuple[ProcessReading, ...]
    left_out: int
    devices: tuple[DeviceReading, ...] = ()
