# SPDX-License-Identifier: Apache-2.0
"""Sessions on their way: who waits for their disks, and what becomes of those that are dropped."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from collectord.config.schema import Config, DaemonConfig
from collectord.config.schema_session import SessionConfig
from collectord.daemon import session_start, starting_sessions
from collectord.daemon.ending_sessions import EndingSessions
from collectord.daemon.session_set import SessionSet
from collectord.daemon.session_start import Arrival, Way
from collectord.daemon.starting_sessions import StartingSessions
from collectord.errors import PlanError, SinkError
from collectord.plan.build import build
from collectord.session.maps.map_watch import BpfWatch
from tests.support import balances
from tests.support.configs import perf_source
from tests.support.hosts import host

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from collectord.plan.session_plan import SessionPlan
    from collectord.session.session_factory import Progress


class One:
    """A session whose disk answers when told to, at each of the steps that wait for one."""

    source = None
    readers = ()

    def __init__(self, name: str, rig: Rig) -> None:
        session = SessionConfig(name=name, source=(perf_source("sched:sched_switch"),))
        config = Config(daemon=DaemonConfig(state_dir="/state"), session=(session,))
        (self.plan,) = build(config, host()).sessions
        self.answers = asyncio.Event()
        self.fails = False
        self._rig = rig

    async def begin(self) -> None:
        """Wait for the disk."""
        await self._rig.on_disk(self, "begin")

    async def close(self) -> None:
        """Note that it ends; it may be told to once more."""
        step = f"close {self.plan.name}"
        if step not in self._rig.done:
            self._rig.done.append(step)

    def balance(self) -> Any:  # noqa: ANN401 - that of a session
        """Return one without records."""
        return balances.session(self.plan.name)


class Rig:
    """Sessions on their way, and what was done."""

    def __init__(self) -> None:
        self.sessions = SessionSet(BpfWatch())
        self.ending = EndingSessions(self.sessions)
        self.starting = StartingSessions(self.sessions, self.ending)
        self.done: list[str] = []
        self.hangs = ""  # the step whose disk hangs
        self.made: dict[str, One] = {}
        self.opens = asyncio.Event()  # a source's opening takes until then
        self.opens.set()

    async def on_disk(self, one: One, step: str) -> None:
        """Wait for a session's disk, if it hangs at this step."""
        if self.hangs == f"{step} {one.plan.name}":
            await one.answers.wait()
            if one.fails:
                raise SinkError("no room", path=one.plan.sink.directory)
        self.done.append(f"{step} {one.plan.name}")

    def set_out(self, *names: str) -> list[Arrival]:
        """Let sessions set out."""
        way = Way(
            context=self._context(),
            places=self._places(),
            contains=lambda *_: False,
            blamed=lambda _: nullcontext(),
            told=lambda _: None,
        )
        self.made.update({name: One(name, self) for name in names})
        return [self.starting.set_out(self.made[name].plan, way) for name in names]

    def _places(self) -> Any:  # noqa: ANN401 - as much of it as is called
        async def claim(plan: SessionPlan) -> int:
            await self.on_disk(self.made[plan.name], "claim")
            return 1

        return SimpleNamespace(claim=claim)

    def _context(self) -> Any:  # noqa: ANN401 - as much of it as is called
        async def opened(
            plan: SessionPlan, own: AsyncExitStack, _contains: object, progress: Progress
        ) -> One:
            progress.opening()
            await self.opens.wait()
            progress.loading()
            await self.on_disk(self.made[plan.name], "open")
            own.callback(self.done.append, f"undo {plan.name}")
            return self.made[plan.name]

        return SimpleNamespace(watch=BpfWatch(), use_disk=lambda *_: None, open=opened)


def run(scenario: Callable[[Rig], Coroutine[Any, Any, None]]) -> list[str]:
    """Run a scenario; returns what was done."""

    async def whole() -> list[str]:
        rig = Rig()
        async with asyncio.timeout(60):
            await scenario(rig)
            await rig.starting.end()
            await rig.ending.end()
        return rig.done

    return asyncio.run(whole())


@pytest.fixture(autouse=True)
def _no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_start, "_GRACE_S", 0.05)
    monkeypatch.setattr(starting_sessions, "_END_S", 0.05)
    monkeypatch.setattr(starting_sessions.StartingSessions, "_hangs", lambda _: True)


def joins_none(_one: Arrival) -> None:
    """Fail: nobody is to join later."""
    raise AssertionError


