# SPDX-License-Identifier: Apache-2.0
"""Closed segments that wait for their seals: how many may, and from when on it is a trouble."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import structlog

from collectord.session.health import Health
from collectord.session.seal_backlog import WAITING_MAX, SealBacklog

SECOND_NS = 1_000_000_000


class Rig:
    """A backlog, the health that it reports to, and a clock that the test moves."""

    def __init__(self) -> None:
        plan: Any = SimpleNamespace(
            name="busy", degraded=(), sink=SimpleNamespace(directory="/busy")
        )
        reader: Any = None
        self.health = Health(plan, (), reader)
        self.now_ns = SECOND_NS
        self.backlog = SealBacklog("busy", self.health, lambda: self.now_ns)

    def close(self, count: int) -> None:
        """Close so many segments."""
        for _ in range(count):
            self.backlog.add()

    def after(self, seconds: float) -> tuple[str, ...]:
        """Return the reasons for which the session is degraded after so long."""
        self.now_ns += int(seconds * SECOND_NS)
        self.backlog.poll()
        return self.health.reasons


def test_a_few_segments_may_wait() -> None:
    """One more makes too many, however long they wait, and one less makes few again."""
    rig = Rig()
    rig.close(WAITING_MAX)
    assert (rig.backlog.is_full, rig.after(100)) == (False, ())
    rig.close(1)
    assert rig.backlog.is_full
    rig.backlog.remove()
    assert not rig.backlog.is_full


def test_a_burst_is_no_trouble() -> None:
    """Segments that are all sealed within a second degrade nothing."""
    rig = Rig()
    for _ in range(3):
        rig.close(2 * WAITING_MAX)
        assert rig.after(0.9) == ()
        for _ in range(2 * WAITING_MAX):
            rig.backlog.remove()
        assert rig.after(0.9) == ()


def test_a_backlog_that_lasts_is_told_until_it_is_over() -> None:
    """It need not be full all the time; one line of the log tells of it."""
    rig = Rig()
    rig.close(WAITING_MAX + 1)
    rig.backlog.remove()
    with structlog.testing.capture_logs() as logged:
        (reason,) = rig.after(1)
        rig.after(1)
    assert reason == "seals take longer than segments fill: files grow beyond segment_bytes"
    assert [(line["event"], line["waiting"]) for line in logged] == [("seals_behind", WAITING_MAX)]
    for _ in range(WAITING_MAX):
        assert rig.health.reasons
        rig.backlog.remove()
    assert rig.after(100) == ()


def test_a_wait_ends_with_the_next_seal() -> None:
    """It does not begin if there is room, and ends without any seal too."""

    async def scenario() -> list[bool]:
        rig = Rig()
        await rig.backlog.wait(60)
        rig.close(WAITING_MAX + 2)
        waiting = asyncio.ensure_future(rig.backlog.wait(60))
        done = []
        for _ in range(2):
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            done.append(waiting.done())
            rig.backlog.remove()
        await waiting
        done.append(rig.backlog.is_full)
        rig.close(1)
        await rig.backlog.wait(0.01)
        return [*done, rig.backlog.is_full]

    assert asyncio.run(scenario()) == [False, False, False, True]


def test_an_answer_is_not_waited_for_once_a_seal_is() -> None:
    """It may need what is held by whoever waits for the seal."""

    async def scenario() -> list[bool]:
        rig = Rig()
        rig.close(WAITING_MAX + 1)
        came = asyncio.Event()
        asking = asyncio.ensure_future(rig.backlog.unless_awaited(came.wait()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        done = [asking.done()]
        waiting = asyncio.ensure_future(rig.backlog.wait(60))
        await asking
        rig.backlog.remove()
        await waiting
        came.set()
        await rig.backlog.unless_awaited(came.wait())
        return [*done, rig.backlog.is_full]

    assert asyncio.run(scenario()) == [False, False]
