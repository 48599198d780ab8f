# SPDX-License-Identifier: Apache-2.0
"""The rows of the table about the cost of recording to the traced side."""

from __future__ import annotations

import math
import os
import select
import statistics
import subprocess
import tempfile
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from collectord.plan.program_plan import PERF, RINGBUF
from tests.bench import collectors, rows_bpf, rows_ftrace
from tests.bench.collectors import COLLECTOR_CPU, EVENT, GENERATOR_CPU, Collector
from tests.bench.daemons import daemon, default_config, with_sessions, without_bcc
from tests.bench.row import Row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from tests.bench.collectors import Outcome
    from tests.bench.row import Settings

_INSTANCE: Final = Path("/sys/kernel/tracing/instances/bench-imposed")
_RING_KIB: Final = 8192
# bcc is slower than the load, and an event that finds no room costs less: there is room for all
# that it gets. Of its rings of perf, which take 8 us an event, that is a share of the events; of
# the ring buffer it is all of them: a collector's start takes too much of 80 ms.
_BPF_SHARES: Final = {PERF: (4, 32), RINGBUF: (1, 64)}  # one event of so many; MiB
# A flight recorder's whole ring is written over and over. A small one stays in the caches; what an
# event costs in a large one differs by 2 % with where its pages lie, whoever mapped it.
_SMALL_RING: Final = "256K"
# The size that a flight recorder of ours begins with.
_RECORDER_KIB: Final = 7680
# The events of config/collectord.toml's blackbox.
_BLACKBOX: Final = (
    *("sched:sched_switch", "sched:sched_wakeup"),
    *("sched:sched_process_exec", "sched:sched_process_exit"),
    *("block:block_rq_issue", "block:block_rq_complete", "oom:mark_victim"),
)
_SWITCHES: Final = 200_000  # of a run, two an operation
_RUNS: Final = 3  # of which the least counts: whatever else runs only adds to it
# The time that the default flight recorder adds to a switch, against a plain instance of ftrace.
_BLACKBOX_BUDGET: Final = 0.6
# Without BPF, beside the plain instance: the switch is in both.
_FTRACE_BUDGET: Final = 1.05
# Ours may be dearer by what the peer differs from itself, but by no more than this.
_NOISE_MAX: Final = 0.05
_READY_TIMEOUT_S: Final = 60


class Pair(NamedTuple):
    """A source of ours and its peer; if the peer does less, the line has no budget.

    Attributes:
        share: of the events of a run, one of so many.
    """

    source: str
    ours: Collector
    peer: Collector
    same: bool = True
    share: int = 1


@contextmanager
def _instance(events: Sequence[str], ring_kib: int) -> Iterator[None]:
    """Provide an ftrace instance with these events on the generator's CPU, without a reader."""
    if _INSTANCE.exists():
        _INSTANCE.rmdir()
    _INSTANCE.mkdir()
    try:
        (_INSTANCE / "buffer_size_kb").write_text(str(ring_kib))
        (_INSTANCE / "trace_clock").write_text("mono")
        for event in events:
            (_INSTANCE / "events" / event.replace(":", "/") / "enable").write_text("1")
        yield
    finally:
        (_INSTANCE / "events/enable").write_text("0")
        _INSTANCE.rmdir()


def _nobody(
    name: str, around: Callable[[], AbstractContextManager[None]] | None = None
) -> Collector:
    """Return the load without a process that collects."""
    if around is None:
        return Collector(name, lambda _: ["env"])
    return Collector(name, lambda _: ["env"], around)


