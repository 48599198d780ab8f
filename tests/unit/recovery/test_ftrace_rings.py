# SPDX-License-Identifier: Apache-2.0
"""Files and counters of a killed session, combined without duplicates or inventions."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from structlog.testing import CapturingLogger

from collectord.codec.ftrace_page import Walk, last_events
from collectord.folders.trust import Trust
from collectord.folders.walk import open_folder
from collectord.kernel.host.identity import read_host
from collectord.kernel.linux import LinuxKernel
from collectord.kernel.tracefs.instance_lock import take_over
from collectord.kernel.tracefs.mount import Tracefs
from collectord.kernel.values.ring_stats import CpuStats
from collectord.model import Basis
from collectord.recovery.ftrace_rings import PriorRun, balance, read_prior_run, salvage_leftovers
from collectord.sink.pack import Result, pack_steps
from collectord.sink.repair import repair
from collectord.sink.segment import SegmentPaths
from collectord.sink.segment_steps import run
from tests.support import segments as perf_support
from tests.support import trace_segments as support
from tests.support.ftrace_pages import discarded, event, page, time_extend

if TYPE_CHECKING:
    from pathlib import Path

    from collectord.sink.base import SegmentInfo

START = 5_000_000_000
EVENTS = (
    event(b"one.", 0),
    time_extend(1 << 28) + event(b"far.", 7),
    discarded(8) + event(b"x" * 200, 3),
    event(b"end.", 9),
)


def _prior_run(directory: Path, since_ns: int = 0) -> PriorRun:
    return read_prior_run(
        directory,
        session=support.IDENTITY.session,
        boot_id=support.IDENTITY.boot_id,
        since_ns=since_ns,
        subbuf_bytes=support.PAGE_BYTES,
    )


def _delete(info: SegmentInfo) -> None:
    paths = SegmentPaths(info.path.parent, info.path.name)
    paths.data.unlink()
    paths.manifest.unlink()


def _stats(read_events: int, entries: int = 0) -> CpuStats:
    return CpuStats(
        entries=entries,
        overrun=0,
        commit_overrun=0,
        bytes=0,
        oldest_event_ns=None,
        now_ns=0,
        dropped=0,
        read_events=read_events,
    )


def _stored(by_cpu: dict[int, int]) -> PriorRun:
    return PriorRun("run", sum(by_cpu.values()), "system", {}, by_cpu)


@pytest.mark.parametrize("count", range(1, len(EVENTS)))
def test_last_events_of_a_page(count: int) -> None:
    """The last events come at their own times; a page that has no more comes as it is."""
    whole = page(START, *EVENTS, lost=3)
    piece = last_events(whole, count)
    assert piece is not None
    assert len(piece) == len(whole)
    told = [(one.timestamp_ns, whole[one.offset :][: one.size_bytes]) for one in Walk(whole)]
    kept = [(one.timestamp_ns, piece[one.offset :][: one.size_bytes]) for one in Walk(piece)]
    assert kept == told[-count:]
    assert last_events(whole, len(EVENTS)) == whole
    assert last_events(whole, len(EVENTS) + count) == whole


def test_no_last_events() -> None:
    """Without a page, or with one without events, the result is empty."""
    assert last_events(page(START, *EVENTS), 0) is None
    assert last_events(page(START, *EVENTS), -5) is None
    assert last_events(page(START), 5) is None
    assert last_events(b"short", 5) is None


def test_trail_counts_what_was_deleted(tmp_path: Path) -> None:
    """The manifests that are left tell of each CPU's events what all segments ever held."""
    sink = support.make_sink(tmp_path)
    first = support.write_segment(sink, 1, (2, 1))
    support.write_segment(sink, 2, (1, 0))
    _delete(first)
    prior_run = _prior_run(tmp_path)
    assert prior_run.stored == 4 * support.PER_PAGE
    assert prior_run.stored_by_cpu == {0: 3 * support.PER_PAGE, 1: support.PER_PAGE}
    assert prior_run.last_pages == {0: support.sub_buffer(0)}


