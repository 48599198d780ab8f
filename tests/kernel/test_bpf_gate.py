# SPDX-License-Identifier: Apache-2.0
"""Programs that only fill maps count on the CPUs of their session, and while it runs."""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest

from collectord.config.load import load
from collectord.config.schema import BpfConfig
from collectord.daemon.host_facts import bpf_wanted
from collectord.kernel.linux import LinuxKernel
from collectord.kernel.values.facts_wanted import FactsWanted
from collectord.plan.build import build
from collectord.session.maps.device_names import HostNames
from collectord.session.maps.map_reader import BpfReader
from collectord.source import SOURCES
from tests.support import bpf_load
from tests.support.bpf_counts import DEVICE, child, counting, program, total, unprobed
from tests.support.bpf_load import request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from collectord.source.base import OpenSource
    from tests.support.bpf_counts import Counted, Start

    Require = Callable[[str], None]

pytestmark = [pytest.mark.usefixtures("tracefs", "bcc"), pytest.mark.beside]

TIMES: Final = 300
READS: Final = 500
BLOCK: Final = 4096
DISK_BYTES: Final = 4 << 20
# Some hosts switch now and then to a task or from it without telling tracepoints.
UNSEEN_PERCENT: Final = 5
CPUS: Final = sorted(os.sched_getaffinity(0))[:2]
RUNQLAT: Final = "runqlat"
OFFCPUTIME: Final = "offcputime"
BIOLATENCY: Final = "biolatency"
SEEN: Final = {RUNQLAT: "waits", OFFCPUTIME: "times"}
METRICS: Final = {
    RUNQLAT: ("run_queue_wait_seconds", "runqlat_unmatched_total"),
    OFFCPUTIME: ("off_cpu_times_total", "offcputime_unmatched_total"),
}
GAUGE: Final = "block_io_in_flight"


@contextmanager
def _counting_on(
    start_cli: Start, directory: Path, cpu: int, words: Sequence[str]
) -> Iterator[Counted]:
    """Record on one CPU for the length of a block."""
    folder = directory / str(cpu)
    folder.mkdir()
    with counting(start_cli, folder, *words, "-C", str(cpu), "--json") as counted:
        yield counted


def _counts(counted: Counted, name: str) -> dict[str, int]:
    """Return a program's count, which its other answer has too."""
    shown, table = counted.answers(name)
    (counts,) = table["rows"]
    if name == RUNQLAT:
        assert sum(map(total, shown["sections"])) == counts["waits"]
    else:
        assert bool(shown["stacks"]) == bool(counts["times"])
    return dict(counts)


@pytest.mark.parametrize("name", SEEN)
def test_the_cpu_of_a_session(
    start_cli: Start, tmp_path: Path, *, require: Require, name: str
) -> None:
    """All that a task does on that CPU is counted there, and nothing of it elsewhere."""
    require("two CPUs")
    with child(cpu=CPUS[1]) as sleeper, ExitStack() as stack:
        words = program(name, pid=sleeper.pid)
        other, own = (
            stack.enter_context(_counting_on(start_cli, tmp_path, cpu, words)) for cpu in CPUS
        )
        before = sleeper.switches()
        sleeper.do("sleep", TIMES)
        switches = sleeper.switches().since(before)
    assert not any(_counts(other, name).values())
    counts = _counts(own, name)
    # The first time off a CPU began before the attachment, and the last has not ended.
    expected = sum(switches) if name == RUNQLAT else TIMES
    assert counts[SEEN[name]] + counts["unmatched"] == expected, counts
    assert counts["unmatched"] * 100 <= expected * UNSEEN_PERCENT, counts


