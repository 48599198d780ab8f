# SPDX-License-Identifier: Apache-2.0
"""Signs of life: what they depend on is that each drain thread makes passes, with data or not."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import structlog

from collectord.control import watchdog
from collectord.control.service import Service
from collectord.control.watchdog import Watchdog, prolong
from collectord.kernel.linux import LinuxKernel
from collectord.plan.drain_threads import DrainThread, DrainThreads
from collectord.plan.plan import CorePlan
from collectord.session.drain_loop import Drain
from tests.support.daemons import wait_for
from tests.support.hanging import hanging_ring
from tests.support.managers import managed

_LIMIT_S = 30
_PLAN = CorePlan(
    chunks=8,
    chunk_bytes=128 << 10,
    flush_ns=20_000_000,
    floor_bytes=0,
    drain=DrainThreads((DrainThread(), DrainThread())),
)
# The same, whose timer begins no pass.
_NEVER = replace(_PLAN, flush_ns=3600 * 1_000_000_000)


async def all_passed(drain: Drain) -> None:
    """Wait until every drain thread has made a pass from now on."""
    generation = drain.core.request_flush()
    async with asyncio.timeout(_LIMIT_S):
        # A pass is noted a moment after its generation has completed.
        while drain.core.silent_shards(generation):
            await drain.reached(drain.core.drained_generation, drain.core.request_flush())


def hangs(drain: Drain) -> bool:
    """Whether the first drain thread waits in a read of a pipe."""
    tid = drain.core.drain_tids()[0]
    return Path(f"/proc/self/task/{tid}/wchan").read_text().endswith("pipe_read")


def all_but_the_first_passed(drain: Drain) -> None:
    """Wait until the other drain threads have made a pass from now on."""
    generation = drain.core.request_flush()
    wait_for(lambda: drain.core.silent_shards(generation) == (0,), "passes of the others")


@pytest.mark.parametrize("plan", [_PLAN, _NEVER], ids=["short", "long"])
def test_empty_passes_are_signs_of_life(plan: CorePlan, tmp_path: Path) -> None:
    """Threads without a ring make them, however long the flush interval is."""

    async def scenario() -> None:
        with managed(tmp_path) as (service, manager), Drain(plan, LinuxKernel()) as drain:
            dog = Watchdog(drain.core, service)
            for _ in range(3):
                await all_passed(drain)
                assert dog.poll()
            assert manager.told() == ["WATCHDOG=1"] * 3

    asyncio.run(scenario())


def test_a_hung_drain_thread_is_named_once_and_ends_the_signs_of_life(tmp_path: Path) -> None:
    """The other thread makes passes; that is not enough. Once it goes on, so do they."""

    async def scenario() -> None:
        with (
            managed(tmp_path) as (service, manager),
            ExitStack() as stack,
            Drain(_PLAN, LinuxKernel()) as drain,
            structlog.testing.capture_logs() as logged,
        ):
            _, _, sink = hanging_ring(drain, stack)
            with sink:
                wait_for(lambda: hangs(drain), "a read that hangs")
                dog = Watchdog(drain.core, service)
                all_but_the_first_passed(drain)
                dog.poll()  # of passes before it hung
                manager.told()
                all_but_the_first_passed(drain)
                assert not dog.poll()
                assert not dog.poll()
                assert manager.told() == []
            assert [(line["event"], line["shard"]) for line in logged] == [
                ("drain_thread_silent", 0)
            ]
            await all_passed(drain)  # the pipe has ended
            assert dog.poll()
            assert manager.told() == ["WATCHDOG=1"]

    asyncio.run(scenario())


def test_without_a_limit_there_is_no_watch() -> None:
    """Outside of a service, or of a unit without WatchdogSec=, it ends at once."""

    async def scenario() -> None:
        with Drain(_PLAN, LinuxKernel()) as drain:
            async with asyncio.timeout(_LIMIT_S):
                await Watchdog(drain.core, Service()).watch()

    asyncio.run(scenario())


def test_the_watch_looks_several_times_within_the_limit(tmp_path: Path) -> None:
    """It goes on until it is cancelled."""

    async def scenario() -> None:
        limit = {"WATCHDOG_USEC": "30000"}
        with (
            managed(tmp_path, **limit) as (service, manager),
            Drain(_PLAN, LinuxKernel()) as drain,
        ):
            assert service.watchdog_s == 0.03
            watching = asyncio.ensure_future(Watchdog(drain.core, service).watch())
            told: list[str] = []
            async with asyncio.timeout(_LIMIT_S):
                while len(told) < 3:
                    await all_passed(drain)
                    told += manager.told()
            watching.cancel()
            assert set(told) == {"WATCHDOG=1"}

    asyncio.run(scenario())


def test_more_time_is_asked_for_while_something_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wait for a disk that takes nothing is not prolonged."""
    monkeypatch.setattr(watchdog, "_PROLONG_INTERVAL_S", 0.0)
    readings = [0, 0, 0, 7, 7, 9]
    ended = asyncio.Event()

    def written() -> int:
        if len(readings) == 1:
            ended.set()
            return readings[0]
        return readings.pop(0)

    async def scenario() -> list[str]:
        with managed(tmp_path) as (service, manager):
            prolonging = asyncio.ensure_future(prolong(service, written))
            await asyncio.wait_for(ended.wait(), _LIMIT_S)
            await asyncio.sleep(0)
            prolonging.cancel()
            return manager.told()

    assert asyncio.run(scenario()) == ["EXTEND_TIMEOUT_USEC=30000000"] * 2
