# SPDX-License-Identifier: Apache-2.0
"""Visits of CPUs, by the kernel's own word on where a thread runs."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from collectord.session.cpu_visit import rename, visit


def test_the_thread_runs_on_each_cpu_and_returns() -> None:
    """One after the other, without those that are absent."""
    before = os.sched_getaffinity(0)
    seen = [(cpu, os.sched_getaffinity(0)) for cpu in visit([1 << 20, *sorted(before)])]
    assert seen == [(cpu, {cpu}) for cpu in sorted(before)]
    assert os.sched_getaffinity(0) == before


def test_it_returns_from_a_visit_that_is_broken_off() -> None:
    """Whoever stops half-way is where it was."""
    before = os.sched_getaffinity(0)
    visits = visit(sorted(before))
    next(visits)
    visits.close()
    assert os.sched_getaffinity(0) == before


def test_a_thread_renames_itself_alone() -> None:
    """The process keeps its name."""
    name = Path("/proc/self/comm").read_text()

    def renamed() -> str:
        rename("heartbeat")
        return Path("/proc/thread-self/comm").read_text()

    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(renamed).result() == "heartbeat\n"
    assert Path("/proc/self/comm").read_text() == name
