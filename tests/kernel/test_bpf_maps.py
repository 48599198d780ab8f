# SPDX-License-Identifier: Apache-2.0
"""Programs that count how tasks wait find exactly the switches that the kernel counted."""

from __future__ import annotations

import os
import re
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from collectord.kernel.bpf import bpf_calls
from tests.support.bpf import map_named
from tests.support.bpf_counts import COMM, Child, Switches, child, counting, program, total
from tests.support.daemons import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.bpf_counts import Counted, Start

pytestmark = [pytest.mark.usefixtures("tracefs", "bcc"), pytest.mark.beside]

TIMES: Final = 300
PREEMPTIONS: Final = 100
SLEEP_NS: Final = 1_000_000
NS_PER_US: Final = 1000
SOME_TICKS_NS: Final = 20_000_000
# Some hosts switch now and then to a task or from it without telling tracepoints.
UNSEEN_PERCENT: Final = 5
SLEEP_FRAME: Final = re.compile(r"\w*nanosleep\w*_\[k\]")
LOST_FRAMES: Final = ("[lost stack]", "[lost stack]_[k]")
HOSTILE: Final = b"\x1b[2J;\n\xff"
HARMLESS: Final = r"\x1b[2J:\n\xff"


def _counted(
    start_cli: Start, directory: Path, words: list[str], told: Child, *, tid: int | None = None
) -> tuple[Counted, Switches]:
    """Let a child sleep TIMES times; returns what was counted, and its switches meanwhile.

    A sleep whose time is over before the child has left its CPU is no switch.
    """
    with counting(start_cli, directory, *words, "--json") as counted:
        before = told.switches(tid)
        told.do("sleep", TIMES)
        switches = told.switches(tid).since(before)
    return counted, switches


def _waits(counted: Counted) -> dict[str, int]:
    """The counts of runqlat, and that its histogram has all that it counted."""
    histogram, table = counted.answers("runqlat")
    (counts,) = table["rows"]
    assert sum(map(total, histogram["sections"])) == counts["waits"]
    return dict(counts)


def _off_cpu(counted: Counted) -> tuple[dict[str, int], list[dict[str, Any]]]:
    """Counts and stacks of offcputime, and that they have all of the time between them."""
    folded, table = counted.answers("offcputime")
    (counts,) = table["rows"]
    shown_us = sum(stack["value"] for stack in folded["stacks"])
    recorded_ns = counts["ns"] - counts["unrecorded_ns"]
    rounded = counts["times"] - counts["unrecorded"]  # each to the nearest us
    assert abs(shown_us * NS_PER_US - recorded_ns) <= rounded * NS_PER_US // 2
    return dict(counts), folded["stacks"]


def _check_seen(counts: dict[str, int], seen: str, expected: int) -> None:
    """Assert that all that the kernel counted is there, or is said not to have been seen."""
    assert counts[seen] + counts["unmatched"] == expected, counts
    assert counts["unmatched"] * 100 <= expected * UNSEEN_PERCENT, counts
    assert counts["untracked"] == 0, counts


@pytest.mark.parametrize("chosen", ["pid", "tid"])
def test_waits_for_a_cpu(start_cli: Start, tmp_path: Path, chosen: str) -> None:
    """A process, or one of its threads, has waited each time that it leaves a CPU."""
    with child(threads=2) as sleeper:
        tid = sleeper.tids[1] if chosen == "tid" else None
        words = program("runqlat", **{chosen: tid or sleeper.pid})
        counted, switches = _counted(start_cli, tmp_path, words, sleeper, tid=tid)
    assert switches.voluntary >= TIMES
    _check_seen(_waits(counted), "waits", sum(switches))


def test_waits_of_all(start_cli: Start, tmp_path: Path) -> None:
    """Without a filter these waits and others are counted."""
    with child() as sleeper:
        counted, switches = _counted(start_cli, tmp_path, program("runqlat"), sleeper)
    counts = _waits(counted)
    assert counts["waits"] + counts["unmatched"] > sum(switches)
    assert counts["untracked"] == 0


def test_more_waits_than_are_followed(start_cli: Start, tmp_path: Path) -> None:
    """Waits beyond the table are reported, and count as waits with an unknown start."""
    with child(threads=4, cpu=min(os.sched_getaffinity(0))) as sleeper:
        words = program("runqlat", pid=sleeper.pid, max_tasks=1)
        counted, switches = _counted(start_cli, tmp_path, words, sleeper)
    counts = _waits(counted)
    assert counts["waits"] + counts["unmatched"] == sum(switches)
    assert min(counts.values()) > 0, counts


