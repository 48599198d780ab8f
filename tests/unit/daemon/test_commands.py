# SPDX-License-Identifier: Apache-2.0
"""Requested rotations: which sessions they are for, and what is told of the others."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from collectord.daemon.commands import DaemonCommands
from collectord.daemon.session_set import SessionSet
from collectord.errors import CollectordError, KernelError, SinkError, UsageError
from collectord.model import GapCause
from collectord.session.maps.map_watch import BpfWatch

FULL = SinkError("no space", path="/s")


class One:
    """A session that is rotated with one result."""

    def __init__(self, name: str, result: list[str] | CollectordError, source: str) -> None:
        self.plan = SimpleNamespace(name=name, source=source, key=(name, source))
        self._result = result

    async def rotate(self) -> list[str]:
        """Return the result, or raise it."""
        if isinstance(self._result, CollectordError):
            raise self._result
        return self._result


def rotated(
    names: tuple[str, ...], **results: list[str] | CollectordError
) -> list[Any] | CollectordError:
    """Return what a rotation of sessions comes to; `NAME_SOURCE` gives the result of each."""
    sessions = SessionSet(BpfWatch())
    for key, result in results.items():
        name, _, source = key.partition("_")
        made: Any = One(name, result, source)
        sessions.add(made, AsyncExitStack())
    try:
        unused: Any = None
        commands = DaemonCommands(unused, sessions, unused, unused, unused, incidents=unused)
        return asyncio.run(commands.rotate(names))
    except CollectordError as error:
        return error


class Pausable(One):
    """A session that can be paused, and is its own pause."""

    possible = True

    def __init__(self, name: str, source: str = "perf", *, refuses: bool = False) -> None:
        super().__init__(name, [], source)
        self.causes: list[GapCause] = []
        self.noted = ""
        self._refuses = refuses

    @property
    def pause(self) -> Pausable:
        """The pause of the session."""
        return self

    @property
    def lasts(self) -> bool:
        """Whether it is paused."""
        return bool(self.causes)

    def begin(self, cause: GapCause) -> None:
        """Pause, or refuse to."""
        if self._refuses:
            raise KernelError("no", errno=1)
        self.causes.append(cause)

    def end(self, cause: GapCause) -> None:
        """Resume."""
        self.causes = [one for one in self.causes if one is not cause]

    def note(self, about: str, trouble: str) -> None:
        """Keep the trouble."""
        assert about == "request"
        self.noted = trouble


def commands_of(*made: Any) -> DaemonCommands:  # noqa: ANN401 - as much as is called
    """Return the commands of a daemon with these sessions."""
    sessions = SessionSet(BpfWatch())
    for one in made:
        sessions.add(one, AsyncExitStack())
    unused: Any = None
    return DaemonCommands(unused, sessions, unused, unused, unused, incidents=unused)


def test_all_sources_of_a_session_pause_or_none() -> None:
    """One that cannot be paused, or that the kernel does not stop, leaves the others alone."""
    perf, other = Pausable("calls"), Pausable("calls", "tracefs")
    asyncio.run(commands_of(perf, other).pause("calls"))
    assert perf.causes == other.causes == [GapCause.REQUEST]
    assert perf.noted == "paused: `collectord sessions resume calls` ends it"
    for hindrance, error in (
        (Pausable("calls", "tracefs", refuses=True), KernelError),
        (SimpleNamespace(plan=other.plan, pause=None), UsageError),
    ):
        perf = Pausable("calls")
        with pytest.raises(error):
            asyncio.run(commands_of(perf, hindrance).pause("calls"))
        assert (perf.causes, perf.noted) == ([], "")


def test_what_the_budget_pauses_is_not_resumed() -> None:
    """The request's own pause ends, and the user is told of the other."""
    one = Pausable("calls")
    commands = commands_of(one)
    one.begin(GapCause.SHED)
    asyncio.run(commands.pause("calls"))
    with pytest.raises(UsageError, match="the budget pauses session calls"):
        asyncio.run(commands.resume("calls"))
    assert (one.causes, one.noted) == ([GapCause.SHED], "")
    one.end(GapCause.SHED)
    asyncio.run(commands.resume("calls"))


def test_all_that_write_segments_are_rotated() -> None:
    """Without names flight recorders and the like are passed by."""
    box = UsageError("flight recorder")
    assert rotated((), exec_perf=["a"], box_perf=box, profile_perf=["b", "c"]) == ["a", "b", "c"]


def test_named_sessions_are_rotated() -> None:
    """One that cannot be is an error, unless another source of its name was."""
    box = UsageError("flight recorder")
    assert rotated(("exec",), exec_perf=["a"], profile_perf=["b"]) == ["a"]
    assert rotated(("exec", "box"), exec_perf=["a"], box_perf=box) is box
    assert rotated(("exec",), exec_perf=["a"], exec_bpf=box) == ["a"]


def test_nothing_can_be_rotated() -> None:
    """Whoever asks is told why."""
    box = UsageError("flight recorder")
    assert rotated((), box_perf=box) is box


@pytest.mark.parametrize("names", [(), ("exec",)])
def test_a_failure_is_told(names: tuple[str, ...]) -> None:
    """Whatever else was rotated."""
    assert rotated(names, profile_perf=["b"], exec_perf=FULL, exec_bpf=["c"]) is FULL
