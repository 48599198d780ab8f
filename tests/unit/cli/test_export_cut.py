# SPDX-License-Identifier: Apache-2.0
"""`collectord export` in the formats of what it reads: perf.data, trace.dat and stacks."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pytest

from collectord.cli import export, flame, query
from collectord.codec import trace_dat
from collectord.codec.ftrace_page import Walk
from collectord.codec.perf_attr import RecordType
from collectord.codec.perf_data import FIRST_BYTES, Head, head_bytes, parse_head
from collectord.codec.perf_record import iter_records
from collectord.errors import SinkError, UsageError
from tests.support import bpf_segments, segments, trace_segments
from tests.support.ftrace_pages import event, page
from tests.support.golden import GOLDEN
from tests.support.profiles import comm, sample, write
from tests.support.query_files import switches, write_trace

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("own_cache")

# A clock of the segments' tests begins with UTC's.
SINCE: Final = "1970-01-01T00:00:01.000010Z"
UNTIL: Final = "1970-01-01T00:00:01.000019Z"
WINDOW: Final = ("--since", SINCE, "--until", UNTIL)


def _exported(form: str, output: Path, *words: str | Path, status: int = 0) -> bytes:
    assert export.run(["--format", form, "-o", str(output), *map(str, words)]) == status
    return output.read_bytes()


def _records(file: bytes) -> tuple[Head, list[bytes]]:
    """Return the head of a perf.data, and its records but padding."""
    head = parse_head(file[: head_bytes(file[:FIRST_BYTES])])
    assert head.header.sealed
    offset, size = head.header.data
    data = file[offset : offset + size]
    found = [data[one.offset : one.offset + one.size] for one in iter_records(data)]
    beside = (RecordType.FINISHED_ROUND, RecordType.FINISHED_INIT)
    return head, [one for one in found if int.from_bytes(one[:4], "little") not in beside]


def _rounds(file: bytes) -> int:
    head = parse_head(file[: head_bytes(file[:FIRST_BYTES])])
    offset, size = head.header.data
    data = file[offset : offset + size]
    return sum(one.type == RecordType.FINISHED_ROUND for one in iter_records(data))


def _tell(segment: Path, **values: object) -> None:
    """Change values in a manifest."""
    manifest = segment.with_name(f"{segment.name}.json")
    manifest.write_text(json.dumps(json.loads(manifest.read_bytes()) | values))


def _rows(capsys: pytest.CaptureFixture[str], sql: str, path: Path) -> list[dict[str, object]]:
    capsys.readouterr()
    assert query.run(["--json", sql, str(path)]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_perf_data_of_a_time_has_its_samples_and_what_names_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A name of before the time is kept, each record as it was, and features stay."""
    path = segments.write_segment(segments.make_sink(tmp_path / "state")).path
    _, whole = _records(path.read_bytes())
    made = _exported("perf.data", tmp_path / "out.data", *WINDOW, path)
    head, records = _records(made)
    assert records == [whole[0], *whole[11:21]]
    assert _rounds(made) == 1 + _rounds(path.read_bytes()) > 2
    assert head.attrs == _records(path.read_bytes())[0].attrs
    assert "wrote 10 records" in capsys.readouterr().err
    rows = _rows(capsys, "SELECT mono_ns, comm, cpu FROM samples", tmp_path / "out.data")
    assert [row["mono_ns"] for row in rows] == [
        segments.TIME_NS + 1000 * number for number in range(10, 20)
    ]
    assert {row["comm"] for row in rows} == {"generator"}
    assert b"host.example" in made


