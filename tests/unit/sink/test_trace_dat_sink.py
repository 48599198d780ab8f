# SPDX-License-Identifier: Apache-2.0
"""trace.dat segments: files that trace-cmd opens at every instant, sealed, repaired, verified."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import threading
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import pytest

from collectord.codec.trace_dat import FIRST_BYTES
from collectord.codec.trace_dat_head import Place
from collectord.errors import SinkError
from collectord.folders.trust import Trust
from collectord.folders.walk import open_folder
from collectord.plan.sink_plan import RetentionPlan
from collectord.reader.verify import State, list_segments, verify
from collectord.sink import chain_log
from collectord.sink.eviction import evict
from collectord.sink.manifest import Manifest, OpenManifest, decode
from collectord.sink.outcome import Action
from collectord.sink.repair import repair, repair_steps
from collectord.sink.scan import xxh3
from collectord.sink.segment import group_files
from collectord.sink.stored_file import Check
from collectord.sink.trace_file import read_head
from tests.support import segments as perf_support
from tests.support import trace_segments as support
from tests.support.changed_segments import change_manifest, finding, manifest_of, overwrite
from tests.support.golden import GOLDEN
from tests.support.segments import files_in, names_in

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from pathlib import Path

    from collectord.codec.trace_dat_head import Head
    from collectord.sink.base import OpenSegment, SegmentInfo
    from tests.support.trace_cmds import TraceCmd

    TraceCmds = tuple[TraceCmd, ...]

pytestmark = pytest.mark.slow

MIB = 1 << 20
STEPS = (
    "head written",
    "cut",
    "gap closed",
    "head moved",
    "file synced",
    "manifest written",
    "manifest renamed",
    "noted as sealed",
    "segment renamed",
    "directory synced",
    "open manifest removed",
)
EVENTS = 3 * support.PER_PAGE  # what `fill` writes


def _head(path: Path) -> Head:
    with path.open("rb") as file:
        return read_head(file.fileno())


def _assert_shows(tools: TraceCmds, path: Path, events: int) -> None:
    for tool in tools:
        lines = tool.report(path)
        assert len(lines) == events, tool.version
        assert all("sys_enter_getppid" in line for line in lines)


@pytest.fixture
def info(tmp_path: Path) -> SegmentInfo:
    """Return a sealed segment of three pages, alone in its directory."""
    return support.write_segment(support.make_sink(tmp_path))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Provide a filesystem of 4 MiB."""
    with perf_support.mounted("tmpfs", tmp_path / "small", "size=4m") as directory:
        yield directory


# Writing.


def test_sealed_segment_is_read_by_trace_cmd(tmp_path: Path, trace_cmds: TraceCmds) -> None:
    """Each trace-cmd lists all events with the task's name, and tells the statistics."""
    sink = support.make_sink(tmp_path, comms=lambda: {support.PID: b"a task"})
    segment = sink.next_segment(1, support.opening())
    stats = {1: "CPU: 1\nentries: 0\noverrun: 17\n"}
    info = sink.seal(segment, support.fill(segment), support.closing(ring_stats=stats))
    assert info is not None
    _assert_shows(trace_cmds, info.path, EVENTS)
    for tool in trace_cmds:
        assert all("a task-4321" in line for line in tool.report(info.path))
        assert "overrun: 17" in tool.stat(info.path)
    assert verify([tmp_path])[0].finding is None


@pytest.mark.parametrize("recount", [False, True])
def test_a_ring_that_joins_has_a_place_in_later_segments(
    tmp_path: Path, trace_cmds: TraceCmds, *, recount: bool
) -> None:
    """Those that are open are sealed without it, though the core names it at their end."""
    late = {**support.CPUS, 12: 2}
    sink = support.make_sink(tmp_path, recount=recount)
    before = sink.next_segment(1, support.opening())
    assert sink.add_ring(12, 2)
    after = sink.next_segment(2, support.opening(late))
    assert (12 in before.offsets, 12 in after.offsets) == (False, True)
    closed = support.fill(before)
    told = closed._replace(tracks=(*closed.tracks, (12, 0, ())), rings=(*closed.rings, (12, 0, 0)))
    first = sink.seal(before, told, support.closing(late))
    second = sink.seal(after, support.fill(after, (2, 1, 3)), support.closing(late))
    assert first is not None
    assert second is not None
    _assert_shows(trace_cmds, first.path, EVENTS)
    _assert_shows(trace_cmds, second.path, 2 * EVENTS)
    assert [ring.samples for ring in second.manifest.rings] == [14, 7, 21]
    assert [verdict.finding for verdict in verify([tmp_path])] == [None, None]


def test_manifest_tells_the_segment(tmp_path: Path, info: SegmentInfo) -> None:
    """The manifest on disk is the one returned; its spans and rings tell where the tracks are."""
    raw = info.path.with_name(info.path.name + ".json").read_bytes()
    assert decode(raw, Manifest) == info.manifest
    manifest = info.manifest
    assert names_in(tmp_path) == {info.path.name, info.path.name + ".json"}
    assert (manifest.format, manifest.source, manifest.events) == (
        "trace.dat",
        "tracefs",
        (support.EVENT,),
    )
    assert (manifest.complete, manifest.recovered, manifest.produced) == (True, False, 21)
    assert (manifest.samples, manifest.records, manifest.replayed) == (EVENTS, EVENTS, 0)
    assert (manifest.first_ns, manifest.last_ns) == (1_000_001_000, 1_001_007_000)
    head = _head(info.path)
    offsets = [extent.offset for extent in head.extents.values()]
    assert [(r.ring, r.samples, r.bytes, r.offset) for r in manifest.rings] == [
        (10, 14, 8192, offsets[0]),
        (11, 7, 4096, offsets[1]),
    ]
    assert [(span.part, span.offset, span.bytes) for span in manifest.spans] == [
        ("head", 0, offsets[0]),
        ("data", offsets[0], 8192),
        ("data", offsets[1], 4096),
    ]
    assert (manifest.data_offset, manifest.data_bytes) == (offsets[0], 12288)
    (row,) = list_segments([tmp_path])
    assert (row.format, row.state, row.samples) == ("trace.dat", State.SEALED, EVENTS)


