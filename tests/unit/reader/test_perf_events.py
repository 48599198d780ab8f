# SPDX-License-Identifier: Apache-2.0
"""Records of BPF programs, read back from segments: order, names, losses, damage."""

from __future__ import annotations

import os
from contextlib import closing
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectord.codec.perf_attr import EventType, PerfEventAttr, RecordType, SampleType
from collectord.codec.perf_data import AttrSection
from collectord.codec.perf_features import Features
from collectord.codec.perf_order import ALWAYS, TimeOrder
from collectord.codec.perf_record import RawSamples, SampleId, frame, iter_records
from collectord.codec.perf_sideband import Lost
from collectord.errors import CodecError, SinkError, UsageError
from collectord.plan.session_plan import SinkPlan
from collectord.reader.any_events import open_events
from collectord.reader.perf_events import DATA, BpfSegment, Damage, Loss, Record, Total
from collectord.sink.perf_data_sink import PerfDataSink
from tests.support import bpf_segments as support
from tests.support import segments as perf_support
from tests.support import trace_segments
from tests.support.bpf_segments import EXITS, OPENS, S_NS, chunk, comm, exited, fork, lost, sample
from tests.support.chunks import show
from tests.support.examples import examples
from tests.support.samples import Sample, encode_sample
from tests.support.sideband import encode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from collectord.reader.perf_events import Happening

PAGE: Final = perf_support.PAGE_BYTES


def number(value: int, *, cpu: int = 0, time_ns: int | None = None) -> bytes:
    """Return a sample that is known by a number, which is its time as well."""
    return sample(value if time_ns is None else time_ns, exited(value), event=EXITS, cpu=cpu)


def read(path: Path) -> list[Happening]:
    """Return all that happened."""
    with open_events(path) as segment:
        assert isinstance(segment, BpfSegment)
        return list(segment.by_time())


