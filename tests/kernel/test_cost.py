# SPDX-License-Identifier: Apache-2.0
"""The cost of real sessions to the program that they record."""

from __future__ import annotations

import asyncio
import os
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from collectord.config.schema import Config, DaemonConfig
from collectord.config.schema_session import SessionConfig
from collectord.daemon.budget_keeper import BudgetKeeper
from collectord.daemon.daemon import Daemon
from collectord.kernel.linux import LinuxKernel
from collectord.model import Basis, GapCause
from collectord.session.cost_meter import Cost, CostMeter
from collectord.text.units import Bytes, Nanoseconds, RingSize, Share
from tests.support import daemons
from tests.support.configs import perf_source, tracefs_source
from tests.support.daemons import EVENT, FILTER, NUMBER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from collectord.ledger.record_ledger import SessionBalance
    from collectord.session.daemon_status import DaemonStatus
    from tests.support.generator import Generator

pytestmark = [pytest.mark.usefixtures("tracefs"), pytest.mark.alone]

COUNT = 1000
MINUTE_NS = 60 * 1_000_000_000


class Work:
    """A program that makes so many events at a time."""

    def __init__(self, generator: Generator) -> None:
        self._generator = generator

    def do(self) -> None:
        """Make them."""
        with self._generator.start("count", count=COUNT, nr=NUMBER) as load:
            load.run()


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
    costs = {(plan.name, plan.source): plan.imposed for plan in daemon.plan.sessions}
    expected = {key: cost.event_ns * COUNT for key, cost in costs.items() if cost is not None}
    assert len(expected) == 3
    stop = asyncio.Event()
    shares: list[float] = []

    async def on_open() -> None:
        Work(generator).do()

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


@pytest.mark.parametrize("kind", ["perf", "held", "ftrace"])
def test_a_session_that_the_budget_pauses_costs_nothing(
    tmp_path: Path, generator: Generator, kind: str
) -> None:
    """It says so while it lasts, and goes on afterwards; nothing is claimed for that time."""
    perf, ftrace = perf_source(EVENT, filter=FILTER), tracefs_source(EVENT, filter=FILTER)
    session = SessionConfig(
        name=f"{kind}{os.getpid()}",
        source=(ftrace if kind == "ftrace" else perf,),
        mode="flight-recorder" if kind == "held" else "stream",
        loss_class="spare",
    )
    daemon = Daemon(
        LinuxKernel(),
        Config(
            daemon=DaemonConfig(
                state_dir=str(tmp_path / "state"),
                flush_interval=Nanoseconds(20_000_000),
                heartbeat=Nanoseconds(0),
            ),
            session=(session,),
        ),
    )
    meter = CostMeter(0, 0)
    meter.cost = Cost(budget=0.01)
    keeper, stop = BudgetKeeper(meter, "spare"), asyncio.Event()
    times_ns = count(MINUTE_NS, 7 * MINUTE_NS)
    balances: list[SessionBalance] = []

    def spend(ratio: float) -> None:
        meter.cost = Cost(ratio=ratio, budget=0.01)
        for now_ns in islice(times_ns, 2):
            keeper.poll(live, now_ns)
        balances.append(live[0].balance())

    def course() -> Iterator[None]:
        """Do some work before, during and after a pause; yield while figures are awaited."""
        assert meter.poll(live, (), 2)
        Work(generator).do()
        while live[0].events() < COUNT:
            yield
        assert meter.poll(live, (), 2)
        spend(1)
        Work(generator).do()
        yield from (None for _ in range(5))
        assert live[0].events() == COUNT
        spend(0)
        Work(generator).do()
        while live[0].events() < 2 * COUNT:
            yield

    steps = course()
    live: tuple[Any, ...] = ()

    def on_tick(_: DaemonStatus) -> None:
        nonlocal live
        live = tuple(daemon._stages.sessions)
        if next(steps, stop) is stop:
            stop.set()

    (ended,) = asyncio.run(daemon.run(stop, on_tick=on_tick))
    paused, resumed = balances
    assert (paused.state, paused.paused, paused.basis) == (
        "degraded",
        (GapCause.SHED,),
        Basis.LOST_ONLY,
    )
    assert (resumed.state, resumed.paused) == ("running", ())
    assert ended.stored == 2 * COUNT
    assert sum(ended.lost.values()) == 0
    assert ended.gaps_ns["shed"] > 0
    assert (ended.basis, ended.produced) == (Basis.LOST_ONLY, None)
    (pause,) = daemons.manifest(Path(ended.segments[-1]))["ledger"]["pauses"]
    assert pause["cause"] == "shed"
    assert pause["since_ns"] < pause["until_ns"]
