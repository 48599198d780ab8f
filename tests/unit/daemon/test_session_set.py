# SPDX-License-Identifier: Apache-2.0
"""The set of live sessions: who is in it, in which order, and what is closed and undone."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from collectord.daemon.session_set import SessionSet
from collectord.errors import KernelError, UsageError
from collectord.session.maps.map_watch import BpfWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


class One:
    """A session that writes down what is done with it."""

    source = None
    readers = ()

    def __init__(self, done: list[str], name: str, source: str = "perf", **fails: bool) -> None:
        self.plan = SimpleNamespace(name=name, source=source, key=(name, source))
        self.troubles: list[tuple[str, str]] = []
        self._done = done
        self._fails = fails
        self._closed = False

    async def begin(self) -> None:
        """Begin it, or fail."""
        self._done.append(f"begin {self.plan.name}")
        if self._fails.get("begins"):
            raise KernelError("no memory")

    async def close(self) -> None:
        """Close it, or fail; once."""
        if self._closed:
            return
        self._closed = True
        self._done.append(f"close {self.plan.name}")
        if self._fails.get("closes"):
            raise KernelError("it hangs")

    def note(self, about: str, trouble: str) -> None:
        """Keep it."""
        self.troubles.append((about, trouble))

    def balance(self) -> str:
        """Return something that tells it from others."""
        return f"{self.plan.name}/{self.plan.source}"


class Rig:
    """A set, and what was done with its sessions, in order."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.set = SessionSet(BpfWatch())

    def made(self, name: str, source: str = "perf", **fails: bool) -> tuple[Any, AsyncExitStack]:
        """Return a session, and the stack that undoes it."""
        own = AsyncExitStack()
        own.callback(self.done.append, f"undo {name}")
        return One(self.done, name, source, **fails), own

    def add(self, *names: str) -> list[Any]:
        """Add sessions of these names; returns them."""
        made = [self.made(name) for name in names]
        for session, own in made:
            self.set.add(session, own)
        return [session for session, _ in made]


def lived(scenario: Callable[[Rig], Coroutine[Any, Any, None]]) -> list[str]:
    """Return what is done with sessions of a scenario, until the set is left."""
    rig = Rig()

    async def live() -> None:
        async with rig.set:
            await scenario(rig)

    asyncio.run(live())
    return rig.done


def test_sessions_are_found_by_name_in_their_order() -> None:
    """One name may have several sources; no names are all of them."""
    rig = Rig()
    rig.add("b", "a")
    rig.set.add(*rig.made("b", "tracefs"))
    assert list(map(str, rig.set.balances())) == ["b/perf", "a/perf", "b/tracefs"]
    assert [s.plan.source for s in rig.set.named(["b"])] == ["perf", "tracefs"]
    assert len(rig.set.named(())) == len(rig.set) == 3
    with pytest.raises(UsageError, match="no session bb"):
        rig.set.named(["bb"])


def test_a_name_and_a_source_are_one_session() -> None:
    """A second one would take the place of the first, which nobody would close."""
    rig = Rig()
    rig.add("a")
    with pytest.raises(ValueError, match="two sessions"):
        rig.add("a")


def test_what_was_begun_is_closed_and_everything_is_undone() -> None:
    """From the last to the first; all are closed before the first is undone."""

    async def scenario(rig: Rig) -> None:
        first, second, _ = rig.add("first", "second", "third")
        await rig.set.begin(first)
        await rig.set.begin(second)

    begun = ["begin first", "begin second"]
    closed = ["close second", "close first"]
    assert lived(scenario) == [*begun, *closed, "undo third", "undo second", "undo first"]


def test_a_session_that_fails_to_begin_is_closed() -> None:
    """It may have begun in part."""

    async def scenario(rig: Rig) -> None:
        session, own = rig.made("a", begins=True)
        rig.set.add(session, own)
        with pytest.raises(KernelError):
            await rig.set.begin(session)

    assert lived(scenario) == ["begin a", "close a", "undo a"]


def test_a_placeholder_takes_the_place_of_a_session() -> None:
    """The session is closed and undone at once; the order stays."""

    async def scenario(rig: Rig) -> None:
        first, _ = rig.add("first", "second")
        await rig.set.begin(first)
        new, _ = rig.made("first")
        await rig.set.replace(new)
        rig.done.append("replaced")
        assert next(iter(rig.set)) is new
        assert len(rig.set) == 2

    ended = ["close first", "undo first", "replaced", "undo second"]
    assert lived(scenario) == ["begin first", *ended]


def test_sets_exchange_sessions() -> None:
    """Sessions that are not needed any more go to the other set, and are closed with it."""

    async def scenario(rig: Rig) -> None:
        kept, *_ = rig.add("kept", "changed", "gone")
        for session in rig.set:
            await rig.set.begin(session)
        rig.done.clear()
        async with SessionSet(BpfWatch()) as aside:
            for name in ("changed", "new"):
                session, own = rig.made(name)
                aside.add(session, own)
                await aside.begin(session)
            keys = [(name, "perf") for name in ("new", "kept", "changed")]
            rig.set.exchange(aside, keys, {("gone", "perf")})
            assert [one.plan.name for one in rig.set] == ["new", "kept", "changed"]
            assert kept in rig.set
        rig.done.append("exchanged")

    begun = ["begin changed", "begin new"]
    left = ["close gone", "close changed", "undo gone", "undo changed", "exchanged"]
    ended = [f"{what} {name}" for what in ("close", "undo") for name in ("changed", "kept", "new")]
    assert lived(scenario) == [*begun, *left, *ended]


def test_sessions_of_a_name_are_removed() -> None:
    """All of them are closed, then undone, the last one first; an error is its own trouble."""

    async def scenario(rig: Rig) -> None:
        rig.add("kept")
        for source in ("perf", "tracefs"):
            rig.set.add(*rig.made("gone", source, closes=source == "perf"))
        for session in rig.set:
            await rig.set.begin(session)
        async with rig.set.part("gone") as part:
            gone: list[Any] = [*part]
            await part.end()
        assert [one.balance() for one in gone] == ["gone/perf", "gone/tracefs"]
        assert gone[0].troubles == [("close", "not closed: it hangs")]
        assert [one.plan.name for one in rig.set] == ["kept"]
        assert [*rig.set.part("gone")] == []
        rig.done.append("leave")

    begun, ended = ["begin kept", "begin gone", "begin gone"], ["close gone", "close gone"]
    undone = ["undo gone", "undo gone", "leave", "close kept", "undo kept"]
    assert lived(scenario) == [*begun, *ended, *undone]


def test_an_error_of_one_session_leaves_no_other_open() -> None:
    """It is raised when all are undone."""
    rig = Rig()

    async def scenario() -> None:
        async with rig.set:
            for session, own in (rig.made("bad", closes=True), rig.made("good")):
                rig.set.add(session, own)
                await rig.set.begin(session)

    with pytest.raises(KernelError, match="it hangs"):
        asyncio.run(scenario())
    assert rig.done[2:] == ["close good", "close bad", "undo good", "undo bad"]


def test_every_session_is_ended() -> None:
    """One that cannot end says so, and the others end."""

    async def scenario(rig: Rig) -> None:
        bad, own = rig.made("bad", closes=True)
        rig.set.add(bad, own)
        rig.add("good")
        await rig.set.end()
        assert bad.troubles == [("close", "not closed: it hangs")]
        assert rig.done == ["close bad", "close good"]

    lived(scenario)