def test_trail_of_compressed_segments(tmp_path: Path) -> None:
    """The last pages are those of the newest segment that has any, compressed or not."""
    sink = support.make_sink(tmp_path)
    infos = [support.write_segment(sink, token, (100, 30 - token)) for token in (1, 2)]
    before = _prior_run(tmp_path)
    assert before.last_pages == {0: support.sub_buffer(99), 1: support.sub_buffer(27)}
    with open_folder(tmp_path, Trust.WRITE) as folder:
        steps = [pack_steps(folder, SegmentPaths(tmp_path, info.path.name)) for info in infos]
        assert [run(one) for one in steps] == [Result.PACKED] * 2
    assert _prior_run(tmp_path) == before
    path = infos[1].path
    path.write_bytes(path.read_bytes()[:-100] + bytes(100))
    damaged = _prior_run(tmp_path)
    assert (damaged.stored, damaged.run) == (before.stored, before.run)


def test_trail_of_repaired_segments(tmp_path: Path) -> None:
    """A repaired segment counts on, and an empty one that is removed takes nothing away."""

    def work() -> None:
        sink = support.make_sink(tmp_path)
        support.write_segment(sink, 1, (2, 1))
        running = sink.next_segment(2, support.opening())
        sink.next_segment(3, support.opening())
        support.fill(running, (1, 0))

    perf_support.killed(work)
    assert len(repair(tmp_path)) == 2
    prior_run = _prior_run(tmp_path)
    assert prior_run.stored_by_cpu == {0: 3 * support.PER_PAGE, 1: support.PER_PAGE}
    assert prior_run.stored == 4 * support.PER_PAGE


def test_what_another_salvages_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both found it, or it is gone by now: for the second that is no error."""
    name = "collectord-calls"
    (tmp_path / "instances" / name).mkdir(parents=True)
    tree = Tracefs(tmp_path)
    lock_fd = take_over(tree.root, name)
    kernel = LinuxKernel(tracefs=tree)
    monkeypatch.setattr(kernel, "leftover_instances", lambda: (name, f"{name}-gone"))
    log = CapturingLogger()
    monkeypatch.setattr("collectord.recovery.ftrace_rings._LOG", log)
    try:
        done = salvage_leftovers(
            kernel, read_host(), lambda *_: tmp_path, lambda _directory: lambda _need: False
        )
    finally:
        os.close(lock_fd)
    assert done == []
    told = [(call.method_name, *call.args) for call in log.calls]
    assert told == [("info", "instance_salvaged_elsewhere")] * 2
    assert str(os.getpid()) in log.calls[0].kwargs["reason"]


def test_trail_is_of_one_process(tmp_path: Path) -> None:
    """Recordings that ran before, beside and after it are not counted."""
    beside = support.make_sink(tmp_path)
    support.write_segment(beside, 1)
    own = support.make_sink(tmp_path)
    segment = own.next_segment(1, support.opening())
    support.write_segment(beside, 2)
    own.seal(segment, support.fill(segment, (1, 0)), support.closing())
    support.write_segment(support.make_sink(tmp_path))
    prior_run = _prior_run(tmp_path, segment.manifest.started_ns)
    assert prior_run.stored_by_cpu == {0: support.PER_PAGE, 1: 0}
    assert prior_run.stored == support.PER_PAGE


def test_no_trail(tmp_path: Path) -> None:
    """Without a segment, or a directory, nothing is stored."""
    assert _prior_run(tmp_path) == _prior_run(tmp_path / "none") == PriorRun("", 0, "", {}, {})


def test_balance_adds_up() -> None:
    """Events handed out and in no segment were lost with the process."""
    stats = {0: _stats(100, entries=7), 1: _stats(50)}
    found = balance(stats, _stored({0: 90, 1: 45}), 7 + 3, recorder=False)
    assert (found.basis, found.produced, found.stored) == (Basis.EXACT, 157, 145)
    assert (found.lost["staging/dropped"], found.unaccounted) == (12, 0)


@pytest.mark.parametrize(
    "stats", [{0: _stats(100), 1: _stats(5, entries=7)}, {0: _stats(100)}, {}]
)
def test_balance_after_a_reset(stats: dict[int, CpuStats]) -> None:
    """More is stored than was handed out: no loss is negative, and nobody knows the sum."""
    found = balance(stats, _stored({0: 90, 1: 45}), 7, recorder=False)
    assert (found.basis, found.stored) == (Basis.LOST_ONLY, 142)
    ledger = found.to_json()
    figures = ("produced", "produced_before", "produced_after", "unaccounted")
    assert [ledger[name] for name in figures] == [None] * 4
    assert min(found.lost.values()) == 0
