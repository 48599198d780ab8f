# SPDX-License-Identifier: Apache-2.0
"""The segments that a snapshot waits for: all that were written to, and no other."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from collectord.codec.perf_features import Features
from collectord.errors import ShardSilent, SinkError
from collectord.model import SinkStats
from collectord.session import rotation as rotation_module
from collectord.session.health import Health
from collectord.session.rotation import Rotation
from collectord.session.seal_backlog import WAITING_MAX
from collectord.session.segment_ends import SnapshotSegments
from collectord.session.task_group import TaskGroup
from collectord.sink.base import GivenUp
from collectord.sink.manifest import SnapshotNote
from tests.support import segments as support
from tests.support.sessions import parts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

DATA_OFFSET = 4096
LIMIT_BYTES = 1 << 20
RING = 7


class Stream:
    """Writes nothing by itself; its segments are those that the sink made."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._directory = directory
        self._stack = stack
        self.token = 1
        self.rotated = 0
        self.led: list[int] = []
        self.linkless = 0
        self.later = self.turns = True
        self.wanted: Callable[[], None]  # told when a segment begins

    def track_bytes(self) -> tuple[int, dict[int, int]]:
        """Return the running segment's token; there are no pages."""
        return self.token, {}

    def tell_error(self) -> int:
        """Return that the header could be updated."""
        return 0

    def lead(self, segment: Any) -> None:  # noqa: ANN401 - a segment
        """Note where the link of the running segment leads. Raises SinkError without room."""
        if self.linkless:
            self.linkless -= 1
            raise SinkError("cannot link to the segment", path="x", errno=errno.ENOSPC)
        self.led.append(segment.token)

    def prepare(self, *_segment: int) -> None:
        """Prepare the segment at once."""

    def rotate(self) -> None:
        """The core ignores it where nothing was written."""
        self.rotated += 1

    def rotate_from(self, _token: int) -> None:
        """Do so, as no other task can have moved on."""
        self.rotate()

    def next_segment(self, token: int, _opening: object) -> Any:  # noqa: ANN401 - a segment
        """Return a file with its head."""
        fd = os.open(self._directory / str(token), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        self._stack.callback(os.close, fd)
        os.pwrite(fd, bytes(DATA_OFFSET), 0)
        return SimpleNamespace(
            token=token,
            fd=fd,
            meta_fd=fd,
            files={},
            offsets={},
            data_offset=DATA_OFFSET,
            limit_bytes=LIMIT_BYTES,
            step_bytes=0,
            tail_bytes=0,
            table=b"",
            size_word=(0, 0),
        )

    def add_ring(self, *_ring: int) -> bool:
        """Give it a place in later segments."""
        return self.later

    def turn(self) -> None:
        """Continue in the prepared segment; its notice is on the way."""
        if self.turns:
            self.token += 1
            asyncio.get_running_loop().call_soon(self.wanted)

    def write(self, token: int) -> None:
        """Write a chunk of data."""
        path = self._directory / str(token)
        path.write_bytes(bytes(2 * DATA_OFFSET))


def _segments_of(stream: Stream, tasks: TaskGroup) -> Rotation:
    """Return the segments of a stream, before the first."""
    one: Any = stream
    sink = SimpleNamespace(single_file=None, keeps_maps=False, directory="box")
    plan: Any = SimpleNamespace(name="box", has_chains=False, sink=sink)
    health: Any = SimpleNamespace(note=lambda *_: True)
    accounting: Any = SimpleNamespace(opening=lambda: None)
    return Rotation(parts_of(plan, one, health=health, tasks=tasks), accounting, Features)


async def _begun(stream: Stream, tasks: TaskGroup) -> Rotation:
    """Segments of a stream, which has its first and was offered the next."""
    rotation = _segments_of(stream, tasks)
    await rotation.begin()
    rotation.segment_wanted()
    await tasks.join()
    return rotation


async def _with_place(tmp_path: Path, stack: ExitStack, tasks: TaskGroup, **how: bool) -> int:
    """Return the token of the segment that runs when a ring has been taken in."""
    stream = Stream(tmp_path, stack)
    rotation = await _begun(stream, tasks)
    stream.wanted = rotation.segment_wanted
    for name, value in how.items():
        setattr(stream, name, value)
    await rotation.take_in(7, 1)
    await tasks.join()
    return stream.token


def test_a_ring_that_joins_waits_for_a_segment_with_a_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the running one nor the prepared one has it, unless all rings share a place."""
    monkeypatch.setattr(rotation_module, "_TURN_S", 0.01)
    with ExitStack() as stack, ThreadPoolExecutor(1) as worker:

        def run(**how: bool) -> int:
            async def scenario() -> int:
                return await _with_place(tmp_path, stack, TaskGroup(worker), **how)

            return asyncio.run(scenario())

        assert run() == 3
        assert run(later=False) == 1
        with pytest.raises(SinkError, match="does not end"):
            run(turns=False)


@pytest.mark.parametrize(
    ("running", "written", "expected"),
    [
        (1, (), []),  # nothing at all
        (1, (1,), [1]),
        (2, (1,), [1]),  # the first has reached its limit, and its notice is on the way
        (2, (1, 2), [1, 2]),
    ],
)
def test_an_empty_segment_is_not_waited_for(
    tmp_path: Path, running: int, written: tuple[int, ...], expected: list[int]
) -> None:
    """It would not be closed before the next snapshot, and this one never end."""

    async def scenario(stack: ExitStack) -> tuple[list[int], int]:
        stream = Stream(tmp_path, stack)
        tasks = TaskGroup(stack.enter_context(ThreadPoolExecutor(1)))
        rotation = await _begun(stream, tasks)
        for token in written:
            stream.write(token)
        stream.token = running
        collected = SnapshotSegments(SnapshotNote(trigger="request", taken_ns=1))
        rotation.rotate_for(collected)
        return sorted(collected.under_way()), stream.rotated

    with ExitStack() as stack:
        waited, rotated = asyncio.run(scenario(stack))
    assert waited == expected
    assert rotated == (running in written)


def test_the_link_leads_to_each_segment_that_runs(tmp_path: Path) -> None:
    """It is set when the core has moved on, not when the next one is prepared."""

    async def scenario(stack: ExitStack) -> list[list[int]]:
        stream = Stream(tmp_path, stack)
        tasks = TaskGroup(stack.enter_context(ThreadPoolExecutor(1)))
        rotation = await _begun(stream, tasks)
        before = stream.led.copy()
        stream.token = 2
        rotation.segment_wanted()
        await tasks.join()
        return [before, stream.led]

    with ExitStack() as stack:
        assert asyncio.run(scenario(stack)) == [[1], [1, 2]]


def test_a_link_without_room_is_set_later(tmp_path: Path) -> None:
    """A full disk takes no link; a tick tries again, and once it leads there, none does."""

    async def scenario(stack: ExitStack) -> list[list[int]]:
        stream = Turning(tmp_path, stack)
        stream.linkless = 2
        tasks = TaskGroup(stack.enter_context(ThreadPoolExecutor(1)))
        rotation = await _turning(tmp_path, stream, tasks)
        led = []
        for _ in range(3):
            led.append(stream.led.copy())
            rotation.tick()
            await tasks.join()
        return [*led, stream.led]

    with ExitStack() as stack:
        assert asyncio.run(scenario(stack)) == [[], [], [1], [1]]


class Ended(Stream):
    """Takes the first segment, and is finished while the next is made.

    Attributes:
        refused: tokens of those that came too late.
    """

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        super().__init__(directory, stack)
        self.refused: list[int] = []

    def prepare(self, *segment: int) -> None:
        """Raise OSError as the core does."""
        if segment[0] > 1:
            self.refused.append(segment[0])
            raise OSError(errno.ESHUTDOWN, "finished")
        super().prepare(*segment)


def test_a_segment_that_is_made_too_late_is_the_sinks(tmp_path: Path) -> None:
    """It fails nothing; what closes the sink takes its file away."""

    async def scenario(stack: ExitStack) -> list[int]:
        tasks = TaskGroup(stack.enter_context(ThreadPoolExecutor(1)))
        stream = Ended(tmp_path, stack)
        await _begun(stream, tasks)
        return stream.refused

    with ExitStack() as stack:
        assert asyncio.run(scenario(stack)) == [2]


class OneAhead(Stream):
    """Takes one segment beside the running one, and has opened none yet.

    Attributes:
        prepared: tokens of the segments that it took.
        answers: what it was told when it asked for a segment.
    """

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        super().__init__(directory, stack)
        self.prepared: list[int] = []
        self.answers: list[bool] = []

    def prepare(self, *segment: int) -> None:
        """Raise OSError as the core does."""
        if self.prepared:
            raise OSError(errno.EBUSY, "one is prepared")
        self.prepared.append(segment[0])

    def space(self, made: bool) -> None:
        """Note the answer."""
        self.answers.append(made)


@pytest.mark.parametrize("before", [True, False])
def test_records_that_come_before_the_first_segment_ask_for_no_second(
    tmp_path: Path, before: bool
) -> None:
    """Sideband flows while a session begins: its chunk asks for the segment that begin() makes."""

    async def scenario(stack: ExitStack) -> OneAhead:
        tasks = TaskGroup(stack.enter_context(ThreadPoolExecutor(1)))
        stream = OneAhead(tmp_path, stack)
        rotation = _segments_of(stream, tasks)
        if before:
            rotation.space_wanted(errno.EXFULL)
            await asyncio.sleep(0)  # its task has begun
        begun = asyncio.ensure_future(rotation.begin())
        await asyncio.sleep(0)
        if not before:
            rotation.space_wanted(errno.EXFULL)
        await begun
        await tasks.join()
        return stream

    with ExitStack() as stack:
        stream = asyncio.run(scenario(stack))
    assert (stream.prepared, stream.answers) == ([1], [True])


class FullDisk(Stream):
    """Seals nothing while it is full, and as a sink, store and accounts tells what it was asked.

    Attributes:
        full: there is no room for a seal.
        sealed, given_up: tokens, in order.
    """

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        super().__init__(directory, stack)
        self.full = True
        self.sealed: list[int] = []
        self.given_up: list[int] = []

    def seal(self, segment: Any, _closed: object, _closing: object) -> None:  # noqa: ANN401
        """Raise SinkError while the disk is full."""
        if self.full:
            raise SinkError("cannot seal the segment", path="x", errno=errno.ENOSPC)
        self.sealed.append(segment.token)

    def give_up(self, segment: Any, _closed: object) -> GivenUp:  # noqa: ANN401 - a segment
        """Note that the segment is given up; its file stays."""
        self.given_up.append(segment.token)
        return GivenUp()

    def changes(self, _directory: Path) -> int:
        """Return 0: nobody compresses its segments."""
        return 0

    def make_room(self, _need_bytes: int = 0, _directory: Path | None = None) -> bool:
        """Do nothing: no file can be deleted."""
        return False

    def stats(self, _directory: Path, _write_errors: int, unsealed: int) -> SinkStats:
        """Return the statistics that the test set."""
        return SinkStats(unsealed=unsealed)

    def leave(self, _partials: object) -> None:
        """Do nothing."""

    async def full_pass(self) -> None:
        """Time out, as if the drain thread hung."""
        raise ShardSilent(0, 5)


def test_full_disk_holds_a_few_segments_open(tmp_path: Path) -> None:
    """Segments that wait for room are sealed when there is some; few of them stay open.

    This holds though a drain thread hangs, which is reported.
    """

    async def scenario(stack: ExitStack) -> tuple[FullDisk, SinkStats, tuple[str, ...]]:
        disk = FullDisk(tmp_path, stack)
        tasks = TaskGroup(stack.enter_context(ThreadPoolExecutor(1)))
        one: Any = disk
        accounting: Any = SimpleNamespace(
            opening=lambda: None,
            measure=lambda: None,
            by_place=lambda closed: closed,
            closing=lambda **_: support.closing(),
            given_up=lambda _end: None,
        )
        sink = SimpleNamespace(
            single_file=None, segment_age_ns=0, keeps_maps=False, directory=str(tmp_path)
        )
        plan: Any = SimpleNamespace(name="box", has_chains=False, degraded=(), sink=sink)
        health = Health(plan, (), one)
        rotation = Rotation(parts_of(plan, one, health=health, tasks=tasks), accounting, Features)
        await rotation.begin()
        for token in range(1, 8):
            disk.token = token
            rotation.segment_wanted()
            await tasks.join()
            told: Any = SimpleNamespace(token=token, final=False, samples=0, early=token > 5)
            rotation.segment_closed(told)
            await tasks.join()
        disk.full = False
        rotation.tick()
        await tasks.join()
        return disk, rotation.kept.stats, health.reasons

    with ExitStack() as stack:
        disk, stats, reasons = asyncio.run(scenario(stack))
    assert (disk.given_up, disk.sealed) == ([1, 2, 3], [4, 5, 6, 7])
    assert (stats.unsealed, stats.early) == (3, 2)
    assert any("drain/0 did not answer" in reason for reason in reasons)


class Turning(FullDisk):
    """Seals what it is told of, and has no rings to drain.

    Attributes:
        asked: a rotation was asked of the core.
    """

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        super().__init__(directory, stack)
        self.asked = asyncio.Event()

    def rotate(self) -> None:
        """Note it."""
        super().rotate()
        self.asked.set()

    def seal(self, segment: Any, _closed: object, _closing: object) -> Any:  # noqa: ANN401
        """Return what tells of the segment. Raises SinkError while the disk is full."""
        super().seal(segment, _closed, _closing)
        path = self._directory / str(segment.token)
        return SimpleNamespace(path=path, more=(), manifest=SimpleNamespace(samples=1))

    async def written_pass(self) -> None:
        """Do nothing."""

    def describe(self) -> Features:
        """Return nothing."""
        return Features()


async def _turning(directory: Path, stream: Turning, tasks: TaskGroup) -> Rotation:
    """Segments of a stream, the first of which runs, and the second is prepared."""
    one: Any = stream
    accounting: Any = SimpleNamespace(
        opening=lambda: None,
        measure=lambda: None,
        by_place=lambda closed: closed,
        closing=lambda **_: support.closing(),
        found=lambda _info: None,
    )
    sink = SimpleNamespace(
        single_file=None, segment_age_ns=0, keeps_maps=False, directory=str(directory)
    )
    plan: Any = SimpleNamespace(name="box", has_chains=False, degraded=(), sink=sink)
    health = Health(plan, (), one)
    describe = stream.describe
    rotation = Rotation(parts_of(plan, one, health=health, tasks=tasks), accounting, describe)
    await rotation.begin()
    rotation.segment_wanted()
    await tasks.join()
    return rotation


def _closed(token: int) -> Any:  # noqa: ANN401 - a notice of the core
    return SimpleNamespace(token=token, final=False, samples=1, early=False)


class Pages(Turning):
    """Has pages of one ring in its segments.

    Attributes:
        pages: in the running one.
        shown: {token, pages} in the order in which files were told to show them.
    """

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        super().__init__(directory, stack)
        self.pages = 1
        self.shown: list[tuple[int, int]] = []

    def track_bytes(self) -> tuple[int, dict[int, int]]:
        """Return the running segment's token and pages."""
        return self.token, {RING: self.pages}

    def next_segment(self, token: int, opening: object) -> Any:  # noqa: ANN401 - a segment
        """Return a file with a place for the ring."""
        segment = super().next_segment(token, opening)
        segment.offsets = {RING: DATA_OFFSET}
        segment.capacity_bytes = LIMIT_BYTES
        return segment

    def prepare_pages(self, *_segment: int, **_places: object) -> None:
        """Prepare the segment at once."""

    def flush(self, segment: Any, sizes: Mapping[int, int]) -> None:  # noqa: ANN401 - a segment
        """Note what the file shows."""
        self.shown.append((segment.token, sizes[RING]))


def test_a_closed_segment_is_shown_to_its_end_before_the_next(tmp_path: Path) -> None:
    """Its seal may come long after the next one shows pages."""

    async def scenario(stack: ExitStack) -> list[tuple[int, int]]:
        stream = Pages(tmp_path, stack)
        stream.full = True
        tasks = TaskGroup(stack.enter_context(ThreadPoolExecutor(1)))
        rotation = await _turning(tmp_path, stream, tasks)
        stream.token = 2
        closed = _closed(1)
        closed.tracks = ((RING, 5, ()),)
        rotation.segment_closed(closed)
        rotation.tick()
        await tasks.join()
        return stream.shown

    with ExitStack() as stack:
        assert asyncio.run(scenario(stack)) == [(1, 5), (2, 1)]


@pytest.mark.parametrize("full", [False, True])
def test_a_requested_rotation_waits_for_the_seal(tmp_path: Path, full: bool) -> None:
    """It answers with the sealed file, or fails as the seal does."""

    async def scenario(stack: ExitStack) -> list[str]:
        stream = Turning(tmp_path, stack)
        stream.full = full
        tasks = TaskGroup(stack.enter_context(ThreadPoolExecutor(1)))
        rotation = await _turning(tmp_path, stream, tasks)
        stream.write(1)
        asked = asyncio.ensure_future(rotation.rotate_now())
        await stream.asked.wait()
        assert not asked.done()
        stream.token = 2
        rotation.segment_closed(_closed(1))
        rotation.segment_wanted()
        try:
            return [str(info.path) for info in await asked]
        finally:
            await tasks.join()

    with ExitStack() as stack:
        if full:
            with pytest.raises(SinkError, match="cannot seal"):
                asyncio.run(scenario(stack))
        else:
            assert asyncio.run(scenario(stack)) == [str(tmp_path / "1")]


@pytest.mark.parametrize("ending", [False, True])
def test_a_requested_rotation_of_nothing(tmp_path: Path, ending: bool) -> None:
    """An empty segment goes on, and one that ends is sealed by the end."""

    async def scenario(stack: ExitStack) -> tuple[int, int]:
        stream = Turning(tmp_path, stack)
        stream.full = False
        tasks = TaskGroup(stack.enter_context(ThreadPoolExecutor(1)))
        rotation = await _turning(tmp_path, stream, tasks)
        if ending:
            stream.write(1)
            rotation.end()
        return len(await rotation.rotate_now()), stream.rotated

    with ExitStack() as stack:
        assert asyncio.run(scenario(stack)) == (0, 0)


class Breaking(Turning):
    """Breaks in a way that nobody has foreseen, where the test says so.

    Attributes:
        at: "describe" or "seal".
    """

    def __init__(self, directory: Path, stack: ExitStack, at: str) -> None:
        super().__init__(directory, stack)
        self.at = at
        self.full = False

    def describe(self) -> Features:
        """Return nothing, or break."""
        if self.at == "describe":
            raise ZeroDivisionError(self.at)
        return Features()

    def seal(self, segment: Any, closed: object, closing: object) -> Any:  # noqa: ANN401
        """Seal, or break."""
        if self.at == "seal":
            raise ZeroDivisionError(self.at)
        return super().seal(segment, closed, closing)


@pytest.mark.parametrize("at", ["describe", "seal"])
def test_whoever_waits_is_told_of_any_failure(tmp_path: Path, at: str) -> None:
    """A seal that breaks ends the wait for it, and is reported as any task that breaks."""

    async def scenario(stack: ExitStack) -> None:
        stream = Breaking(tmp_path, stack, at)
        tasks = TaskGroup(stack.enter_context(ThreadPoolExecutor(1)))
        rotation = await _turning(tmp_path, stream, tasks)
        stream.write(1)
        asked = asyncio.ensure_future(rotation.rotate_now())
        await stream.asked.wait()
        rotation.segment_closed(_closed(1))
        with pytest.raises(ZeroDivisionError):
            await tasks.join()
        with pytest.raises(SinkError, match=rf"a seal ended with ZeroDivisionError\('{at}'\)"):
            await asyncio.wait_for(asked, 10)

    with ExitStack() as stack:
        asyncio.run(scenario(stack))


@pytest.mark.parametrize("empty", [False, True])
def test_a_requested_rotation_that_a_failed_write_took_back(tmp_path: Path, empty: bool) -> None:
    """It is asked for again, until the core does it or nothing of the segment is left."""

    async def scenario(stack: ExitStack) -> tuple[int, int]:
        stream = Turning(tmp_path, stack)
        stream.full = False
        tasks = TaskGroup(stack.enter_context(ThreadPoolExecutor(1)))
        rotation = await _turning(tmp_path, stream, tasks)
        stream.write(1)
        asked = asyncio.ensure_future(rotation.rotate_now())
        await stream.asked.wait()
        if empty:
            os.truncate(tmp_path / "1", DATA_OFFSET)
        rotation.tick()
        if not empty:
            stream.token = 2
            rotation.segment_closed(_closed(1))
        infos = await asyncio.wait_for(asked, 10)
        await tasks.join()
        return len(infos), stream.rotated

    with ExitStack() as stack:
        assert asyncio.run(scenario(stack)) == ((0, 1) if empty else (1, 2))


class SlowDisk(Turning):
    """Seals nothing until the test lets it.

    Attributes:
        prepared: tokens of the segments that the stream took.
        answers: what it was told when it asked for a segment.
        may_seal: seals go on.
        worker: does its file work.
    """

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        super().__init__(directory, stack)
        self.full = False
        self.prepared: list[int] = []
        self.answers: list[bool] = []
        self.may_seal = threading.Event()
        self.worker: ThreadPoolExecutor

    def prepare(self, *segment: int) -> None:
        """Note which."""
        self.prepared.append(segment[0])

    def space(self, made: bool) -> None:
        """Note the answer."""
        self.answers.append(made)

    def seal(self, segment: Any, closed: object, closing: object) -> Any:  # noqa: ANN401
        """Seal once that is possible."""
        assert self.may_seal.wait(60)
        return super().seal(segment, closed, closing)

    async def turn_over(self, rotation: Rotation) -> bool:
        """Fill the running segment; returns whether there is another one to continue in."""
        if self.token == self.prepared[-1]:
            return False
        self.token += 1
        rotation.segment_closed(_closed(self.token - 1))
        rotation.segment_wanted()
        await self.settled()
        rotation.tick()
        await self.settled()
        return True

    async def settled(self) -> None:
        """Let tasks go on until nothing but the seal is under way."""
        for _ in range(3):
            await asyncio.sleep(0)
            await asyncio.get_running_loop().run_in_executor(self.worker, int)
        await asyncio.sleep(0)


def test_segments_that_wait_for_their_seals_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With more than a few there is no next segment, unless the running one has no room left.

    The running one goes on. Once the seals have caught up, there is a next one again.
    """
    monkeypatch.setattr(rotation_module, "_SEALS_S", 0.01)

    async def scenario(stack: ExitStack) -> SlowDisk:
        stream = SlowDisk(tmp_path, stack)
        # A thread seals, and another one does the rest.
        stream.worker = stack.enter_context(ThreadPoolExecutor(2))
        stack.callback(stream.may_seal.set)
        tasks = TaskGroup(stream.worker)
        rotation = await _turning(tmp_path, stream, tasks)
        turns = 0
        while await stream.turn_over(rotation):
            turns += 1
            assert turns < 100, "segments without a bound"
        assert turns == WAITING_MAX + 1
        rotation.space_wanted(errno.EXFULL)
        while not stream.answers:
            await stream.settled()
        assert (stream.answers, stream.prepared[-1]) == ([True], stream.token + 1)
        assert await stream.turn_over(rotation)
        last = stream.token
        assert stream.prepared[-1] == last
        stream.may_seal.set()
        await tasks.join()
        assert stream.prepared[-1] == last + 1
        assert stream.sealed == list(range(1, last))
        return stream

    with ExitStack() as stack:
        asyncio.run(scenario(stack))
