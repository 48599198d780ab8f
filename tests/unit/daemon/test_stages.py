# SPDX-License-Identifier: Apache-2.0
"""The stages of a run, as the service manager is told of them."""

from __future__ import annotations

import asyncio
import threading
from contextlib import AsyncExitStack
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from collectord.config.schema import BpfConfig, Config, DaemonConfig
from collectord.config.schema_session import SessionConfig
from collectord.daemon import async_waits
from collectord.daemon.daemon import Daemon
from collectord.daemon.opening_notices import Opening
from collectord.kernel.linux import LinuxKernel
from collectord.recovery.predecessor import Leftovers
from collectord.session.ringless_session import RinglessSession
from collectord.session.session_factory import Progress, SessionContext
from collectord.source.base import Abilities
from collectord.text.units import Nanoseconds
from tests.support.configs import perf_source
from tests.support.hosts import host
from tests.support.managers import managed
from tests.support.patience import patient

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from collectord.plan.session_plan import SessionPlan


def ringless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Daemon:
    """Return a daemon whose two sessions open no ring."""

    async def open_ringless(
        _context: SessionContext,
        plan: SessionPlan,
        _stack: object,
        _contains: object,
        progress: Progress,
    ) -> RinglessSession:
        progress.opening()
        progress.loading()
        source: Any = SimpleNamespace(
            abilities=Abilities(), target_fds=(), enable=lambda: None, disable=lambda: None
        )
        return RinglessSession(plan, source)

    monkeypatch.setattr(SessionContext, "open", open_ringless)
    sources = (perf_source("sched:sched_switch"),)
    sessions = tuple(SessionConfig(name=name, source=sources) for name in ("a", "b"))
    state = tmp_path / "state"
    state.mkdir()
    config = Config(daemon=DaemonConfig(state_dir=str(state)), session=sessions)
    return Daemon(LinuxKernel(), config, facts=host())


RECOVERY = ["STATUS=sealing what earlier runs left", "EXTEND_TIMEOUT_USEC=600000000"]


def test_the_manager_is_told_of_each_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is ready when all is open, and not before; it does not wait until that is served."""
    daemon = ringless(tmp_path, monkeypatch)

    async def scenario() -> list[str]:
        with managed(tmp_path) as (service, manager):
            stop = asyncio.Event()
            told: list[str] = []

            async def on_open() -> None:
                told.extend([*manager.told(), "on_open"])
                stop.set()

            await daemon.run(stop, service=service, on_open=on_open, salvage_all=False)
            return told + manager.told()

    *opening, ready, served, stopping = asyncio.run(scenario())
    assert opening == [*RECOVERY, "STATUS=opening rings (perf)"]
    assert ready.startswith("READY=1\nSTATUS=recording: 2 sessions, ")
    assert (served, stopping) == ("on_open", "STOPPING=1\nSTATUS=flushing")


def test_a_long_call_in_a_thread_holds_up_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon follows its sessions meanwhile: the call ends because of that."""
    daemon = ringless(tmp_path, monkeypatch)

    async def scenario() -> list[bool]:
        stop, ticked = asyncio.Event(), threading.Event()
        found: list[bool] = []

        async def on_open() -> None:
            found.append(await daemon.in_thread(partial(ticked.wait, patient(60))))
            stop.set()

        await daemon.run(stop, on_open=on_open, on_tick=lambda _: ticked.set(), salvage_all=False)
        return found

    assert asyncio.run(scenario()) == [True]


def test_the_watchdog_is_fed_while_the_servers_are_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manager expects signs of life from READY on."""
    daemon = ringless(tmp_path, monkeypatch)

    async def scenario() -> bool:
        with managed(tmp_path, WATCHDOG_USEC="100000") as (service, manager):
            stop = asyncio.Event()

            async def on_open() -> None:
                async with asyncio.timeout(patient(60)):
                    while "WATCHDOG=1" not in manager.told():  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
                stop.set()

            await daemon.run(stop, service=service, on_open=on_open, salvage_all=False)
            return True

    assert asyncio.run(scenario())


def test_a_start_that_is_stopped_is_never_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends before the first ring is opened."""
    daemon = ringless(tmp_path, monkeypatch)

    async def scenario() -> list[str]:
        with managed(tmp_path) as (service, manager):
            stop = asyncio.Event()
            stop.set()
            assert await daemon.run(stop, service=service, salvage_all=False) == ()
            return manager.told()

    assert asyncio.run(scenario()) == RECOVERY


def test_compilers_are_given_their_time(tmp_path: Path) -> None:
    """Each session's programs are counted and named, and their limits are added up."""

    def plan(kind: str, *programs: str) -> Any:  # noqa: ANN401 - a stand-in
        run = tuple(SimpleNamespace(name=name) for name in programs)
        return SimpleNamespace(
            kind=kind, payload=SimpleNamespace(has_programs=kind == "bpf", programs_run=run)
        )

    plans = [
        plan("perf"),
        plan("bpf", "tcplife"),
        plan("tracefs"),
        plan("bpf"),
        plan("bpf", "execsnoop", "opensnoop"),
    ]
    config = Config(bpf=BpfConfig(compile_time=Nanoseconds(20_000_000_000)))
    with managed(tmp_path) as (service, manager):
        opening = Opening(service, plans, config)
        for one in plans:
            opening.begin(one)
        assert manager.told() == [
            "STATUS=opening rings (perf, tracefs)",
            "STATUS=compiling tcplife (1 of 3)",
            "EXTEND_TIMEOUT_USEC=80000000",
            "STATUS=opening rings (perf, tracefs)",
            "STATUS=compiling execsnoop, opensnoop (3 of 3)",
            "EXTEND_TIMEOUT_USEC=100000000",
        ]


def test_it_is_ready_while_it_collects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither before all is open nor during the final flush."""
    daemon = ringless(tmp_path, monkeypatch)

    async def scenario() -> list[str]:
        stop, seen = asyncio.Event(), [daemon.unready()]

        def on_tick(_status: object) -> None:
            seen.append(daemon.unready())
            stop.set()

        await daemon.run(stop, on_tick=on_tick, salvage_all=False)
        return [*seen, daemon.unready()]

    assert asyncio.run(scenario()) == ["nothing is recorded", "", "nothing is recorded"]


def test_a_failed_session_is_not_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose hardware is absent is: nothing that is done to the host would change that."""
    daemon = ringless(tmp_path, monkeypatch)
    now: Any = daemon._stages
    now.polls = SimpleNamespace()
    for plan, absent in zip(daemon.plan.sessions, (True, False), strict=True):
        now.sessions.add(RinglessSession(plan, None, "no ring", absent=absent), AsyncExitStack())
    assert daemon.unready() == "1 of 2 sessions failed"


def test_a_stop_does_not_wait_for_a_recovery_whose_disk_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No session is opened, and the daemon says that a thread hangs."""
    daemon = ringless(tmp_path, monkeypatch)
    answers, begun = threading.Event(), threading.Event()

    def hang(*_: object) -> None:
        begun.set()
        answers.wait()

    monkeypatch.setattr(Leftovers, "begin", hang)
    monkeypatch.setattr(async_waits, "ANSWER_S", 0.05)

    async def scenario() -> object:
        stop = asyncio.Event()
        run = asyncio.create_task(daemon.run(stop, salvage_all=False))
        async with asyncio.timeout(patient(60)):
            while not begun.is_set():  # noqa: ASYNC110 - a thread sets it
                await asyncio.sleep(0.01)
            stop.set()
            return await run

    try:
        assert asyncio.run(scenario()) == ()
    finally:
        answers.set()
    assert daemon.is_abandoned