def test_segments_and_sessions_go_into_one_perf_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Events are told apart though sessions have the same ids; losses are kept, and told."""
    sink = segments.make_sink(tmp_path / "calls")
    paths = [segments.write_segment(sink, token, samples=20).path for token in (1, 2)]
    at = segments.TIME_NS
    opens = bpf_segments.write(
        tmp_path / "programs",
        bpf_segments.chunk(
            bpf_segments.comm(at, 500, b"opener"),
            bpf_segments.sample(at + 500, bpf_segments.opened(500)),
            bpf_segments.sample(at + 12_000, bpf_segments.opened(500)),
            bpf_segments.lost(at + 13_000, 4),
            bpf_segments.lost(at + 30_000, 5),
        ),
    )
    _tell(opens, last_ns=at + 30_000)
    output = tmp_path / "out.data"
    made = _exported("perf.data", output, *WINDOW, *paths, opens)
    told = capsys.readouterr().err
    assert "wrote 21 records" in told
    assert "4 records of exec were lost" in told
    assert _rounds(made) == 1  # the file's first record
    head, records = _records(made)
    ids = [number for one in head.attrs for number in one.ids]
    assert len(set(ids)) == len(ids)
    lost = [one for one in records if one[0] == RecordType.LOST]
    assert [int.from_bytes(one[16:24], "little") for one in lost] == [4]
    (of_opens,) = [one.ids for one in head.attrs if one.name == "opensnoop"]
    assert int.from_bytes(lost[0][8:16], "little") in of_opens
    rows = _rows(capsys, "SELECT event, comm, count(*) n FROM samples GROUP BY ALL", output)
    assert sorted((row["event"], row["comm"], row["n"]) for row in rows) == [
        ("opensnoop", "opener", 1),
        (segments.EVENT, "generator", 20),
    ]


def test_files_of_several_clocks_are_refused(tmp_path: Path) -> None:
    """Without manifests stamps of two files have no relation; no new file is left."""
    paths = [write(tmp_path / f"{name}.data", sample(5, 1, 0x100)) for name in "ab"]
    output = tmp_path / "out.data"
    with pytest.raises(UsageError, match="not of one clock") as caught:
        export.run(["--format", "perf.data", "-o", str(output), *map(str, paths)])
    assert "--session" in str(caught.value)
    assert not output.exists()


def test_damaged_records_are_left_out_and_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A sample of an unknown event would make readers refuse the file."""
    strange = bytearray(sample(6, 1, 0x100))
    strange[8] = 99
    path = write(
        tmp_path / "a.data", comm(1, 1, b"a"), sample(5, 1, 0x100), bytes(strange), sample(7, 1)
    )
    made = _exported("perf.data", tmp_path / "out.data", path, status=1)
    assert "1 damaged place was skipped" in capsys.readouterr().err
    assert _records(made)[1] == [comm(1, 1, b"a"), sample(5, 1, 0x100), sample(7, 1)]


def test_no_format_but_that_of_the_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Others are left out, and if nothing is left the export says so."""
    trace = tmp_path / "trace.dat"
    write_trace(trace, {0: [switches(1000, 5)]})
    perf = write(tmp_path / "a.data", sample(5, 1, 0x100))
    output = tmp_path / "out"
    for form, other in (("perf.data", trace), ("trace.dat", perf)):
        with pytest.raises(UsageError, match=f"there is no {form}"):
            export.run(["--format", form, "-o", str(output), str(other)])
        assert not output.exists()
        assert export.run(["--format", form, "-o", str(output), str(trace), str(perf)]) == 0
        assert "1 files that are not" in capsys.readouterr().err
        output.unlink()


@pytest.mark.parametrize("form", ["perf.data", "trace.dat"])
def test_a_time_without_records_gives_a_file_without_any(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has the events nevertheless, whether the manifest or the records tell the time."""
    of_form = segments if form == "perf.data" else trace_segments
    sink = of_form.make_sink(tmp_path / "state")
    path = of_form.write_segment(sink).path
    for number, since in enumerate(("1970-01-01T00:00:01.00001Z", "1970-01-01T00:00:09Z")):
        output = tmp_path / f"out{number}"
        until = ("--until", "1970-01-01T00:00:01.0000100005Z")
        words = ("--since", since, *(until if not number else ()))
        _exported(form, output, *words, path)
        rows = _rows(capsys, "SELECT count(*) n FROM sys_enter_getppid", output)
        assert rows == [{"n": 1 if not number and form == "perf.data" else 0}]


def _stamps(file: bytes) -> list[int]:
    """Return the stamps in all that looks like a page."""
    stamps = []
    for at in range(0, len(file), 4096):
        one = file[at : at + 4096]
        if len(one) == 4096 and 0 < int.from_bytes(one[8:12], "little") & 0x3FFFFFFF < 4080:
            stamps += [found.timestamp_ns for found in Walk(one)]
    return stamps


def test_a_trace_dat_of_a_time_has_its_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pages at the edges are made anew, with the stamps, names and losses of the time."""
    path = trace_segments.write_segment(trace_segments.make_sink(tmp_path / "state")).path
    output = tmp_path / "out.dat"
    window = ("--since", "1970-01-01T00:00:01.000003Z", "--until", "1970-01-01T00:00:01.001002Z")
    _exported("trace.dat", output, *window, path)
    rows = _rows(capsys, "SELECT mono_ns, cpu FROM sys_enter_getppid ORDER BY ALL", output)
    base = trace_segments.TIME_NS
    first = [base + 1000 * number for number in range(3, 8)]
    second = [base + 1_000_000 + 1000 * number for number in (1, 2)]
    told = sorted([*((at, cpu) for at in first for cpu in (0, 1)), *((at, 0) for at in second)])
    assert [(row["mono_ns"], row["cpu"]) for row in rows] == told


def test_sessions_are_instances_of_a_trace_dat(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Segments of one session are one; each of several has the name of its session."""
    sink = trace_segments.make_sink(tmp_path / "state")
    paths = [trace_segments.write_segment(sink, token).path for token in (1, 2)]
    one = _exported("trace.dat", tmp_path / "one.dat", *paths)
    assert b"exec\0mono" not in one
    (told,) = _rows(capsys, "SELECT count(*) n FROM sys_enter_getppid", tmp_path / "one.dat")
    assert told == {"n": 42}
    other = tmp_path / "other"
    last = trace_segments.write_segment(trace_segments.make_sink(other)).path
    _tell(last, session="second")
    two = _exported("trace.dat", tmp_path / "two.dat", *paths, last)
    assert b"exec\0mono" in two
    assert b"second\0mono" in two
    (told,) = _rows(capsys, "SELECT count(*) n FROM sys_enter_getppid", tmp_path / "two.dat")
    assert told == {"n": 63}


