# SPDX-License-Identifier: Apache-2.0
"""The cost of the daemon and of its probes, and its share of the machine."""

from __future__ import annotations

import mmap
import subprocess
import sys
from collections import deque
from dataclasses import replace
from typing import Any, Final

from collectord.config.schema import Config
from collectord.config.schema_session import SessionConfig
from collectord.plan.bpf_plan import BpfPlan
from collectord.plan.build import build
from collectord.plan.program_plan import ProgramPlan
from collectord.session.cost_meter import CostMeter, Reading, share_of
from collectord.session.maps.program_status import BpfStatus, FunctionRuns
from tests.support.bpf_pairs import program
from tests.support.configs import perf_source
from tests.support.hosts import host

SECOND: Final = 1_000_000_000
KEY: Final = ("s", "perf")
(PLAN,) = build(
    Config(session=(SessionConfig(name="s", source=(perf_source("cs"),)),)), host()
).sessions
EVENT: Final = PLAN.imposed


class OneSession:
    """A session of perf events, of which so many have happened."""

    def __init__(self, plan: Any = PLAN) -> None:  # noqa: ANN401 - as much of one as is read
        self.plan = plan
        self.count = 0

    def events(self) -> int:
        """Return what the test sets."""
        return self.count


def polled(meter: CostMeter, *sessions: Any, programs: tuple[BpfStatus, ...] = ()) -> None:  # noqa: ANN401
    """Take a reading."""
    assert meter.poll(sessions, programs, 2)


def events_of(meter: CostMeter) -> float:
    """Return how many events are in the cost that was imposed."""
    assert EVENT is not None
    return meter.cost.imposed_ns[KEY] / EVENT.event_ns


def test_each_event_costs_what_the_plan_expects() -> None:
    """Its number is the session's, and not that of the readings."""
    meter, session = CostMeter(0.005, 0), OneSession()
    for session.count in (0, 3, 3, 10):
        polled(meter, session)
        assert events_of(meter) == session.count
    assert meter.cost.budget == 0.005


def test_a_session_that_was_replaced_takes_nothing_away() -> None:
    """Its successor begins at 0, and a counter does not fall."""
    meter, first, second = CostMeter(0, 0), OneSession(), OneSession()
    first.count = 10
    polled(meter, first)
    polled(meter, second)
    second.count = 4
    polled(meter, second)
    assert events_of(meter) == 14


def test_a_session_that_has_ended_keeps_its_cost_in_the_sum() -> None:
    """Its own figure is gone, and the cost of the last minute does not fall below 0."""
    meter, session = CostMeter(0, 0), OneSession()
    session.count = 1_000_000
    polled(meter, session)
    meter.forget(session)  # type: ignore[arg-type]  # as much of one as is read
    assert not meter.cost.imposed_ns
    polled(meter)
    assert meter.cost.ratio >= 0
    polled(meter, session)
    assert events_of(meter) == 1_000_000


def test_the_run_time_of_programs_counts_instead_of_their_events() -> None:
    """Where the kernel counts that of each function; without it, and without events, none does."""
    payload = BpfPlan(
        programs=(ProgramPlan(program(name="one"), {}, (), gated=False),),
        cpus=(0,),
        python="",
        headers="",
        cache="",
        compile_ns=0,
        compile_bytes=0,
        stats=True,
    )
    plan = replace(PLAN, source="bpf", rings=(), payload=payload)
    runs = [FunctionRuns(name, 1, 1, ns, 0) for name, ns in (("a", 700), ("b", 50))]
    for functions, expected in (
        (runs, {("s", "bpf"): 750}),
        ([runs[0], replace(runs[1], run_time_ns=None)], {}),
        ([], {}),
    ):
        meter = CostMeter(0, 0)
        status = BpfStatus("s", "one", tuple(functions))
        polled(meter, OneSession(plan), programs=(status,))
        assert meter.cost.imposed_ns == expected


def test_own_time_is_that_of_children_too() -> None:
    """A compiler is a child that has ended."""
    meter = CostMeter(0, 0)
    polled(meter)
    before = meter.cost.own_ns
    loop = "import time\nwhile time.process_time() < 0.2: pass"
    subprocess.run([sys.executable, "-c", loop], check=True)
    polled(meter)
    assert meter.cost.own_ns - before >= 0.2 * SECOND


def test_memory_is_the_processs_own() -> None:
    """Memory that it has written to counts as soon as it is written."""
    meter = CostMeter(0, 0, 1 << 30)
    polled(meter)
    before = meter.cost.private_bytes
    # The allocator might give memory that was written to before.
    with mmap.mmap(-1, 32 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        for at in range(0, len(memory), mmap.PAGESIZE):
            memory[at] = 1
        polled(meter)
    assert meter.cost.private_bytes - before > 16 << 20
    assert meter.cost.memory_limit_bytes == 1 << 30


def test_readings_are_some_flushes_apart() -> None:
    """They read kernel counters that nothing else reads."""
    meter = CostMeter(0, 3600 * SECOND)
    polled(meter)
    assert not meter.poll((), (), 2)


def test_the_share_is_that_of_the_last_minute() -> None:
    """One of two CPUs that is busy for a tenth of the time is a twentieth of the machine."""
    window = deque([Reading(0, 0, {})])
    assert share_of(window, 2) == 0
    for second in range(10, 70, 10):
        window.append(Reading(second * SECOND, second * SECOND // 10, {}))
        assert share_of(window, 2) == 0.05
    window.append(Reading(70 * SECOND, 66 * SECOND, {}))
    assert share_of(window, 2) == (66 - 1) / (60 * 2)
    assert window[0].at_ns == 10 * SECOND
    window.append(Reading(1000 * SECOND, 66 * SECOND, {}))
    assert share_of(window, 2) == 0
