# SPDX-License-Identifier: Apache-2.0
"""Records of perf.data as tables: of BPF programs, tracepoints, tasks and mappings."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import duckdb
import pytest

from collectord.codec import perf_packed
from collectord.codec.perf_data import AttrSection, build_head, build_tail
from collectord.codec.perf_features import ClockData, Features
from collectord.codec.perf_record import SampleId
from collectord.codec.perf_sideband import Mmap, Mmap2
from collectord.errors import SinkError
from collectord.reader.event_file import Window
from tests.support import bpf_segments, profiles, segments
from tests.support.aux_records import Aux, ItraceStart
from tests.support.aux_records import encode as encode_aux
from tests.support.bpf_segments import (
    EXITS,
    OPENS,
    chunk,
    comm,
    exited,
    fork,
    lost,
    opened,
    sample,
)
from tests.support.query_files import switches, write_trace
from tests.support.query_tables import rows_of, tables_in
from tests.support.sideband import Exit, encode

if TYPE_CHECKING:
    from contextlib import ExitStack

    from collectord.reader.event_tables import EventTable, Found

TIME_NS: Final = segments.TIME_NS


def _exit(time_ns: int, *, tid: int = 500) -> bytes:
    """Return a sample of EXITS whose process is its time."""
    return sample(time_ns, exited(time_ns % 1000), event=EXITS, tid=tid)


def _found(table: EventTable) -> Found:
    scan = table.scan(["cpu"], Window())
    with duckdb.connect() as connection:
        connection.register("t", scan)
        connection.execute("SELECT count(cpu) FROM t").fetchall()
    (found,) = scan.found().values()
    return found


def test_events_of_programs_are_tables_of_their_members(tmp_path: Path, stack: ExitStack) -> None:
    """Numbers, text and all that a sample says; a member called as a column keeps clear of it."""
    path = bpf_segments.write(
        tmp_path, chunk(sample(TIME_NS, opened(7, b"/etc/\xff"), cpu=1), sample(5, exited(9, -2)))
    )
    tables = tables_in(stack, path)
    names = ("mono_ns", "cpu", "pid", "tid", "event_pid", "result", "took", "event_comm", "path")
    found = rows_of(tables[OPENS], *names)
    assert found[0] == (TIME_NS, 1, 500, 500, 7, 3, 1500, "task 7", "/etc/\\xff")
    assert tables[EXITS].columns["code"] == "i32"
    # A payload that is too short for a layout has the members that it has.
    assert found[1][4:] == (9, -2, None, None, None)
    (Path(f"{path}.json")).unlink()
    ((data,),) = rows_of(tables_in(stack, path)[OPENS], "data")[1:]
    assert data[:8] == exited(9, -2)


def test_names_of_threads_in_records_are_columns(tmp_path: Path, stack: ExitStack) -> None:
    """They are those of the record's time, where the manifest says that there are some."""
    path = bpf_segments.write(tmp_path, chunk(comm(1, 9, b"nine"), _exit(9), _exit(8)))
    manifest = Path(f"{path}.json")
    told = json.loads(manifest.read_text())
    told["layouts"][EXITS]["comms"] = {"comm": "pid", "nobody": "took"}
    manifest.write_text(json.dumps(told))
    table = tables_in(stack, path)[EXITS]
    assert rows_of(table, "event_pid", "event_comm") == [(9, "nine"), (8, None)]
    assert "nobody" not in table.columns


def test_names_are_those_of_the_time_of_a_record(tmp_path: Path, stack: ExitStack) -> None:
    """By names and forks in the whole file, in whatever order they lie there."""
    path = bpf_segments.write(
        tmp_path,
        chunk(
            *(_exit(at, tid=70) for at in (5, 15, 25)),
            *(_exit(at, tid=71) for at in (15, 35)),
            _exit(1, tid=0),
        ),
        chunk(
            comm(30, 71, b"child\xff"), fork(12, 70, 71), comm(20, 70, b"b"), comm(10, 70, b"a")
        ),
    )
    found = rows_of(tables_in(stack, path)[EXITS], "mono_ns", "tid", "comm")
    assert found == [
        *((5, 70, None), (15, 70, "a"), (25, 70, "b")),
        *((15, 71, "a"), (35, 71, "child\\xff"), (1, 0, "<idle>")),
    ]


def _bare(path: Path, *records: bytes, features: Features | None = None) -> Path:
    """Write a file of BPF events and their sideband that no manifest describes."""
    attrs = [
        AttrSection(bpf_segments.ATTR, bpf_segments.IDS[EXITS], EXITS),
        AttrSection(bpf_segments.DUMMY, (bpf_segments.DUMMY_ID,), "dummy:HG"),
    ]
    head = build_head(attrs, features=features or Features())
    data = b"".join(records)
    tail = build_tail(head, len(head.first_records) + len(data))
    path.write_bytes(tail.header + head.image[len(tail.header) :] + data + tail.tail)
    return path