@pytest.mark.parametrize("step", ["claim", "open", "begin"])
def test_nobody_waits_for_a_disk_that_hangs(step: str) -> None:
    """The others begin, the status says who waits, and that one joins when its disk answers."""

    async def scenario(rig: Rig) -> None:
        joined = asyncio.Event()

        def join(one: Arrival) -> None:
            assert one is stuck
            assert [session.plan.name for session in one.aside] == ["stuck"]
            joined.set()

        rig.hangs = f"{step} stuck"
        stuck, quick = ones = rig.set_out("stuck", "quick")
        await rig.starting.opened(ones)
        assert await rig.starting.begun(ones, join) == [quick]
        assert rig.starting.names == ["stuck"]
        (balance,) = rig.starting.balances()
        assert (balance.name, balance.state) == ("stuck", "beginning")
        assert balance.degraded_reasons == ("its disk does not answer: /state/stuck",)
        rig.made["stuck"].answers.set()
        await joined.wait()
        assert rig.starting.balances() == ()

    done = run(scenario)
    for name in ("stuck", "quick"):
        assert [one for one in done if name in one] == [
            f"{s} {name}" for s in ("claim", "open", "begin")
        ]


def test_none_begins_before_all_are_open() -> None:
    """A failure leaves nothing recorded; a source may take its time to open, as compilers do."""

    async def scenario(rig: Rig) -> None:
        rig.opens.clear()
        ones = rig.set_out("a", "b")
        waiting = asyncio.create_task(rig.starting.opened(ones))
        await asyncio.sleep(0.1)  # longer than for a disk
        assert not waiting.done()
        rig.opens.set()
        await waiting
        assert "begin a" not in rig.done
        assert await rig.starting.begun(ones, joins_none) == ones

    run(scenario)


def test_what_is_dropped_ends_by_itself() -> None:
    """Before its folder is claimed at once, later when its disk has answered."""

    async def scenario(rig: Rig) -> None:
        rig.hangs = "claim a"
        ones = rig.set_out("a")
        await rig.starting.opened(ones)
        await rig.starting.drop(ones)
        assert rig.starting.plans == []
        rig.hangs = "begin b"
        ones = rig.set_out("b")
        await rig.starting.opened(ones)
        assert await rig.starting.begun(ones, joins_none) == []
        await rig.starting.drop(ones)
        assert rig.starting.names == []
        assert [one.state for one in rig.starting.ending()] == ["ending"]
        with pytest.raises(PlanError, match="'b' is still beginning: it writes to /state/b"):
            await rig.starting.check([rig.made["b"].plan])
        rig.made["b"].answers.set()
        await asyncio.wait([ones[0].task])
        await rig.starting.check([rig.made["b"].plan])
        await rig.ending.end()

    assert run(scenario) == ["claim b", "open b", "begin b", "close b", "undo b"]


def test_a_failure_is_raised_unless_it_comes_late() -> None:
    """A late one is told to whom lets the session join."""

    async def scenario(rig: Rig) -> None:
        rig.hangs = "begin late"
        (late,) = ones = rig.set_out("late")
        rig.made["late"].fails = True
        await rig.starting.opened(ones)
        told = asyncio.Event()

        def join(one: Arrival) -> None:
            assert str(one.error()) == "no room: /state/late"
            told.set()

        assert await rig.starting.begun(ones, join) == []
        rig.made["late"].answers.set()
        await told.wait()
        assert [*late.aside] == []
        rig.hangs = "open bad"
        ones = rig.set_out("bad", "good")
        rig.made["bad"].fails = True
        rig.made["bad"].answers.set()
        with pytest.raises(SinkError, match="no room"):
            await rig.starting.opened(ones)
        await asyncio.sleep(0)  # the failed one is over, or not
        await rig.starting.drop(ones)

    done = run(scenario)
    assert "undo late" in done
    assert "undo good" in done
    assert "begin good" not in done


def test_an_end_abandons_those_whose_disks_never_answer() -> None:
    """It waits for no more than some seconds, once."""

    async def scenario(rig: Rig) -> None:
        rig.hangs = "begin stuck"
        ones = rig.set_out("stuck", "quick")
        await rig.starting.opened(ones)
        await rig.starting.begun(ones, joins_none)
        await rig.starting.end()
        assert [plan.name for plan in rig.starting.abandoned] == ["stuck"]
        ones[0].task.cancel()

    run(scenario)


def test_a_recording_waits_for_each_disk_until_it_is_stopped() -> None:
    """Its command is to begin with all of them."""

    async def scenario(rig: Rig) -> None:
        rig.starting.be_patient()
        rig.hangs = "begin slow"
        ones = rig.set_out("slow")
        await rig.starting.opened(ones)
        begun = asyncio.create_task(rig.starting.begun(ones, joins_none))
        await asyncio.sleep(0.1)  # longer than a daemon waits
        assert not begun.done()
        rig.starting.hurry()
        assert await begun == []
        rig.made["slow"].answers.set()

    run(scenario)
