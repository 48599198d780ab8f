# SPDX-License-Identifier: Apache-2.0
"""Rings that an earlier process has drained are drained on, while what it left is being sealed."""

from __future__ import annotations

import asyncio
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

import pytest

from collectord.config.schema import Config, DaemonConfig
from collectord.config.schema_session import SessionConfig
from collectord.errors import SinkError
from collectord.kernel.linux import LinuxKernel
from collectord.model import Produced, RingLabel, RingRole
from collectord.plan.build import build
from collectord.session.counter_reader import CounterReader, Drained
from collectord.session.coverage_file import Unnoted
from collectord.session.drain_loop import Drain
from collectord.session.health import Health
from collectord.session.session import Session
from collectord.session.session_parts import SessionParts
from collectord.session.task_group import TaskGroup
from collectord.sink.state_dir import StateDir
from collectord.source.base import Abilities
from collectord.source.fed_ring import fed_ring
from collectord.source.kept_memory import KeptMemory, memory_bytes
from collectord.source.kept_ring import Hold, LastingRing
from tests.support import segments
from tests.support.configs import perf_source
from tests.support.hosts import host
from tests.support.staging import SAMPLE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from collectord._native._core import Core, Stream
    from collectord.sink.base import Opening, OpenSegment

COUNT: Final = 20


class Account:
    """Notes what is asked of it."""

    drains_first = True
    overwritten = 0
    fails = False

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.left_ns: list[int] = []

    def settle(self) -> None:
        """Note the call."""
        self.calls.append("settle")
        if self.fails:
            raise SinkError("cannot read the directory", path="calls")

    def load_names(self, _stream: Stream, left_ns: int) -> None:
        """Note the call, and since when names are kept."""
        self.calls.append("load_names")
        self.left_ns.append(left_ns)

    def told(self, _manifest: object) -> None:
        """Do nothing."""

    def end(self) -> None:
        """Do nothing."""


class Held:
    """A source of one ring, in which an earlier process has left samples."""

    def __init__(self, stack: ExitStack) -> None:
        self.abilities = Abilities()
        memory = os.memfd_create("notes")
        stack.callback(os.close, memory)
        os.ftruncate(memory, memory_bytes(1, 0))
        ours, theirs = socket.socketpair()
        stack.enter_context(ours)
        stack.enter_context(theirs)
        kept = KeptMemory(memory, 1, stack)
        hold = Hold(kept.ring(0, stack), ours.fileno())
        ring = fed_ring(segments.ATTR, RingLabel("calls", "perf", RingRole.DATA, 0), stack)
        parts = {one.name: getattr(ring, one.name) for one in fields(ring)}
        self.rings = (LastingRing(**parts, hold=hold),)
        assert ring.map.feed(SAMPLE * COUNT)

    def add_stream(self, core: Core) -> Stream:
        """Add a stream."""
        return core.add_stream(sideband_bytes=1 << 20)

    def read_produced(self, _ring: object) -> Produced:
        """Return the count of what is in the ring."""
        return Produced(value=COUNT, lost=0)

    def enable(self) -> None:
        """Do nothing: it was never disabled."""

    disable = enable


class Taken:
    """A session with such a ring; its sink refuses so many segments."""

    def __init__(
        self, state: Path, drain: Drain, stack: ExitStack, tasks: TaskGroup, refused: int
    ) -> None:
        source: Any = Held(stack)
        account: Any = Account()
        self.account: Account = account
        self.stream = drain.add_stream(source)
        (handle,) = source.rings
        self.ring = drain.add_ring(self.stream, handle)
        self.directory = state / "calls"
        self.sink = segments.make_sink(self.directory)
        create = self.sink.next_segment

        def next_segment(token: int, opening: Opening) -> OpenSegment:
            nonlocal refused
            refused -= 1
            if refused >= 0:
                raise SinkError("the disk is full", path=str(state))
            return create(token, opening)

        self.sink.next_segment = next_segment  # type: ignore[method-assign]
        session = SessionConfig(name="calls", source=(perf_source("cs"),))
        config = Config(daemon=DaemonConfig(state_dir=str(state)), session=(session,))
        (plan,) = build(config, host()).sessions
        rings = (Drained(handle, self.ring),)
        counter_reader = CounterReader(source, rings, plan.events)
        self.drain = drain.of(self.stream)
        self.session = Session(
            SessionParts(
                plan=plan,
                source=source,
                rings=rings,
                stream=self.stream,
                drain=self.drain,
                counter_reader=counter_reader,
                sink=self.sink,
                state_dir=StateDir(state, plan.sink.retention),
                kernel=LinuxKernel(),
                health=Health(plan, (), counter_reader),
                tasks=tasks,
                covered=Unnoted(),
                lasting=(account,),
                recover=self._recover,
            ),
            drain,
        )

    async def _recover(self) -> None:
        self.account.calls.append("recover")

    def written(self) -> int:
        """Return how many samples are in files."""
        return sum(path.read_bytes().count(SAMPLE) for path in self.directory.glob("*.perf.data*"))