def test_a_tracepoint_has_the_fields_of_its_format(tmp_path: Path, stack: ExitStack) -> None:
    """And times by the manifest; outside of the time that is asked for nothing is a row."""
    path = segments.write_segment(segments.make_sink(tmp_path), samples=3).path
    tables = tables_in(stack, path)
    table = tables["sys_enter_getppid"]
    rows = rows_of(table, "mono_ns", "cpu", "pid", "comm", "__syscall_nr")
    told = (segments.PID, "generator", 0)
    assert rows == [(TIME_NS + 1000 * at, at % 2, *told) for at in range(3)]
    assert str(rows_of(table, "time")[1][0]) == "1970-01-01 00:00:01.000001"
    window = Window(TIME_NS + 1, TIME_NS + 1500)
    assert [row[0] for row in rows_of(table, "mono_ns", window=window)] == [TIME_NS + 1000]
    names = ("event", "ip", "period", "addr", "callchain")
    samples = rows_of(tables["samples"], *names)
    assert samples == [(segments.EVENT, 0xFFFF_FFFF_8100_0000, 1, None, None)] * 3


def test_a_compressed_segment_has_the_samerows_of(tmp_path: Path, stack: ExitStack) -> None:
    """It is unpacked for those who ask for its records."""
    path = segments.write_segment(segments.make_sink(tmp_path / "sealed"), samples=300).path
    expected = rows_of(tables_in(stack, path)["samples"])
    packed = tmp_path / "packed.perf.data"
    with packed.open("w+b") as file, memoryview(path.read_bytes()) as plain:
        for offset, data in perf_packed.pack(plain):
            file.seek(offset)
            file.write(data)
    assert packed.stat().st_size < path.stat().st_size
    found = rows_of(tables_in(stack, packed)["samples"], "mono_ns", "cpu", "comm")
    assert found == [(row[1], row[2], row[5]) for row in expected]
    assert len(found) == 300


def test_losses_have_a_place_or_an_event(tmp_path: Path, stack: ExitStack) -> None:
    """The number that the kernel counted for an event is not added to those that rings tell."""
    path = bpf_segments.write(
        tmp_path,
        chunk(lost(TIME_NS, 4, cpu=1), lost(TIME_NS + 1, 2), sample(TIME_NS + 2, exited(1))),
        lost_samples={bpf_segments.IDS[EXITS][0]: 9},
    )
    tables = tables_in(stack, path)
    found = rows_of(tables["losses"], "mono_ns", "cpu", "events", "event", "how", "session")
    rest = ("lost", segments.IDENTITY.session)
    assert found == [
        (TIME_NS, 1, 4, None, *rest),
        (TIME_NS + 1, 0, 2, None, *rest),
        (None, None, 9, EXITS, *rest),
    ]
    assert _found(tables["samples"]).lost == 9


def test_notes_of_losses_that_the_file_before_counted_are_not_added(
    tmp_path: Path, stack: ExitStack
) -> None:
    """A ring has room for a note later than the kernel counts, in the next segment perhaps."""
    path = bpf_segments.write(tmp_path, chunk(lost(TIME_NS, 4, cpu=1), _exit(1)), lost_samples={})
    tables = tables_in(stack, path)
    assert rows_of(tables["losses"], "events") == [(4,)]
    assert _found(tables["samples"]).lost == 0


def test_damage_is_a_row_and_the_next_chunk_is_read(tmp_path: Path, stack: ExitStack) -> None:
    """Records of an impossible size, samples of nobody, and parts that do not fit."""
    sound = [_exit(at) for at in range(1, 7)]
    stranger = bytearray(sound[0])
    stranger[8:16] = struct.pack("<Q", 999)
    too_long = bytearray(sound[1])
    too_long[-16:-12] = struct.pack("<I", 500)
    assert struct.unpack_from("<I", sound[1], len(sound[1]) - 16) == (12,)
    path = bpf_segments.write(
        tmp_path,
        chunk(bytes(stranger), bytes(too_long), sound[2]),
        chunk(sound[3], sound[0], sound[4]),
        chunk(sound[5]),
    )
    data = bytearray(path.read_bytes())
    at = data.index(sound[0])
    data[at + 6 : at + 8] = struct.pack("<H", 4)
    path.write_bytes(data)
    tables = tables_in(stack, path)
    assert [row[0] for row in rows_of(tables[EXITS], "event_pid")] == [3, 4, 6]
    damage = rows_of(tables["damage"], "byte", "reason")
    start = damage[0][0]
    assert damage == [
        (start, "unknown_id"),
        (start + len(stranger), "short_event"),
        (start + 4096 + len(sound[3]), "bad_size"),
    ]
    assert _found(tables[EXITS]).damaged == 3