def test_open_segment_is_ready_for_data(tmp_path: Path) -> None:
    """A new segment has room for each ring, many times its limit, on aligned offsets."""
    sink = support.make_sink(tmp_path, segment_bytes=8 * MIB)
    segment = sink.next_segment(1, support.opening(run="earlier", stored_before=5))
    assert segment.limit_bytes == 8 * MIB
    assert segment.capacity_bytes == 256 * MIB
    assert segment.step_bytes == MIB
    assert [offset % 4096 for offset in segment.offsets.values()] == [0, 0]
    assert segment.offsets[11] - segment.offsets[10] == segment.capacity_bytes
    assert segment.manifest.direct
    status = segment.paths.partial.stat()
    assert status.st_size == segment.offsets[11] + segment.capacity_bytes
    assert status.st_blocks * 512 < MIB
    opened = decode(segment.paths.open_manifest.read_bytes(), OpenManifest)
    assert opened is not None
    assert (opened.run, opened.stored_before) == ("earlier", 5)
    assert verify([tmp_path])[0].state is State.RUNNING
    sink.close()
    assert not names_in(tmp_path)


@pytest.mark.parametrize(("limit_mib", "room_mib"), [(1, 32), (64, 256), (256, 512)])
def test_room_beyond_the_limit(tmp_path: Path, limit_mib: int, room_mib: int) -> None:
    """A small segment can go on for long while seals are behind, a large one as far again."""
    sink = support.make_sink(tmp_path, segment_bytes=limit_mib * MIB)
    segment = sink.next_segment(1, support.opening())
    assert segment.capacity_bytes == room_mib * MIB
    sink.close()


def test_room_ahead_of_many_cpus(tmp_path: Path) -> None:
    """The space allocated ahead for all CPUs together is part of the limit."""
    sink = support.make_sink(
        tmp_path, cpus={cpu: cpu for cpu in range(256)}, segment_bytes=64 * MIB
    )
    segment = sink.next_segment(1, support.opening())
    assert 0 < segment.step_bytes * 256 <= 16 * MIB
    assert segment.step_bytes % 4096 == 0
    sink.close()


def test_large_sub_buffers(tmp_path: Path, trace_cmds: TraceCmds) -> None:
    """Sub-buffers of 64 KiB are written, recounted, repaired and read as such."""
    large = 64 * 1024
    metadata = replace(support.METADATA, header_page=(GOLDEN / "header_page-64KiB").read_bytes())
    sink = support.make_sink(tmp_path, metadata=metadata, segment_bytes=MIB, recount=True)
    segment = sink.next_segment(1, support.opening())
    assert segment.step_bytes % large == 0
    closed = support.fill(segment, (20, 1), size_bytes=large)
    info = sink.seal(segment, closed, support.closing())
    assert info is not None
    segment = sink.next_segment(2, support.opening())
    support.fill(segment, (20, 1), size_bytes=large)
    sink.close()
    (outcome,) = repair(tmp_path)
    assert outcome.samples == info.manifest.samples == 21 * support.PER_PAGE
    assert [verdict.finding for verdict in verify([tmp_path])] == [None, None]
    for path in (info.path, outcome.path):
        _assert_shows(trace_cmds, path, 21 * support.PER_PAGE)


def test_space_ahead_is_given_back(info: SegmentInfo) -> None:
    """The sealed file is as long as its head and pages, and holds no room that was not used."""
    status = info.path.stat()
    used_bytes = sum(span.bytes for span in info.manifest.spans)
    assert status.st_size == info.manifest.bytes == used_bytes
    assert [ring.offset for ring in info.manifest.rings] == [
        span.offset for span in info.manifest.spans if span.part == "data"
    ]
    assert info.manifest.allocated_bytes == status.st_blocks * 512
    assert used_bytes <= status.st_blocks * 512 < used_bytes + 64 * 1024


def test_manifest_room(tmp_path: Path) -> None:
    """The room that is kept for a manifest is enough for one of 256 CPUs with all it may tell."""
    cpus = {cpu: cpu for cpu in range(256)}
    sink = support.make_sink(tmp_path, cpus=cpus, segment_bytes=MIB)
    reading = replace(
        perf_support.CLOCK, realtime_ns=1 << 62, monotonic_ns=1 << 62, perf_ns=1 << 62
    )
    segment = sink.next_segment(1, support.opening(cpus, clock=reading))
    room_bytes = segment.paths.new_manifest.stat().st_size
    closing = support.closing(cpus, clock=reading, flushes=(reading,) * 64)
    info = sink.seal(segment, support.fill(segment, [1] * 256), closing)
    assert info is not None
    manifest = info.path.with_name(info.path.name + ".json")
    assert room_bytes / 2 < manifest.stat().st_size < room_bytes