def _pairs(settings: Settings) -> list[Pair]:
    ours = collectors.collectord_record
    both = f"{GENERATOR_CPU},{COLLECTOR_CPU}"

    def perf(name: str, *words: str) -> Collector:
        # The clock is a part of what an event costs: ours, as of trace-cmd's runs.
        return collectors.perf_record(name, "--clockid", "mono", *words)

    # A collector runs on another CPU than the one that is recorded: its own threads have to be
    # left out only of all CPUs. trace-cmd does not do that.
    ftrace = ("--via", "ftrace", "-m", "8180KiB")
    return [
        Pair(
            "perf stream",
            ours("collectord perf", "-m", "8M"),
            perf("perf record", "-m", "8M"),
        ),
        Pair(
            "perf stream of all CPUs, without own threads",
            ours("collectord perf", "-m", "8M", "-C", both),
            perf("perf record", "--exclude-perf", "-m", "8M", "-C", both),
        ),
        *(
            Pair(
                f"perf flight recorder, {size}",
                ours("collectord perf --overwrite", "--overwrite", "-m", size),
                perf("perf record --overwrite", "--overwrite", "-m", size),
                same=size == _SMALL_RING,
            )
            for size in (_SMALL_RING, "8M")
        ),
        Pair(
            "ftrace stream",
            ours("collectord ftrace", *ftrace),
            rows_ftrace.trace_cmd_record("trace-cmd", _RING_KIB),
        ),
        Pair(
            "ftrace stream of all CPUs, beside one with its own threads",
            ours("collectord ftrace", *ftrace, "-C", both),
            rows_ftrace.trace_cmd_record("trace-cmd", _RING_KIB),
            same=False,
        ),
        Pair(
            "ftrace flight recorder",
            ours("collectord ftrace --overwrite", "--overwrite", *ftrace),
            _nobody("a plain instance", lambda: _instance((EVENT,), _RING_KIB)),
        ),
        *(
            Pair(
                f"BPF stream, {what}",
                *rows_bpf.pair(settings, transport=how, ring_mib=_BPF_SHARES[how][1]),
                share=_BPF_SHARES[how][0],
            )
            for what, how in (("rings of perf", PERF), ("ring buffer", RINGBUF))
        ),
    ]


