# SPDX-License-Identifier: Apache-2.0
"""The wait at start for another process that salvages the sessions of a crash."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from collectord.config.schema import Config
from collectord.config.schema_session import SessionConfig
from collectord.daemon import claims
from collectord.plan.build import build
from tests.support.configs import tracefs_source
from tests.support.hosts import host

if TYPE_CHECKING:
    import pytest

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
