# SPDX-License-Identifier: Apache-2.0
"""Flight recorders of perf rings: their plan, their balance, and what stops them."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from collectord._native._core import RingCounters
from collectord.codec.tracepoint import Tracepoint
from collectord.config.event_filter import Filter
from collectord.config.event_spec import parse_one
from collectord.config.schema import Config
from collectord.config.schema_session import EventConfig, SessionConfig, TargetConfig
from collectord.control import signals
from collectord.errors import PlanError, UnknownEvent, UsageError
from collectord.ledger.record_ledger import Bracket, balance_ring, balance_session
from collectord.model import Basis, Geometry, Produced, RingLabel, RingRole, ScopeKind
from collectord.plan.build import build
from collectord.plan.source_events import tracepoint_patterns
from collectord.source.perf_ring import OverwritableRing
from collectord.text.units import RingSize
from tests.support.configs import perf_source
from tests.support.hosts import host

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from collectord.plan.session_plan import SessionPlan

SWITCH = "sched:sched_switch"
LABEL = RingLabel("box", "perf", RingRole.DATA, 0)
MAP: Any = None
RING = OverwritableRing(
    map=MAP,
    fd=-1,
    basis=Basis.LOST_ONLY,
    geometry=Geometry(1 << 20, 0, 1 << 20),
    label=LABEL,
    held=True,
    time_offset=0,
    time_trailer=0,
)


def config(
    *events: str | EventConfig,
    include_self: bool | None = None,
    **settings: Any,  # noqa: ANN401
) -> Config:
    """Return the configuration of one flight recorder."""
    ring = RingSize(1 << 20)
    source = perf_source(*events, ring=ring, include_self=include_self)
    session = SessionConfig(name="box", mode="flight-recorder", source=(source,), **settings)
    return Config(session=(session,))


def planned(
    *events: str | EventConfig,
    include_self: bool | None = None,
    **settings: Any,  # noqa: ANN401
) -> SessionPlan:
    """Return its plan on a host with everything."""
    (plan,) = build(config(*events, include_self=include_self, **settings), host()).sessions
    return plan


def test_its_rings_overwrite_and_wake_nobody() -> None:
    """All events are written backward, and the kernel wakes as late as it can."""
    plan = planned(SWITCH, "page-faults")
    data = [ring for ring in plan.rings if ring.role is RingRole.DATA]
    assert all(ring.overwrite and ring.watermark_bytes == 0 for ring in data)
    for event in data[0].events:
        assert event.attr.write_backward
        assert (event.attr.watermark, event.attr.wakeup) == (True, 1 << 20)
    assert {ring.basis for ring in data} == {Basis.LOST_ONLY}
    text = "\n".join(plan.describe())
    assert "perf data, overwritten: 4 x 1MiB, CPUs 0-3" in text
    assert "perf keeps the last 1MiB a CPU, 4s at 256KiB/s a CPU" in text


@pytest.mark.parametrize(
    ("include_self", "left_out"), [(None, False), (True, False), (False, True)]
)
def test_our_own_threads_cost_no_filter(include_self: bool | None, left_out: bool) -> None:
    """Nobody drains its rings, so that they do little: they are recorded unless told otherwise."""
    assert planned(SWITCH, include_self=include_self).events[0].exclude_self is left_out


def test_its_sideband_is_streamed() -> None:
    """Names are needed of those that exited within the window, so none may be overwritten."""
    plan = planned(SWITCH)
    sideband = [ring for ring in plan.rings if ring.role is RingRole.SIDEBAND]
    assert not any(ring.overwrite for ring in sideband)
    assert not any(event.attr.write_backward for ring in sideband for event in ring.events)


def test_a_freeze_leads_all_events() -> None:
    """It is first, tells of its first sample, and the others are its group, braced or not."""
    event = "sched:sched_wakeup"
    plan = planned(
        SWITCH, "{cs,faults}", freeze_on=parse_one(event), freeze_filter=Filter.parse("prio < 5")
    )
    *events, dummy = plan.events
    freezing, *members = events
    assert plan.freezes
    assert (freezing.name, freezing.filter, freezing.freezes) == (event, "prio < 5", True)
    assert (freezing.attr.watermark, freezing.attr.wakeup) == (False, 1)
    assert (freezing.attr.sample_period, freezing.attr.freq, freezing.leader) == (1, False, True)
    assert freezing.exclude_self
    assert [member.leader for member in members] == [False] * 3
    assert not any(member.attr.disabled or member.freezes for member in members)
    assert {event.group for event in events} == {freezing.group} != {dummy.group}
    assert [event.index for event in plan.events] == [0, 1, 2, 3, 4]
    assert f"event {event}, freezes its ring" in "\n".join(plan.describe())


def test_a_freeze_is_looked_up() -> None:
    """A probe of the kernel must know its tracepoint too."""
    assert tracepoint_patterns(config("cs", freeze_on=parse_one(SWITCH))) == (
        Tracepoint.parse(SWITCH),
    )
    with pytest.raises(UnknownEvent):
        planned("cs", freeze_on=parse_one("sched:nothing"))
    with pytest.raises(UsageError, match="is 3 events"):
        planned("cs", freeze_on=parse_one("sched:sched_[sw]*"))


def test_a_freeze_reaches_every_ring() -> None:
    """An event that only some CPUs have cannot stop the rings of the others."""
    with pytest.raises(PlanError, match="exists only on CPUs 0,2"):
        planned(SWITCH, freeze_on=parse_one("uncore_imc/event=1/"))
    here = TargetConfig(scope=ScopeKind.CPUS, cpus=(0, 2))
    assert planned(SWITCH, freeze_on=parse_one("uncore_imc/event=1/"), target=here).freezes


def test_a_group_is_where_its_leader_is() -> None:
    """Nobody could open the members on the other CPUs."""
    with pytest.raises(PlanError, match="in the group of uncore_imc/event=1/"):
        planned("{uncore_imc/event=1/,cs}")


def counters(**figures: int) -> RingCounters:
    """Return counters of a ring with 90 records in a window, and stored."""
    zeros = dict.fromkeys(RingCounters._fields, 0)
    known = {"samples": 90, "records": 92, "stored": 90, "window_taken": 90, "windows": 2}
    return RingCounters(**{**zeros, "fill_buckets": (0,) * 11, **known, **figures})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("lost", "records", "paused"), [(7, 0, 7), (7, 5, 7), (None, 5, 5)], ids=["", "told", "old"]
)
def test_what_it_refuses_was_paused(lost: int | None, records: int, paused: int) -> None:
    """A ring that overwrites is never full; the kernel's two ways to tell of it are one loss."""
    known, figures = Produced(value=200, lost=lost), counters(lost_records=records)
    reading = RING.produced(known, figures, 100)
    ring = RING.balance(Bracket(reading, figures, reading), Basis.LOST_ONLY)
    assert {pair: n for pair, n in ring.lost.items() if n} == {"kernel_ring/paused": paused}
    assert (ring.produced, ring.unaccounted, ring.overwritten) == (None, None, 100)
    streamed = balance_ring(LABEL, Basis.LOST_ONLY, 1, Bracket(known, counters(), known))
    assert streamed.lost["kernel_ring/paused"] == 0