class Rounds:
    """Rounds of one pair, in each of which ours runs between two runs of the peer."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.outcomes: list[tuple[Outcome, Outcome, Outcome]] = []

    def run(self, settings: Settings, events: int) -> None:
        """Run one more round."""
        count = events // self.pair.share
        peer, ours, again = (
            collectors.run(one, settings.generator, settings.directory, count=count)
            for one in (self.pair.peer, self.pair.ours, self.pair.peer)
        )
        self.outcomes.append((peer, ours, again))

    def row(self, bare_ns: float) -> Row:
        """Return the line of the table.

        Args:
            bare_ns: what the system call takes alone.
        """
        net = [[one.imposed_ns - bare_ns for one in round_] for round_ in self.outcomes]
        ours = [mine for _, mine, _ in net]
        peer = [ns for first, _, again in net for ns in (first, again)]
        times = [2 * mine / (first + again) for first, mine, again in net]
        itself = [again / first for first, _, again in net]
        # About two standard errors of a median of so few.
        noise = (max(itself) - min(itself)) / math.sqrt(len(itself))
        return Row(
            f"imposed on each event, {self.pair.source}",
            f"{_figures(ours, 'event')}{_lost(one for _, one, _ in self.outcomes)}",
            f"{_figures(peer, 'event')}{_lost(one for one, *_ in self.outcomes)} "
            f"({self.pair.peer.name}; again {min(itself):.2f}-{max(itself):.2f} x)",
            statistics.median(times),
            1 + min(noise, _NOISE_MAX) if self.pair.same else None,
            "x",
            (f"imposed: a system call that nobody records takes {bare_ns:.0f} ns",),
            tuple(asdict(run) for round_ in self.outcomes for run in round_),
        )


def _of_events(settings: Settings) -> list[Row]:
    """Return the cost of an event to the thread that makes it, without its system call."""
    count = settings.events // 5
    nobody = _nobody("nobody")
    all_rounds = [Rounds(pair) for pair in _pairs(settings)]
    bare = []
    for _ in range(settings.repeats):
        for rounds in all_rounds:
            alone = collectors.run(nobody, settings.generator, settings.directory, count=count)
            bare.append(alone.imposed_ns)
            rounds.run(settings, count)
    return [rounds.row(statistics.median(bare)) for rounds in all_rounds]


def _lost(outcomes: Iterable[Outcome]) -> str:
    """Return the share that a stream lost: a lost event costs less than a stored one."""
    shares = [_lost_of(outcome) / outcome.generated for outcome in outcomes]
    return f", {statistics.median(shares):.2%} lost" if any(shares) else ""


def _lost_of(outcome: Outcome) -> int:
    match outcome.answer:
        case {"sessions": [session]}:
            return sum(session["lost"].values())
        case {"lost": int(lost)}:  # bcc's
            return lost
    return outcome.stored.lost


def _figures(runs: Sequence[float], what: str) -> str:
    return f"{statistics.median(runs):.0f} ns/{what} ({min(runs):.0f}-{max(runs):.0f})"


def _switch_ns() -> float:
    """Return the CPU time of a context switch between two threads on one CPU, pipes included."""
    words = ("perf", "bench", "sched", "pipe", "-T", "-l", str(_SWITCHES // 2))
    times = []
    for _ in range(_RUNS):
        process = subprocess.Popen(
            ["taskset", "-c", GENERATOR_CPU, *words], stdout=subprocess.DEVNULL
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise RuntimeError("perf bench sched pipe failed")
        times.append(usage.ru_utime + usage.ru_stime)
    return min(times) / _SWITCHES * 1e9


@contextmanager
def _perf_overwrite(settings: Settings) -> Iterator[None]:
    """Have perf keep the same events in overwritable rings."""
    events = [word for event in _BLACKBOX for word in ("-e", event)]
    with tempfile.TemporaryDirectory(dir=settings.directory.parent) as name:
        control, answer = Path(name, "control"), Path(name, "answer")
        for path in (control, answer):
            os.mkfifo(path)
        # Opened for both, so that nobody blocks.
        control_fd, answer_fd = (os.open(path, os.O_RDWR) for path in (control, answer))
        process = subprocess.Popen(
            [
                *("taskset", "-c", COLLECTOR_CPU, "perf", "record", "-q", "-B", "-N", "-a"),
                *("--overwrite", *events, "-m", f"{_RECORDER_KIB}K", "-o", f"{name}/perf.data"),
                *("-D", "-1", f"--control=fifo:{control},{answer}"),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            os.write(control_fd, b"enable\n")
            if not select.select([answer_fd], [], [], _READY_TIMEOUT_S)[0]:
                raise RuntimeError("perf record did not begin")
            yield
        finally:
            os.close(control_fd)
            os.close(answer_fd)
            process.terminate()
            process.wait()


def _of_switches(settings: Settings) -> list[Row]:
    """Measure the cost of a context switch with the default configuration's flight recorder."""
    blackbox = with_sessions(default_config(), ["blackbox"])

    @contextmanager
    def ours(text: str) -> Iterator[None]:
        with daemon(settings, text, "taskset", "-c", COLLECTOR_CPU):
            yield

    ways: dict[str, Callable[[], AbstractContextManager[None]]] = {
        "collectord": lambda: ours(blackbox),
        "collectord without BPF": lambda: ours(without_bcc(blackbox)),
        "a plain instance": lambda: _instance(_BLACKBOX, _RECORDER_KIB),
        "perf record --overwrite": lambda: _perf_overwrite(settings),
    }
    bare: list[float] = []
    runs: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(settings.repeats):
        bare.append(_switch_ns())
        for name, way in ways.items():
            with way():
                runs[name].append(_switch_ns())
    base = min(bare)
    imposed = {name: [ns - base for ns in values] for name, values in runs.items()}
    mine, ftrace, plain, perf = (imposed[name] for name in ways)
    note = f"imposed: a switch that nobody records takes {base:.0f} ns, pipes and all"
    whole = {name: min(values) for name, values in runs.items()}
    work = "imposed on each context switch, blackbox"
    beside = f"{_figures(plain, 'switch')} (a plain instance)"
    return [
        Row(
            work,
            _figures(mine, "switch"),
            beside,
            min(mine) / min(plain),
            _BLACKBOX_BUDGET,
            "x",
            (note,),
            ({"bare": bare, **runs},),
        ),
        Row(
            work,
            _figures(mine, "switch"),
            f"{_figures(perf, 'switch')} (perf's overwritable rings)",
            min(mine) / min(perf),
            1.0,
            "x",
        ),
        Row(
            f"{work} without BPF",
            _figures(ftrace, "switch"),
            beside,
            whole["collectord without BPF"] / whole["a plain instance"],
            _FTRACE_BUDGET,
            "x, the switch included",
        ),
    ]


def imposed(settings: Settings) -> list[Row]:
    """Measure the cost of recording to the traced side: per event of each source, per switch."""
    return [*_of_events(settings), *_of_switches(settings)]