def test_flush_claims_what_is_written(tmp_path: Path, trace_cmds: TraceCmds) -> None:
    """Readers see of a running segment what the last flush told, names and statistics too."""
    comms: dict[int, bytes] = {}
    sink = support.make_sink(tmp_path, comms=lambda: comms)
    segment = sink.next_segment(1, support.opening())
    running = segment.paths.partial
    _assert_shows(trace_cmds, running, 0)
    support.fill(segment)
    _assert_shows(trace_cmds, running, 0)
    sink.flush(segment, {10: 4096})
    _assert_shows(trace_cmds, running, 7)
    comms |= dict.fromkeys(range(1, 1000), b"some other") | {support.PID: b"named late"}
    sink.flush(segment, {10: 8192, 11: 4096}, {0: "CPU: 0\nentries: 33\n"})
    _assert_shows(trace_cmds, running, EVENTS)
    for tool in trace_cmds:
        assert all("named late-4321" in line for line in tool.report(running))
        assert "entries: 33" in tool.stat(running)
    sink.close()


def test_flush_leaves_a_sealed_segment_alone(tmp_path: Path) -> None:
    """A flush that comes late changes nothing of a file that is sealed, or being sealed."""
    sink = support.make_sink(tmp_path)
    segment = sink.next_segment(1, support.opening())
    closed = support.fill(segment)
    steps = sink.seal_steps(segment, closed, support.closing())
    for step in steps:
        assert step in STEPS
        sink.flush(segment, {10: 4096}, {0: "CPU: 0\n"})
    assert verify([tmp_path])[0].finding is None
    later = support.write_segment(sink, 2)
    sink.flush(segment, {10: 4096})
    assert later.manifest.samples == EVENTS
    assert [verdict.finding for verdict in verify([tmp_path])] == [None, None]
    sink.close()


def test_copies_taken_meanwhile(tmp_path: Path, trace_cmds: TraceCmds) -> None:
    """A copy taken while pages are written and flushed shows what was flushed before, or more."""
    sink = support.make_sink(tmp_path / "state", segment_bytes=4 * MIB)
    segment = sink.next_segment(1, support.opening())
    flushed = 0
    enough = threading.Event()

    def write() -> None:
        nonlocal flushed
        for number in range(512):
            at = number * 4096
            for ring in support.CPUS:
                support.write_pages(segment, ring, [support.sub_buffer(number)], at)
            sink.flush(segment, dict.fromkeys(support.CPUS, at + 4096))
            flushed += 2 * support.PER_PAGE
            if enough.is_set():
                return

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for tool in 3 * trace_cmds:
            before = flushed
            copy = shutil.copyfile(segment.paths.partial, tmp_path / "copy.dat")
            shown = len(tool.report(copy))
            assert before <= shown <= flushed + 2 * support.PER_PAGE
            assert shown % (support.PER_PAGE) == 0
    finally:
        enough.set()
        writer.join()
    sink.close()


def test_recount(tmp_path: Path) -> None:
    """Pages that nobody has seen are counted, timed and hashed from the file at the seal."""
    sinks = [support.make_sink(tmp_path / str(own), recount=own) for own in (False, True)]
    manifests = []
    for sink in sinks:
        segment = sink.next_segment(1, support.opening())
        closed = support.fill(segment, (300, 1))
        if sink is sinks[1]:
            unseen = tuple((ring, size, ()) for ring, size, _ in closed.tracks)
            closed = closed._replace(samples=0, rings=(), first_ns=0, last_ns=0, tracks=unseen)
        info = sink.seal(segment, closed, support.closing())
        assert info is not None
        manifests.append(info.manifest)
    known, counted = manifests
    assert (counted.rings, counted.samples) == (known.rings, known.samples)
    assert counted.spans[1:] == known.spans[1:]
    assert (counted.first_ns, counted.last_ns) == (known.first_ns, known.last_ns)
    assert [verdict.finding for verdict in verify([tmp_path])] == [None, None]


def test_recount_of_a_damaged_page(tmp_path: Path) -> None:
    """A page that cannot be walked keeps none that follow it from being counted."""
    sink = support.make_sink(tmp_path, recount=True)
    segment = sink.next_segment(1, support.opening())
    pages = support.sub_buffers(3)
    pages[1] = pages[1][:16] + bytes(4080)
    support.write_pages(segment, 10, pages)
    unseen = support.closed(segment, {10: pages})._replace(samples=0, rings=())
    info = sink.seal(segment, unseen, support.closing())
    assert info is not None
    assert info.manifest.samples == 2 * support.PER_PAGE
    assert info.manifest.data_bytes == 3 * 4096
    check, detail = finding(tmp_path)
    assert (check, "bad_length" in detail) == (Check.RECORDS, True)


def test_segment_without_a_page_is_dropped(tmp_path: Path) -> None:
    """An empty segment stays only as the first of its sink, or the last of its stream."""
    sink = support.make_sink(tmp_path)
    first = support.write_segment(sink, 1, (0, 0))
    assert first.manifest.samples == 0
    assert verify([tmp_path])[0].finding is None
    segment = sink.next_segment(2, support.opening())
    assert sink.seal(segment, support.closed(segment, {}), support.closing()) is None
    segment = sink.next_segment(3, support.opening())
    last = sink.seal(segment, support.closed(segment, {}, final=True), support.closing())
    assert last is not None
    assert names_in(tmp_path) == {
        name + end for name in (first.path.name, last.path.name) for end in ("", ".json")
    }


