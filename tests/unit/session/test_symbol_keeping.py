# SPDX-License-Identifier: Apache-2.0
"""Symbols are kept after each seal, while nobody waits for that but the session's end."""

from __future__ import annotations

import asyncio
import errno
import threading
from typing import TYPE_CHECKING, Any, Final, cast

from structlog.testing import capture_logs

from collectord.errors import SinkError
from collectord.plan.sink_plan import SinkPlan
from collectord.session import symbol_keeping
from collectord.session.symbol_keeping import SymbolKeeping
from collectord.sink.perf_map_copies import Kept

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    import pytest


MAKERS: Final = frozenset({77})


class _Plan:
    """A session with call chains, or without."""

    name = "load"

    def __init__(self, directory: Path, *, has_chains: bool = True, keeps: bool = True) -> None:
        self.has_chains = has_chains
        self.sink = SinkPlan("perf.data", str(directory), keeps_maps=keeps)


class _Stream:
    def __init__(self, makers: frozenset[int]) -> None:
        self._makers = makers

    def code_makers(self) -> frozenset[int]:
        return self._makers


class _Kept:
    """Keeps nothing before it may."""

    def __init__(self) -> None:
        self.may_end = threading.Event()
        self.asked: list[tuple[str, Collection[int]]] = []
        self.told: list[Kept | SinkError] = []

    def keep(self, segment: str, makers: Collection[int]) -> Kept:
        self.asked.append((segment, makers))
        assert self.may_end.wait(60)
        told = self.told.pop(0) if self.told else Kept(1)
        if isinstance(told, SinkError):
            raise told
        return told


def _keeping(plan: _Plan, kept: _Kept, makers: frozenset[int] = MAKERS) -> SymbolKeeping:
    made = SymbolKeeping(cast("Any", plan), cast("Any", _Stream(makers)))
    made._kept = cast("Any", kept)
    return made


def _seal(keeping: SymbolKeeping, token: int) -> None:
    keeping.note(token)
    keeping.begin(token, f"segment-{token}")


def test_one_after_the_other_and_all_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too many are not waited for, and what a map hides is told."""
    monkeypatch.setattr(symbol_keeping, "_WAITING_MAX", 4)
    kept = _Kept()
    kept.told = [Kept(1, left_out=2), Kept(1), Kept(1, left_out=3)]

    async def scenario() -> None:
        keeping = _keeping(_Plan(tmp_path), kept)
        for token in range(1, 7):
            _seal(keeping, token)
        keeping.note(7)
        keeping.forget(7)  # it was empty
        keeping.begin(7, "segment-7")
        kept.may_end.set()
        await keeping.finish()

    with capture_logs() as logs:
        asyncio.run(scenario())
    assert [segment for segment, _ in kept.asked] == [f"segment-{n}" for n in (1, 3, 4, 5, 6)]
    assert {makers for _, makers in kept.asked} == {MAKERS}
    assert [(line["event"], line["segment"]) for line in logs] == [
        ("symbols_not_kept", "segment-2"),
        ("perf_maps_left_out", "segment-1"),
        ("perf_maps_left_out", "segment-4"),
    ]


def test_a_map_that_hangs_keeps_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither later seals nor, for long, the end."""
    monkeypatch.setattr(symbol_keeping, "_LAST_S", 0.01)
    kept = _Kept()

    async def scenario() -> None:
        keeping = _keeping(_Plan(tmp_path), kept)
        _seal(keeping, 1)
        _seal(keeping, 2)
        await keeping.finish()
        kept.may_end.set()

    with capture_logs() as logs:
        asyncio.run(scenario())
    assert [segment for segment, _ in kept.asked] == ["segment-1"]
    assert [line["event"] for line in logs] == ["symbols_not_kept"]


def test_a_failure_is_logged_and_the_next_is_tried(tmp_path: Path) -> None:
    """The folder may be gone, or the disk full."""
    kept = _Kept()
    kept.may_end.set()
    kept.told = [SinkError("full", path=str(tmp_path), errno=errno.ENOSPC)]

    async def scenario() -> None:
        keeping = _keeping(_Plan(tmp_path), kept)
        _seal(keeping, 1)
        _seal(keeping, 2)
        await keeping.finish()

    with capture_logs() as logs:
        asyncio.run(scenario())
    assert [(line["event"], line["segment"]) for line in logs] == [
        ("symbols_not_kept", "segment-1")
    ]
    assert [segment for segment, _ in kept.asked] == ["segment-1", "segment-2"]


def test_sessions_keep_what_they_need(tmp_path: Path) -> None:
    """Those without call chains need nothing, and maps may be turned off."""

    async def scenario() -> list[list[tuple[str, Collection[int]]]]:
        asked = []
        for plan in (
            _Plan(tmp_path, has_chains=False),
            _Plan(tmp_path, keeps=False),
            _Plan(tmp_path),
        ):
            kept = _Kept()
            kept.may_end.set()
            keeping = _keeping(plan, kept)
            _seal(keeping, 1)
            await keeping.finish()
            asked.append(kept.asked)
        return asked

    assert asyncio.run(scenario()) == [[], [("segment-1", ())], [("segment-1", MAKERS)]]
