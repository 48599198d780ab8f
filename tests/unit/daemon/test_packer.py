# SPDX-License-Identifier: Apache-2.0
"""The choice of segments to compress, and the process that compresses them."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from collectord.codec.file_formats import PERF_DATA
from collectord.daemon.packer import Batch, Packer, share_of
from collectord.plan.sink_plan import RetentionPlan, SinkPlan
from collectord.reader.verify import verify
from collectord.session.cost_meter import Cost
from collectord.sink.state_dir import StateDir
from tests.support import segments as support

if TYPE_CHECKING:
    from pathlib import Path

AGE_NS = 10**9
SAMPLES = 2000


def _sink(directory: Path, after_ns: int = 1) -> SinkPlan:
    return SinkPlan(PERF_DATA, directory=str(directory), compress_after_ns=after_ns)


def _segments(directory: Path, count: int, written_s: int) -> list[str]:
    """Make segments that were written a second after one another."""
    sink = support.make_sink(directory)
    names = []
    for number in range(count):
        path = support.write_segment(sink, number, samples=SAMPLES).path
        os.utime(path, (written_s + number,) * 2)
        names.append(path.name)
    return names


def _packer(*sinks: SinkPlan, root: Path) -> tuple[Packer, StateDir]:
    state_dir = StateDir(root, RetentionPlan())
    return Packer(lambda: sinks, lambda: 1.0, state_dir), state_dir


def _run_until(packer: Packer, done: asyncio.Event) -> None:
    async def run() -> None:
        with ThreadPoolExecutor(1) as worker:
            running = asyncio.ensure_future(packer.run(worker))
            async with asyncio.timeout(60):
                await done.wait()
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running

    asyncio.run(run())


def test_oldest_first(tmp_path: Path) -> None:
    """The oldest folder's segments come first, and young ones wait."""
    young = _segments(tmp_path / "young", 1, 5000)
    old = _segments(tmp_path / "old", 2, 1000)
    sinks = (_sink(tmp_path / "young", AGE_NS), _sink(tmp_path / "old", AGE_NS))
    packer, _ = _packer(*sinks, root=tmp_path)
    assert packer.due(1000 * 10**9) is None
    assert packer.due(1001 * 10**9) == Batch(tmp_path / "old", (old[0],))
    assert packer.due(10**18) == Batch(tmp_path / "old", tuple(old))
    packer, _ = _packer(sinks[0], _sink(tmp_path / "old", 0), root=tmp_path)
    assert packer.due(10**18) == Batch(tmp_path / "young", tuple(young))


def test_process_compresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One process compresses what is due; its sizes are counted, and nothing is due any more."""
    directory = tmp_path / "exec"
    _segments(directory, 3, 1000)
    packer, state_dir = _packer(_sink(directory), root=tmp_path)
    done = asyncio.Event()
    monkeypatch.setattr(state_dir, "compressed", _then(state_dir.compressed, done))
    before = state_dir.stats(directory, 0, 0)
    _run_until(packer, done)
    after = state_dir.stats(directory, 0, 0)
    assert packer.due(10**18) is None
    assert (after.segments, after.compress_errors) == (3, 0)
    assert after.segment_bytes < before.segment_bytes / 2
    assert after.uncompressed_bytes == before.uncompressed_bytes == before.segment_bytes
    assert after.oldest_ns == before.oldest_ns
    verdicts = verify([directory])
    assert [(one.finding, one.uncompressed_bytes is None) for one in verdicts] == [
        (None, False)
    ] * 3
    assert state_dir.changes(directory) == 1


def test_failure_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that cannot do its work leaves the segment, is counted, and waits."""
    directory = tmp_path / "exec"
    (name,) = _segments(directory, 1, 1000)
    plain = (directory / name).read_bytes()
    (directory / f"{name}.packing").mkdir()
    packer, state_dir = _packer(_sink(directory), root=tmp_path)
    done = asyncio.Event()
    monkeypatch.setattr(state_dir, "compressed", _then(state_dir.compressed, done))
    _run_until(packer, done)
    assert state_dir.stats(directory, 0, 0).compress_errors == 1
    assert (directory / name).read_bytes() == plain
    assert packer.due(10**18) is None


@pytest.mark.parametrize(
    ("cost", "share"),
    [
        (Cost(), 1.0),
        (Cost(budget=0.01, ratio=0.004), 0.006),
        (Cost(budget=0.01, ratio=0.009), 0.0),
        (Cost(budget=0.01, ratio=0.02), 0.0),
    ],
)
def test_share(cost: Cost, share: float) -> None:
    """Compression takes half of what the budget leaves, and waits while that is little."""
    assert share_of(cost, 2) == pytest.approx(share)


def _then(call: object, done: asyncio.Event) -> object:
    def called(*arguments: object) -> None:
        call(*arguments)  # type: ignore[operator]
        done.set()

    return called