def numbers(happenings: Iterable[Happening]) -> list[object]:
    """Return the numbers of the samples, in their order."""
    return [one.event.values(one.payload)["pid"] for one in happenings if isinstance(one, Record)]


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
    happenings = read(path)
    assert numbers(happenings) == [*range(1, 10), 77]
    record = happenings[-1]
    assert isinstance(record, Record)
    assert record[:4] == (10, 1, 500, 500)
    assert record.event.name == OPENS
    assert record.event.described == support.DESCRIBED[OPENS]
    assert record.event.values(record.payload) == {
        "pid": 77,
        "result": 3,
        "took": 1500,
        "comm": "task 77",
        "path": "/etc/hosts",
        "flags": 0,
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
    found: list[Happening] = []
    with closing(writer.sink), open_events(writer.path) as segment:
        assert isinstance(segment, BpfSegment)
        for cut in sorted(cuts):
            writer.tear(whole[: int(cut * len(whole))])
            segment.poll()
            found += segment.read_new(everything=False)
        for chunks in made:
            writer.write(*chunks)
        segment.poll()
        found += segment.read_new(everything=False)
        path = writer.seal()
        segment.poll()
        found += segment.read_new(everything=False)
        assert segment.sealed
        assert not segment.keeps
    assert not [one for one in found if not isinstance(one, Record)]
    times = [one.time_ns for one in found if isinstance(one, Record)]
    assert times == sorted(times)
    assert numbers(found) == numbers(read(path))
    assert {*numbers(found)} == {*range(1, _samples(whole) + 1)}
    assert len(found) == _samples(whole)


def _samples(data: bytes) -> int:
    return sum(header.type == RecordType.SAMPLE for header in iter_records(data))


def test_memory_does_not_grow_with_the_records() -> None:
    """Two numbers are kept per ring's piece, however many records it has."""
    records = b"".join(number(value) for value in range(1, 5001))
    data = chunk(records, *(number(value, cpu=1) for value in range(1, 5001)), ends_round=True)
    attrs = dict.fromkeys(support.IDS[EXITS], support.ATTR)
    order = TimeOrder(attrs, frozenset(attrs), frozenset())
    with memoryview(data) as view:
        assert order.feed(view, 0, len(view)).is_round
        assert len(order._runs) == 2
        assert sum(1 for _ in order.take(view, 2500)) == 5000
        assert len(order._runs) == 2
        assert sum(1 for _ in order.take(view, ALWAYS)) == 5000
        assert not order.waits


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
    with open_events(path) as segment:
        assert isinstance(segment, BpfSegment)
        names = [segment.comm(one.tid) for one in segment.by_time() if isinstance(one, Record)]
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
    happenings = read(path)
    assert numbers(happenings) == [1, 30, 45, 50]
    assert happenings[1] == Loss(20, 1, 5)
    assert happenings[3] == Loss(40, 0, 7)
    totals = {one.event.name: one.events for one in happenings[-2:] if isinstance(one, Total)}
    assert totals == {OPENS: 7, EXITS: 5}


def test_losses_of_names_are_none_of_events(tmp_path: Path) -> None:
    """A sideband ring that overflowed has lost no event of a program."""
    ring = encode(
        Lost(support.DUMMY_ID, 9), support.DUMMY, SampleId(time_ns=5, id=support.DUMMY_ID)
    )
    path = support.write(
        tmp_path, chunk(number(1), ring, ends_round=True), lost_samples={support.DUMMY_ID: 4}
    )
    assert numbers(read(path)) == [1]
    assert len(read(path)) == 1


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
    happenings = read(path)
    assert numbers(happenings) == [1, 2, 200, 201, 300]
    assert [one for one in happenings if isinstance(one, Damage)] == [
        Damage(at, "a record has size 0")
    ]


def test_sample_that_contradicts_itself(tmp_path: Path) -> None:
    """A sample whose raw data reach past its end is told, and left out."""
    whole = number(2)
    at = whole.rindex(exited(2)) - 4  # the size of what was submitted
    broken = whole[:at] + (99).to_bytes(4, "little") + whole[at + 4 :]
    path = support.write(tmp_path, chunk(number(1), broken, number(3), ends_round=True))
    happenings = read(path)
    assert numbers(happenings) == [1, 3]
    (damage,) = [one for one in happenings if isinstance(one, Damage)]
    assert "raw data too long" in damage.reason


def test_cut_file(tmp_path: Path) -> None:
    """A copy that is shorter than it claims gives what it has, and is told to be cut."""
    path = support.write(
        tmp_path, chunk(*map(number, range(1, 101)), ends_round=True), chunk(number(200))
    )
    offset = path.read_bytes().index(number(50))
    os.truncate(path, offset + 24)
    happenings = read(path)
    assert numbers(happenings) == list(range(1, 50))
    reasons = [one.reason for one in happenings if isinstance(one, Damage)]
    assert len(reasons) == 2
    assert reasons[0] == "a record is cut short"
    assert reasons[1].startswith("the file ends before its data")


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
    with open_events(writer.path) as segment:
        assert isinstance(segment, BpfSegment)
        assert segment.poll()
        assert not segment.sealed
        assert numbers(segment.read_new(everything=True)) == [1, 2]
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
    with open_events(writer.path) as segment:
        assert isinstance(segment, BpfSegment)
        body = chunk(number(1))
        writer.tear(body[:24] + bytes(len(number(1)) - 24) + body[len(number(1)) :])
        assert not segment.poll()
        writer.write(body, chunk(ends_round=True))
        assert segment.poll()
        assert numbers(segment.read_new(everything=True)) == [1]


def test_last_rounds_are_kept_back(writer: support.Writer) -> None:
    """In a running segment, records whose order is certain are returned, others on request."""
    with open_events(writer.path) as segment:
        assert isinstance(segment, BpfSegment)
        writer.write(chunk(number(20), ends_round=True))
        assert segment.poll()
        assert list(segment.read_new(everything=False)) == []
        assert segment.keeps
        assert not segment.poll()
        writer.write(chunk(number(15, cpu=1), number(30, cpu=1), ends_round=True))
        assert segment.poll()
        assert numbers(segment.read_new(everything=False)) == [15, 20]
        assert numbers(segment.read_new(everything=True)) == [30]
        assert not segment.keeps
        writer.write(chunk(number(40)))
        writer.seal()
        assert segment.poll()
        assert numbers(segment.read_new(everything=False)) == [40]
        assert not segment.poll()


def test_beginning_can_be_skipped(writer: support.Writer) -> None:
    """Skipped records are not returned, and names of tasks are known afterwards."""
    writer.write(chunk(number(1), comm(1, 500, b"known"), lost(2, 3), ends_round=True))
    with open_events(writer.path) as segment:
        assert isinstance(segment, BpfSegment)
        segment.poll()
        segment.skip()
        writer.write(chunk(number(10), ends_round=True))
        segment.poll()
        assert numbers(segment.read_new(everything=True)) == [10]
        assert segment.comm(500) == "known"


def test_segment_without_its_writer(tmp_path: Path) -> None:
    """A running segment is distinguished from one whose writer died, and from a deleted one."""
    writer = support.Writer(tmp_path)
    with open_events(writer.path) as segment:
        assert isinstance(segment, BpfSegment)
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
        assert isinstance(record, Record)
        assert (record.event.name, record.event.described) == (EXITS, None)
        assert record.event.fields == (DATA,)
        assert record.event.values(record.payload) == {DATA: record.payload}
        assert record.payload.startswith(exited(7))
        path.with_name(path.name + ".json").unlink(missing_ok=True)


def test_segments_of_others(tmp_path: Path) -> None:
    """perf.data without events of BPF programs is refused with what reads it."""
    path = perf_support.write_segment(perf_support.make_sink(tmp_path), samples=1).path
    with pytest.raises(UsageError, match=f"no events of BPF programs; `perf script -i {path}`"):
        read(path)
    sink = PerfDataSink(
        SinkPlan(format="perf.data", directory=str(tmp_path / "foreign")),
        perf_support.IDENTITY,
        attrs=[AttrSection(_without_cpu(), (1,), "x")],
        features=Features(),
    )
    segment = sink.next_segment(1, perf_support.OPENING)
    with pytest.raises(UsageError, match=r"by another program.*perf script"):
        read(segment.paths.partial)
    sink.close()
    (tmp_path / "cut").write_bytes(path.read_bytes()[:200])
    with pytest.raises(SinkError, match="`perf script` may still read it"):
        read(tmp_path / "cut")
    with open_events(_trace_dat(tmp_path)) as other:
        assert not isinstance(other, BpfSegment)


def _without_cpu() -> PerfEventAttr:
    return PerfEventAttr(
        type=EventType.SOFTWARE,
        config=10,
        sample_type=support.ATTR.sample_type & ~SampleType.CPU,
        sample_id_all=True,
    )


def _trace_dat(directory: Path) -> Path:
    return trace_segments.orphan(directory / "trace")


@given(
    st.sampled_from([0, SampleType.ADDR, SampleType.ID, SampleType.STREAM_ID | SampleType.ADDR]),
    st.binary(max_size=40),
)
def test_raw_samples_are_where_the_kernel_puts_them(more: int, raw: bytes) -> None:
    """Whatever words stand around, the fast reader finds what the general one does."""
    attr = PerfEventAttr(sample_type=support.ATTR.sample_type | more, sample_id_all=True)
    told = Sample(id=5, pid=6, tid=7, time_ns=8, cpu=9, addr=1, stream_id=2, period=3, raw=raw)
    record = encode_sample(told, attr)
    found = RawSamples(attr).decode(b"\xff" * 8 + record + b"\xff" * 8, 8, len(record))
    assert found[:4] == (6, 7, 8, 9)
    assert found.raw.rstrip(b"\0") == raw.rstrip(b"\0")
    for size in range(8, len(record), 8):
        with pytest.raises(CodecError):
            RawSamples(attr).decode(record, 0, size)


@pytest.mark.parametrize("more", [SampleType.READ, SampleType.CALLCHAIN])
def test_raw_samples_without_fixed_places(more: SampleType) -> None:
    """A layout with fields of variable length before the raw data is refused."""
    with pytest.raises(CodecError):
        RawSamples(PerfEventAttr(sample_type=support.ATTR.sample_type | more))


@given(st.binary(max_size=300), st.integers(0, 40))
def test_any_bytes_are_survived(junk: bytes, at: int) -> None:
    """A walk over anything ends, and gives offsets that lie inside."""
    attrs = dict.fromkeys(support.IDS[EXITS], support.ATTR)
    order = TimeOrder(attrs, frozenset(attrs), frozenset({RecordType.COMM, RecordType.LOST}))
    data = number(1) + junk[at:] + frame(RecordType.FINISHED_ROUND, 0, b"") + junk[:at]
    with memoryview(data) as view:
        stop = order.feed(view, 0, len(view))
        assert 0 < stop.at <= len(view)
        assert all(0 <= one < stop.at for one in order.take(view, ALWAYS))
        assert order.resume(view, stop.at, len(view)) == len(view)
