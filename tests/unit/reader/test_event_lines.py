# SPDX-License-Identifier: Apache-2.0
"""Records of BPF programs, read back from segments: order, names, losses, damage."""

from __future__ import annotations

import os
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectord.codec.perf_attr import RecordType
from collectord.codec.perf_record import SampleId, frame, iter_records
from collectord.codec.perf_sideband import Lost
from collectord.errors import SinkError, UsageError
from collectord.reader.live_segment import LiveSegment
from tests.support import bpf_segments as support
from tests.support import event_lines, trace_segments
from tests.support import segments as perf_support
from tests.support.bpf_segments import EXITS, OPENS, S_NS, chunk, comm, exited, fork, lost, sample
from tests.support.chunks import show
from tests.support.examples import examples
from tests.support.sideband import encode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

PAGE: Final = perf_support.PAGE_BYTES


def number(value: int, *, cpu: int = 0, time_ns: int | None = None) -> bytes:
    """Return a sample that is known by a number, which is its time as well."""
    return sample(value if time_ns is None else time_ns, exited(value), event=EXITS, cpu=cpu)


def read(path: Path) -> list[dict[str, Any]]:
    """Return all records and losses."""
    return event_lines.read(path)[0]


@contextmanager
def opened(path: Path) -> Iterator[LiveSegment]:
    """Open a segment to be read while it is written."""
    with ExitStack() as stack:
        yield LiveSegment(path, stack, event_lines.lines_of)


def new(segment: LiveSegment, *, everything: bool) -> list[object]:
    """Return the numbers of the samples that are new."""
    return numbers(event_lines.objects(segment.read_new(everything=everything)))


def numbers(found: Iterable[dict[str, Any]]) -> list[object]:
    """Return the numbers of the samples, in their order."""
    return [one["fields"]["pid"] for one in found if "fields" in one]


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[support.Writer]:
    """Provide a running segment."""
    made = support.Writer(tmp_path)
    yield made
    made.sink.close()


def test_rings_are_merged(tmp_path: Path) -> None:
    """Chunks of several CPUs come in the order of time, with all that a sample tells."""
    path = support.write(
        tmp_path,
        chunk(number(1), number(4), number(9)),
        chunk(number(2, cpu=1), number(3, cpu=1), number(8, cpu=1), ends_round=True),
        chunk(number(5, cpu=1)),
        chunk(number(6), number(7), ends_round=True),
        chunk(sample(10, support.opened(77), cpu=1, tid=500)),
    )
    found = read(path)
    assert numbers(found) == [*range(1, 10), 77]
    assert found[-1] == {
        "time_ns": 10,
        "cpu": 1,
        "pid": 500,
        "tid": 500,
        "comm": "<...>",
        "event": OPENS,
        "fields": {
            "pid": 77,
            "result": 3,
            "took": 1500,
            "comm": "task 77",
            "path": "/etc/hosts",
            "flags": 0,
        },
    }


def test_equal_times_keep_their_order(tmp_path: Path) -> None:
    """Records with the same time are in file order."""
    path = support.write(
        tmp_path,
        chunk(*(number(value, time_ns=5) for value in (2, 3, 4))),
        chunk(number(1, time_ns=3, cpu=1), number(5, time_ns=5, cpu=1), ends_round=True),
    )
    assert numbers(read(path)) == [1, 2, 3, 4, 5]


@st.composite
def rounds(draw: st.DrawFn) -> list[list[bytes]]:
    """Rounds of chunks as writers make them: none is older than the round before the last one."""
    made = []
    value = 0
    for index in range(draw(st.integers(1, 6))):
        chunks = []
        for _ in range(draw(st.integers(1, 4))):
            cpu = draw(st.integers(0, 1))
            times = sorted(draw(st.lists(st.integers(0, 19), max_size=6)))
            records = []
            for time_ns in times:
                value += 1
                records.append(number(value, cpu=cpu, time_ns=S_NS + index * 10 + time_ns))
            chunks.append(chunk(*records))
        made.append([*chunks, chunk(ends_round=True)])
    return made


@settings(max_examples=examples(60))
@given(rounds(), st.lists(st.floats(0, 1), max_size=6))
def test_any_rounds_are_sorted(
    tmp_path_factory: pytest.TempPathFactory, made: list[list[bytes]], cuts: list[float]
) -> None:
    """Each record comes once and in order, however a running file grows between two looks."""
    writer = support.Writer(tmp_path_factory.mktemp("any"))
    whole = b"".join(one for chunks in made for one in chunks)
    found: list[dict[str, Any]] = []
    with closing(writer.sink), opened(writer.path) as segment:
        for cut in sorted(cuts):
            writer.tear(whole[: int(cut * len(whole))])
            segment.poll()
            found += event_lines.objects(segment.read_new(everything=False))
        for chunks in made:
            writer.write(*chunks)
        segment.poll()
        found += event_lines.objects(segment.read_new(everything=False))
        path = writer.seal()
        segment.poll()
        found += event_lines.objects(segment.read_new(everything=False))
        assert segment.sealed
        assert not segment.keeps
        assert segment.lines.problems == []
    times = [one["time_ns"] for one in found]
    assert times == sorted(times)
    assert numbers(found) == numbers(read(path))
    assert {*numbers(found)} == {*range(1, _samples(whole) + 1)}
    assert len(found) == _samples(whole)


