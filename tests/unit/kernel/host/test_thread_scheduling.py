# SPDX-License-Identifier: Apache-2.0
"""Scheduling of real threads of this process."""

from __future__ import annotations

import os
import resource
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from collectord.config.scheduling import DrainPriority
from collectord.errors import KernelError, MissingPrivilege
from collectord.kernel.host import cpus, thread_scheduling
from collectord.kernel.host.thread_scheduling import Permitted
from collectord.kernel.linux import LinuxKernel
from collectord.kernel.probe import checks
from collectord.plan.drain_threads import DrainThread, DrainThreads, Shortfall
from collectord.session.running_threads import Placement
from tests.support.daemons import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NOWHERE = (8000,)


@contextmanager
def sleeper() -> Iterator[int]:
    """Provide the id of a thread that waits."""
    told, over = threading.Event(), threading.Event()
    ids = []

    def wait() -> None:
        ids.append(threading.get_native_id())
        told.set()
        over.wait()

    thread = threading.Thread(target=wait)
    thread.start()
    told.wait()
    try:
        yield ids[0]
    finally:
        over.set()
        thread.join()


def lowest() -> int:
    """Another nice value than the process's that it may give; at 19 only root has one."""
    own = os.getpriority(os.PRIO_PROCESS, 0)
    return own + 1 if own < 19 else own - (os.geteuid() == 0)


def test_a_nice_value_is_the_threads_alone() -> None:
    """The thread has it, and the process does not."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    with sleeper() as tid:
        thread_scheduling.prioritise(tid, DrainPriority.parse(f"nice:{lowest()}"))
        found = thread_scheduling.scheduling(tid)
        assert found is not None
        assert (found.policy, found.priority, found.nice) == ("normal", 0, lowest())
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


def test_normal_changes_nothing() -> None:
    """The thread stays as the process is."""
    with sleeper() as tid:
        before = thread_scheduling.scheduling(tid)
        thread_scheduling.prioritise(tid, DrainPriority.parse("normal"))
        assert thread_scheduling.scheduling(tid) == before


def test_a_thread_is_confined() -> None:
    """It runs on the CPUs that are named, of those that there are."""
    first = min(os.sched_getaffinity(0))
    before = os.sched_getaffinity(0)
    with sleeper() as tid:
        thread_scheduling.confine(tid, (first,))
        found = thread_scheduling.scheduling(tid)
        assert found is not None
        assert found.cpus == (first,)
        with pytest.raises(KernelError, match="cannot run on CPUs 8000"):
            thread_scheduling.confine(tid, NOWHERE)
    assert os.sched_getaffinity(0) == before


def test_a_thread_that_has_ended() -> None:
    """It is left out."""
    with sleeper() as tid:
        assert thread_scheduling.scheduling(tid) is not None
    # A join does not wait for the kernel to be done with it.
    wait_for(lambda: thread_scheduling.scheduling(tid) is None, "the thread's end")


@pytest.mark.parametrize(
    ("limit", "value", "field", "expected"),
    [
        ("RLIMIT_NICE", 0, "nice_min", None),
        ("RLIMIT_NICE", 30, "nice_min", -10),
        ("RLIMIT_NICE", 40, "nice_min", -20),
        ("RLIMIT_RTPRIO", 0, "realtime_max", 0),
    ],
)
def test_limits_tell_what_is_permitted(
    limit: str, value: int, field: str, expected: int | None
) -> None:
    """Without the capability; the nice value of the process itself is always permitted."""
    kind = getattr(resource, limit)
    soft, hard = resource.getrlimit(kind)
    if hard != resource.RLIM_INFINITY and value > hard:
        value = hard
        expected = None if field == "nice_min" else expected
    resource.setrlimit(kind, (value, hard))
    try:
        found = thread_scheduling.permitted(frozenset())
    finally:
        resource.setrlimit(kind, (soft, hard))
    own = os.getpriority(os.PRIO_PROCESS, 0)
    lowest_nice = min(own, 20 - value) if expected is None else min(own, expected)
    assert getattr(found, field) == (lowest_nice if field == "nice_min" else expected)


def test_the_trial_leaves_no_trace() -> None:
    """The process is scheduled as before, whatever it may have been given."""
    before = os.sched_getscheduler(0)
    found = thread_scheduling.permitted({thread_scheduling.CAP_SYS_NICE})
    assert found.nice_min == -20
    assert found.realtime_max in (0, 99)
    assert os.sched_getscheduler(0) == before


def test_what_is_refused_at_run_time_is_a_note() -> None:
    """The other threads, and what else is planned of this one, are not held up by it."""
    first = min(os.sched_getaffinity(0))
    plan = DrainThreads(
        (DrainThread((0,), NOWHERE), DrainThread((1,), (first,))),
        DrainPriority.parse(f"nice:{lowest()}"),
        Shortfall(DrainPriority.parse("fifo:10"), DrainPriority.parse("normal"), "a limit"),
    )
    with sleeper() as one, sleeper() as other:
        running = Placement(LinuxKernel(), plan, (one, other)).read()
        assert running.lacks[0].startswith("drain_priority fifo:10 is not permitted")
        assert "cannot run on CPUs 8000" in running.lacks[1]
        assert len(running.lacks) == 2
        assert [thread.name for thread in running.threads] == ["drain/0", "drain/1"]
        assert [thread.drains for thread in running.threads] == [(0,), (1,)]
        assert [thread.scheduling.nice for thread in running.threads] == [lowest()] * 2
        assert running.threads[1].scheduling.cpus == (first,)


def test_a_refusal_names_the_capability(monkeypatch: pytest.MonkeyPatch) -> None:
    """So it does in a service with RestrictRealtime=, whose seccomp filter refuses."""

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    with pytest.raises(MissingPrivilege) as caught:
        thread_scheduling.prioritise(1, DrainPriority.parse("fifo:10"))
    assert caught.value.need == "CAP_SYS_NICE"
    assert thread_scheduling.permitted({thread_scheduling.CAP_SYS_NICE}).realtime_max == 0


@pytest.mark.parametrize(
    ("found", "ok", "remedied"),
    [
        (Permitted(0, -20, realtime=False, realtime_max=99), True, False),
        (Permitted(0, 0, realtime=False, realtime_max=1), True, False),
        (Permitted(0, -20, realtime=False, realtime_max=0), False, True),
    ],
)
def test_doctor_tells_what_is_permitted(found: Permitted, ok: bool, remedied: bool) -> None:
    """The needs of `auto` decide the row; remedies are listed for the rest."""
    row = checks.drain_threads(found)
    assert row.ok is ok
    assert f"nice:{found.nice_min}" in row.detail
    assert bool(row.remedy) is remedied
    assert ("no fifo" in row.detail) is not bool(found.realtime_max)


def test_nodes_of_memory(tmp_path: Path) -> None:
    """Those without CPUs are none, and a kernel without nodes has none."""
    assert cpus.numa_nodes(tmp_path) == ()
    for name, text in (("node0", "0-1\n"), ("node1", "\n"), ("node10", "4\n"), ("node2", "2-3\n")):
        folder = tmp_path / "devices/system/node" / name
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(text)
    assert cpus.numa_nodes(tmp_path) == ((0, 1), (2, 3), (4,))
