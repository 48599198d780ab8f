# SPDX-License-Identifier: Apache-2.0
"""Salvage: pages that a killed process left become a sealed segment, or stay where they are."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from collectord.errors import SinkError
from collectord.reader.verify import State, verify
from collectord.recovery.page_segment import salvage
from collectord.sink.repair import repair
from tests.support import segments as perf_support
from tests.support import trace_segments as support
from tests.support.segments import files_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path
    from typing import Any

    from collectord.sink.base import Closing, SegmentInfo
    from tests.support.trace_cmds import TraceCmd

CPUS = {0: 0, 1: 1}


def _salvage(
    directory: Path,
    pages: Mapping[int, Iterable[bytes]],
    **options: Any,  # noqa: ANN401 - of salvage
) -> SegmentInfo | None:
    def closing(stored: Mapping[int, int]) -> Closing:
        ledger = {"basis": "exact", "produced": 100, "stored": sum(stored.values())}
        return support.closing(
            CPUS, ledger=ledger, ring_stats={1: "CPU: 1\noverrun: 9\n"}, recovered=True
        )

    return salvage(
        directory,
        support.IDENTITY,
        support.METADATA,
        pages,
        opening=support.opening(CPUS, run="earlier", stored_before=33),
        closing=closing,
        **options,
    )


def test_pages_become_a_segment(tmp_path: Path, trace_cmds: tuple[TraceCmd, ...]) -> None:
    """All pages are in one sealed segment that says that it was recovered, with its balance."""
    earlier = support.write_segment(support.make_sink(tmp_path))
    pages = {0: iter(support.sub_buffers(100)), 1: support.sub_buffers(1)}
    info = _salvage(tmp_path, pages, comms=lambda: {support.PID: b"gone"})
    assert info is not None
    manifest = info.manifest
    events = 101 * support.PER_PAGE
    assert (manifest.recovered, manifest.complete, manifest.samples) == (True, True, events)
    assert (manifest.produced, manifest.ledger["stored"]) == (100, events)
    assert [(ring.cpu, ring.bytes) for ring in manifest.rings] == [(0, 409600), (1, 4096)]
    assert (manifest.run, manifest.stored_before) == ("earlier", 33)
    assert manifest.previous is not None
    assert manifest.previous.manifest == earlier.path.name + ".json"
    verdicts = verify([tmp_path])
    assert [(v.state, v.finding) for v in verdicts] == [
        (State.SEALED, None),
        (State.RECOVERED, None),
    ]
    assert info.manifest.allocated_bytes < 2 * (manifest.data_bytes + manifest.data_offset)
    for tool in trace_cmds:
        lines = tool.report(info.path)
        assert len(lines) == events
        assert all("gone-4321" in line for line in lines)
        assert "overrun: 9" in tool.stat(info.path)


def test_no_page(tmp_path: Path) -> None:
    """Without a page there is no segment, and no file."""
    assert _salvage(tmp_path, {0: [], 1: iter(())}) is None
    assert list(files_in(tmp_path)) == []


def test_full_disk_takes_no_page(tmp_path: Path) -> None:
    """A page is taken only when there is room for it; those that were are left to the repair."""
    taken = 0

    def pages() -> Iterator[bytes]:
        nonlocal taken
        for page in support.sub_buffers(10_000):
            taken += 1
            yield page

    with perf_support.mounted("tmpfs", tmp_path / "small", "size=4m") as directory:
        with pytest.raises(SinkError, match="No space left") as caught:
            _salvage(directory, {0: pages(), 1: []})
        assert caught.value.errno == errno.ENOSPC
        assert 0 < taken < 1024
        (outcome,) = repair(directory)
        assert outcome.samples == taken * support.PER_PAGE
        assert [verdict.finding for verdict in verify([directory])] == [None]


def test_full_disk_makes_room(tmp_path: Path) -> None:
    """Space is freed before the salvage gives up."""
    asked = []
    with perf_support.mounted("tmpfs", tmp_path / "small", "size=8m") as directory:
        filler = directory / "filler"
        with filler.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, 6 << 20)

        def make_room(need_bytes: int) -> bool:
            asked.append(need_bytes)
            filler.unlink()
            return True

        info = _salvage(directory, {0: support.sub_buffers(800), 1: []}, make_room=make_room)
        assert info is not None
        assert info.manifest.samples == 800 * support.PER_PAGE
        assert len(asked) == 1


def test_error_of_the_pages(tmp_path: Path) -> None:
    """If reading fails, the pages read before are left to the repair."""

    def pages() -> Iterator[bytes]:
        yield from support.sub_buffers(3)
        raise OSError(errno.EIO, "read")

    with pytest.raises(OSError, match="read"):
        _salvage(tmp_path, {0: pages(), 1: support.sub_buffers(1)})
    (outcome,) = repair(tmp_path)
    assert outcome.samples == 3 * support.PER_PAGE