def test_what_nobody_counts_is_not_said() -> None:
    """If no counter counts records, the number of overwritten ones is null, not 0."""
    figures = counters(window_repeated=4, window_held_ns=5)
    known = RING.produced(Produced(value=200, lost=0), figures, 100)
    unknown = RING.produced(Produced(value=None, lost=0), figures, 100)
    rings = tuple(
        RING.balance(Bracket(reading, figures, reading), Basis.LOST_ONLY)
        for reading in (known, unknown)
    )
    assert [ring.overwritten for ring in rings] == [100, None]
    assert [ring.window_ns for ring in rings] == [5, 5]
    whole = balance_session("box", "perf", "system", rings)
    assert (whole.overwritten, whole.repeated) == (None, 8)


@pytest.mark.parametrize(
    ("requests", "number"),
    [(signals.snapshots, signal.SIGUSR2), (signals.rotations, signal.SIGUSR1)],
)
def test_a_signal_makes_a_snapshot_or_a_rotation(
    requests: Callable[..., AbstractContextManager[None]], number: signal.Signals
) -> None:
    """Each signal makes one, and the failure of one does not affect the next."""

    async def scenario() -> list[int]:
        made: list[int] = []
        taken = asyncio.Event()

        async def take() -> None:
            made.append(len(made))
            taken.set()
            raise UsageError("no flight recorder runs")

        with requests(take):
            for _ in range(2):
                taken.clear()
                os.kill(os.getpid(), number)
                await asyncio.wait_for(taken.wait(), 10)
        assert signal.getsignal(number) == before
        return made

    before = signal.getsignal(number)
    assert asyncio.run(scenario()) == [0, 1]
