# SPDX-License-Identifier: Apache-2.0
"""CPUs that go, come back or come late: which sessions lack them, and in which words."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from collectord.config.schema import Config
from collectord.config.schema_session import BpfSourceConfig, SessionConfig, TargetConfig
from collectord.daemon.coverage import Coverage
from collectord.errors import KernelError
from collectord.facts.kernel_facts import BpfFacts
from collectord.model import ScopeKind
from collectord.plan.build import build
from tests.support.bpf_pairs import SOURCE, program
from tests.support.configs import perf_source, tracefs_source
from tests.support.hosts import host

if TYPE_CHECKING:
    from collectord.plan.session_plan import SessionPlan

PERF = perf_source("sched:sched_switch")
FTRACE = tracefs_source("sched:sched_switch")
CPUS = (0, 1, 2, 3)


def plan(source: Any = PERF, **target: Any) -> SessionPlan:  # noqa: ANN401 - of the schema
    """Return a session of one source, on four CPUs."""
    session = SessionConfig(name="calls", target=TargetConfig(**target), source=(source,))
    (planned,) = build(Config(session=(session,)), host()).sessions
    return planned


def test_a_cpu_that_leaves_is_missed_by_its_number() -> None:
    """While it is offline, it is missing in sessions with a ring there, and in no other."""
    whole, one = plan(), plan(scope=ScopeKind.CPUS, cpus=(0, 1))
    coverage = Coverage([whole], CPUS)
    assert coverage.trouble(whole) == ""
    assert coverage.covered == set(CPUS)
    coverage.change([0, 1, 3])
    assert coverage.trouble(whole) == "CPU 2: offline"
    assert coverage.online & coverage.covered == {0, 1, 3}
    coverage = Coverage([one], [0, 1, 3])
    assert coverage.trouble(one) == ""
    coverage.change([0])
    assert coverage.trouble(one) == "CPU 1: offline"


@pytest.mark.parametrize("seen", [True, False], ids=["seen", "between two looks"])
def test_a_cpu_that_returns_has_lost_its_events(*, seen: bool) -> None:
    """The kernel detached them; those of tasks, and the rings of ftrace, are there as before."""
    for session, said in {
        plan(): "CPU 1,3: back online, and not recorded since it was offline",
        plan(FTRACE): "",
        plan(scope=ScopeKind.PROCESS, pids=(1,)): "",
    }.items():
        coverage = Coverage([session], CPUS)
        if seen:
            coverage.change([0, 2], [1, 3])
            assert coverage.trouble(session) == "CPU 1,3: offline"
        coverage.change(CPUS, [1, 3])
        assert coverage.trouble(session) == said
        assert coverage.covered == set(CPUS) - ({1, 3} if said else set())


def test_names_of_a_cpu_that_returns_are_missed() -> None:
    """They come by events of perf on each CPU, wherever the samples come from."""
    facts = host(
        bpf=BpfFacts(python="/usr/bin/python3", programs={"p": program(SOURCE, name="p")})
    )
    buffered = SessionConfig(
        name="calls", source=(BpfSourceConfig(program="p", transport="ringbuf"),)
    )
    (ringbuf,) = build(Config(session=(buffered,)), facts).sessions
    for session in (ringbuf, plan(scope=ScopeKind.CPUS, cpus=(0,))):
        coverage = Coverage([session], CPUS)
        coverage.change(CPUS, [1, 3])
        assert coverage.trouble(session).startswith("CPU 1,3: back online, but tasks that started")
        assert coverage.covered == set(CPUS)


def test_time_is_missed_by_the_session_that_lacks_the_cpu() -> None:
    """A CPU that has rings again is missed no longer, unless it was away meanwhile."""
    whole = plan()
    ftrace = replace(plan(FTRACE), name="other")
    coverage = Coverage([whole, ftrace], CPUS)
    coverage.change(CPUS, [1])
    assert coverage.away(whole) == {1}
    assert coverage.away(ftrace) == set()
    total_ns = coverage.uncovered_ns()
    missed = coverage.uncovered_by_session()
    assert missed == {("calls", "perf"): total_ns, ("other", "tracefs"): 0}
    before = coverage.absences(whole, 1)
    coverage.change(CPUS, [1])
    coverage.joined(whole, 1, before)
    assert coverage.trouble(whole).startswith("CPU 1: back online")
    coverage.joined(whole, 1, coverage.absences(whole, 1))
    assert coverage.trouble(whole) == ""
    assert coverage.covered == set(CPUS)
    assert coverage.away(whole) == set()


def test_sessions_come_and_go() -> None:
    """Those that stay keep what is known of them, and what those that go lacked is forgotten."""
    one, other = plan(), replace(plan(), name="other")
    coverage = Coverage([one], CPUS)
    coverage.change([0, 2, 3])
    coverage.change(CPUS)
    said = "CPU 1: back online, and not recorded since it was offline"
    coverage.follow([one, other])
    assert (coverage.trouble(one), coverage.trouble(other)) == (said, "")
    assert set(coverage.uncovered_by_session()) == {("calls", "perf"), ("other", "perf")}
    coverage.follow([other])
    assert coverage.trouble(one) == ""
    assert coverage.covered == set(CPUS)
    coverage.change([0, 1])
    coverage.follow([one])
    assert coverage.trouble(one) == "CPU 2-3: offline"


def test_a_cpu_that_is_new_has_no_ring() -> None:
    """If all CPUs are meant, it is missing; its ftrace events are read at the end."""
    for session, said in {
        plan(): "CPU 4: online since the start, not recorded",
        plan(FTRACE): "CPU 4: online since the start, its ring is read at the end",
        plan(scope=ScopeKind.PROCESS, pids=(1,)): "CPU 4: online since the start, not recorded",
        plan(scope=ScopeKind.CPUS, cpus=(0, 1, 2, 3)): "",
    }.items():
        coverage = Coverage([session], CPUS)
        coverage.change([*CPUS, 4])
        assert coverage.trouble(session) == said
        assert (4 in coverage.covered) == (not said)


def test_a_cpu_that_is_new_may_get_rings() -> None:
    """From then on it is one of the session's, which misses it when it leaves; ftrace's stays."""
    whole, one, ftrace = plan(), plan(scope=ScopeKind.CPUS, cpus=(0,)), plan(FTRACE)
    for session, away in {whole: {4}, one: set(), ftrace: {4}}.items():
        coverage = Coverage([session], CPUS)
        coverage.change([*CPUS, 4])
        assert coverage.away(session) == away
    coverage = Coverage([whole], CPUS)
    coverage.change([*CPUS, 4])
    coverage.joined(whole, 4, coverage.absences(whole, 4))
    assert coverage.trouble(whole) == ""
    assert coverage.away(whole) == set()
    coverage.change(CPUS)
    assert coverage.trouble(whole) == "CPU 4: offline"
    coverage.change([*CPUS, 4])
    assert coverage.trouble(whole).startswith("CPU 4: back online")
    coverage = Coverage([ftrace], CPUS)
    coverage.change([*CPUS, 4])
    coverage.joined(ftrace, 4, coverage.absences(ftrace, 4))
    coverage.change(CPUS)
    assert coverage.trouble(ftrace) == "CPU 4: offline"
    coverage.change([*CPUS, 4])
    assert coverage.trouble(ftrace) == ""
    assert coverage.away(ftrace) == set()


def test_a_cpu_that_is_new_is_in_no_file_of_a_whole_recording() -> None:
    """A trace.dat has the CPUs that it began with: no more are read at the end."""
    session = plan(FTRACE)
    session = replace(session, sink=replace(session.sink, single_file="/srv/trace.dat"))
    coverage = Coverage([session], CPUS)
    coverage.change([*CPUS, 4])
    assert coverage.trouble(session) == "CPU 4: online since the start, not recorded"


def test_a_cpu_gone_while_the_session_was_opened() -> None:
    """Its ring was opened, or is not there: it is missed from the beginning."""
    session = plan()
    coverage = Coverage([session], [0, 1, 2])
    assert coverage.trouble(session) == "CPU 3: offline"
    coverage.change(CPUS)
    assert coverage.trouble(session).startswith("CPU 3: back online")


def test_a_look_that_fails_changes_nothing() -> None:
    """Sysfs cannot be read for want of a descriptor: what was seen last stands."""

    class Watch:
        def poll(self) -> None:
            raise KernelError("cannot read /sys/devices/system/cpu/online")

    session = plan()
    coverage = Coverage([session], CPUS)
    watch: Any = Watch()
    coverage.poll(watch)
    assert coverage.online == set(CPUS)
    assert coverage.trouble(session) == ""
