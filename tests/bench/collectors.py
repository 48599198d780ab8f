# SPDX-License-Identifier: Apache-2.0
"""Run of one collector beside the generator, with a measurement of its resources.

The generator is pinned on CPU 0 and the collector on CPU 1. The generator is the collector's own
COMMAND, held at its barrier by two FIFOs: when it says it is ready, the collector has opened
everything, so that start-up and collecting can be told apart.
"""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import statistics
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.bench import trace_dat
from tests.bench.measure import Stored, cpu_seconds_of, fsync_all, resident_bytes, stored_in

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from tests.support.generator import Generator

EVENT: Final = "raw_syscalls:sys_enter"
GENERATOR_CPU: Final = "0"
COLLECTOR_CPU: Final = "1"
ROOT: Final = Path(__file__).resolve().parents[2]
_PERF_MAGIC: Final = b"PERFILE2"
_READY_TIMEOUT_S: Final = 60
# bcc's wake-ups make the load ten times as slow, and the rest of the machine may be busy.
_WORK_TIMEOUT_S: Final = 600
_POLL_S: Final = 0.2
# The number of slices of a load that has no rate.
_SLICES: Final = 20


@dataclass(frozen=True, slots=True)
class Collector:
    """A way to record EVENT on the generator's CPU into a directory.

    Attributes:
        command: makes the command line, up to where COMMAND follows.
        around: what has to be there while it runs.
    """

    name: str
    command: Callable[[Path], list[str]]
    around: Callable[[], AbstractContextManager[None]] = nullcontext


@dataclass(frozen=True, slots=True)
class Outcome:
    """Figures of one run. Times are in seconds; `cpu` ends when the process's data is on disk.

    Attributes:
        slices: CPU time of each of equal parts of the load itself; empty for a load with a rate.
        cpu_children: the part of `cpu` used by the process's children, without COMMAND.
        cpu_startup: the part of `cpu` used before the load began.
        attr: determines a record's size: the event's attributes as printed by `perf evlist`, or
            the kinds of events of a trace.dat.
        answer: our --json result, None for others.
    """

    collector: str
    generated: int
    generated_s: float
    slices: tuple[float, ...]
    cpu: float
    cpu_children: float
    cpu_startup: float
    stored: Stored
    written_bytes: int
    resident_bytes: int
    files: int
    attr: str
    answer: dict[str, Any] | None

    @property
    def cpu_collecting(self) -> float:
        """The CPU time of collecting, sealing included."""
        return self.cpu - self.cpu_startup

    @property
    def ns_per_event(self) -> float:
        """The CPU time of collecting per event."""
        return self.cpu_collecting / self.generated * 1e9

    @property
    def imposed_ns(self) -> float:
        """The CPU time of the load per event: the lower quartile of its parts.

        What else the machine does only adds, to some of them; a wake-up of who collects to each.
        """
        quartile = statistics.quantiles(self.slices)[0]
        return quartile * len(self.slices) / self.generated * 1e9


def perf_record(name: str, *words: str) -> Collector:
    """Return `perf record` with these options beside the common ones."""
    return Collector(
        name,
        lambda directory: [
            *("perf", "record", "-q", "-B", "-N", "-e", EVENT, "-C", GENERATOR_CPU),
            *(*words, "-o", str(directory / "perf.data")),
        ],
    )


def collectord_record(name: str, *words: str) -> Collector:
    """Return `collectord record` into segments."""
    return Collector(
        name,
        lambda directory: [
            *(sys.executable, "-m", "collectord", "record", "-e", EVENT, "-C", GENERATOR_CPU),
            *(*words, "--output-dir", str(directory), "--json"),
        ],
    )


def hosted(name: str, *words: str) -> Collector:
    """Return the same recording inside a Python process of ours (tests/bench/hosted.py)."""
    return Collector(
        name,
        lambda directory: [
            *(sys.executable, "-m", "tests.bench.hosted", *words, str(directory)),
        ],
    )


class _Barrier:
    """FIFOs for the generator's standard input and output, opened without blocking."""

    def __init__(self, directory: Path) -> None:
        self.paths = (directory / "go", directory / "say")
        for path in self.paths:
            os.mkfifo(path)
        self._go, self._say = (os.open(path, os.O_RDWR) for path in self.paths)
        self._buffer = b""

    def answer(self, process: subprocess.Popen[str], timeout_s: float) -> dict[str, Any]:
        """Return the generator's next line."""
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._buffer:
            if process.poll() is not None or time.monotonic() > deadline:
                message = f"{process.args!r} ended before its command did, or takes too long"
                raise RuntimeError(message)
            if select.select([self._say], [], [], _POLL_S)[0]:
                self._buffer += os.read(self._say, 4096)
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def go(self) -> None:
        """Let the generator work."""
        os.write(self._go, b"\n")

    def close(self) -> None:
        """Close and remove the FIFOs."""
        os.close(self._go)
        os.close(self._say)
        for path in self.paths:
            path.unlink()