def test_empty_segment_opens(tmp_path: Path, trace_cmds: TraceCmds) -> None:
    """A sealed segment without a page is a file without events."""
    info = support.write_segment(support.make_sink(tmp_path), counts=(0, 0))
    assert info.manifest.bytes == info.manifest.data_offset
    _assert_shows(trace_cmds, info.path, 0)


def test_close_keeps_data(tmp_path: Path) -> None:
    """Closing a sink deletes prepared segments, and leaves one with pages to the repair."""
    sink = support.make_sink(tmp_path)
    running = sink.next_segment(1, support.opening())
    sink.next_segment(2, support.opening())
    support.write_pages(running, 11, support.sub_buffers(1))
    sink.close()
    paths = running.paths
    left = (paths.new_manifest, paths.open_manifest, paths.partial)
    assert names_in(tmp_path) == {path.name for path in left}
    assert [outcome.samples for outcome in repair(tmp_path)] == [support.PER_PAGE]


def test_formats_share_a_directory(tmp_path: Path) -> None:
    """Segments of two formats in one directory have numbers and chains of their own."""
    perf = perf_support.write_segment(perf_support.make_sink(tmp_path))
    first = support.write_segment(support.make_sink(tmp_path))
    sink = support.make_sink(tmp_path)
    second = support.write_segment(sink)
    later = perf_support.write_segment(perf_support.make_sink(tmp_path))
    assert [i.path.name.partition("-")[2] for i in (perf, first, second, later)] == [
        "000001.perf.data",
        "000001.trace.dat",
        "000002.trace.dat",
        "000002.perf.data",
    ]
    links = [i.manifest.previous for i in (perf, first, second, later)]
    assert [link and link.manifest for link in links] == [
        None,
        None,
        first.path.name + ".json",
        perf.path.name + ".json",
    ]
    # the oldest of one format is no gap in the chain of the other
    with open_folder(tmp_path, Trust.WRITE) as folder:
        chain_log.note_evicted(folder, [(first.path.name, b"")], "age", 1)
    for path in (first.path, first.path.with_name(first.path.name + ".json")):
        path.unlink()
    assert [verdict.finding for verdict in verify([tmp_path])] == [None] * 3
    evicted = evict(tmp_path.parent, RetentionPlan(bytes=1), 0)
    assert {e.path.name for e in evicted if e.path.parent == tmp_path} == {
        perf.path.name,
        second.path.name,
        later.path.name,
    }


# Disks.


