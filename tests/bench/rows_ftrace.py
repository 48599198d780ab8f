# SPDX-License-Identifier: Apache-2.0
"""The rows of the table about ftrace streams: every transport beside `trace-cmd record`."""

from __future__ import annotations

import math
import statistics
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.bench import collectors, row
from tests.bench.collectors import EVENT, GENERATOR_CPU, Collector
from tests.bench.row import Row
from tests.support.trace_cmds import alone

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.bench.collectors import Outcome
    from tests.bench.row import Settings

KIB: Final = 1 << 10
RING_KIB: Final = 8192
SMALL_RING_KIB: Final = 512
# The operations of a run that has only the costs that do not grow with the load.
_FEW: Final = 1000
_TRANSPORTS: Final = ("auto", "read", "mmap", "splice")
_TRACEFS: Final = Path("/sys/kernel/tracing")
_INSTANCE: Final = _TRACEFS / "instances" / "bench-trace-cmd"


@contextmanager
def _instance() -> Iterator[None]:
    """Provide an instance for trace-cmd, which leaves the top level's buffer alone then."""
    if _INSTANCE.exists():
        _INSTANCE.rmdir()
    _INSTANCE.mkdir()
    try:
        yield
    finally:
        if _INSTANCE.exists():  # trace-cmd may have removed it
            _INSTANCE.rmdir()


def trace_cmd_record(name: str, ring_kib: int) -> Collector:
    """Return `trace-cmd record` with rings of this size, without compression."""
    return Collector(
        name,
        lambda directory: [
            *alone(directory, _INSTANCE),
            *("trace-cmd", "record", "--compression", "none", "-o", "trace.dat"),
            *("-B", _INSTANCE.name, "-M", f"{1 << int(GENERATOR_CPU):x}", "-b", str(ring_kib)),
            *("-C", "mono", "-e", EVENT),
        ],
        _instance,
    )


def _ours(transport: str, ring_kib: int) -> Collector:
    # Both round up to whole sub-buffers, and ours are the larger ones: ask for a little less.
    size = f"{ring_kib - ring_kib // KIB - 2}KiB"
    return collectors.collectord_record(
        f"collectord {transport}", "--via", "ftrace", "--transport", transport, "-m", size
    )


def _ring(outcome: Outcome) -> dict[str, Any]:
    """Return the one ring of a run of ours."""
    assert outcome.answer is not None
    (ring,) = outcome.answer["sessions"][0]["rings"]
    return dict(ring)


def _larger_ring(outcomes: Sequence[Outcome], ring_kib: int) -> list[str]:
    """Return which of our runs had a larger ring than trace-cmd."""
    rings = [(outcome.collector, _ring(outcome)["capacity_bytes"]) for outcome in outcomes]
    return [f"{name} has a ring of {size} B" for name, size in rings if size > ring_kib * KIB]


class _Group:
    """The runs of one collector, with a load and almost without."""

    def __init__(self, name: str, loaded: list[Outcome], bare: list[Outcome]) -> None:
        self.name = name
        self.loaded = loaded
        self.bare = bare
        self.startup = statistics.median(run.cpu_startup for run in bare)
        self.end = statistics.median(run.cpu_collecting for run in bare)
        self.runs = [(run.cpu_collecting - self.end) / run.generated * 1e9 for run in loaded]
        self.median = statistics.median(self.runs)
        self.figures = row.figures(self.runs, loaded)

    @property
    def constant(self) -> str:
        """The cost that is not in the figures."""
        return f"{self.name} {self.startup:.2f} + {self.end:.2f} s"

    @property
    def transport(self) -> str:
        """The transport that "auto" chose."""
        return str(_ring(self.loaded[0])["transport"])

    @property
    def children(self) -> float:
        """The time used by the process's children alone, in ns an event."""
        bare = statistics.median(run.cpu_children for run in self.bare)
        runs = [(run.cpu_children - bare) / run.generated * 1e9 for run in self.loaded]
        return statistics.median(runs)


def saturated_ftrace(settings: Settings) -> list[Row]:
    """Saturate one CPU, with ftrace to a trace.dat: CPU time and loss against trace-cmd."""
    trace_cmd = trace_cmd_record("trace-cmd", RING_KIB)
    which = (trace_cmd, *(_ours(transport, RING_KIB) for transport in _TRANSPORTS))
    bare = row.interleaved(settings, which, count=_FEW)
    loaded = row.interleaved(settings, which, count=settings.events)
    peer, auto, *others = (_Group(name, loaded[name], bare[name]) for name in loaded)
    ours = (auto, *others)
    problems = [
        *collectors.same_work([runs[0] for runs in loaded.values()]),
        *_larger_ring([group.loaded[0] for group in ours], RING_KIB),
    ]
    first = auto.loaded[0].stored
    constant = ", ".join(group.constant for group in (peer, *ours))
    size = first.sample_bytes / first.samples
    notes = (
        *problems,
        f"ftrace: {size:.0f} B/event; auto is {auto.transport}",
        f"ftrace: start-up and what each run ends with, not in the figures: {constant}",
    )
    runs = tuple(asdict(run) for group in loaded.values() for run in group)
    work = "ftrace stream to trace.dat, one CPU saturated"
    rows = [
        Row(
            f"{work}: CPU, {group.name}",
            group.figures,
            f"{peer.figures} ({peer.name})",
            group.median / peer.median,
            None if group is not auto else math.nan if problems else 0.25,
            "x",
            notes if group is auto else (),
            runs if group is auto else (),
        )
        for group in ours
    ]
    rows.append(
        Row(
            f"{work}: CPU, against the peer's recorders alone, before it makes the file",
            auto.figures,
            f"{peer.children:.0f} ns/event",
            auto.median / peer.children,
            None,
            "x",
        )
    )
    rows.append(_lost_row(f"{work}: lost events", auto.loaded, peer.loaded))
    rows.append(_small_ring(settings, work))
    rows.append(
        Row(
            "page cache filled, of the trace.dat written",
            f"{row.resident(auto.loaded):.2%} ({auto.name})",
            f"{row.resident(peer.loaded):.0%}",
            row.resident(auto.loaded),
            0.02,
            "x",
        )
    )
    return rows


def _small_ring(settings: Settings, work: str) -> Row:
    """Measure the loss with rings that hold a few milliseconds."""
    trace_cmd = trace_cmd_record("trace-cmd, small ring", SMALL_RING_KIB)
    auto = _ours("auto", SMALL_RING_KIB)
    outcomes = row.interleaved(settings, (trace_cmd, auto), count=settings.events)
    problems = tuple(_larger_ring(outcomes[auto.name], SMALL_RING_KIB))
    return _lost_row(
        f"{work}, ring of {SMALL_RING_KIB} KiB: lost events",
        outcomes[auto.name],
        outcomes[trace_cmd.name],
        problems,
    )


def _lost_row(
    work: str, ours: Sequence[Outcome], peer: Sequence[Outcome], problems: tuple[str, ...] = ()
) -> Row:
    # The median: a ring of a few milliseconds overflows when the host takes the CPU away.
    mine, theirs = ([run.stored.lost for run in runs] for runs in (ours, peer))
    value, budget = statistics.median(mine), statistics.median(theirs)
    return Row(
        work,
        f"{value:.0f} ({min(mine)}-{max(mine)}) of {ours[0].generated}",
        f"{budget:.0f} ({min(theirs)}-{max(theirs)})",
        value,
        math.nan if problems else budget,
        "events",
        problems,
        tuple(asdict(run) for run in (*ours, *peer)),
    )