@asynccontextmanager
async def taken(state: Path, *, refused: int = 0) -> AsyncIterator[Taken]:
    """Provide a session that was opened, and had its chance to take over."""
    whole = build(Config(daemon=DaemonConfig(state_dir=str(state))), host())
    with (
        ExitStack() as stack,
        ThreadPoolExecutor(1) as worker,
        Drain(whole.core, LinuxKernel()) as drain,
    ):
        tasks = TaskGroup(worker)
        one = Taken(state, drain, stack, tasks, refused)
        await one.session.take_over()
        await one.drain.full_pass()
        yield one
        await one.session.close()
        await drain.remove([one.ring])
        drain.forget(one.stream)
        await tasks.join()


def test_rings_are_drained_before_what_was_left_is_sealed(tmp_path: Path) -> None:
    """The first segment is written once it is known what it begins with."""

    async def scenario() -> None:
        async with taken(tmp_path) as one:
            assert one.ring.counters().samples == COUNT
            assert (one.account.calls, one.written()) == ([], 0)
            await one.session.begin()
            assert one.account.calls == ["recover", "settle", "load_names"]
            assert 0 < one.account.left_ns[0] <= segments.TIME_NS
            await one.drain.written_pass()
            assert one.written() == COUNT
            assert one.ring.counters().stored == COUNT

    asyncio.run(scenario())


def test_without_room_for_a_segment_rings_wait_for_what_can_be_deleted(tmp_path: Path) -> None:
    """A successor of this process would not find what was drained."""

    async def scenario() -> None:
        async with taken(tmp_path, refused=1) as one:
            assert one.ring.counters().samples == 0
            await one.session.begin()
            await one.drain.written_pass()
            assert one.written() == COUNT

    asyncio.run(scenario())


def test_a_session_that_does_not_begin_writes_what_it_has_drained(tmp_path: Path) -> None:
    """Another one has failed; one that has begun is not ended twice."""

    async def scenario() -> None:
        async with taken(tmp_path) as one:
            await one.session.abandon()
            assert one.account.calls == ["recover", "settle", "load_names"]
            assert one.written() == COUNT
            await one.session.abandon()
            assert one.account.calls == ["recover", "settle", "load_names"]

    asyncio.run(scenario())


def test_a_session_whose_begin_fails_ends_and_writes_what_it_has_drained(tmp_path: Path) -> None:
    """If the segment of an earlier process cannot be read, the next one settles its account."""

    async def scenario() -> None:
        async with taken(tmp_path) as one:
            one.account.fails = True
            with pytest.raises(SinkError):
                await one.session.begin()
            await asyncio.wait_for(one.session.close(), 30)
            assert one.account.calls == ["recover", "settle"]
            assert one.written() == COUNT

    asyncio.run(scenario())


def test_new_rings_wait_for_the_begin(tmp_path: Path) -> None:
    """There is nothing in them that could be lost."""

    async def scenario() -> None:
        whole = build(Config(daemon=DaemonConfig(state_dir=str(tmp_path))), host())
        with (
            ExitStack() as stack,
            ThreadPoolExecutor(1) as worker,
            Drain(whole.core, LinuxKernel()) as drain,
        ):
            one = Taken(tmp_path, drain, stack, TaskGroup(worker), 0)
            one.account.drains_first = False
            await one.session.take_over()
            await one.drain.full_pass()
            assert one.ring.counters().samples == 0
            await one.session.abandon()
            assert one.account.calls == []
            await drain.remove([one.ring])
            drain.forget(one.stream)
            one.sink.close()

    asyncio.run(scenario())
