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
from collectord.errors import CollectordError, SinkError, UsageError
from collectord.session.maps.map_watch import BpfWatch
from tests.support.commands import planned

FULL = SinkError("no space", path="/s")


class One:
    """A session that is rotated with one result."""

    def __init__(self, name: str, result: list[str] | CollectordError, source: str) -> None:
        self.plan = SimpleNamespace(name=name, source=source)
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
        return asyncio.run(DaemonCommands(planned("sched:sched_switch"), sessions).rotate(names))
    except CollectordError as error:
        return error


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
