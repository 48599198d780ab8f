# SPDX-License-Identifier: Apache-2.0
"""Read stage: records as Chrome's Trace Event Format, JSON that many viewers read.

What ran on a CPU are slices of a track for each CPU; each record is an instant of its thread. The
format has microseconds, which are written with three decimals.

The format: "Trace Event Format", Google, 2016.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from collectord.reader.event_tables import LOSSES
from collectord.reader.export_rows import LOSS_FIELDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from collectord.reader.export_rows import Row, TimeLine

_NS_PER_US: Final = 1000
# Numbers that no process has: of the tracks of CPUs, and of what was lost.
_CPUS: Final = 1 << 31
_LOST: Final = _CPUS + 1


def write_chrome(line: TimeLine, write: Callable[[bytes], object]) -> int:
    """Write records as one JSON document, and return their number. Raises CollectordError."""
    names = _Names()
    write(b'{"displayTimeUnit":"ns","otherData":')
    write(msgspec.json.encode({"utc_of_zero_ns": str(line.base_ns)}))
    write(b',"traceEvents":[\n')
    write(msgspec.json.encode(_name("process_name", _CPUS, None, "CPUs")))
    write(b",\n" + msgspec.json.encode(_name("process_name", _LOST, None, "lost records")))
    for event in (*_running(line), *_lost(line)):
        write(b",\n" + msgspec.json.encode(event))
    count = 0
    for name, system, row, values in line.records():
        for event in names.of(row):
            write(b",\n" + msgspec.json.encode(event))
        pid, tid = _task(row)
        instant = {"ph": "i", "s": "t", "name": name, "cat": system, "pid": pid, "tid": tid}
        shown = {"cpu": row.cpu, **{key: _shown(value) for key, value in values.items()}}
        write(b",\n" + msgspec.json.encode({**instant, "ts": _us(row.at_ns), "args": shown}))
        count += 1
    write(b"\n]}\n")
    return count


class _Names:
    """The names of threads, each told once for each that it has."""

    def __init__(self) -> None:
        self._told: set[tuple[int, int, str]] = set()

    def of(self, row: Row) -> Iterator[dict[str, Any]]:
        """Yield what names the thread of a record, if it is new."""
        pid, tid = _task(row)
        if row.comm is not None and (pid, tid, row.comm) not in self._told:
            self._told.add((pid, tid, row.comm))
            yield _name("thread_name", pid, tid, row.comm)


def _running(line: TimeLine) -> Iterator[dict[str, Any]]:
    """Yield a slice for each time that a thread ran, and the names of the CPUs' tracks."""
    cpus: set[int] = set()
    for at_ns, end_ns, cpu, tid, comm in line.running():
        if cpu not in cpus:
            cpus.add(cpu)
            yield _name("thread_name", _CPUS, cpu, f"CPU {cpu}")
        if end_ns is not None:
            where = {"ph": "X", "name": comm, "cat": "running", "pid": _CPUS, "tid": cpu}
            span = {"ts": _us(at_ns), "dur": _us(end_ns - at_ns)}
            yield {**where, **span, "args": {"tid": tid}}


def _lost(line: TimeLine) -> Iterator[dict[str, Any]]:
    for row in line.rows(line.tables[LOSSES], LOSS_FIELDS):
        instant = {"ph": "i", "s": "g", "name": "lost", "pid": _LOST, "tid": max(row.cpu, 0)}
        told = dict(zip(LOSS_FIELDS, row.values, strict=True))
        yield {**instant, "ts": _us(row.at_ns), "args": told}


def _name(what: str, pid: int, tid: int | None, name: str) -> dict[str, Any]:
    place = {"pid": pid} if tid is None else {"pid": pid, "tid": tid}
    return {"ph": "M", "name": what, **place, "args": {"name": name}}


def _task(row: Row) -> tuple[int, int]:
    """Return the process and the thread; a thread whose process is not known stands for both."""
    tid = row.tid if row.tid is not None else 0
    return row.pid if row.pid is not None else tid, tid


def _us(time_ns: int) -> float:
    return round(time_ns / _NS_PER_US, 3)


def _shown(value: Any) -> Any:  # noqa: ANN401  # of any column
    """Return a value as JSON keeps it: viewers have numbers of 53 bits."""
    if isinstance(value, list):
        return [_shown(each) for each in value]
    return str(value) if isinstance(value, int) and abs(value) >> _EXACT_BITS else value


_EXACT_BITS: Final = 53
