# SPDX-License-Identifier: Apache-2.0
"""A wait for a pass waits only for the rings of its own stream."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import gc
import os
import select
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from collectord.codec.perf_attr import PerfEventAttr, SampleType
from collectord.errors import KernelError, ShardSilent
from collectord.kernel.linux import LinuxKernel
from collectord.model import STREAMS_MAX, RingLabel, RingRole
from collectord.plan.drain_threads import DrainThread, DrainThreads
from collectord.plan.plan import CorePlan
from collectord.session import drain_loop
from collectord.session.drain_loop import Drain
from collectord.source.fed_ring import fed_ring
from tests.support.hanging import hanging_ring

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from collectord._native import _core
    from collectord.session.drain_loop import StreamListener
    from collectord.source.base import OpenSource

pytestmark = pytest.mark.slow

_PIPE_BYTES = 1 << 20
_LIMIT_S = 30
# Six chunks of it are for whom comes first, two are kept for the other.
_PLAN = CorePlan(chunks=8, chunk_bytes=128 << 10, flush_ns=20_000_000, floor_bytes=0)
# The same, whose timer begins no pass.
_NEVER = replace(_PLAN, flush_ns=3600 * 1_000_000_000)
_ATTR = PerfEventAttr(sample_type=SampleType.TIME, sample_id_all=True)
_LABEL = RingLabel("s", "perf", RingRole.SIDEBAND, 0)
_NO_RECORD = bytes(8)
_CLOSED_FD = 999


class Deaf:
    """Answers nothing: the stream has no segment, and gets none."""

    def segment_wanted(self) -> None:
        """Ignore the event."""

    def space_wanted(self, _errno: int) -> None:
        """Ignore the event."""


class Heard:
    """Keeps the numbers of rings that were refused."""

    def __init__(self) -> None:
        self.faulty: list[int] = []

    def ring_faulty(self, ring: int, _reason: str, _position: int, *, quarantined: bool) -> None:
        """Keep the ring's number."""
        assert not quarantined
        self.faulty.append(ring)

    def ring_hung_up(self, _ring: int) -> None:
        """Ignore the event."""


class PerfSource:
    """A source with streams of perf records."""

    def add_stream(self, core: _core.Core) -> _core.Stream:
        """Add a stream."""
        return core.add_stream(sideband_bytes=1 << 20)


class RelaySource:
    """A source with streams of relay files."""

    def add_stream(self, core: _core.Core) -> _core.Stream:
        """Add a stream."""
        return core.add_relay_stream()


def add_stream(drain: Drain, source: PerfSource | RelaySource) -> _core.Stream:
    """Return a stream as sessions have it."""
    return drain.add_stream(cast("OpenSource", source))


def test_the_core_has_as_many_places_for_streams_as_a_plan_may_take() -> None:
    """One more is an error of the daemon's, which fails a session and not the process."""

    async def fill() -> None:
        with Drain(_NEVER, LinuxKernel()) as drain:
            streams = [add_stream(drain, RelaySource()) for _ in range(STREAMS_MAX)]
            with pytest.raises(KernelError, match="another stream"):
                add_stream(drain, RelaySource())
            assert len({stream.id for stream in streams}) == STREAMS_MAX

    asyncio.run(fill())


class Files:
    """Has the segments of a stream closed, and makes no second one."""

    def __init__(self) -> None:
        self.closed: list[_core.SegmentClosed] = []

    def segment_closed(self, closed: _core.SegmentClosed) -> None:
        """Keep the event."""
        self.closed.append(closed)

    def segment_wanted(self) -> None:
        """Ignore the event."""

    def space_wanted(self, errno: int) -> None:
        """Ignore the event."""
        del errno

    def write_failed(self, errno: int) -> None:
        """Ignore the event: the segment is closed all the same."""
        del errno


