# SPDX-License-Identifier: Apache-2.0
"""A session whose rings leave with a CPU and come back with it, over rings that the test feeds."""

from __future__ import annotations

import asyncio
import os
import struct
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from collectord.codec.perf_attr import PerfEventAttr, SampleType
from collectord.config.schema import Config, DaemonConfig
from collectord.config.schema_session import SessionConfig
from collectord.errors import KernelError, SinkError
from collectord.kernel.linux import LinuxKernel
from collectord.model import Basis, Produced, RingLabel, RingRole
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
from tests.support.configs import perf_source
from tests.support.hosts import host

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from collectord._native import _core
    from collectord.ledger.record_ledger import RingBalance
    from collectord.source.perf_ring import PerfRing
    from collectord.source.ring import RingHandle

ATTR = PerfEventAttr(sample_type=SampleType.TIME, sample_id_all=True)
SAMPLE = struct.pack("=IHHQ", 9, 0, 16, 5)


class Fed:
    """A source of one ring for each CPU, whose records and counts are what the test feeds."""

    def __init__(self, stack: ExitStack) -> None:
        one: Any = self
        self.abilities = Abilities(hotplug=(one,))
        self._stack = stack
        self._closers: dict[int, ExitStack] = {}
        self.rings: dict[int, PerfRing] = {}
        self.counts: dict[int, int] = {}  # by descriptor
        self.enabled: list[int] = []
        self.running: set[int] = set()  # CPUs whose events make a record until they are stopped
        self.refuses = False
        self.disabled = False

    def add_stream(self, core: _core.Core) -> _core.Stream:
        """Add a stream."""
        return core.add_stream(sideband_bytes=1 << 20)

    def feed(self, cpu: int, count: int) -> None:
        """Write so many samples into the ring of a CPU, and count them."""
        ring = self.rings[cpu]
        assert ring.map.feed(SAMPLE * count)
        self.counts[ring.fd] += count

    def read_produced(self, ring: RingHandle) -> Produced:
        """Return the count of a ring that is open."""
        if self.refuses:
            raise KernelError("cannot read a counter")
        if ring.label.cpu in self.running:
            self.feed(ring.label.cpu, 1)
        return Produced(value=self.counts[ring.fd], lost=0)

    def disable(self) -> None:
        """Note that nothing is made any more."""
        self.disabled = True

    def stop(self, cpu: int) -> None:
        """Make no records on a CPU any more."""
        self.running.discard(cpu)

    def leave(self, cpu: int) -> None:
        """Close the ring of a CPU."""
        if cpu in self.rings:
            del self.counts[self.rings.pop(cpu).fd]
            self._closers.pop(cpu).close()

    def join(self, cpu: int) -> tuple[RingHandle, ...]:
        """Make a ring for a CPU."""
        self._closers[cpu] = self._stack.enter_context(ExitStack())
        label = RingLabel("calls", "perf", RingRole.DATA, cpu)
        ring = replace(fed_ring(ATTR, label, self._closers[cpu]), basis=Basis.EXACT)
        self.rings[cpu], self.counts[ring.fd] = ring, 0
        return (ring,)

    def enable(self, rings: Sequence[RingHandle]) -> None:
        """Note whose they are."""
        self.enabled += [ring.label.cpu for ring in rings]


class NoSink:
    """A sink without segments: the test gives the stream the only one."""

    def add_ring(self, *_: object) -> bool:
        """Take it in any segment."""
        return False

    def next_segment(self, *_: object) -> None:
        """Refuse."""
        raise SinkError("there is one segment only", path="")


class Rig:
    """A session with rings on two CPUs, of which one stays."""

    def __init__(self, state: Path, drain: Drain, stack: ExitStack, worker: Any) -> None:  # noqa: ANN401
        source: Any = Fed(stack)
        self.source: Fed = source
        self.stream = drain.add_stream(source)
        rings = tuple(
            Drained(handle, drain.add_ring(self.stream, handle))
            for cpu in (0, 1)
            for handle in source.join(cpu)
        )
        self._drain = drain
        self._tasks = TaskGroup(worker)
        self._first = [one.ring for one in rings]
        (plan,) = build(config(state), host()).sessions
        sink: Any = NoSink()
        self.counter_reader = CounterReader(source, rings, plan.events)
        self.drain = drain.of(self.stream)
        self.session = Session(
            SessionParts(
                plan=plan,
                source=source,
                rings=rings,
                stream=self.stream,
                drain=self.drain,
                counter_reader=self.counter_reader,
                sink=sink,
                state_dir=StateDir(state, plan.sink.retention),
                kernel=LinuxKernel(),
                health=Health(plan, (), self.counter_reader),
                tasks=self._tasks,
                covered=Unnoted(),
            ),
            drain,
        )

    async def place(self, cpu: int) -> RingBalance:
        """Return the balance of a CPU, once all that was fed is written."""
        await self.drain.written_pass()
        self.counter_reader.measure()
        return next(one for one in self.counter_reader.balances() if one.label.cpu == cpu)

    async def end(self) -> None:
        """Remove all rings from the core."""
        await self.session.rings.remove_joined()
        await self._drain.remove(self._first)
        self._drain.forget(self.stream)
        await self._tasks.join()


