# SPDX-License-Identifier: Apache-2.0
"""The state of the host while an incident was made: two readings, and what lies between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from collectord.text.foreign import plain, plain_value

if TYPE_CHECKING:
    from collections.abc import Iterable

    from collectord.kernel.values.moment import DeviceReading, Moment, ProcessReading

_SHOWN: Final = 10
_DEVICES_SHOWN: Final = 20
_BLOCKED_SHOWN: Final = 20
_BLOCKED: Final = "D"
_RUNNING: Final = "R"


def host_state(first: Moment, second: Moment) -> dict[str, Any]:
    """Return plain data: load and pressure of the first reading, and the processes that stand out.

    Args:
        first: as the trigger fired, or its delay was over.
        second: a moment later; processor time is that between the two.
    """
    spent = _spent_ns(first, second)
    busiest = sorted(second.processes, key=lambda one: -spent.get(one.pid, 0))
    largest = sorted(second.processes, key=lambda one: -one.resident_bytes)
    return {
        "realtime_ns": first.realtime_ns,
        "monotonic_ns": first.monotonic_ns,
        "interval_ns": second.monotonic_ns - first.monotonic_ns,
        "load": list(first.load),
        "running_threads": first.running,
        "threads": first.threads,
        "processes": len(first.processes) + first.left_out,
        "left_out": first.left_out,
        "pressure": [plain(one) for one in first.pressures],
        "devices": [plain(one) for one in _fullest(first)],
        "busiest": _rows((one for one in busiest if spent.get(one.pid)), spent, _SHOWN),
        "blocked": _rows(_in_state(first, _BLOCKED), spent, _BLOCKED_SHOWN),
        "runnable": _rows(_in_state(first, _RUNNING), spent, _SHOWN),
        "largest": _rows((one for one in largest if one.resident_bytes), spent, _SHOWN),
    }


def _fullest(moment: Moment) -> list[DeviceReading]:
    return sorted(moment.devices, key=lambda one: -one.in_flight)[:_DEVICES_SHOWN]


def _in_state(moment: Moment, state: str) -> Iterable[ProcessReading]:
    return (one for one in moment.processes if one.state == state)


def _spent_ns(first: Moment, second: Moment) -> dict[int, int]:
    """Return the processor time of each process between two readings."""
    before = {(one.pid, one.started_ticks): one.cpu_ns for one in first.processes}
    return {
        one.pid: one.cpu_ns - before.get((one.pid, one.started_ticks), 0)
        for one in second.processes
    }


def _rows(
    processes: Iterable[ProcessReading], spent: dict[int, int], most: int
) -> list[dict[str, Any]]:
    return [
        {
            "pid": one.pid,
            "comm": one.comm,
            "state": one.state,
            "cpu_ns": plain_value(spent.get(one.pid, 0)),
            "resident_bytes": one.resident_bytes,
        }
        for one, _ in zip(processes, range(most), strict=False)
    ]
