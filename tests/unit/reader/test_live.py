# SPDX-License-Identifier: Apache-2.0
"""Streams that are followed while they are written, from one segment into the next."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Final

import pytest

from collectord.errors import SinkError, UsageError
from collectord.reader import live
from collectord.reader.live import GRACE_S, QUIET_S, SETTLE_S, LiveStreams
from collectord.sink.repair import repair
from collectord.sink.segment import SegmentPaths, group_files
from tests.support import bpf_segments as support
from tests.support import event_lines, trace_segments
from tests.support import segments as perf_support
from tests.support.bpf_segments import EXITS, Writer, chunk, exited, sample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from collectord.folders.folder import Folder
    from collectord.sink.segment import Group

PAGE: Final = perf_support.PAGE_BYTES


class Clock:
    """Seconds that go on when they are told to; a reading may be a moment for something else."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.meanwhile: list[Callable[[], object]] = []

    def __call__(self) -> float:
        """Read it."""
        if self.meanwhile:
            self.meanwhile.pop(0)()
        return self.now_s

    def pass_(self, seconds: float) -> None:
        """Advance the clock."""
        self.now_s += seconds


@pytest.fixture
def clock() -> Clock:
    """Return a clock of this test's own."""
    return Clock()


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    """Provide the running segment of a stream."""
    made = Writer(tmp_path)
    yield made
    made.sink.close()


def numbered(*values: int) -> bytes:
    """Return a chunk that ends a round, with samples that are known by their numbers."""
    return chunk(*(sample(value, exited(value), event=EXITS) for value in values), ends_round=True)


def polled(streams: LiveStreams) -> list[object]:
    """Return the numbers of what is new."""
    batches = [batch for _, batch in streams.poll() if batch is not None]
    return [one["fields"]["pid"] for one in event_lines.objects(batches)]


def test_from_now_on(tmp_path: Path, writer: Writer, clock: Clock) -> None:
    """New events of a directory are returned once each; the last of them once all is quiet."""
    writer.write(numbered(1, 2))
    with closing(LiveStreams(tmp_path, event_lines.lines_of, clock=clock)) as streams:
        assert streams.found
        assert polled(streams) == []
        writer.write(numbered(10, 11))
        assert polled(streams) == []
        writer.write(numbered(20))
        assert polled(streams) == [10, 11]
        clock.pass_(QUIET_S / 2)
        assert polled(streams) == []
        clock.pass_(QUIET_S / 2)
        assert polled(streams) == [20]
        clock.pass_(QUIET_S)
        assert polled(streams) == []
        assert not streams.ended


def test_rotation(tmp_path: Path, writer: Writer, clock: Clock) -> None:
    """A sealed segment is read to its end, whatever its name is by then, then the next ones."""
    second = Writer(tmp_path, writer.sink, token=2)
    with closing(LiveStreams(tmp_path, event_lines.lines_of, clock=clock)) as streams:
        writer.write(numbered(1), chunk(sample(2, exited(2), event=EXITS)))
        sealed = writer.seal(final=False)
        assert sealed.exists()
        assert not writer.path.exists()
        third = Writer(tmp_path, writer.sink, token=3)
        second.write(numbered(3))
        second.seal(final=False)
        fourth = Writer(tmp_path, writer.sink, token=4)
        third.write(numbered(4))
        assert [polled(streams) for _ in range(3)] == [[1, 2], [3], []]
        clock.pass_(QUIET_S)
        assert polled(streams) == [4]
        third.seal()
        writer.sink.close()
        assert not fourth.path.exists()
        assert polled(streams) == []
        assert not streams.ended
        assert polled(streams) == []
        clock.pass_(GRACE_S)
        assert streams.ended
        assert streams.take_complaints() == []


def test_segment_that_a_full_disk_delays(tmp_path: Path, writer: Writer, clock: Clock) -> None:
    """A stream without a running segment may get one soon."""
    with closing(LiveStreams(tmp_path, event_lines.lines_of, clock=clock)) as streams:
        writer.write(numbered(1))
        writer.seal(final=False)
        assert polled(streams) == [1]
        clock.pass_(GRACE_S / 2)
        assert polled(streams) == []
        assert not streams.ended
        Writer(tmp_path, writer.sink, token=2).write(numbered(2))
        assert polled(streams) == []
        clock.pass_(GRACE_S)
        assert polled(streams) == [2]
        assert not streams.ended


