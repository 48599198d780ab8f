# SPDX-License-Identifier: Apache-2.0
"""The rings of sessions follow the CPUs, whatever happens to a CPU meanwhile."""

from __future__ import annotations

import asyncio
import errno
import os
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from collectord.config.schema import Config
from collectord.config.schema_session import SessionConfig
from collectord.daemon.coverage import Coverage
from collectord.daemon.cpu_watch import CpuChange, CpuWatch
from collectord.daemon.hotplug import Hotplug
from collectord.errors import KernelError, ShardSilent
from collectord.plan.build import build
from collectord.session.session import Session
from tests.support.configs import perf_source
from tests.support.hosts import host

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from collectord.errors import CollectordError
    from collectord.plan.session_plan import SessionPlan

CPUS = frozenset(range(4))
CONFIG = Config(session=(SessionConfig(name="calls", source=(perf_source("cs"),)),))


def planned() -> SessionPlan:
    """Return the plan of a session of perf, on four CPUs."""
    (plan,) = build(CONFIG, host()).sessions
    return plan


class Rings(Session):
    """A session that has rings on CPUs, and notes what it is asked for."""

    def __init__(self, plan: SessionPlan, *, can: bool = True) -> None:
        one: Any = self
        self.plan = plan
        self.abilities: Any = SimpleNamespace(hotplug=(one,) if can else ())
        self.rings = one
        self.cpus = set(CPUS)
        self.asked: list[tuple[str, int]] = []
        self.refusals: list[CollectordError] = []
        self.silent = False
        self.meanwhile: Callable[[], None] = lambda: None
        self.troubles: list[str] = []

    def note(self, about: str, trouble: str) -> None:
        """Note what it lacks, if that is another trouble."""
        assert about == "cpus"
        if self.troubles[-1:] != [trouble]:
            self.troubles.append(trouble)

    async def leave_cpu(self, cpu: int) -> None:
        """Give up the rings of a CPU, if there are any."""
        self.asked.append(("leave", cpu))
        await asyncio.sleep(0)
        if self.silent:
            raise ShardSilent(0, 5.0)
        self.cpus.discard(cpu)

    async def join_cpu(self, cpu: int) -> None:
        """Make rings for a CPU, unless that is refused."""
        self.asked.append(("join", cpu))
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        await asyncio.sleep(0)
        assert cpu not in self.cpus, "two rings at once"
        if self.refusals:
            raise self.refusals.pop(0)
        self.cpus.add(cpu)


class Cpus(CpuWatch):
    """CPUs that the test takes away and gives back."""

    def __init__(self, fd: int = -1) -> None:
        self.fd = fd
        self.polls = 0
        self.now = CpuChange(CPUS, frozenset())

    def fileno(self) -> int:
        """Return what tells of news."""
        return self.fd

    def poll(self) -> CpuChange:
        """Return the last change; what went is told once."""
        self.polls += 1
        now, self.now = self.now, CpuChange(self.now.online, frozenset())
        return now


class Rig:
    """A session, and CPUs that the test takes away and gives back."""

    def __init__(self, *, can: bool = True) -> None:
        self.session = Rings(planned(), can=can)
        self.coverage = Coverage([self.session.plan], CPUS)
        self.cpus = Cpus()
        self.live = [self.session]
        self.hotplug = Hotplug(self.live, self.coverage, self.cpus)
        self.hotplug.begin()

    def change_unseen(self, online: Iterable[int], *left: int) -> None:
        """Take these CPUs away and leave those that are online."""
        self.cpus.now = CpuChange(frozenset(online), frozenset(left))

    def change(self, online: Iterable[int], *left: int) -> None:
        """Do so, and look."""
        self.change_unseen(online, *left)
        self.hotplug.poll()


