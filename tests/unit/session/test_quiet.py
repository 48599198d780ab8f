# SPDX-License-Identifier: Apache-2.0
"""The cost of a flush interval in which nothing happened: one check, and no more."""

from __future__ import annotations

import asyncio
import errno
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from collectord.daemon.coverage import Coverage
from collectord.daemon.cpu_watch import CpuWatch
from collectord.kernel.host.task_comms import TaskComms
from collectord.kernel.linux import LinuxKernel
from collectord.model import ClockReading
from collectord.plan.build import build
from collectord.session.drain_loop import Drain
from collectord.session.flush_clocks import FlushClocks
from collectord.session.program_watch import ProgramWatch
from collectord.session.rotation import Rotation
from collectord.session.task_group import TaskGroup
from tests.support.hosts import host
from tests.support.sessions import parts_of
from tests.unit.session.test_session_end import config

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


def test_clocks_are_read_ever_less_often_and_stay_spread() -> None:
    """A short segment has each eighth flush, a long one fewer of them, from all of its time."""
    clocks = FlushClocks()
    now = 0

    def read() -> ClockReading:
        return ClockReading(now, 0, 0, 0)

    for now in range(1, 42):  # noqa: B007 - what `read` gives
        clocks.flushed(read)
    assert [one.monotonic_ns for one in clocks.take()] == [8, 16, 24, 32, 40]
    for now in range(1, 3601):  # noqa: B007 - likewise
        clocks.flushed(read)
    times = [one.monotonic_ns for one in clocks.take()]
    assert 8 <= len(times) <= 16
    assert len({b - a for a, b in pairwise(times)}) == 1
    assert times[-1] > 3000
    assert clocks.take() == ()


class Programs:
    """A kernel with these BPF programs, of which no names can be told.

    Attributes:
        listed: how often ids were asked for.
    """

    def __init__(self) -> None:
        self.ids: list[int] = [3]
        self.listed = 0

    def bpf_program_ids(self, after: int = 0) -> tuple[int, ...]:
        """Return ids beyond one."""
        self.listed += 1
        return tuple(number for number in self.ids if number > after)

    def bpf_symbols(self, ids: Sequence[int]) -> list[Any]:
        """Return the needed part of each symbol."""
        return [
            SimpleNamespace(id=number, functions=(), loaded_ns=0, records=lambda: ())
            for number in ids
        ]

    def loaded_bpf(self, _ids: Sequence[int], _room: int) -> Any:  # noqa: ANN401 - a stand-in's
        """Return no program."""
        return SimpleNamespace(programs=(), types=())


def watch(kernel: Programs, fed: list[bytes]) -> ProgramWatch:
    """Return a watch that knows the present programs."""

    def feed(data: bytes) -> bool:
        fed.append(data)
        return True

    ring: Any = SimpleNamespace(feed=feed)
    stand_in: Any = kernel
    made = ProgramWatch(stand_in, ring, None, 1, lambda: 1, perf_clock=False)  # type: ignore[arg-type]
    made.running()
    return made


def test_that_no_program_is_new_is_seen_by_one_call() -> None:
    """No other call is made, and nothing is reported."""
    kernel, fed = Programs(), list[bytes]()
    one = watch(kernel, fed)
    kernel.listed = 0
    assert one.pass_over(kernel.bpf_program_ids)
    assert (kernel.listed, fed) == (1, [])


def test_a_new_program_is_looked_at() -> None:
    """It is examined once: then it is known."""
    kernel, fed = Programs(), list[bytes]()
    one = watch(kernel, fed)
    kernel.ids.append(7)
    assert not one.pass_over(kernel.bpf_program_ids)
    one.poll()
    assert len(fed) == 1
    assert one.pass_over(kernel.bpf_program_ids)


def test_a_program_that_went_is_told_within_sixteen_looks() -> None:
    """All are listed that often: that there is none newer says nothing of those."""
    kernel, fed = Programs(), list[bytes]()
    one = watch(kernel, fed)
    kernel.ids.clear()
    for _ in range(16):
        if not one.pass_over(kernel.bpf_program_ids):
            one.poll()
    assert len(fed) == 1