class Rings:
    """Two streams with a ring each; there is always more in the first than it can give."""

    def __init__(self, drain: Drain, stack: ExitStack) -> None:
        self.drain = drain
        self.sinks = []
        self.streams = []
        self.rings = []
        for _ in range(2):
            source, sink = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
            stack.callback(os.close, source)
            stack.callback(os.close, sink)
            fcntl.fcntl(sink, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
            stream = add_stream(drain, RelaySource())
            ring = drain.core.add_relay_ring(0, stream, source, capacity_bytes=_PIPE_BYTES)
            deaf: Any = Deaf()
            drain.listen(deaf, stream, deaf, [ring.id])
            self.sinks.append(sink)
            self.streams.append(stream)
            self.rings.append(ring)
        os.write(self.sinks[0], bytes(_PIPE_BYTES))

    async def overloaded(self) -> None:
        """Come back when the first has all chunks that it can have."""
        while self.drain.core.counters().chunks_free > 2:  # noqa: ASYNC110 - no notice tells it
            await asyncio.sleep(0)


def test_a_stream_that_stands_holds_up_no_other() -> None:
    """Passes of the other are done, and those that the timer begins are followed."""

    async def scenario() -> None:
        with ExitStack() as stack, Drain(_PLAN, LinuxKernel()) as drain:
            rings = Rings(drain, stack)
            busy, quiet = rings.streams
            await rings.overloaded()
            stands = drain.core.request_flush()
            for _ in range(3):
                os.write(rings.sinks[1], b"something")
                async with asyncio.timeout(_LIMIT_S):
                    generation = await drain.of(quiet).full_pass()
                    await drain.next_pass(asyncio.Event())
                assert quiet.drained_generation() >= generation
            assert busy.drained_generation() < stands

    asyncio.run(scenario())


def test_each_generation_is_followed_though_none_is_done() -> None:
    """The first of two is not waited for when the second begins, and so on, one by one."""

    async def scenario() -> None:
        with ExitStack() as stack, Drain(_NEVER, LinuxKernel()) as drain:
            rings = Rings(drain, stack)
            drain.core.request_flush()
            await rings.overloaded()
            for number in range(4):
                waiting = asyncio.ensure_future(drain.next_pass(asyncio.Event()))
                await asyncio.sleep(0)
                drain.core.request_flush()
                if number == 0:
                    await asyncio.sleep(0)
                    assert not waiting.done()
                    drain.core.request_flush()
                async with asyncio.timeout(_LIMIT_S):
                    await waiting
            assert rings.streams[0].drained_generation() < 1

    asyncio.run(scenario())


async def outlasts_passes(drain: Drain, answer: Coroutine[None, None, object]) -> None:
    """See that an answer is still waited for when three passes are over; it is given up then."""
    waiting = asyncio.ensure_future(answer)
    for _ in range(3):
        await drain.next_pass(asyncio.Event())
    assert not waiting.done()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


def test_what_stands_is_waited_for_by_who_asks_for_it() -> None:
    """The stream's own pass is not done before its ring was read."""

    async def scenario() -> None:
        with ExitStack() as stack, Drain(_PLAN, LinuxKernel()) as drain:
            rings = Rings(drain, stack)
            await rings.overloaded()
            await outlasts_passes(drain, drain.of(rings.streams[0]).full_pass())

    asyncio.run(scenario())


class Refused:
    """A ring that the core refuses, and an area that it refuses: they have no descriptor."""

    label = _LABEL

    def register(self, core: _core.Core, *_: object) -> _core.Ring:
        """Have the core watch a file that is not open."""
        stream = core.add_relay_stream()
        return core.add_relay_ring(0, stream, _CLOSED_FD, capacity_bytes=_PIPE_BYTES)

    @property
    def areas(self) -> tuple[Refused, ...]:
        """The area."""
        return (self,)


def test_an_error_of_the_core_is_one_of_the_kernel() -> None:
    """A ring or an area that the core refuses is what callers can handle, with its errno."""

    async def scenario() -> None:
        with Drain(_PLAN, LinuxKernel()) as drain:
            stream = add_stream(drain, RelaySource())
            refused: Any = Refused()
            with pytest.raises(KernelError, match="cannot drain another ring") as ring:
                drain.add_ring(stream, refused)
            with pytest.raises(KernelError) as area:
                drain.add_areas(cast("_core.Ring", None), refused)
            assert ring.value.errno == area.value.errno == errno.EBADF

    asyncio.run(scenario())


def test_what_happens_before_anybody_listens_is_told_then() -> None:
    """A ring is refused before its session begins; another's notice is not lost with that."""

    async def scenario() -> None:
        with ExitStack() as stack, Drain(_PLAN, LinuxKernel()) as drain:
            heard, late, deaf = Heard(), Heard(), cast("StreamListener", Deaf())
            early_stream, stream = (add_stream(drain, PerfSource()) for _ in range(2))
            early_fed, fed = (fed_ring(_ATTR, _LABEL, stack) for _ in range(2))
            early = drain.add_ring(early_stream, early_fed)
            ring = drain.add_ring(stream, fed)
            drain.listen(deaf, stream, heard, [ring.id])
            for each in (early_fed, fed):
                assert each.map.feed(_NO_RECORD)
            async with asyncio.timeout(_LIMIT_S):
                await drain.of(early_stream).full_pass()
                await drain.reached(lambda: len(heard.faulty), 1)
            drain.listen(deaf, early_stream, late, [early.id])
            assert (heard.faulty, late.faulty) == ([ring.id], [early.id])

    asyncio.run(scenario())


def test_what_a_ring_is_told_is_done_beside_one_that_is_always_full() -> None:
    """It is held, let go and left between two passes, while the loop goes on."""

    async def scenario() -> None:
        with ExitStack() as stack, Drain(_PLAN, LinuxKernel()) as drain:
            rings = Rings(drain, stack)
            await rings.overloaded()
            _, ring = rings.rings
            async with asyncio.timeout(_LIMIT_S):
                for held in (True, False, True):
                    ring.hold(held)
                    await drain.answered([ring])
                await drain.remove([ring])
            assert drain.core.remove_ring(ring)  # it was
            os.write(rings.sinks[1], b"something")
            await drain.of(rings.streams[1]).full_pass()
            assert ring.counters().bytes == 0

    asyncio.run(scenario())


async def tell_until_it_is_read(drain: Drain, ring: _core.Ring) -> None:
    """Let a ring go again and again: a pass comes to it, and its read hangs."""
    while True:
        ring.hold(False)  # noqa: FBT003 - the binding's
        await drain.answered([ring])


def test_a_shard_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The waiter gets the number of a hanging thread, and the loop goes on meanwhile."""
    monkeypatch.setattr(drain_loop, "_ANSWER_S", 0.05)
    monkeypatch.setattr(drain_loop, "_LEAVE_S", 0.05)

    async def scenario() -> list[str]:
        said = []
        with ExitStack() as stack, Drain(_PLAN, LinuxKernel()) as drain:
            stream, ring, sink = hanging_ring(drain, stack)
            with sink:
                with pytest.raises(ShardSilent) as silent:
                    await tell_until_it_is_read(drain, ring)
                said.append(str(silent.value))
                with pytest.raises(OSError, match="busy"):
                    ring.hold(False)  # noqa: FBT003 - the binding's
                with pytest.raises(ShardSilent) as silent:
                    await drain.remove([ring])
                said.append(str(silent.value))
                assert silent.value.shard == 0
                with pytest.raises(ShardSilent) as silent:
                    await drain.of(stream).full_pass()
                said.append(str(silent.value))
            async with asyncio.timeout(_LIMIT_S):  # the pipe has ended
                await drain.reached(lambda: drain.core.remove_ring(ring), 1)
        return said

    for text in asyncio.run(scenario()):
        assert text.startswith("drain thread drain/0 did not answer for 0.05 s; ")


def test_threads_that_make_no_passes_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle one makes them when it is asked; one that hangs is named until it goes on."""
    two = replace(_PLAN, drain=DrainThreads((DrainThread(), DrainThread())))

    async def scenario() -> None:
        with ExitStack() as stack, Drain(two, LinuxKernel()) as drain:
            assert await drain.silent_shards() == ()
            monkeypatch.setattr(drain_loop, "_ANSWER_S", 0.05)
            _, ring, sink = hanging_ring(drain, stack)
            with sink:
                with pytest.raises(ShardSilent):
                    await tell_until_it_is_read(drain, ring)
                assert 0 in await drain.silent_shards()
            async with asyncio.timeout(_LIMIT_S):  # the pipe has ended
                while await drain.silent_shards():
                    pass

    asyncio.run(scenario())


def test_a_pass_is_waited_for_while_the_shard_makes_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However long chunks are short: the shard is asked again, and answers."""
    monkeypatch.setattr(drain_loop, "_ANSWER_S", 1.0)

    async def scenario() -> None:
        with ExitStack() as stack, Drain(_NEVER, LinuxKernel()) as drain:
            rings = Rings(drain, stack)
            drain.core.request_flush()
            await rings.overloaded()
            await outlasts_passes(drain, drain.of(rings.streams[0]).full_pass())

    asyncio.run(scenario())


async def live(drain: Drain, number: int) -> int:
    """A stream with two rings, from its beginning to its end; returns its id."""
    files, heard = Files(), Heard()
    label = replace(_LABEL, cpu=-1, tid=number)
    with ExitStack() as stack:
        stream = add_stream(drain, PerfSource())
        stack.callback(drain.forget, stream)
        handles = [fed_ring(_ATTR, label, stack) for _ in range(2)]
        rings = [drain.add_ring(stream, handle) for handle in handles]
        for handle in handles[
            number % 2 :
        ]:  # one of two streams has a fault before anyone listens
            assert handle.map.feed(_NO_RECORD)
        await drain.of(stream).full_pass()
        drain.listen(files, stream, heard, [ring.id for ring in rings])
        await drain.reached(lambda: len(heard.faulty), 2 - number % 2)
        with os.fdopen(os.memfd_create("segment"), "wb") as file:
            stream.prepare(number, file.fileno(), 0, 1 << 20)
            stream.finish()
            await drain.reached(lambda: len(files.closed), 1)
        await drain.remove(rings)
    assert files.closed[0].stream == stream.id
    return stream.id


def held_by_process() -> tuple[int, int]:
    """Bytes that this process has in memory, and its descriptors."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE"), len(list(Path("/proc/self/fd").iterdir()))