def test_tasks_and_mappings(tmp_path: Path, stack: ExitStack) -> None:
    """Names, forks and exits in one table; mappings with an inode, a build-id, or neither."""
    at = SampleId(70, 70, 40, id=bpf_segments.DUMMY_ID, cpu=1)
    mapped: dict[str, Any] = {"pid": 70, "tid": 71, "addr": 4096, "length": 8192, "pgoff": 1}
    records = (
        Exit(71, 70, 71, 70, 40),
        Mmap2(**mapped, prot=5, flags=2, filename=b"/bin/a", major=8, minor=1, inode=99),
        Mmap2(**mapped, prot=5, flags=2, filename=b"/bin/b", build_id=bytes(range(20))),
        Mmap(**mapped, filename=b"[kernel.kallsyms]_text"),
    )
    path = _bare(
        tmp_path / "perf.data",
        comm(10, 70, b"shell"),
        fork(20, 70, 71),
        *(encode(record, bpf_segments.DUMMY, at) for record in records),
    )
    tables = tables_in(stack, path)
    assert rows_of(
        tables["tasks"], "mono_ns", "pid", "tid", "comm", "what", "parent_pid", "parent_tid"
    ) == [
        (10, 70, 70, "shell", "comm", None, None),
        (20, 71, 71, "shell", "fork", 70, 70),
        (40, 71, 71, "shell", "exit", 70, 70),
    ]
    names = ("cpu", "tid", "address", "length", "file_offset", "prot", "inode", "build_id", "file")
    common = (1, 71, 4096, 8192, 1)
    assert rows_of(tables["mappings"], *names) == [
        (*common, 5, 99, None, "/bin/a"),
        (*common, 5, None, bytes(range(20)), "/bin/b"),
        (*common, None, None, None, "[kernel.kallsyms]_text"),
    ]


def test_samples_and_events_have_their_cgroups(tmp_path: Path, stack: ExitStack) -> None:
    """Null where none was recorded, and of an id that nothing tells a path of."""
    placed = profiles.write_switches(
        tmp_path / "placed",
        profiles.switch(1, 50, 0, cgroup=70),
        profiles.switch(2, 51, 0, (7, 8), cgroup=71),
        profiles.cgroup(0, 70, b"/a"),
        attr=profiles.SWITCH_CGROUP_ATTR,
    )
    bare = profiles.write_switches(tmp_path / "bare", profiles.switch(3, 52, 0))
    tables = tables_in(stack, placed, bare)
    for name in ("samples", "sched_switch"):
        assert rows_of(tables[name], "tid", "cgroup") == [(50, "/a"), (51, None), (52, None)]
    assert "cgroup" not in tables_in(stack, bare)["sched_switch"].columns


def test_what_aux_rings_took(tmp_path: Path, stack: ExitStack) -> None:
    """The task is that of the record's end, and of a start the one that it is about."""
    at = SampleId(70, 71, 40, id=bpf_segments.DUMMY_ID, cpu=1)
    told = (Aux(4096, 512, 5), ItraceStart(80, 81))
    path = _bare(
        tmp_path / "perf.data",
        comm(10, 71, b"shell"),
        *(encode_aux(record, bpf_segments.DUMMY, at) for record in told),
    )
    names = ("mono_ns", "cpu", "pid", "tid", "comm", "what", "offset", "bytes", "flags")
    assert rows_of(tables_in(stack, path)["aux"], *names) == [
        (40, 1, 70, 71, "shell", "data", 4096, 512, 5),
        (40, 1, 80, 81, None, "start", None, None, None),
    ]


def test_a_file_without_a_manifest_may_tell_the_time(tmp_path: Path, stack: ExitStack) -> None:
    """By the two clocks in its head, as `perf record -k` writes them."""
    one = _exit(TIME_NS + 5)
    clocks = Features(clock_data=ClockData(1, 2 * TIME_NS, TIME_NS))
    timed = _bare(tmp_path / "timed", one, features=clocks)
    timeless = _bare(tmp_path / "timeless", one)
    table = tables_in(stack, timed, timeless)[EXITS]
    assert [str(row[0]) for row in rows_of(table, "time")] == ["1970-01-01 00:00:02", "None"]
    scan = table.scan(["cpu"], Window(since_ns=2 * TIME_NS))
    assert [file.path for file in scan.untimed] == [timeless]


def test_a_file_that_its_recorder_left_is_read_to_its_end(
    tmp_path: Path, stack: ExitStack
) -> None:
    """The header of a killed perf tells of no records."""
    path = _bare(tmp_path / "perf.data", *(_exit(at) for at in (1, 2)))
    data = bytearray(path.read_bytes())
    data[48:56] = bytes(8)
    path.write_bytes(data[:-20])  # within the last record
    tables = tables_in(stack, path)
    assert rows_of(tables["samples"], "mono_ns") == [(1,)]
    assert rows_of(tables["damage"], "reason") == [("past_head",)]
    head = bytearray(data)
    head[16:24] = bytes(8)
    path.write_bytes(head)
    with pytest.raises(SinkError):
        tables_in(stack, path)


def test_tables_of_all_files_exist_without_a_file(tmp_path: Path, stack: ExitStack) -> None:
    """A statement about samples is right where there are none."""
    path = tmp_path / "trace.dat"
    write_trace(path, {0: [switches(1000, 5)]})
    tables = tables_in(stack, path)
    for name in ("samples", "tasks", "mappings"):
        assert rows_of(tables[name]) == []