def config(state: Path) -> Config:
    """Return a configuration of one session."""
    session = SessionConfig(name="calls", source=(perf_source("cs"),))
    return Config(daemon=DaemonConfig(state_dir=str(state)), session=(session,))


@contextmanager
def rig(state: Path) -> Iterator[Rig]:
    """Provide a session, and a core that drains it."""
    with ExitStack() as stack, ThreadPoolExecutor(1) as worker:
        file = stack.enter_context(os.fdopen(os.memfd_create("segment"), "wb"))
        drain = stack.enter_context(Drain(build(config(state), host()).core, LinuxKernel()))
        made = Rig(state, drain, stack.enter_context(ExitStack()), worker)
        made.stream.prepare(1, file.fileno(), 0, 1 << 40)
        yield made


def test_a_cpu_leaves_with_all_that_was_in_its_ring(tmp_path: Path) -> None:
    """The ring is drained, counted, and closed; the other one goes on."""

    async def scenario() -> tuple[RingBalance, RingBalance]:
        with rig(tmp_path) as one:
            one.source.feed(1, 3)
            await one.session.rings.leave_cpu(1)
            await one.session.rings.leave_cpu(1)
            assert list(one.source.rings) == [0]
            one.source.feed(0, 2)
            places = await one.place(0), await one.place(1)
            await one.end()
            return places

    stays, gone = asyncio.run(scenario())
    assert (stays.produced, stays.stored, stays.unaccounted) == (2, 2, 0)
    assert (gone.produced, gone.stored, gone.unaccounted) == (3, 3, 0)


def test_a_cpu_that_is_there_may_leave(tmp_path: Path) -> None:
    """Its events count until they are stopped: what they made before is drained."""

    async def scenario() -> RingBalance:
        with rig(tmp_path) as one:
            one.source.running.add(1)
            one.source.feed(1, 3)
            await one.session.rings.leave_cpu(1)
            place = await one.place(1)
            await one.end()
            return place

    place = asyncio.run(scenario())
    assert (place.produced, place.stored, place.unaccounted) == (3, 3, 0)


def test_a_cpu_that_comes_back_goes_on_where_it_was(tmp_path: Path) -> None:
    """Its new rings are drained into the same stream, and have the same place in the ledger."""

    async def scenario() -> RingBalance:
        with rig(tmp_path) as one:
            for _ in range(3):
                one.source.feed(1, 3)
                await one.session.rings.leave_cpu(1)
                await one.session.rings.join_cpu(1)
            one.source.feed(1, 4)
            place = await one.place(1)
            assert one.source.enabled == [1, 1, 1]
            assert len(one.counter_reader.balances()) == 2
            await one.end()
            return place

    place = asyncio.run(scenario())
    assert (place.produced, place.stored, place.unaccounted) == (13, 13, 0)


def test_a_cpu_whose_ring_cannot_be_counted_has_none(tmp_path: Path) -> None:
    """It is closed again, and may be tried again."""

    async def scenario() -> RingBalance:
        with rig(tmp_path) as one:
            await one.session.rings.leave_cpu(1)
            one.source.refuses = True
            with pytest.raises(KernelError):
                await one.session.rings.join_cpu(1)
            one.source.refuses = False
            assert list(one.source.rings) == [0]
            assert one.source.enabled == []
            await one.session.rings.join_cpu(1)
            one.source.feed(1, 2)
            place = await one.place(1)
            await one.end()
            return place

    place = asyncio.run(scenario())
    assert (place.produced, place.stored, place.unaccounted) == (2, 2, 0)


def test_a_session_ends_after_a_cpu_that_waits_for_its_disk(tmp_path: Path) -> None:
    """The CPU gets no rings any more, and nothing of it is left."""

    async def scenario() -> None:
        with rig(tmp_path) as one:
            await one.session.rings.leave_cpu(1)
            async with one.session._rotation._preparing:  # the disk hangs
                joins = asyncio.create_task(one.session.rings.join_cpu(1))
                await asyncio.sleep(0)
                assert list(one.source.rings) == [0, 1]
                ends = asyncio.create_task(one.session.close())
                await asyncio.sleep(0)
            with pytest.raises(SinkError, match="the session has ended"):
                await joins
            assert list(one.source.rings) == [0]
            assert one.source.enabled == []
            await ends
            assert one.source.disabled
            with pytest.raises(SinkError, match="the session has ended"):
                await one.session.rings.join_cpu(1)
            await one.end()

    asyncio.run(scenario())