def test_streams_come_and_go_and_leave_nothing() -> None:
    """However many there were, memory and descriptors are those of a few; no id comes again."""

    async def scenario() -> tuple[list[int], list[tuple[int, int]]]:
        ids, held = [], []
        with Drain(_PLAN, LinuxKernel()) as drain:
            for number in range(600):
                ids.append(await live(drain, number))
                if number in {199, 599}:
                    gc.collect()
                    held.append(held_by_process())
            assert drain.core.counters().chunks_free == _PLAN.chunks
        return ids, held

    ids, ((bytes_before, fds_before), (bytes_after, fds_after)) = asyncio.run(scenario())
    assert len(set(ids)) == len(ids)
    assert fds_after == fds_before
    assert bytes_after - bytes_before < 4 << 20  # of four hundred streams


def test_a_generation_wakes_its_follower_once() -> None:
    """However many streams there are: nobody waits for what each of them writes."""
    with ExitStack() as stack:
        drain = Drain(_PLAN, LinuxKernel())
        streams = [drain.core.add_stream() for _ in range(8)]
        for stream in streams:
            drain.add_ring(stream, fed_ring(_ATTR, _LABEL, stack))
        stack.callback(drain.core.stop)
        drain.core.start()
        told = issued = 0
        for generation in (2, 12):  # each stream asks for its first segment before
            limit = time.monotonic() + _LIMIT_S
            while min(stream.written_generation() for stream in streams) < generation:
                assert time.monotonic() < limit
                select.select([], [], [], 0.001)
            told = os.eventfd_read(drain.core.notify_fd)
            issued, before = drain.core.issued_generation(), issued
        assert 0 < told <= issued - before + 1


