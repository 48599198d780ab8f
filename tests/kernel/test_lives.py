# SPDX-License-Identifier: Apache-2.0
"""Sessions that begin and end in one process leave nothing of themselves in it."""

from __future__ import annotations

import asyncio
import gc
import os
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from collectord.config.schema import (
    Config,
    DaemonConfig,
    PerfSourceConfig,
    SessionConfig,
    TracefsSourceConfig,
)
from collectord.drain.loop import Drain
from collectord.host import host_facts
from collectord.kernel.host import read_host
from collectord.kernel.linux import LinuxKernel
from collectord.maps.watch import BpfWatch
from collectord.opening import Surroundings
from collectord.plan.build import build
from collectord.plan.session import RetentionPlan
from collectord.session import Session
from collectord.sink.store import Store
from collectord.workers import Workers

if TYPE_CHECKING:
    from collectord.plan.session import SessionPlan

WARM_UP: Final = 20
SESSIONS: Final = 80  # more of each kind than the core takes at a time
GROWTH_BYTES: Final = 8 << 20

pytestmark = pytest.mark.timeout(300)


def held_by_process() -> tuple[int, int]:
    """Bytes that this process has in memory, and its descriptors."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE"), len(list(Path("/proc/self/fd").iterdir()))


async def live(surroundings: Surroundings, plan: SessionPlan) -> None:
    """One session, from its opening to its end, with something to record."""
    async with AsyncExitStack() as own:
        session = await surroundings.open(plan, own)
        assert isinstance(session, Session)
        await session.begin()
        await asyncio.sleep(0.001)
        await session.close()
        balance = session.balance()
        assert balance.state == "stopped"
        assert balance.segments


def test_sessions_come_and_go_and_leave_nothing(tmp_path: Path) -> None:
    """However many there were, memory and descriptors are those of a few."""
    source: dict[str, PerfSourceConfig | TracefsSourceConfig] = {
        "calls": PerfSourceConfig(events=("sched:sched_switch",)),
        "window": PerfSourceConfig(events=("sched:sched_switch",)),
        "trace": TracefsSourceConfig(events=("sched:sched_switch",)),
    }
    sessions = tuple(
        SessionConfig(
            name=name,
            mode="flight-recorder" if name == "window" else "stream",
            source=(one,),
        )
        for name, one in source.items()
    )
    config = Config(daemon=DaemonConfig(state_dir=str(tmp_path)), session=sessions)
    facts = host_facts(config, mount=True)
    whole = build(config, facts)
    kernel = LinuxKernel()

    async def scenario() -> list[tuple[int, int]]:
        held = []
        with Drain(whole.core) as drain, Workers({}) as workers:
            surroundings = Surroundings(
                kernel=kernel,
                drain=drain,
                host=read_host(),
                facts=facts,
                clock=kernel.clocks(),
                store=Store(tmp_path, RetentionPlan()),
                workers=workers,
                watch=BpfWatch(),
                stats=False,
                child=None,
            )
            for number in range(SESSIONS):
                for plan in whole.sessions:
                    await live(surroundings, plan)
                if number in {WARM_UP, SESSIONS - 1}:
                    held.append(held_by_process())
        return held

    (bytes_before, fds_before), (bytes_after, fds_after) = asyncio.run(scenario())
    assert fds_after == fds_before
    assert bytes_after - bytes_before < GROWTH_BYTES