def test_preemption(start_cli: Start, tmp_path: Path) -> None:
    """Two that could go on share a CPU: each time that one is taken off it, it waits again."""
    cpu = min(os.sched_getaffinity(0))
    with child(cpu=cpu) as other, child(cpu=cpu) as spinner:
        before = spinner.switches()

        def often_preempted() -> bool:
            return spinner.switches().since(before).involuntary >= PREEMPTIONS

        words = [
            *program("runqlat", pid=spinner.pid),
            *program("offcputime", pid=spinner.pid, state="R"),
        ]
        with counting(start_cli, tmp_path, *words, "--json") as counted:
            other.begin("spin")
            spinner.begin("spin")
            wait_for(often_preempted, "preemptions")
            spinner.stop()
            other.stop()
            switches = spinner.switches().since(before)
    _check_seen(_waits(counted), "waits", sum(switches))
    _check_seen(_off_cpu(counted)[0], "times", switches.involuntary)


def test_a_return_that_is_not_seen(
    start_cli: Start, tmp_path: Path, require: Callable[[str], None]
) -> None:
    """Its time is reported as unmatched when the task leaves next, in whatever state.

    What the program notes of a task that left is written again while that task runs.
    """
    require("two CPUs")
    *others, cpu = sorted(os.sched_getaffinity(0))
    known = {*bpf_calls.ids("map")}
    with ExitStack() as stack:
        spinner = stack.enter_context(child(cpu=cpu))
        before = spinner.switches()
        words = program("offcputime", pid=spinner.pid, state="S")
        counted = stack.enter_context(counting(start_cli, tmp_path, *words, "--json"))
        left = stack.enter_context(map_named("left", known))
        info = bpf_calls.map_info(left)
        spinner.do("sleep", 1)
        task = bpf_calls.map_next_key(left, None, info)
        assert task is not None
        noted = bpf_calls.map_lookup(left, task, info=info)
        assert noted is not None
        os.sched_setaffinity(0, others)
        stack.callback(os.sched_setaffinity, 0, {*others, cpu})
        # In real time nobody takes it off its CPU.
        os.sched_setscheduler(spinner.pid, os.SCHED_FIFO, os.sched_param(1))
        spinner.begin("spin")
        _await_running(spinner)
        assert bpf_calls.map_lookup(left, task, info=info) is None
        bpf_calls.map_update(left, task, noted, info=info)
        held = spinner.switches().involuntary
        os.sched_setscheduler(spinner.pid, os.SCHED_OTHER, os.sched_param(0))
        stack.enter_context(child(cpu=cpu))  # its start takes the CPU off the other
        wait_for(lambda: spinner.switches().involuntary > held, "a preemption")
        spinner.stop()
        switches = spinner.switches().since(before)
    counts, _ = _off_cpu(counted)
    assert counts["unmatched"] >= 1
    # The last time has not ended, and one has been noted twice.
    assert counts["times"] + counts["unmatched"] == switches.voluntary, counts
    assert counts["times"] <= switches.voluntary - 1, counts


def _await_running(spinner: Child) -> None:
    """Wait until a process has its CPU, and has had it for some ticks."""

    def on_cpu_ns() -> int:
        return int(Path(f"/proc/{spinner.pid}/schedstat").read_text().split()[0])

    start_ns = on_cpu_ns()
    wait_for(lambda: on_cpu_ns() > start_ns + SOME_TICKS_NS, "a process that runs")


@pytest.mark.parametrize("chosen", ["pid", "tid"])
def test_times_off_cpu(start_cli: Start, tmp_path: Path, chosen: str) -> None:
    """Each sleep is one, as long as it was at the least, with the stacks that led to it."""
    with child() as sleeper:
        words = program("offcputime", **{chosen: sleeper.pid})
        counted, switches = _counted(start_cli, tmp_path, words, sleeper)
    counts, stacks = _off_cpu(counted)
    assert switches.voluntary > 1
    _check_seen(counts, "times", switches.voluntary - 1)  # the last one has not ended
    assert counts["ns"] >= counts["times"] * SLEEP_NS
    assert counts["unrecorded"] == counts["stacks_failed"] == 0
    for stack in stacks:
        comm, *frames = stack["frames"]
        assert comm == COMM
        if not counts["stacks_collided"]:
            assert any(map(SLEEP_FRAME.fullmatch, frames)), frames
            assert not set(LOST_FRAMES).intersection(frames)