def test_a_cpu_that_leaves_loses_its_rings_and_gets_new_ones() -> None:
    """It is covered from then on."""

    async def scenario() -> Rig:
        rig = Rig()
        rig.change([0, 1, 3], 2)
        await rig.hotplug.settled()
        assert rig.session.cpus == {0, 1, 3}
        assert rig.coverage.trouble(rig.session.plan) == "CPU 2: offline"
        rig.change([0, 1, 2, 3])
        await rig.hotplug.settled()
        return rig

    rig = asyncio.run(scenario())
    assert rig.session.cpus == CPUS
    assert rig.session.asked == [("leave", 2), ("leave", 2), ("join", 2)]
    assert rig.session.troubles[-1] == ""
    assert rig.coverage.covered == CPUS


def test_a_cpu_that_was_away_for_a_moment_gets_new_rings_too() -> None:
    """Its events are detached, though it was never seen offline."""

    async def scenario() -> Rig:
        rig = Rig()
        rig.change([0, 1, 2, 3], 1, 2)
        await rig.hotplug.settled()
        return rig

    rig = asyncio.run(scenario())
    assert rig.session.asked == [("leave", 1), ("join", 1), ("leave", 2), ("join", 2)]
    assert rig.coverage.covered == CPUS


def test_a_cpu_that_is_new_gets_rings() -> None:
    """Offline when the session was opened, it is covered from then on, as the others are."""

    async def scenario() -> Rig:
        rig = Rig()
        rig.change([0, 1, 2, 3, 4])
        await rig.hotplug.settled()
        rig.hotplug.follow()
        await rig.hotplug.settled()
        return rig

    rig = asyncio.run(scenario())
    assert rig.session.asked == [("leave", 4), ("join", 4)]
    assert rig.coverage.covered == CPUS | {4}


def test_a_cpu_that_leaves_while_it_joins_joins_again() -> None:
    """The rings that it got are those of events that the kernel has detached."""

    async def scenario() -> Rig:
        rig = Rig()
        rig.session.meanwhile = lambda: rig.change([0, 1, 2, 3], 2)
        rig.change([0, 1, 2, 3], 2)
        await rig.hotplug.settled()
        return rig

    rig = asyncio.run(scenario())
    assert rig.session.asked == [("leave", 2), ("join", 2)] * 2
    assert rig.coverage.covered == CPUS


def test_an_absence_that_is_told_late_is_not_one_of_the_new_rings() -> None:
    """It was over before they were opened, and they stay."""

    async def scenario() -> Rig:
        rig = Rig()
        rig.change([0, 1, 2, 3], 2)
        rig.change_unseen([0, 1, 2, 3], 2)
        await rig.hotplug.settled()
        rig.hotplug.poll()  # as at the next flush
        await rig.hotplug.settled()
        return rig

    rig = asyncio.run(scenario())
    assert rig.session.asked == [("leave", 2), ("join", 2)]
    assert rig.coverage.covered == CPUS


def test_a_cpu_that_is_not_ready_is_tried_again() -> None:
    """The kernel refuses events on it until it is up."""

    async def scenario() -> Rig:
        rig = Rig()
        rig.session.refusals = [KernelError("cannot open cs", errno=errno.ENODEV)] * 2
        rig.change([0, 1, 2, 3], 2)
        await rig.hotplug.settled()
        return rig

    rig = asyncio.run(scenario())
    assert rig.session.asked == [("leave", 2), *[("join", 2)] * 3]
    assert rig.coverage.covered == CPUS


def test_a_cpu_that_cannot_join_is_missed() -> None:
    """So it is until it was away once more; a drain thread that is silent is no other case."""

    async def scenario() -> Rig:
        rig = Rig()
        rig.session.refusals = [KernelError("cannot open cs", errno=errno.EMFILE)]
        rig.change([0, 1, 2, 3], 2)
        await rig.hotplug.settled()
        missed = "CPU 2: back online, and not recorded since it was offline"
        assert rig.session.troubles == [missed]
        rig.session.silent = True
        rig.change([0, 1, 2, 3], 2)
        await rig.hotplug.settled()
        assert rig.session.troubles == [missed]
        rig.session.silent = False
        rig.change([0, 1, 2, 3], 2)
        await rig.hotplug.settled()
        return rig

    rig = asyncio.run(scenario())
    assert rig.session.troubles[-1] == ""
    assert rig.coverage.covered == CPUS