def test_generations_that_nobody_follows_wake_nobody() -> None:
    """The first that is told is the one that was asked for."""
    with ExitStack() as stack:
        drain = Drain(_PLAN, LinuxKernel())
        stack.callback(drain.core.stop)
        drain.core.follow(8)
        drain.core.start()
        readable, _, _ = select.select([drain.core.notify_fd], [], [], _LIMIT_S)
        assert readable
        assert drain.core.issued_generation() >= 8


def test_a_pass_between_is_not_followed() -> None:
    """A wait for the second pass after the last one resumes with that pass."""

    async def scenario() -> None:
        with ExitStack() as stack, Drain(_NEVER, LinuxKernel()) as drain:
            stream = drain.core.add_stream()
            drain.add_ring(stream, fed_ring(_ATTR, _LABEL, stack))
            waiting = asyncio.ensure_future(drain.next_pass(asyncio.Event(), passes=2))
            await asyncio.sleep(0)
            async with asyncio.timeout(_LIMIT_S):
                await drain.of(stream).full_pass()
                await drain.reached(drain.core.drained_generation, 1)
                await asyncio.sleep(0)
                assert not waiting.done()
                await drain.of(stream).full_pass()
                assert await waiting

    asyncio.run(scenario())


def test_how_far_readers_that_sort_may_have_come() -> None:
    """To the end of the round before the one that goes on, when that had been written."""

    async def scenario() -> None:
        with ExitStack() as stack, Drain(_NEVER, LinuxKernel()) as drain:
            stream = drain.core.add_stream()
            drain.add_ring(stream, fed_ring(_ATTR, _LABEL, stack))
            one = drain.of(stream)
            times = [time.monotonic_ns()]
            assert 0 < stream.round_ns() < times[0]  # it has none to be behind
            for number in range(4):
                async with asyncio.timeout(_LIMIT_S):
                    await one.written(await one.full_pass())
                if number > 0:
                    assert times[-2] < stream.round_ns() < times[-1]
                times.append(time.monotonic_ns())

    asyncio.run(scenario())