@pytest.mark.parametrize(
    "arguments", [{"state": "D"}, {"state": "TtPI"}, {"min_us": 60_000_000}], ids=str
)
def test_other_times_off_cpu(
    start_cli: Start, tmp_path: Path, arguments: dict[str, int | str]
) -> None:
    """Times that were not requested are not counted."""
    with child() as sleeper:
        words = program("offcputime", pid=sleeper.pid, **arguments)
        counted, _ = _counted(start_cli, tmp_path, words, sleeper)
    counts, stacks = _off_cpu(counted)
    assert not stacks
    assert counts.pop("unmatched") * 100 <= TIMES * UNSEEN_PERCENT
    assert not any(counts.values()), counts


@pytest.mark.parametrize(("only", "kernel"), [("kernel_only", True), ("user_only", False)])
def test_half_of_the_stacks(start_cli: Start, tmp_path: Path, *, only: str, kernel: bool) -> None:
    """Stacks have frames of the kernel alone, or of user mode."""
    with child() as sleeper:
        words = program("offcputime", pid=sleeper.pid, **{only: "true"})
        counted, switches = _counted(start_cli, tmp_path, words, sleeper)
    counts, stacks = _off_cpu(counted)
    _check_seen(counts, "times", switches.voluntary - 1)
    frames = [frame for stack in stacks for frame in stack["frames"][1:]]
    assert frames
    assert {frame.endswith("_[k]") for frame in frames if frame not in LOST_FRAMES} <= {kernel}


def test_more_stacks_than_are_told_apart(start_cli: Start, tmp_path: Path) -> None:
    """The first one has its own time; all others share one."""
    with child() as sleeper:
        words = program("offcputime", pid=sleeper.pid, max_entries=1, kernel_only="true")
        with counting(start_cli, tmp_path, *words, "--json") as counted:
            before = sleeper.switches()
            sleeper.do("sleep", TIMES)
            sleeper.do("select", TIMES)
            switches = sleeper.switches().since(before)
    counts, stacks = _off_cpu(counted)
    assert len(stacks) == 1
    # The last one has not ended.
    _check_seen(counts, "times", switches.voluntary - 1)
    between = 1  # it waited for the second order
    assert TIMES + between - counts["unmatched"] <= counts["unrecorded"] <= TIMES + between
    assert counts["unrecorded_ns"] >= (counts["unrecorded"] - between) * SLEEP_NS


def test_more_tasks_than_are_followed(start_cli: Start, tmp_path: Path) -> None:
    """Each time off CPU is counted, is reported as not measured, or has not ended."""
    with child(threads=4) as sleeper:
        words = program("offcputime", pid=sleeper.pid, max_tasks=1)
        counted, switches = _counted(start_cli, tmp_path, words, sleeper)
    counts, _ = _off_cpu(counted)
    assert counts["times"] > 0
    assert counts["untracked"] > 0
    ended = counts["times"] + counts["untracked"] + counts["unmatched"]
    assert 0 <= switches.voluntary - ended <= 1, counts


def test_answers_on_a_terminal(start_cli: Start, tmp_path: Path) -> None:
    """They are bars, a table and stacks by line; a traced process's name is harmless."""
    with child(comm=HOSTILE) as sleeper:
        words = [*program("runqlat", pid=sleeper.pid), *program("offcputime", pid=sleeper.pid)]
        with counting(start_cli, tmp_path, *words) as counted:
            sleeper.do("sleep", TIMES)
    text = counted.stdout
    assert all(line.isprintable() for line in text.split("\n"))
    assert re.search(r"^waits for a CPU, us$", text, re.MULTILINE)
    bars = re.findall(r"^ *\d+ \.\. +\d+ +(\d+)(?:  (#+))?$", text, re.MULTILINE)
    assert max(len(bar) for _, bar in bars) == len(max(bars, key=lambda bar: int(bar[0]))[1])
    assert all(bool(int(count)) == bool(bar) for count, bar in bars)
    table = re.search(r"^WAITS +UNMATCHED +UNTRACKED\n *(\d+) +\d+ +0$", text, re.MULTILINE)
    assert table
    assert sum(int(count) for count, _ in bars) == int(table[1]) > 0
    stacks = re.findall(r"^(\S.*);\w*nanosleep\w*_\[k\];.* (\d+)$", text, re.MULTILINE)
    assert {stack.partition(";")[0] for stack, _ in stacks} == {HARMLESS}
    assert sum(int(value) for _, value in stacks) > 0
    assert re.search(r"^TIMES +TIME .*\n *\d+ .*$", text, re.MULTILINE)