def test_a_source_that_cannot_is_left_alone() -> None:
    """Its session says that the CPU is not recorded."""

    async def scenario() -> Rig:
        rig = Rig(can=False)
        rig.change([0, 1, 2, 3], 2)
        await rig.hotplug.settled()
        return rig

    rig = asyncio.run(scenario())
    assert rig.session.asked == []
    assert rig.coverage.trouble(rig.session.plan).startswith("CPU 2: back online")


@given(
    st.lists(
        st.tuples(
            st.frozensets(st.integers(0, 3)), st.frozensets(st.integers(0, 3)), st.booleans()
        )
    )
)
def test_in_the_end_all_that_is_online_has_rings(
    changes: list[tuple[frozenset[int], frozenset[int], bool]],
) -> None:
    """Whatever the order: CPUs go, come, and bounce, before or after their rings did."""

    async def scenario() -> Rig:
        rig = Rig()
        for online, bounced, waits in changes:
            left = bounced | (rig.coverage.online - online)
            rig.change(sorted(online), *left)
            await (rig.hotplug.settled() if waits else asyncio.sleep(0))
        rig.change(sorted(CPUS))
        await rig.hotplug.settled()
        return rig

    rig = asyncio.run(scenario())
    assert rig.session.cpus == CPUS
    assert rig.coverage.covered == CPUS
    assert rig.coverage.trouble(rig.session.plan) == ""


def test_news_are_looked_at_once_and_not_a_thousand_times() -> None:
    """Uevents of other devices make its descriptor readable too."""

    async def scenario() -> int:
        with ExitStack() as stack:
            fd = os.eventfd(1, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            stack.callback(os.close, fd)
            cpus = Cpus(fd)  # which nobody reads: it stays readable
            hotplug = Hotplug([], Coverage([], CPUS), cpus)
            hotplug.begin()
            for _ in range(1000):
                await asyncio.sleep(0)
            hotplug.end()
        return cpus.polls

    assert 1 <= asyncio.run(scenario()) < 100


def test_a_session_whose_disk_hangs_holds_up_no_other() -> None:
    """The others get their rings, an end does not wait for it, and it gets none afterwards."""

    class Stuck(Rings):
        answers: asyncio.Event

        async def join_cpu(self, cpu: int) -> None:
            await self.answers.wait()
            await super().join_cpu(cpu)

    async def scenario() -> tuple[Rings, Rings]:
        (plan,) = build(CONFIG, host()).sessions
        other = replace(plan, name="other")
        stuck, quick = Stuck(plan), Rings(other)
        stuck.answers = asyncio.Event()
        coverage = Coverage([plan, other], CPUS)
        cpus = Cpus()
        hotplug = Hotplug([stuck, quick], coverage, cpus)
        hotplug.begin()
        cpus.now = CpuChange(CPUS, frozenset({1, 2}))
        hotplug.poll()
        async with asyncio.timeout(60):
            while quick.asked[-1:] != [("join", 2)]:  # noqa: ASYNC110 - it ends by itself
                await asyncio.sleep(0)
            hotplug.end()
            stuck.answers.set()
            await hotplug.settled()
        return stuck, quick

    stuck, quick = asyncio.run(scenario())
    assert quick.cpus == CPUS
    assert stuck.asked == [("leave", 1), ("join", 1)]


def test_a_session_that_another_one_follows_gets_no_more_rings() -> None:
    """Even if it is replaced while a CPU joins it, which is nothing to be covered."""

    async def scenario() -> Rig:
        rig = Rig()
        rig.session.meanwhile = rig.live.clear
        rig.change(sorted(CPUS), 1, 2)
        await rig.hotplug.settled()
        return rig

    rig = asyncio.run(scenario())
    assert rig.session.asked == [("leave", 1), ("join", 1)]
    assert rig.coverage.away(rig.session.plan) == {1, 2}