def test_nobody_knows_how_far_readers_are_while_a_round_does_not_end() -> None:
    """A ring that is not read keeps it from its end."""

    async def scenario() -> None:
        with ExitStack() as stack, Drain(_NEVER, LinuxKernel()) as drain:
            rings = Rings(drain, stack)
            await rings.overloaded()
            for _ in range(2):
                drain.core.request_flush()
            assert rings.streams[0].round_ns() == 0

    asyncio.run(scenario())


class Place:
    """A ring that tells where it was dealt."""

    def __init__(self, cpu: int, tid: int, role: RingRole) -> None:
        self.label = RingLabel("calls", "perf", role, cpu, tid)

    def register(self, _core: object, shard: int, _stream: object) -> SimpleNamespace:
        """Return what tells the shard for a ring."""
        return SimpleNamespace(id=id(self), shard=shard)


def test_what_names_samples_is_read_with_them() -> None:
    """A CPU's rings, or a thread's where it has none, are of one shard; all have alike many."""
    places = [*((cpu, -1) for cpu in (0, 2, 4, 6)), *((-1, tid) for tid in range(100, 106))]
    with ExitStack() as stack:
        drain = Drain(replace(_PLAN, drain=DrainThreads((DrainThread(),) * 4)), LinuxKernel())
        stack.callback(drain.core.stop)
        dealt: dict[tuple[int, int], set[Any]] = {place: set() for place in places}
        for role in (RingRole.DATA, RingRole.SIDEBAND):
            for _session in range(2):
                for cpu, tid in places:
                    place: Any = Place(cpu, tid, role)
                    ring = drain.add_ring(cast("_core.Stream", None), place)
                    dealt[cpu, tid].add(ring.shard)
        assert all(len(shards) == 1 for shards in dealt.values())
        loads = Counter(shard for shards in dealt.values() for shard in shards)
        assert sorted(loads.values()) == [2, 2, 3, 3]
