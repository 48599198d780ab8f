# SPDX-License-Identifier: Apache-2.0
"""Claims: folders of segments, and the wait for others that salvage the sessions of a crash."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from collectord.config.schema import Config
from collectord.config.schema_session import SessionConfig
from collectord.daemon import claims
from collectord.daemon.claims import Places
from collectord.errors import SinkError
from collectord.kernel.linux import LinuxKernel
from collectord.plan.build import build
from collectord.sink.output_dir import open_output_dir
from tests.support.configs import tracefs_source
from tests.support.hosts import host

if TYPE_CHECKING:
    from pathlib import Path

    from collectord.folders.folder import Folder

_LIMIT_S = 30


def awaited(stop: asyncio.Event, looks: int) -> list[str]:
    """Wait for a salvage that is over after so many looks; returns whom they were for."""
    source = tracefs_source("sched:sched_switch")
    plan = build(Config(session=(SessionConfig(name="calls", source=(source,)),)), host())
    seen: list[str] = []

    def is_being_salvaged(session: str) -> bool:
        seen.append(session)
        return len(seen) < looks

    kernel: Any = SimpleNamespace(is_being_salvaged=is_being_salvaged)

    async def scenario() -> None:
        async with asyncio.timeout(_LIMIT_S):
            await claims.await_salvages(plan, kernel, stop)

    asyncio.run(scenario())
    return seen


def test_a_salvage_is_waited_for_to_its_end() -> None:
    """Without such a salvage, there is no wait."""
    assert awaited(asyncio.Event(), 1) == ["calls"]
    assert awaited(asyncio.Event(), 3) == ["calls"] * 3


def test_a_salvage_without_an_end_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that must stop does not wait either."""
    monkeypatch.setattr(claims, "_SALVAGE_S", 0.2)
    assert awaited(asyncio.Event(), 1 << 30)
    stop = asyncio.Event()
    stop.set()
    assert awaited(stop, 1 << 30) == []


def plan_in(directory: Path) -> Any:  # noqa: ANN401 - as much of a plan as is read
    """Return the plan of a session that writes to a folder."""
    sink = SimpleNamespace(directory=str(directory), single_file=None)
    return SimpleNamespace(name="calls", sink=sink, payload=SimpleNamespace(has_instance=False))


def test_a_claim_that_hangs_stops_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop goes on, others are claimed, and who asks again gets the same answer."""
    answers, hung = threading.Event(), plan_in(tmp_path / "hung")
    device = tmp_path.stat().st_dev

    def open_or_hang(path: Path) -> Folder:
        if path.name == "hung":
            answers.wait()
        return open_output_dir(path)

    monkeypatch.setattr(claims, "open_output_dir", open_or_hang)

    async def scenario() -> None:
        with Places(LinuxKernel(), shared=False) as places:
            try:
                first = asyncio.create_task(places.claim(hung))
                async with asyncio.timeout(_LIMIT_S):
                    assert await places.claim(plan_in(tmp_path / "b")) == device
                    first.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await first
                    again = asyncio.create_task(places.claim(hung))
                    await asyncio.sleep(0)
                    assert not again.done()
            finally:
                answers.set()
            async with asyncio.timeout(_LIMIT_S):
                assert await again == device
            with pytest.raises(SinkError, match="already being written"):
                await another(hung)
            places.keep([plan_in(tmp_path / "b")])
            await another(hung)

    async def another(plan: Any) -> None:  # noqa: ANN401 - as `plan_in` returns
        with Places(LinuxKernel(), shared=False) as others:
            await others.claim(plan)

    asyncio.run(scenario())