def test_segment_to_begin_with(tmp_path: Path, writer: Writer, clock: Clock) -> None:
    """A segment that is named is read from its beginning, then what followed in its stream."""
    writer.write(numbered(1))
    first = writer.seal(final=False)
    second = Writer(tmp_path, writer.sink, token=2)
    second.write(numbered(2))
    second.seal(final=False)
    other = Writer(tmp_path)
    other.write(numbered(100))
    third = Writer(tmp_path, writer.sink, token=3)
    third.write(numbered(3))
    begin = SegmentPaths(tmp_path, first.name)
    with closing(LiveStreams(tmp_path, event_lines.lines_of, begin, clock=clock)) as streams:
        found = [polled(streams) for _ in range(3)]
        clock.pass_(QUIET_S)
        assert [*found, polled(streams)] == [[1], [2], [], [3]]
    begin = SegmentPaths(tmp_path, third.path.name.removesuffix(".partial"))
    with closing(LiveStreams(tmp_path, event_lines.lines_of, begin, clock=clock)) as streams:
        assert polled(streams) == []
        clock.pass_(QUIET_S)
        assert polled(streams) == [3]
    other.sink.close()


def test_streams_of_one_directory(tmp_path: Path, writer: Writer, clock: Clock) -> None:
    """All that run there are followed, those that begin later too, and none without programs."""
    perf = perf_support.make_sink(tmp_path)
    perf.next_segment(1, perf_support.OPENING)
    with closing(LiveStreams(tmp_path, event_lines.lines_of, clock=clock)) as streams:
        assert len(streams.segments) == 1
        writer.write(numbered(1))
        writer.seal()
        other = Writer(tmp_path)
        other.write(numbered(2))
        assert polled(streams) == [1]
        assert polled(streams) == []
        clock.pass_(QUIET_S)
        assert polled(streams) == [2]
        other.sink.close()
    perf.close()


def test_stream_that_begins_beside_another(tmp_path: Path, writer: Writer, clock: Clock) -> None:
    """It is found while those that are known go on."""
    with closing(LiveStreams(tmp_path, event_lines.lines_of, clock=clock)) as streams:
        clock.pass_(2 * SETTLE_S)
        assert polled(streams) == []
        other = Writer(tmp_path)
        other.write(numbered(2))
        assert polled(streams) == []
        clock.pass_(QUIET_S)
        assert polled(streams) == [2]
        writer.write(numbered(1))
        assert polled(streams) == []
        clock.pass_(QUIET_S)
        assert polled(streams) == [1]
        other.sink.close()