def run(
    collector: Collector,
    generator: Generator,
    directory: Path,
    *,
    count: int,
    rate: float = 0,
) -> Outcome:
    """Record `count` events, at `rate` per second if given, and remove the files again."""
    shutil.rmtree(directory, ignore_errors=True)
    (directory / "out").mkdir(parents=True)
    with collector.around():
        return _run(collector, generator, directory, count=count, rate=rate)


def _run(
    collector: Collector, generator: Generator, directory: Path, *, count: int, rate: float
) -> Outcome:
    output = directory / "out"
    barrier = _Barrier(directory)
    slices = 1 if rate else _SLICES
    load = generator.command("count", now=False, count=count, rate=rate, slices=slices)
    command = [
        *("taskset", "-c", COLLECTOR_CPU, *collector.command(output), "--"),
        *("taskset", "-c", GENERATOR_CPU, "sh", "-c", f'exec "$@" <{barrier.paths[0]} >'),
    ]
    command[-1] += f"{barrier.paths[1]}"
    log = directory / "log"
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [*command, "sh", *load],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            cwd=ROOT,
        )
        try:
            barrier.answer(process, _READY_TIMEOUT_S)
            startup = cpu_seconds_of(process.pid)
            barrier.go()
            made = barrier.answer(process, _WORK_TIMEOUT_S)
            assert process.stdout is not None
            text = process.stdout.read()
        except BaseException:
            process.send_signal(signal.SIGKILL)
            process.wait()
            sys.stderr.write(log.read_text())
            raise
        finally:
            barrier.close()
        # Not reaped yet, it tells its own share.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        own = cpu_seconds_of(process.pid)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stdout.close()
    if process.returncode:
        sys.stderr.write(log.read_text())
        message = f"{collector.name} ended with status {process.returncode}"
        raise RuntimeError(message)
    files = sorted(path for path in output.rglob("*") if path.is_file())
    sync_cpu = fsync_all(files)
    resident = sum(resident_bytes(path) for path in files)
    stored, attr, data_files = _read(files)
    outcome = Outcome(
        collector=collector.name,
        generated=made["events"],
        generated_s=made["seconds"],
        slices=tuple(made["slices"]),
        cpu=usage.ru_utime + usage.ru_stime - made["process_cpu_seconds"] + sync_cpu,
        cpu_children=usage.ru_utime + usage.ru_stime - made["process_cpu_seconds"] - own,
        cpu_startup=startup,
        stored=stored,
        written_bytes=sum(path.stat().st_size for path in files),
        resident_bytes=resident,
        files=data_files,
        attr=attr,
        answer=json.loads(text) if text.strip().startswith("{") else None,
    )
    shutil.rmtree(directory)
    return outcome


def _read(files: Sequence[Path]) -> tuple[Stored, str, int]:
    """Return contents, record layout and number of the data files among these."""
    stored, attrs, count = Stored(0, 0, 0), set(), 0
    for path in files:
        with path.open("rb") as file:
            magic = file.read(len(trace_dat.MAGIC))
        if magic == trace_dat.MAGIC:
            pages = trace_dat.pages_in(path)
            stored += Stored(pages.events, pages.data_bytes, pages.lost)
            attrs.add(f"types: {'|'.join(map(str, sorted(pages.types)))}")
        elif magic.startswith(_PERF_MAGIC):
            stored += stored_in(path)
            attrs.add(_attr(path))
        else:
            continue
        count += 1
    return stored, " ".join(sorted(attrs)), count


def _attr(path: Path) -> str:
    text = subprocess.run(
        ["perf", "evlist", "-v", "-i", path], capture_output=True, text=True, check=True
    ).stdout
    lines = text.splitlines()
    line = next((line for line in lines if line.startswith(EVENT)), lines[0])
    parts = [re.search(rf"{key}: ([^,]+)", line) for key in ("sample_type", "sample_id_all")]
    return " ".join(found[0] for found in parts if found)


def same_work(outcomes: Sequence[Outcome]) -> list[str]:
    """Return why these runs cannot be compared: other fields, or over 2 % other bytes an event."""
    problems = []
    first = outcomes[0]
    size = first.stored.sample_bytes / first.stored.samples
    for other in outcomes[1:]:
        if set(re.split(r"[ |]", other.attr)) != set(re.split(r"[ |]", first.attr)):
            problems.append(f"{other.collector} has {other.attr}, {first.collector} {first.attr}")
        ratio = other.stored.sample_bytes / other.stored.samples / size
        if abs(ratio - 1) > 0.02:
            problems.append(f"{other.collector} has {ratio:.3f} of {first.collector}'s event size")
    return problems
