# SPDX-License-Identifier: Apache-2.0
"""The cost of real sessions to the program that they record."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest

from collectord.config.schema import Config, DaemonConfig
from collectord.config.schema_session import SessionConfig
from collectord.daemon.daemon import Daemon
from collectord.kernel.linux import LinuxKernel
from collectord.plan.imposed import imposed_by
from collectord.text.units import Bytes, Nanoseconds, RingSize, Share
from tests.support.configs import perf_source, tracefs_source
from tests.support.daemons import EVENT, FILTER, NUMBER

if TYPE_CHECKING:
    from pathlib import Path

    from collectord.session.daemon_status import DaemonStatus
    from tests.support.generator import Generator

pytestmark = pytest.mark.usefixtures("tracefs")

COUNT = 1000


def test_each_event_is_counted_at_its_expected_cost(tmp_path: Path, generator: Generator) -> None:
    """In streams and in flight recorders, whose rings nobody reads meanwhile."""
    pid = os.getpid()
    perf = perf_source(EVENT, filter=FILTER, ring=RingSize(65536))
    config = Config(
        daemon=DaemonConfig(
            state_dir=str(tmp_path / "state"),
            flush_interval=Nanoseconds(20_000_000),
            heartbeat=Nanoseconds(0),
            staging=Bytes(16 << 20),
            budget=Share(percent=2.5),
        ),
        session=(
            SessionConfig(name=f"perf{pid}", source=(perf,)),
            SessionConfig(name=f"held{pid}", source=(perf,), mode="flight-recorder"),
            SessionConfig(name=f"ftrace{pid}", source=(tracefs_source(EVENT, filter=FILTER),)),
        ),
    )
    daemon = Daemon(LinuxKernel(), config)
    costs = {(plan.name, plan.source): imposed_by(plan) for plan in daemon.plan.sessions}
    expected = {key: cost.event_ns * COUNT for key, cost in costs.items() if cost is not None}
    assert len(expected) == 3
    stop = asyncio.Event()
    shares: list[float] = []

    async def on_open() -> None:
        with generator.start("count", count=COUNT, nr=NUMBER) as load:
            load.run()

    def on_tick(status: DaemonStatus) -> None:
        if dict(status.cost.imposed_ns) == expected:
            shares.append(status.cost.ratio)
        if len(set(shares)) > 1:
            stop.set()

    asyncio.run(daemon.run(stop, on_open=on_open, on_tick=on_tick, salvage_all=False))
    cost = daemon.status().cost
    assert cost.imposed_ns == expected
    assert cost.budget == 0.025
    assert cost.own_ns > 0
    assert min(shares) >= 0
