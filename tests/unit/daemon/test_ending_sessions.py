# SPDX-License-Identifier: Apache-2.0
"""Sessions that end beside those that record: who waits for them, and what is shown meanwhile."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from collectord.daemon import ending_sessions
from collectord.daemon.ending_sessions import EndingSessions
from collectord.daemon.session_set import SessionSet
from collectord.errors import KernelError, PlanError
from collectord.session.maps.map_watch import BpfWatch
from tests.support import balances

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


class One:
    """A session whose end comes when its disk answers."""

    source = None
    readers = ()

    def __init__(self, name: str, directory: str = "", error: str = "") -> None:
        sink = SimpleNamespace(directory=directory or f"/state/{name}")
        self.plan: Any = SimpleNamespace(name=name, source="perf", key=(name, "perf"), sink=sink)
        self.answers = asyncio.Event()
        self.ended = False
        self._error = error

    async def close(self) -> None:
        """Wait for the disk."""
        await self.answers.wait()
        self.ended = True

    async def undo(self) -> None:
        """Fail, if told to."""
        if self._error:
            raise KernelError(self._error)

    def balance(self) -> Any:  # noqa: ANN401 - that of a session
        """Return how much was stored so far."""
        return replace(balances.session(self.plan.name), stored=int(self.ended))


class Rig:
    """Sessions that end, and how often some had."""

    def __init__(self) -> None:
        self.sessions = SessionSet(BpfWatch())
        self.ending = EndingSessions(self.sessions)
        self.left = 0
        self.ending.left = self._count

    def _count(self) -> None:
        self.left += 1

    def begin(self, *sessions: One) -> asyncio.Task[None]:
        """Begin to end them together."""
        out = SessionSet(BpfWatch())
        for one in sessions:
            made: Any = one
            own = AsyncExitStack()
            own.push_async_callback(one.undo)
            out.add(made, own)
        return self.ending.begin(out)


def run(scenario: Callable[[Rig], Coroutine[Any, Any, None]]) -> None:
    """Run a scenario."""

    async def whole() -> None:
        await scenario(Rig())

    asyncio.run(whole())


@pytest.fixture(autouse=True)
def _no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending_sessions, "_GRACE_S", 0.01)


def test_a_session_is_shown_until_it_has_ended() -> None:
    """With its figures, and as one that ends; a quick one is waited for."""

    async def scenario(rig: Rig) -> None:
        stuck, quick = One("stuck"), One("quick")
        rig.begin(stuck)
        quick.answers.set()
        rig.begin(quick)
        assert await rig.ending.settled() == ["stuck"]
        (balance,) = rig.ending.balances()
        assert (balance.name, balance.state, balance.stored) == ("stuck", "ending", 0)
        assert rig.left == 1
        stuck.answers.set()
        await rig.ending.end()
        assert stuck.ended
        assert rig.ending.balances() == ()
        assert rig.left == 2

    run(scenario)


def test_one_that_has_ended_waits_for_no_other() -> None:
    """Each part is undone in its own time."""

    async def scenario(rig: Rig) -> None:
        stuck, quick = One("stuck"), One("quick")
        rig.begin(stuck)
        ended = rig.begin(quick)
        quick.answers.set()
        await ended
        assert [plan.name for plan in rig.ending.plans] == ["stuck"]
        stuck.answers.set()
        await rig.ending.end()

    run(scenario)


def test_its_name_and_its_folder_are_taken_until_then() -> None:
    """Whoever wants one of them is told so, and gets it afterwards."""

    async def scenario(rig: Rig) -> None:
        stuck = One("stuck")
        rig.begin(stuck)
        for other in (One("stuck", "/else"), One("else", "/state/stuck")):
            with pytest.raises(PlanError, match="'stuck' is still ending: it writes to /state/st"):
                await rig.ending.check([other.plan])
        await rig.ending.check([One("else").plan])
        stuck.answers.set()
        await rig.ending.end()
        await rig.ending.check([stuck.plan])

    run(scenario)


def test_an_end_that_fails_is_logged(capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody waits for it who could be told."""

    async def scenario(rig: Rig) -> None:
        bad = One("bad", error="a ring stays")
        bad.answers.set()
        await rig.begin(bad)
        assert rig.ending.plans == []

    run(scenario)
    shown = capsys.readouterr()
    assert "session_not_closed" in shown.out + shown.err
    assert "a ring stays" in shown.out + shown.err


def test_nothing_that_ends_is_nothing() -> None:
    """A reload that removes no session has none to wait for."""

    async def scenario(rig: Rig) -> None:
        await rig.begin()
        await rig.ending.end()
        assert rig.left == 0

    run(scenario)