@pytest.mark.parametrize("name", SEEN)
def test_each_cpu_has_its_part(
    start_cli: Start, tmp_path: Path, *, require: Require, name: str
) -> None:
    """A task that goes from CPU to CPU, between waits too: each one is counted on one of them."""
    require("two CPUs")
    with child() as sleeper, ExitStack() as stack:
        os.sched_setaffinity(sleeper.pid, CPUS)
        words = program(name, pid=sleeper.pid)
        parts = [
            stack.enter_context(_counting_on(start_cli, tmp_path, cpu, words)) for cpu in CPUS
        ]
        before = sleeper.switches()
        times = 0
        for _ in range(5):
            for cpu in CPUS:
                os.sched_setaffinity(sleeper.pid, {cpu})
                sleeper.do("sleep", TIMES // 10)
                times += TIMES // 10
        switches = sleeper.switches().since(before)
    found = [_counts(part, name) for part in parts]
    counted = sum(counts[SEEN[name]] + counts["unmatched"] for counts in found)
    # Between two orders it is off its CPU too.
    assert counted == (sum(switches) if name == RUNQLAT else switches.voluntary - 1), found
    assert all(counts[SEEN[name]] for counts in found)


def test_requests_of_each_cpu(start_cli: Start, tmp_path: Path, require: Require) -> None:
    """Each block request is counted on the one CPU that completes it, its depth where issued."""
    require("loop devices")
    require("two CPUs")
    with ExitStack() as stack:
        device = stack.enter_context(bpf_load.loop_device(tmp_path / "image", DISK_BYTES))
        stack.enter_context(unprobed(device))
        with ExitStack() as recordings:
            parts = [
                recordings.enter_context(
                    _counting_on(start_cli, tmp_path, cpu, program(BIOLATENCY))
                )
                for cpu in CPUS
            ]
            request(device, [0] * READS, BLOCK, write=False)
        found = [[_of(part, device.name, answer) for part in parts] for answer in (0, 1)]
    assert [sum(counts) for counts in found] == [READS, READS], found


def _of(counted: Counted, device: str, answer: int) -> int:
    """Values that a histogram of biolatency has of a device."""
    sections: list[dict[str, Any]] = counted.answers(BIOLATENCY)[answer]["sections"]
    return sum(total(section) for section in sections if section["by"][DEVICE] == device)


@contextmanager
def _opened(directory: Path, **programs: str) -> Iterator[tuple[OpenSource, BpfReader]]:
    """Provide a session of these programs, with their arguments, that has not begun."""
    sources = "".join(
        f'[[session.source]]\nkind = "bpf"\nprogram = "{name}"\narguments = {{ {arguments} }}\n'
        for name, arguments in programs.items()
    )
    path = directory / "collectord.toml"
    path.write_text(
        f'[daemon]\nstate_dir = "{directory}/state"\n[[session]]\nname = "maps"\n{sources}'
    )
    kernel = LinuxKernel()
    facts = kernel.facts(FactsWanted((), bpf=bpf_wanted(BpfConfig(), tuple(programs))))
    (plan,) = build(load([path]), facts).sessions
    with ExitStack() as stack:
        source = SOURCES[plan.source](kernel, plan, stack)
        (running,) = source.abilities.programs
        yield source, BpfReader(kernel, plan.name, running, HostNames(), stats=False)


def _metrics(reader: BpfReader) -> dict[str, float]:
    """Counters, and how many values histograms have, over all labels."""
    return {
        metric.name: sum(
            sum(series.counts) if metric.type == "histogram" else series.value or 0
            for series in metric.series
        )
        for status in reader.read()
        for metric in status.metrics
        if metric.type != "gauge"
    }


def test_beginning_and_end(tmp_path: Path) -> None:
    """Programs that are attached count nothing before the session begins or after it ends."""
    with child() as sleeper:
        chosen = f"pid = {sleeper.pid}"
        with _opened(tmp_path, runqlat=chosen, offcputime=chosen) as (source, reader):
            sleeper.do("sleep", TIMES)
            assert not any(_metrics(reader).values())
            source.enable()
            before = sleeper.switches()
            sleeper.do("sleep", TIMES)
            switches = sleeper.switches().since(before)
            source.disable()
            counted = _metrics(reader)
            sleeper.do("sleep", TIMES)
            assert _metrics(reader) == counted
    # A wait that went on when the session began is followed since the task left its CPU.
    expected = {RUNQLAT: sum(switches), OFFCPUTIME: switches.voluntary}
    for name, (seen, unmatched) in METRICS.items():
        assert counted[seen] + counted[unmatched] == expected[name], counted
        assert counted[unmatched] * 100 <= expected[name] * UNSEEN_PERCENT, counted


def test_requests_before_the_beginning_and_after_the_end(tmp_path: Path, require: Require) -> None:
    """They are not counted, but followed: none stays in flight."""
    require("loop devices")
    with ExitStack() as stack:
        device = stack.enter_context(bpf_load.loop_device(tmp_path / "image", DISK_BYTES))
        stack.enter_context(unprobed(device))
        source, reader = stack.enter_context(_opened(tmp_path, biolatency=_only(device)))
        request(device, [0], BLOCK, write=False)
        assert not any(_metrics(reader).values())
        assert _in_flight(reader, device.name) == 0
        source.enable()
        request(device, [0] * READS, BLOCK, write=False)
        source.disable()
        counted = _metrics(reader)
        request(device, [0] * READS, BLOCK, write=False)
        assert _metrics(reader) == counted
        assert _in_flight(reader, device.name) == 0
    assert counted["block_io_latency_seconds"] == counted["block_io_depth"] == READS


def _only(device: Path) -> str:
    number = device.stat().st_rdev
    return f"major = {os.major(number)}, minor = {os.minor(number)}"


def _in_flight(reader: BpfReader, device: str) -> float | None:
    """Return the gauge of a device that has been given requests."""
    (found,) = (
        series.value
        for status in reader.read()
        for metric in status.metrics
        if metric.name == GAUGE
        for series in metric.series
        if series.labels == (device,)
    )
    return found