def _samples(data: bytes) -> int:
    return sum(header.type == RecordType.SAMPLE for header in iter_records(data))


def test_names_of_tasks(tmp_path: Path) -> None:
    """A task has the name that it had then: its own, its parent's, or that of a later exec."""
    path = support.write(
        tmp_path,
        chunk(
            *(number(value, time_ns=value * 10) for value in range(1, 6)),
            sample(60, exited(6), event=EXITS, tid=501),
            sample(70, exited(7), event=EXITS, tid=502),
            sample(80, exited(8), event=EXITS, tid=0),
        ),
        chunk(comm(1, 500, b"first"), comm(25, 500, b"se\xffcond"), fork(55, 500, 501)),
        chunk(ends_round=True),
    )
    names = [one["comm"] for one in read(path)]
    second = r"se\xffcond"
    assert names == ["first", "first", second, second, second, second, "<...>", "<idle>"]


def test_losses(tmp_path: Path) -> None:
    """They are told where the ring told them, and in all at the end, by their event."""
    path = support.write(
        tmp_path,
        chunk(number(1), number(30), lost(40, 7), number(50)),
        chunk(lost(20, 5, cpu=1, event=EXITS), number(45, cpu=1), ends_round=True),
        lost_samples={11: 6, 12: 1, 21: 5},
    )
    found, lines = event_lines.read(path)
    assert numbers(found) == [1, 30, 45, 50]
    assert found[1] == {"time_ns": 20, "cpu": 1, "lost": 5}
    assert found[3] == {"time_ns": 40, "cpu": 0, "lost": 7}
    assert lines.lost.events == {OPENS: 7, EXITS: 5}


def test_losses_of_names_are_none_of_events(tmp_path: Path) -> None:
    """A sideband ring that overflowed has lost no event of a program."""
    ring = encode(
        Lost(support.DUMMY_ID, 9), support.DUMMY, SampleId(time_ns=5, id=support.DUMMY_ID)
    )
    path = support.write(
        tmp_path, chunk(number(1), ring, ends_round=True), lost_samples={support.DUMMY_ID: 4}
    )
    found, lines = event_lines.read(path)
    assert numbers(found) == [1]
    assert len(found) == 1
    assert not lines.lost.events


def test_damaged_part(tmp_path: Path) -> None:
    """Invalid bytes are reported, and reading continues with the next chunk."""
    first = chunk(*map(number, range(1, 101)))
    path = support.write(
        tmp_path, first, chunk(number(200), number(201)), chunk(number(300), ends_round=True)
    )
    record = len(number(1))
    at = path.read_bytes().index(first) + 2 * record
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes(8))
    found, lines = event_lines.read(path)
    assert numbers(found) == [1, 2, 200, 201, 300]
    assert lines.problems == [f"{path}: bad_size at byte {at}, skipped up to the next chunk"]


def test_sample_that_contradicts_itself(tmp_path: Path) -> None:
    """A sample whose raw data reach past its end is told, and left out."""
    whole = number(2)
    at = whole.rindex(exited(2)) - 4  # the size of what was submitted
    broken = whole[:at] + (99).to_bytes(4, "little") + whole[at + 4 :]
    path = support.write(tmp_path, chunk(number(1), broken, number(3), ends_round=True))
    found, lines = event_lines.read(path)
    assert numbers(found) == [1, 3]
    (problem,) = lines.problems
    assert problem.endswith(", a record of exits")


def test_cut_file(tmp_path: Path) -> None:
    """A copy that is shorter than it claims gives what it has, and is told to be cut."""
    path = support.write(
        tmp_path, chunk(*map(number, range(1, 101)), ends_round=True), chunk(number(200))
    )
    offset = path.read_bytes().index(number(50))
    os.truncate(path, offset + 24)
    found, lines = event_lines.read(path)
    assert numbers(found) == list(range(1, 50))
    (problem,) = lines.problems
    assert problem == f"{path}: past_head at byte {offset}, skipped up to the next chunk"


def test_running_segment(writer: support.Writer) -> None:
    """It shows the rounds that have ended, and nothing of what may be half written."""
    assert read(writer.path) == []
    writer.write(chunk(number(1)), chunk(number(2, cpu=1), ends_round=True))
    writer.write(chunk(number(3)))
    assert numbers(read(writer.path)) == [1, 2]
    following = chunk(*map(number, range(4, 150)), ends_round=True)
    for torn in (24, PAGE, len(following) - PAGE):
        writer.tear(following[:torn])
        assert numbers(read(writer.path)) == [1, 2]
    writer.write(following)
    assert numbers(read(writer.path)) == [*range(1, 150)]


