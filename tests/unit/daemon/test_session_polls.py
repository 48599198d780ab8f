# SPDX-License-Identifier: Apache-2.0
"""The times when a daemon polls its sessions: at each flush, or every other one while quiet."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from collectord.daemon.session_polls import SessionPolls
from collectord.session.maps.map_watch import BpfWatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from collectord.model import ClockReading

_HOUR_NS = 3600 * 1_000_000_000


class OneSession:
    """A session that is quiet, or not, and reads the clocks as others do."""

    def __init__(self, name: str, *, quiet: bool) -> None:
        self.plan = SimpleNamespace(name=name)
        self.quiet = quiet
        self.polls = 0

    def tick(self, clocks: Callable[[], ClockReading], _programs: object) -> bool:
        """Count it."""
        clocks()
        self.polls += 1
        return self.quiet

    def note(self, about: str, trouble: str) -> None:
        """Report no problem."""
        assert (about, trouble) == ("maps", "")


class Rig:
    """Sessions that are looked at, and what is read and called with that."""

    def __init__(
        self,
        quiet: tuple[bool, ...] = (True,),
        *,
        flush_ns: int = _HOUR_NS,
        stretched: bool = True,
    ) -> None:
        self.read = self.called = 0
        self.sessions = [OneSession(f"{n}", quiet=one) for n, one in enumerate(quiet)]
        self.watch = BpfWatch()
        sessions: Any = self.sessions
        kernel: Any = SimpleNamespace(clocks=self._clocks, bpf_program_ids=lambda _: ())
        self.polls = SessionPolls(
            sessions,
            kernel=kernel,
            watch=self.watch,
            worker=ThreadPoolExecutor(1),
            before=self._before,
            flush_ns=flush_ns,
            stretched=stretched,
        )

    def _clocks(self) -> None:
        self.read += 1

    def _before(self) -> None:
        self.called += 1


@pytest.mark.parametrize(("quiet", "passes"), [((True, True), 2), ((True, False), 1), ((), 2)])
def test_every_other_flush_is_left_out_while_all_are_quiet(
    quiet: tuple[bool, ...], passes: int
) -> None:
    """All are looked at together, with one reading of the clocks."""
    rig = Rig(quiet)
    assert rig.polls.passes == 1
    rig.polls.poll()
    assert rig.polls.passes == passes
    assert [one.polls for one in rig.sessions] == [1] * len(quiet)
    assert (rig.read, rig.called) == (bool(quiet), 1)


def test_a_session_that_is_quiet_no_more_is_looked_at_at_each_flush() -> None:
    """And again at every other one when that is over."""
    rig = Rig()
    passes = []
    for quiet in (True, False, True):
        rig.sessions[0].quiet = quiet
        rig.polls.poll()
        passes.append(rig.polls.passes)
    assert passes == [2, 1, 2]


def test_a_quiet_session_is_left_out_while_others_are_not() -> None:
    """It has every other flush; as soon as all are quiet, they are looked at together again."""
    rig = Rig((True, False))
    counts, passes = [], []
    for quiet in (False, False, False, True, True):
        rig.sessions[1].quiet = quiet
        rig.polls.poll()
        counts.append(tuple(one.polls for one in rig.sessions))
        passes.append(rig.polls.passes)
    assert counts == [(1, 1), (1, 2), (2, 3), (2, 4), (3, 5)]
    assert passes == [1, 1, 1, 1, 2]


def test_who_asks_gets_figures_of_sessions_that_were_left_out() -> None:
    """Once: they are up to date then."""
    rig = Rig((True, False))
    for _ in range(2):
        rig.polls.poll()
    for _ in range(2):
        rig.polls.refresh()
    assert [one.polls for one in rig.sessions] == [2, 3]


def test_nothing_is_left_out_where_each_look_is_shown() -> None:
    """A live line has its figures once per flush interval."""
    rig = Rig((True, False), stretched=False)
    for _ in range(2):
        rig.polls.poll()
        assert rig.polls.passes == 1
    assert [one.polls for one in rig.sessions] == [2, 2]


def test_maps_of_programs_are_read_at_each_flush() -> None:
    """A scrape reads none, and is to have those of the last flush interval."""

    async def passes() -> int:
        rig = Rig()
        reader: Any = SimpleNamespace(session="0", read=lambda: (), has_live_figures=True)
        rig.watch.add(reader, ())
        rig.polls.poll()
        await rig.watch.join()
        return rig.polls.passes

    assert asyncio.run(passes()) == 1


@pytest.mark.parametrize(("flush_ns", "polls"), [(_HOUR_NS, 1), (-1, 3)])
def test_who_asks_gets_figures_of_the_last_flush_interval(flush_ns: int, polls: int) -> None:
    """Older ones are read anew, and others are not."""
    rig = Rig(flush_ns=flush_ns)
    rig.polls.poll()
    for _ in range(2):
        rig.polls.refresh()
    assert rig.sessions[0].polls == polls