@contextmanager
def _largest_file(size_bytes: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_filesystem_with_smaller_files(tmp_path: Path, trace_cmds: TraceCmds) -> None:
    """If the file size is limited, extents are smaller; if none fits, it is reported."""
    sink = support.make_sink(tmp_path)
    with _largest_file(64 * MIB):
        segment = sink.next_segment(1, support.opening())
        assert MIB <= segment.capacity_bytes < 32 * MIB
        info = sink.seal(segment, support.fill(segment), support.closing())
        assert info is not None
        _assert_shows(trace_cmds, info.path, EVENTS)
    with _largest_file(MIB), pytest.raises(SinkError, match="File too large") as caught:
        sink.next_segment(2, support.opening())
    assert caught.value.errno == errno.EFBIG
    assert names_in(tmp_path) == {info.path.name, info.path.name + ".json"}


def test_full_disk_leaves_nothing(small_disk: Path) -> None:
    """A segment that finds no space raises ENOSPC and leaves no file behind."""
    sink = support.make_sink(small_disk, segment_bytes=MIB)
    filler = perf_support.fill_disk(small_disk)
    with pytest.raises(SinkError, match=r"No space left.*free some space") as caught:
        sink.next_segment(1, support.opening())
    assert caught.value.errno == errno.ENOSPC
    assert names_in(small_disk) == {"filler"}
    filler.unlink()
    support.write_segment(sink)
    sink.close()


def test_full_disk_evicts_first(small_disk: Path) -> None:
    """With old segments to evict, a full disk does not stop the next segment."""
    state = small_disk / "state"
    room = perf_support.Room(state)
    sink = support.make_sink(state / "exec", segment_bytes=MIB, make_room=room.make)
    old = [support.write_segment(sink, token) for token in range(3)]
    perf_support.fill_disk(small_disk)
    sink.discard(sink.next_segment(9, support.opening()))
    assert [eviction.path for eviction in room.evicted] == [info.path for info in old]


@pytest.mark.parametrize("pages", [1, 200])
def test_full_disk_stops_no_seal(small_disk: Path, trace_cmds: TraceCmds, pages: int) -> None:
    """All that a seal must write has its room already: a disk that is full by then is no matter.

    Tracks that would have to be copied, and find no room for it, stay where they are.
    """
    sink = support.make_sink(small_disk, segment_bytes=MIB, comms=lambda: {support.PID: b"a task"})
    segment = sink.next_segment(1, support.opening())
    closed = support.fill(segment, (2, pages))
    perf_support.fill_disk(small_disk)
    sink.flush(segment, {10: 4096}, {0: "CPU: 0\n"})
    assert sink.seal(segment, closed, support.closing()) is not None
    events = (2 + pages) * support.PER_PAGE
    (verdict,) = verify([small_disk])
    assert (verdict.finding, verdict.samples) == (None, events)
    _assert_shows(trace_cmds, verdict.path, events)


def test_filesystem_without_holes(tmp_path: Path, trace_cmds: TraceCmds) -> None:
    """Without O_DIRECT and without holes, files are sealed and repaired alike."""
    with perf_support.mounted("ramfs", tmp_path / "ramfs") as directory:
        sink = support.make_sink(directory, segment_bytes=MIB, recount=True)
        segment = sink.next_segment(1, support.opening())
        assert not segment.manifest.direct
        pages = {10: support.sub_buffers(2), 11: support.sub_buffers(1)}
        for ring, written in pages.items():
            os.pwrite(segment.fd, b"".join(written), segment.offsets[ring])
        info = sink.seal(segment, support.closed(segment, pages), support.closing())
        assert info is not None
        _assert_shows(trace_cmds, info.path, EVENTS)
        segment = sink.next_segment(2, support.opening())
        torn = support.sub_buffer(0)[:24] + bytes(4072)
        os.pwrite(segment.fd, b"".join([*pages[10], torn]), segment.offsets[10])
        os.pwrite(segment.fd, b"".join(pages[11]), segment.offsets[11])
        sink.close()
        assert [outcome.action for outcome in repair(directory)] == [Action.RECOVERED]
        assert [verdict.finding for verdict in verify([directory])] == [None, None]


# Kills.


def _seal_steps(directory: Path, **options: str) -> Generator[str, None, object]:
    sink = support.make_sink(directory, **options)
    segment = sink.next_segment(1, support.opening())
    closed = support.fill(segment)
    sink.flush(segment, {10: 4096})
    return sink.seal_steps(segment, closed, support.closing())


def _assert_sound(directory: Path, tools: TraceCmds, events: int = EVENTS) -> State:
    """Check for one segment with so many events, its manifest, and no other file."""
    (verdict,) = verify([directory])
    assert verdict.finding is None, verdict.finding
    assert verdict.samples == events
    assert names_in(directory) == {verdict.path.name, verdict.path.name + ".json"}
    _assert_shows(tools, verdict.path, events)
    _assert_dense(verdict.path)
    return verdict.state


def _assert_dense(path: Path) -> None:
    """The file ends where its head and its pages do that are claimed."""
    head = _head(path)
    pages_bytes = sum(extent.size_bytes for extent in head.extents.values())
    assert path.stat().st_size == head.file_bytes == len(head.image) + pages_bytes


def test_seal_steps_are_those_that_are_killed(tmp_path: Path) -> None:
    """The list of steps above is the seal's own."""
    seen = tmp_path / "seen"
    perf_support.killed(lambda: seen.write_text("\n".join(_seal_steps(tmp_path / "exec"))))
    assert tuple(seen.read_text().splitlines()) == STEPS


@pytest.mark.parametrize("options", [{}, {"single_file": "out.dat"}], ids=["rotated", "single"])
@pytest.mark.parametrize("step", STEPS)
def test_kill_between_steps_of_a_seal(
    tmp_path: Path, trace_cmds: TraceCmds, step: str, options: dict[str, str]
) -> None:
    """Killed after any step of a seal, a segment opens as it is, and repair makes it whole.

    While gaps are closed, and the head does not tell it yet, only repair finds the pages.
    """
    options = {key: str(tmp_path / value) for key, value in options.items()}
    perf_support.killed(lambda: perf_support.walk_to(_seal_steps(tmp_path, **options), step))
    (data,) = (path for path in files_in(tmp_path) if ".json" not in path.name)
    if step != "gap closed":
        _assert_shows(trace_cmds, data, EVENTS)
    repair(tmp_path)
    state = _assert_sound(tmp_path, trace_cmds)
    committed = STEPS.index(step) >= STEPS.index("manifest renamed")
    assert state is (State.SEALED if committed else State.RECOVERED)
    assert repair(tmp_path) == []


@pytest.mark.parametrize("step", STEPS)
def test_kill_between_steps_of_a_repair(tmp_path: Path, trace_cmds: TraceCmds, step: str) -> None:
    """A repair killed after any of its steps leaves a file that opens, and is done again."""
    support.orphan(tmp_path)
    perf_support.interrupt_repair(tmp_path, step)
    (data,) = (path for path in files_in(tmp_path) if ".json" not in path.name)
    if step != "gap closed":
        _assert_shows(trace_cmds, data, EVENTS)
    repair(tmp_path)
    assert _assert_sound(tmp_path, trace_cmds) is State.RECOVERED
    assert repair(tmp_path) == []


def _walk_gaps(steps: Generator[str, None, object], count: int) -> None:
    """Walk until so many gaps are closed."""
    for step in steps:
        count -= step == "gap closed"
        if not count:
            return


@pytest.mark.parametrize("counts", [(2, 1, 3, 1, 1), (0, 2, 0, 0, 1), (0, 0, 0, 0, 3)])
def test_kills_while_gaps_are_closed(
    tmp_path: Path, trace_cmds: TraceCmds, counts: tuple[int, ...]
) -> None:
    """Killed in a seal, and again in each repair, wherever pages are by then none is lost."""
    cpus = {number: number for number in range(len(counts))}

    def work() -> None:
        sink = support.make_sink(tmp_path, cpus=cpus)
        segment = sink.next_segment(1, support.opening(cpus))
        closed = support.fill(segment, counts)
        _walk_gaps(sink.seal_steps(segment, closed, support.closing(cpus)), 1)

    def again() -> None:
        folder = open_folder(tmp_path, Trust.WRITE)
        (group,) = group_files(folder)
        _walk_gaps(repair_steps(folder, group), 1)

    perf_support.killed(work)
    while list(tmp_path.glob("*.partial")):
        perf_support.killed(again)
    assert _assert_sound(tmp_path, trace_cmds, sum(counts) * support.PER_PAGE) is State.RECOVERED


def test_tracks_are_copied_where_gaps_stay(tmp_path: Path, trace_cmds: TraceCmds) -> None:
    """On a filesystem that takes no gap out of a file, files are as long as what they hold too."""
    with perf_support.mounted("tmpfs", tmp_path / "tmpfs", "size=64m") as directory:
        sink = support.make_sink(directory, segment_bytes=8 * MIB)
        segment = sink.next_segment(1, support.opening())
        # More than one piece.
        info = sink.seal(segment, support.fill(segment, (2, 600)), support.closing())
        assert info is not None
        sink.close()
        assert _assert_sound(directory, trace_cmds, 602 * support.PER_PAGE) is State.SEALED


def test_recovered_manifest(tmp_path: Path) -> None:
    """A recovered segment tells what each ring left, and promises nothing."""
    support.write_segment(support.make_sink(tmp_path))
    support.orphan(tmp_path)
    (outcome,) = repair(tmp_path)
    assert (outcome.action, outcome.samples) == (Action.RECOVERED, EVENTS)
    assert outcome.detail == f"{EVENTS} samples kept, 0 bytes behind them cut off"
    manifest = decode(outcome.path.with_name(outcome.path.name + ".json").read_bytes(), Manifest)
    assert manifest is not None
    assert (manifest.recovered, manifest.complete, manifest.produced) == (True, False, None)
    assert manifest.ledger == {"basis": "none", "produced": None, "stored": EVENTS}
    assert (manifest.first_ns, manifest.last_ns) == (1_000_001_000, 1_001_007_000)
    assert [(ring.samples, ring.bytes) for ring in manifest.rings] == [(14, 8192), (7, 4096)]
    assert all(ring.offset for ring in manifest.rings)
    assert manifest.previous is not None


def test_repair_continues_the_chain_of_its_format(tmp_path: Path) -> None:
    """A recovered segment is chained to the one before it of its own format."""
    perf_support.write_segment(perf_support.make_sink(tmp_path))
    support.orphan(tmp_path)
    (first,) = repair(tmp_path)
    perf_support.write_segment(perf_support.make_sink(tmp_path))
    support.orphan(tmp_path)
    (second,) = repair(tmp_path)
    links = [manifest_of(outcome.path).previous for outcome in (first, second)]
    assert [link and link.manifest for link in links] == [None, first.path.name + ".json"]
    assert [verdict.finding for verdict in verify([tmp_path])] == [None] * 4


def test_events_are_counted_over_segments(tmp_path: Path) -> None:
    """Each manifest tells what its run had stored before, recovered ones too."""

    def work() -> None:
        sink = support.make_sink(tmp_path)
        support.write_segment(sink, 1)
        running = sink.next_segment(2, support.opening())
        prepared = sink.next_segment(3, support.opening())
        sink.seal(running, support.fill(running, (1, 0)), support.closing())
        support.fill(prepared, (0, 4))

    other = support.write_segment(support.make_sink(tmp_path)).manifest
    perf_support.killed(work)
    (outcome,) = repair(tmp_path)
    first, second, third = (manifest_of(path) for path in sorted(tmp_path.glob("*.dat"))[1:])
    assert outcome.samples == third.samples == 4 * support.PER_PAGE
    before = [m.stored_before for m in (other, first, second, third)]
    assert before == [0, 0, EVENTS, EVENTS + support.PER_PAGE]
    totals = [
        [r.stored_total // support.PER_PAGE for r in m.rings] for m in (first, second, third)
    ]
    assert totals == [[2, 1], [3, 1], [3, 5]]
    assert other.run != first.run == second.run == third.run != ""


def test_repair_counts_what_was_sealed_out_of_order(tmp_path: Path) -> None:
    """A segment whose seal failed counts on from a younger one that was sealed before it."""

    def work() -> None:
        sink = support.make_sink(tmp_path)
        early, late = (sink.next_segment(token, support.opening()) for token in (1, 2))
        support.fill(early, (2, 0))
        sink.seal(late, support.fill(late, (0, 1)), support.closing())

    perf_support.killed(work)
    (outcome,) = repair(tmp_path)
    recovered = manifest_of(outcome.path)
    assert (recovered.stored_before, recovered.samples) == (support.PER_PAGE, 2 * support.PER_PAGE)
    totals = [ring.stored_total // support.PER_PAGE for ring in recovered.rings]
    assert totals == [2, 1]


def test_a_sink_counts_on(tmp_path: Path) -> None:
    """A sink that continues earlier segments continues the ring counts in each manifest."""
    earlier = tuple(
        msgspec.structs.replace(ring, stored_total=100 + ring.cpu) for ring in support.rings()
    )
    sink = support.make_sink(tmp_path)
    first = sink.next_segment(1, support.opening(rings=earlier, run="earlier", stored_before=201))
    sink.seal(first, support.fill(first, (1, 0)), support.closing())
    second = sink.next_segment(2, support.opening(run="earlier"))
    assert [ring.stored_total for ring in first.manifest.rings] == [100, 101]
    assert [ring.stored_total for ring in second.manifest.rings] == [107, 101]
    assert second.manifest.stored_before == 208
    sink.close()


def test_pages_that_nobody_claimed(tmp_path: Path, trace_cmds: TraceCmds) -> None:
    """Pages behind those that the last flush claimed are found, up to the first hole."""

    def work() -> None:
        sink = support.make_sink(tmp_path)
        segment = sink.next_segment(1, support.opening())
        support.write_pages(segment, 10, support.sub_buffers(5))
        sink.flush(segment, {10: 2 * 4096})
        support.write_pages(segment, 10, support.sub_buffers(1), 7 * 4096)

    perf_support.killed(work)
    (orphan,) = tmp_path.glob("*.dat.partial")
    _assert_shows(trace_cmds, orphan, 2 * support.PER_PAGE)
    assert [outcome.action for outcome in repair(tmp_path)] == [Action.RECOVERED]
    assert _assert_sound(tmp_path, trace_cmds, 5 * support.PER_PAGE) is State.RECOVERED


def test_torn_page(tmp_path: Path, trace_cmds: TraceCmds) -> None:
    """A page that was written in part is cut off with its claim, and the reason told."""

    def work() -> None:
        sink = support.make_sink(tmp_path)
        segment = sink.next_segment(1, support.opening())
        torn = support.sub_buffer(3)[:40] + bytes(4056)
        at = support.write_pages(segment, 10, support.sub_buffers(2))
        sink.flush(segment, {10: support.write_pages(segment, 10, [torn], at)})
        support.write_pages(segment, 11, support.sub_buffers(1))

    perf_support.killed(work)
    (outcome,) = repair(tmp_path)
    assert outcome.detail == (
        f"{EVENTS} samples kept, 4096 bytes behind them cut off (CPU 0: bad_length)"
    )
    assert _assert_sound(tmp_path, trace_cmds) is State.RECOVERED


@pytest.mark.parametrize(
    ("cpu", "pages", "left"), [(1, 1, 7), (1, 0.5, 6), (0, 2.25, 2), (0, 1, 1)]
)
def test_shortened_file(
    tmp_path: Path, trace_cmds: TraceCmds, cpu: int, pages: float, left: int
) -> None:
    """A file that lost its end is repaired with the whole pages that it still has."""

    def work() -> None:
        sink = support.make_sink(tmp_path, segment_bytes=MIB)
        segment = sink.next_segment(1, support.opening())
        support.fill(segment, (6, 2))
        sink.flush(segment, {10: 6 * 4096, 11: 2 * 4096})

    perf_support.killed(work)
    (orphan,) = tmp_path.glob("*.dat.partial")
    os.truncate(orphan, _head(orphan).extents[cpu].offset + int(pages * 4096))
    (outcome,) = repair(tmp_path)
    assert outcome.action is Action.RECOVERED
    assert f"{(8 - left) * 4096} bytes behind them" in outcome.detail
    assert _assert_sound(tmp_path, trace_cmds, left * support.PER_PAGE) is State.RECOVERED


def test_orphan_without_open_manifest(tmp_path: Path, trace_cmds: TraceCmds) -> None:
    """A segment is recovered from its own head when its open manifest is gone."""
    orphan = support.orphan(tmp_path)
    orphan.with_name(orphan.name.replace(".partial", ".json.partial")).unlink()
    assert [outcome.action for outcome in repair(tmp_path)] == [Action.RECOVERED]
    _assert_sound(tmp_path, trace_cmds)
    (row,) = list_segments([tmp_path])
    assert row.format == "trace.dat"


@pytest.mark.parametrize("keep_bytes", [0, 10, FIRST_BYTES, 100_000])
def test_kill_while_a_segment_is_created(tmp_path: Path, keep_bytes: int) -> None:
    """A data file without a whole head, and so without data, is removed."""
    orphan = support.orphan(tmp_path)
    os.truncate(orphan, keep_bytes)
    orphan.with_name(orphan.name.replace(".partial", ".json.partial")).unlink()
    assert [outcome.action for outcome in repair(tmp_path)] == [Action.REMOVED]
    assert not names_in(tmp_path)


def test_kill_before_the_first_page(tmp_path: Path) -> None:
    """A segment that was killed before it got a page is removed."""
    perf_support.killed(lambda: support.make_sink(tmp_path).next_segment(1, support.opening()))
    assert [outcome.action for outcome in repair(tmp_path)] == [Action.REMOVED]
    assert not names_in(tmp_path)


@pytest.mark.parametrize(("offset", "data"), [(0, b"\xff" * 8), (24, b"\xff" * 8), (32, b"\xff")])
def test_damaged_head(tmp_path: Path, offset: int, data: bytes) -> None:
    """Data behind a damaged head is left alone, and told."""
    orphan = support.orphan(tmp_path, segment_bytes=MIB)
    overwrite(orphan, offset, data)
    before = orphan.read_bytes()
    (outcome,) = repair(tmp_path)
    assert outcome.action is Action.REFUSED
    assert "head is damaged" in outcome.detail
    assert orphan.read_bytes() == before


def test_head_of_impossible_size(tmp_path: Path) -> None:
    """A head that claims to end far away is damaged, and nobody reads so far."""
    orphan = support.orphan(tmp_path)
    at = min(extent.size_at for extent in _head(orphan).extents.values()) - 8
    overwrite(orphan, at, (1 << 60).to_bytes(8, "little"))
    (outcome,) = repair(tmp_path)
    assert (outcome.action, "(size)" in outcome.detail) == (Action.REFUSED, True)


# Verification.


@pytest.mark.parametrize("number", [0, 1, 2])
def test_changed_byte(tmp_path: Path, info: SegmentInfo, number: int) -> None:
    """A changed bit in the head or in any CPU's pages is found, and the part named."""
    span = info.manifest.spans[number]
    offset = span.offset + span.bytes - 1
    with info.path.open("rb") as file:
        file.seek(offset)
        value = file.read(1)[0]
    overwrite(info.path, offset, bytes([value ^ 1]))
    check, detail = finding(tmp_path)
    assert check is Check.CHECKSUM
    assert detail.startswith(f"the {span.part} (bytes {span.offset} to ")


@pytest.mark.parametrize("inside", [0, 1000, 1 << 20, MIB + 17])
def test_byte_in_a_hole(small_disk: Path, inside: int) -> None:
    """A byte between tracks that a full disk kept from being moved together is found, and located.

    The copy would not fit into what was claimed ahead.
    """
    sink = support.make_sink(small_disk, segment_bytes=MIB)
    segment = sink.next_segment(1, support.opening())
    closed = support.fill(segment, (2, 200))
    filler = perf_support.fill_disk(small_disk)
    info = sink.seal(segment, closed, support.closing())
    assert info is not None
    filler.unlink()
    first = info.manifest.spans[1]
    offset = first.offset + first.bytes + inside
    assert offset < info.manifest.spans[2].offset
    overwrite(info.path, offset, b"\1")
    assert finding(small_disk) == (
        Check.CHECKSUM,
        f"there is something at byte {offset}, in a hole",
    )


def test_truncated_file(tmp_path: Path, info: SegmentInfo) -> None:
    """A file that is shorter than its manifest says is found before anything is read."""
    os.truncate(info.path, 5000)
    assert finding(tmp_path)[0] is Check.SIZE


def test_manifest_of_other_data(tmp_path: Path, info: SegmentInfo) -> None:
    """A manifest whose spans or samples are not those of the file is found."""
    change_manifest(info, samples=EVENTS - 1)
    assert finding(tmp_path) == (Check.COUNT, "21 events, its manifest says 20")
    head, first, second = msgspec.to_builtins(info.manifest.spans)
    change_manifest(info, spans=[head, second, first])
    assert finding(tmp_path)[0] is Check.CHECKSUM
    change_manifest(info, spans=[head, first])
    assert finding(tmp_path)[0] is Check.CHECKSUM
    change_manifest(info, data_bytes=4096)
    assert finding(tmp_path)[0] is Check.HEAD


def test_claims_of_other_data(tmp_path: Path, info: SegmentInfo) -> None:
    """CPUs that claim other parts than the manifest tells of are found by their claims."""
    head = _head(info.path)
    at = len(head.image)
    patch = head.places_patch({0: Place(at, 4096), 1: Place(at + 4096, 8192)})
    overwrite(info.path, patch.offset, patch.data)
    first, *rest = msgspec.to_builtins(info.manifest.spans)
    with info.path.open("rb") as file:
        first["xxh3"] = xxh3(file.read(first["bytes"]))
    change_manifest(info, spans=[first, *rest])
    check, detail = finding(tmp_path)
    assert (check, detail) == (
        Check.HEAD,
        "the data of its CPUs are not those of its manifest",
    )


# Many CPUs.


def _simulated(directory: Path, cpus: int) -> OpenSegment:
    sink = support.make_sink(
        directory, cpus={cpu: cpu for cpu in range(cpus)}, segment_bytes=64 * MIB
    )
    segment = sink.next_segment(1, support.opening({cpu: cpu for cpu in range(cpus)}))
    pages = dict.fromkeys((0, cpus - 1), support.sub_buffers(8))
    for ring, written in pages.items():
        support.write_pages(segment, ring, written)
    sink.flush(segment, dict.fromkeys(pages, 8 * 4096))
    return segment


def _children_s(work: Callable[[], object]) -> float:
    """CPU seconds of the processes that `work` waits for."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    work()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)


def test_256_cpus(tmp_path: Path, trace_cmds: TraceCmds) -> None:
    """A running, a killed and a repaired file of 256 CPUs cost a reader little more than one of 2.

    Extents that were claimed whole would cost it a thousand times as much.
    """
    few, many = tmp_path / "few", tmp_path / "many"
    for directory, cpus in ((few, 2), (many, 256)):
        perf_support.killed(partial(_simulated, directory, cpus))
    for _ in range(2):
        paths = [next(p for p in files_in(d) if ".json" not in p.name) for d in (few, many)]
        for path in paths:
            _assert_shows(trace_cmds, path, 16 * support.PER_PAGE)
        for tool in trace_cmds:
            cost = [
                min(_children_s(partial(tool.report, path)) for _ in range(3)) for path in paths
            ]
            assert cost[1] < 10 * max(cost[0], 0.004), tool.version
        assert all(o.action is Action.RECOVERED for d in (few, many) for o in repair(d))
    assert [verdict.finding for verdict in verify([tmp_path])] == [None, None]


def test_spliced_pages_of_a_file_that_is_deleted(tmp_path: Path) -> None:
    """Nobody has counted its events; they are, in the file that has no name any more."""
    sink = support.make_sink(tmp_path, recount=True)
    segment = sink.next_segment(1, support.opening())
    told = support.fill(segment, (2, 1))
    told = told._replace(rings=tuple((ring, 0, size) for ring, _, size in told.rings))
    segment.paths.partial.unlink()
    end = sink.give_up(segment, told)
    assert end.events == end.lost_events == {10: 2 * support.PER_PAGE, 11: support.PER_PAGE}
    assert not list(files_in(tmp_path))
    sink.close()