def test_segment_that_is_shown_while_it_runs(writer: support.Writer) -> None:
    """The part that its header shows to others neither seals it nor ends what is read of it."""
    writer.write(chunk(number(1), ends_round=True))
    shown = os.fstat(writer.segment.meta_fd).st_size
    writer.write(chunk(number(2), ends_round=True))
    show(writer.segment, shown)
    with opened(writer.path) as segment:
        assert segment.poll()
        assert not segment.sealed
        assert new(segment, everything=True) == [1, 2]
        writer.seal()
        assert segment.poll()
        assert segment.sealed


def test_zeros_in_the_middle_of_a_write(writer: support.Writer) -> None:
    """A marker behind pages that are not there yet ends no round."""
    writer.write(chunk(number(1), ends_round=True))
    following = chunk(*map(number, range(2, 150)), ends_round=True)
    writer.tear(following[:PAGE] + bytes(PAGE) + following[2 * PAGE :])
    assert numbers(read(writer.path)) == [1]


def test_body_that_comes_after_the_marker_was_seen(writer: support.Writer) -> None:
    """Records are read once the marker behind them is there, not before."""
    with opened(writer.path) as segment:
        body = chunk(number(1))
        writer.tear(body[:24] + bytes(len(number(1)) - 24) + body[len(number(1)) :])
        assert not segment.poll()
        writer.write(body, chunk(ends_round=True))
        assert segment.poll()
        assert new(segment, everything=True) == [1]


def test_last_rounds_are_kept_back(writer: support.Writer) -> None:
    """In a running segment, records whose order is certain are returned, others on request."""
    with opened(writer.path) as segment:
        writer.write(chunk(number(20), ends_round=True))
        assert segment.poll()
        assert new(segment, everything=False) == []
        assert segment.keeps
        assert not segment.poll()
        writer.write(chunk(number(15, cpu=1), number(30, cpu=1), ends_round=True))
        assert segment.poll()
        assert new(segment, everything=False) == [15, 20]
        assert new(segment, everything=True) == [30]
        assert not segment.keeps
        writer.write(chunk(number(40)))
        writer.seal()
        assert segment.poll()
        assert new(segment, everything=False) == [40]
        assert not segment.poll()


def test_beginning_can_be_skipped(writer: support.Writer) -> None:
    """Skipped records are not returned, and names of tasks are known afterwards."""
    writer.write(chunk(number(1), comm(1, 500, b"known"), lost(2, 3), ends_round=True))
    with opened(writer.path) as segment:
        segment.poll()
        segment.skip()
        writer.write(chunk(number(10), ends_round=True))
        segment.poll()
        (record,) = event_lines.objects(segment.read_new(everything=True))
        assert (record["fields"]["pid"], record["comm"]) == (10, "known")


def test_segment_without_its_writer(tmp_path: Path) -> None:
    """A running segment is distinguished from one whose writer died, and from a deleted one."""
    writer = support.Writer(tmp_path)
    with opened(writer.path) as segment:
        assert (segment.deleted, segment.is_abandoned()) == (False, False)
        writer.write(chunk(number(1), ends_round=True))
        writer.sink.close()  # leaves what holds data as it is
        assert (segment.deleted, segment.is_abandoned()) == (False, True)
        assert segment.is_abandoned()
        writer.path.unlink()
        assert segment.deleted


def test_event_that_nobody_describes(tmp_path: Path) -> None:
    """Its payload is one field of bytes: with no manifest, and with one that tells of others."""
    path = support.write(
        tmp_path, chunk(number(7), ends_round=True), layouts={OPENS: support.DESCRIBED[OPENS]}
    )
    for _ in range(2):
        (record,) = read(path)
        assert record["event"] == EXITS
        assert record["fields"].keys() == {"data"}
        assert record["fields"]["data"].startswith(exited(7).hex())
        path.with_name(path.name + ".json").unlink(missing_ok=True)


def test_segments_that_cannot_be_followed(tmp_path: Path) -> None:
    """Files without events of BPF programs are refused, and so are damaged ones."""
    path = perf_support.write_segment(perf_support.make_sink(tmp_path), samples=1).path
    trace = trace_segments.orphan(tmp_path / "trace")
    for other in (path, trace):
        with pytest.raises(UsageError, match="has no events of BPF programs"), opened(other):
            pass
    (tmp_path / "cut").write_bytes(path.read_bytes()[:200])
    with pytest.raises(SinkError, match="`perf script` may still read it"):
        read(tmp_path / "cut")


@settings(max_examples=examples(60))
@given(st.binary(max_size=300), st.integers(0, 40))
def test_any_bytes_are_survived(
    tmp_path_factory: pytest.TempPathFactory, junk: bytes, at: int
) -> None:
    """Sound records in front of anything are read, and the rest is told or passed over."""
    data = number(1) + junk[at:] + frame(RecordType.FINISHED_ROUND, 0, b"") + junk[:at]
    path = support.write(tmp_path_factory.mktemp("any"), chunk(number(2), ends_round=True))
    whole = path.read_bytes()
    start = whole.index(number(2))
    path.write_bytes(whole[:start] + data + whole[start + len(data) :])
    found, _ = event_lines.read(path)
    assert found[0].get("fields") == {"pid": 1, "code": 0} or 1 in numbers(found)