def test_segments_are_put_in_the_order_of_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Readers of a trace.dat take the pages of a CPU to be in their order."""
    sink = trace_segments.make_sink(tmp_path / "state")
    first, last = (trace_segments.write_segment(sink, token).path for token in (1, 2))
    # The names of the files have the other order.
    manifest = json.loads(last.with_name(f"{last.name}.json").read_bytes())
    clocks = manifest["clocks"]
    opened = {**clocks["open"], "monotonic_ns": 1_000_000, "realtime_ns": 1_000_000}
    _tell(last, clocks={**clocks, "open": opened})
    data = bytearray(last.read_bytes())
    for at in range(trace_dat.head_bytes(bytes(data[: trace_dat.FIRST_BYTES])), len(data), 4096):
        if int.from_bytes(data[at : at + 8], "little") >= trace_segments.TIME_NS:
            data[at : at + 8] = (4 * at).to_bytes(8, "little")
    last.write_bytes(data)
    _exported("trace.dat", tmp_path / "out.dat", first, last)
    sql = "SELECT mono_ns FROM sys_enter_getppid WHERE cpu = 0"
    stamps = [int(str(row["mono_ns"])) for row in _rows(capsys, sql, tmp_path / "out.dat")]
    assert len(stamps) == 28
    assert stamps == sorted(stamps)


def test_events_that_differ_do_not_go_into_one_trace_dat(tmp_path: Path) -> None:
    """Two layouts with one number are refused, and the error says what to do."""
    paths = []
    for name, field in (("a", b"field:int one"), ("b", b"field:int two")):
        text = (GOLDEN / "sys_enter_getppid.format").read_bytes()
        events = {"syscalls": [text.replace(b"field:int __syscall_nr", field)]}
        metadata = replace(trace_segments.METADATA, events=events)
        sink = trace_segments.make_sink(tmp_path / name, metadata=metadata)
        paths.append(str(trace_segments.write_segment(sink).path))
    with pytest.raises(UsageError, match="two layouts of syscalls:sys_enter_getppid") as caught:
        export.run(["--format", "trace.dat", "-o", str(tmp_path / "out"), *paths])
    assert "--session" in str(caught.value)


def test_sound_records_of_a_damaged_page_are_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page is made anew of them, and of the loss before it."""
    path = tmp_path / "trace.dat"
    sound = event(switches(0, 5)[20:64], 10)
    write_trace(path, {0: [page(1000, sound, sound, b"\x1c\0\0\0", lost=4), switches(2000, 6)]})
    made = _exported("trace.dat", tmp_path / "out.dat", path, status=1)
    told = capsys.readouterr().err
    assert "1 damaged place was skipped" in told
    assert "4 records of" in told
    assert _stamps(made)[-3:] == [1010, 1020, 2010]
    rows = _rows(capsys, "SELECT events FROM losses", tmp_path / "out.dat")
    assert rows == [{"events": 4}]


@pytest.mark.parametrize("form", ["folded", "pprof"])
def test_stacks_are_those_of_flame(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file is the one that `flame` writes of the same samples."""
    path = write(
        tmp_path / "a.data",
        comm(1, 1, b"work"),
        *(sample(10 + at, 1, 0x1000, 0x2000 + at % 3) for at in range(9)),
    )
    made = _exported(form, tmp_path / f"out.{form}", path)
    assert "wrote 9 samples" in capsys.readouterr().err
    assert flame.run(["-o", str(tmp_path / f"flame.{form}"), str(path)]) == 0
    assert made == (tmp_path / f"flame.{form}").read_bytes()
    assert b"work" in (made if form == "folded" else gzip.decompress(made))
    with pytest.raises((UsageError, SinkError), match="exists"):
        export.run(["--format", form, "-o", str(tmp_path / f"out.{form}"), str(path)])