class Shown:
    """A stream, a sink and all else that a segment needs, which counts what is shown."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        file = stack.enter_context((directory / "1").open("wb"))
        self._fd = file.fileno()
        self.sizes: dict[int, int] = {}
        self.error = 0
        self.shown: list[Mapping[int, int]] = []

    def next_segment(self, token: int, _opening: object) -> Any:  # noqa: ANN401 - a segment
        """Return the only segment."""
        return SimpleNamespace(
            token=token, fd=self._fd, files={}, offsets={1: 0}, capacity_bytes=0,
            limit_bytes=0, step_bytes=0,
        )  # fmt: skip

    def prepare_pages(self, *_: object, **__: object) -> None:
        """Accept the segment."""

    def changes(self, _directory: Path) -> int:
        """Return 0: nobody compresses its segments."""
        return 0

    def track_bytes(self) -> tuple[int, dict[int, int]]:
        """Return the written bytes."""
        return 1, dict(self.sizes)

    def tell_error(self) -> int:
        """Return the errno of the core's own update."""
        return self.error

    def flush(self, _segment: object, sizes: Mapping[int, int]) -> None:
        """Note it."""
        self.shown.append(dict(sizes))


def test_a_running_file_is_shown_again_only_when_it_grew(tmp_path: Path) -> None:
    """Readers see all that was written, and nothing is written to say the same again.

    The core itself updates a file of records, and the session says so while it cannot.
    """
    told: list[str] = []

    async def scenario(stack: ExitStack) -> list[Mapping[int, int]]:
        shown = Shown(tmp_path, stack)
        one: Any = shown
        tasks = TaskGroup(stack.enter_context(ThreadPoolExecutor(1)))
        accounting: Any = SimpleNamespace(opening=lambda: None)
        health: Any = SimpleNamespace(note=lambda _, trouble: told.append(trouble))
        sink = SimpleNamespace(
            single_file=None, segment_age_ns=0, keeps_maps=False, directory=str(tmp_path)
        )
        plan: Any = SimpleNamespace(name="box", has_chains=False, sink=sink)
        parts = parts_of(plan, one, health=health, tasks=tasks)
        rotation = Rotation(parts, accounting, lambda: one)
        await rotation.begin()
        for shown.sizes in ({1: 0}, {1: 0}, {1: 4096}, {1: 4096}, {1: 8192}):
            rotation.tick()
            await tasks.join()
        assert not any(told)
        del told[:]
        shown.sizes = {}
        for shown.error in (0, errno.EIO, 0):
            rotation.tick()
            await tasks.join()
        return shown.shown

    with ExitStack() as stack:
        assert asyncio.run(scenario(stack)) == [{1: 0}, {1: 4096}, {1: 8192}]
    assert told == ["", "cannot update the segment (EIO)", ""]


def names(count: int, first: int = 0) -> bytes:
    """Return a cache of so many."""
    return b"".join(b"%d task\n" % (first + number) for number in range(count))


@pytest.mark.parametrize(("cached", "calls"), [(128, 4), (6500, 16)])
def test_names_are_learned_before_the_cache_can_have_lost_them(
    tmp_path: Path, cached: int, calls: int
) -> None:
    """While none is new a look is rare, and the rarer the larger the cache."""
    cache = tmp_path / "saved_cmdlines"
    (tmp_path / "proc").mkdir()
    comms = TaskComms(tmp_path, tmp_path / "proc")
    cache.write_bytes(names(cached))
    comms.learn()  # all are new: the next call looks too
    comms.learn()

    for call in range(1, calls + 1):
        cache.write_bytes(names(cached - 1) + names(1, first=10_000 + call))
        comms.learn()
    cache.write_bytes(b"")
    assert sorted(tid for tid in comms.read() if tid > 10_000) == [10_000 + calls]


def test_cpus_that_stay_are_no_news(tmp_path: Path) -> None:
    """A session's lack is reported again only if it may have changed."""
    online = tmp_path / "devices/system/cpu/online"
    online.parent.mkdir(parents=True)
    online.write_text("0-3\n")
    (plan,) = build(config(tmp_path, "calls"), host()).sessions
    with CpuWatch(LinuxKernel(sys=tmp_path)) as cpus:
        coverage = Coverage([plan], cpus.poll().online)
        assert not coverage.poll(cpus)
        online.write_text("0-2\n")
        assert coverage.poll(cpus)
        assert coverage.trouble(plan) == "CPU 3: offline"
        assert not coverage.poll(cpus)


def test_a_stop_ends_the_wait_for_a_pass(tmp_path: Path) -> None:
    """It ends at once, not at the next flush."""

    async def scenario() -> tuple[bool, bool]:
        with Drain(build(config(tmp_path, "calls"), host()).core, LinuxKernel()) as drain:
            stop = asyncio.Event()
            passed = await drain.next_pass(stop)
            waiting = asyncio.ensure_future(drain.next_pass(stop))
            await asyncio.sleep(0)
            stop.set()
            drain.wake()
            return passed, await waiting

    assert asyncio.run(scenario()) == (True, False)
