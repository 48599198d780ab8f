# SPDX-License-Identifier: Apache-2.0
"""The generator makes exactly what it says, by the kernel's own count."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.support.generator import MARK_FILTER

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.generator import Generator
    from tests.support.perf_tools import Perf

EVENT = "raw_syscalls:sys_enter"


def _counted(perf: Perf, event: list[str], command: list[str]) -> int:
    done = perf.run("stat", "-x,", *event, "--", *command)
    assert done.returncode == 0, done.stderr
    found = re.search(r"^(\d+),", done.stderr, re.MULTILINE)
    assert found, done.stderr
    return int(found[1])


@pytest.mark.parametrize(
    "options",
    [
        {"count": 12_345},
        {"count": 2_000, "threads": 4, "later": 4},
        {"count": 5_000, "rate": 50_000, "cpu": 0},
    ],
    ids=["one thread", "threads before and after the start", "paced on CPU 0"],
)
@pytest.mark.usefixtures("tracefs")
def test_marked_calls_are_exact(
    perf: Perf, generator: Generator, require: Callable[[str], None], options: dict[str, int]
) -> None:
    """The filter on the mark counts the calls of all threads and nothing else."""
    require("raw_syscalls tracepoints")
    threads = options.get("threads", 1) + options.get("later", 0)
    command = generator.command("count", now=True, hold=False, **options)
    counted = _counted(perf, ["-e", EVENT, "--filter", MARK_FILTER], command)
    assert counted == options["count"] * threads


def test_parts_of_the_calls_are_weighed_apart(generator: Generator) -> None:
    """The requested number of parts is reported, and their sum is the time of all calls."""
    with generator.start("count", count=10_007, slices=7) as running:
        made = running.run()
    assert made["events"] == 10_007
    assert len(made["slices"]) == 7
    assert all(part > 0 for part in made["slices"])
    assert sum(made["slices"]) <= made["cpu_seconds"]


def test_page_faults_are_exact(generator: Generator) -> None:
    """Touching N fresh pages is N minor faults."""
    with generator.start("faults", pages=3_000) as running:
        assert running.run()["minor_faults"] == 3_000


def test_stores_are_told_with_their_address(generator: Generator) -> None:
    """Mode mem tells an aligned address before it stores N times."""
    with generator.start("mem", count=700) as running:
        assert running.ready["address"] % 8 == 0
        assert running.run()["events"] == 700


@pytest.mark.usefixtures("tracefs")
def test_exec_children_make_their_calls(
    perf: Perf, generator: Generator, require: Callable[[str], None]
) -> None:
    """Each of N execed children makes its calls."""
    require("raw_syscalls tracepoints")
    command = generator.command("exec", count=20, each=30)
    assert _counted(perf, ["-e", EVENT, "--filter", MARK_FILTER], command) == 600


def test_idle_processes_live_until_told(generator: Generator) -> None:
    """The processes of mode idle exist while it waits, and none is left after it."""
    with generator.start("idle", processes=50, maps=3) as running:
        assert running.ready["processes"] == 50
        running.run()