def test_quiet_directory_is_left_alone(
    tmp_path: Path, writer: Writer, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is gone through for a while after each change, whatever has ended in it, and no more."""
    walks = []

    def counted(folder: Folder) -> list[Group]:
        walks.append(folder.path)
        return group_files(folder)

    monkeypatch.setattr(live, "group_files", counted)
    orphan = tmp_path / "20260101T000000Z-000001.perf.data.partial"
    orphan.touch()  # it never gets an open manifest
    with closing(LiveStreams(tmp_path, event_lines.lines_of, clock=clock)) as streams:
        writer.write(numbered(1))
        writer.seal()
        assert polled(streams) == [1]
        for _ in range(3):
            walks.clear()
            assert polled(streams) == []
            assert walks
            clock.pass_(2 * SETTLE_S)
            assert polled(streams) == []
            walks.clear()
            assert [polled(streams) for _ in range(5)] == [[]] * 5
            assert walks == []
            assert streams.ended
            (tmp_path / f"changed at {clock.now_s}").touch()
        Writer(tmp_path, writer.sink, token=2).write(numbered(2))
        assert polled(streams) == []
        assert not streams.ended


def test_manifest_that_comes_behind_its_segment(
    tmp_path: Path, writer: Writer, clock: Clock
) -> None:
    """A segment is taken up once its open manifest is whole, which changes no name."""
    manifest = writer.segment.paths.open_manifest
    whole = manifest.read_bytes()
    manifest.write_bytes(b"")
    with closing(LiveStreams(tmp_path, event_lines.lines_of, clock=clock)) as streams:
        assert polled(streams) == []
        manifest.write_bytes(whole)
        writer.write(numbered(1))
        clock.pass_(SETTLE_S / 2)
        assert polled(streams) == []
        assert len(streams.segments) == 1


def test_directory_that_goes_with_its_stream(tmp_path: Path, clock: Clock) -> None:
    """A recording that stored nothing leaves none behind, which is an end like any other."""
    writer = Writer(tmp_path / "made")
    with closing(LiveStreams(tmp_path / "made", event_lines.lines_of, clock=clock)) as streams:
        writer.sink.close()
        assert not (tmp_path / "made").exists()
        assert polled(streams) == []
        clock.pass_(GRACE_S)
        assert polled(streams) == []
        assert streams.ended
        again = Writer(tmp_path / "made")
        again.write(numbered(3))
        assert polled(streams) == []
        clock.pass_(QUIET_S)
        assert polled(streams) == [3]
        again.sink.close()


def test_recording_to_one_file(tmp_path: Path, clock: Clock) -> None:
    """It is followed to its end, and that is the end."""
    writer = Writer(tmp_path, single_file=str(tmp_path / "out.data"))
    writer.write(numbered(1))
    begin = SegmentPaths(tmp_path, "out.data")
    with closing(LiveStreams(tmp_path, event_lines.lines_of, begin, clock=clock)) as streams:
        assert polled(streams) == []
        writer.write(numbered(2))
        assert polled(streams) == [1]
        writer.seal()
        assert polled(streams) == [2]
        assert streams.ended
    writer.sink.close()
    with closing(LiveStreams(tmp_path, event_lines.lines_of, begin, clock=clock)) as streams:
        assert polled(streams) == [1, 2]
        assert streams.ended


def test_segment_that_held_nothing(tmp_path: Path, writer: Writer, clock: Clock) -> None:
    """A segment that is dropped at its end is skipped."""
    writer.write(numbered(1))
    writer.seal(final=False)
    void = Writer(tmp_path, writer.sink, token=2)
    with closing(LiveStreams(tmp_path, event_lines.lines_of, clock=clock)) as streams:
        assert streams.found
        void.seal(final=False)
        assert not void.path.exists()
        Writer(tmp_path, writer.sink, token=3).write(numbered(3))
        assert [polled(streams) for _ in range(2)] == [[], []]
        clock.pass_(QUIET_S)
        assert polled(streams) == [3]


def test_writer_that_died(tmp_path: Path, writer: Writer, clock: Clock) -> None:
    """Its segment ends the stream, with a word, unless a repair comes first."""
    writer.write(numbered(1))
    with closing(LiveStreams(tmp_path, event_lines.lines_of, clock=clock)) as streams:
        writer.write(numbered(2))
        writer.sink.close()
        assert polled(streams) == []
        clock.pass_(QUIET_S)
        assert polled(streams) == [2]
        clock.pass_(QUIET_S)
        assert polled(streams) == []
        (complaint,) = streams.take_complaints()
        assert f"{writer.path}: its writer died; run `collectord segments repair`" == complaint
        clock.pass_(GRACE_S)
        assert streams.ended
    begin = SegmentPaths(tmp_path, writer.path.name.removesuffix(".partial"))
    with closing(LiveStreams(tmp_path, event_lines.lines_of, begin, clock=clock)) as streams:
        assert repair(tmp_path)
        assert polled(streams) == [1, 2]
        assert streams.take_complaints() == []


def test_writer_that_goes_on_and_ends_between_two_looks(
    tmp_path: Path, writer: Writer, clock: Clock
) -> None:
    """Nobody holds a quiet segment any more: it was sealed, and its last records are shown."""
    writer.write(numbered(1))
    begin = SegmentPaths(tmp_path, writer.path.name.removesuffix(".partial"))

    def end() -> None:
        writer.write(numbered(2))
        writer.seal(final=True)

    with closing(LiveStreams(tmp_path, event_lines.lines_of, begin, clock=clock)) as streams:
        assert polled(streams) == []
        clock.pass_(QUIET_S)
        assert polled(streams) == [1]
        clock.pass_(QUIET_S)
        looks_at_names = str  # the first reading; the second is behind the look at the segment
        clock.meanwhile = [looks_at_names, end]
        assert polled(streams) == [2]
        clock.pass_(GRACE_S)
        assert polled(streams) == []
        assert (streams.ended, streams.take_complaints()) == (True, [])


def test_segment_that_is_deleted(tmp_path: Path, writer: Writer, clock: Clock) -> None:
    """An open one is read to its end all the same; others are reported as missing."""
    with closing(LiveStreams(tmp_path, event_lines.lines_of, clock=clock)) as streams:
        writer.write(numbered(1))
        first = writer.seal(final=False)
        second = Writer(tmp_path, writer.sink, token=2)
        second.write(numbered(2))
        lost = second.seal(final=False)
        Writer(tmp_path, writer.sink, token=3)
        first.unlink()
        assert polled(streams) == [1]
        streams._look_for_more()
        lost.unlink()
        assert polled(streams) == []
        assert streams.take_complaints() == [f"{lost}: deleted before it was read"]


def test_nothing_to_follow(tmp_path: Path, clock: Clock) -> None:
    """A sealed segment is not running, and other formats cannot be followed."""
    support.write(tmp_path, numbered(1))
    trace = trace_segments.orphan(tmp_path)
    with closing(LiveStreams(tmp_path, event_lines.lines_of, clock=clock)) as streams:
        assert not streams.found
    begin = SegmentPaths(tmp_path, trace.name.removesuffix(".partial"))
    with pytest.raises(UsageError, match="has no events of BPF programs, and only"):
        LiveStreams(tmp_path, event_lines.lines_of, begin, clock=clock)
    with pytest.raises(SinkError):
        LiveStreams(tmp_path / "none", event_lines.lines_of, clock=clock)
