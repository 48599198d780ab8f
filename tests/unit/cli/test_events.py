# SPDX-License-Identifier: Apache-2.0
"""`events`: the records of trace.dat segments as text, as JSON and as numbers."""

from __future__ import annotations

import csv
import json
import os
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import pytest

from collectord import cli
from collectord.cli import events
from collectord.codec.ftrace_format import parse_format
from collectord.errors import SinkError, UnknownEvent, UsageError
from collectord.sink.trace_file import read_head
from tests.support import trace_segments as support
from tests.support.asking import objects, shown
from tests.support.ftrace_pages import event, page
from tests.support.golden import GOLDEN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from collectord.codec.trace_dat_head import Metadata

ROOT: Final = Path(__file__).resolve().parents[3]
FORMATS: Final = {
    name: (GOLDEN / f"{name}.format").read_bytes()
    for name in ("sched_switch", "sched_process_exec", "sys_enter")
}
IDS: Final = {name: parse_format(text).id for name, text in FORMATS.items()}
# Its `id` is text.
ODD: Final = (
    FORMATS["sys_enter"]
    .replace(b"name: sys_enter", b"name: odd")
    .replace(b"ID: %d\n" % IDS["sys_enter"], b"ID: 60000\n")
    .replace(b"long id;", b"char id[8];")
)
METADATA: Final = replace(
    support.METADATA,
    events={
        "sched": [FORMATS["sched_switch"], FORMATS["sched_process_exec"]],
        "raw_syscalls": [FORMATS["sys_enter"], ODD],
    },
)
S_NS: Final = 1_000_000_000


def _common(name: str, pid: int) -> bytes:
    return struct.pack("<HBBi", IDS[name], 0, 0, pid)


def switch(pid: int, to: int, comm: bytes = b"a task") -> bytes:
    """Return a switch of `pid` to another thread, 1 us after what stands before it."""
    body = struct.pack("<16siiq16sii", comm, pid, 120, 1, b"next", to, 100)
    return event(_common("sched_switch", pid) + body, 1000)


def call(pid: int, number: int) -> bytes:
    """Return a system call."""
    body = struct.pack("<q6Q", number, 1, 2, 3, 4, 5, 0xFFFF_8000_0000_0000)
    return event(_common("sys_enter", pid) + body, 1000)


def exec_(pid: int, path: bytes) -> bytes:
    """Return an exec of a program."""
    body = struct.pack("<Iii", (len(path) + 1) << 16 | 20, pid, pid) + path + b"\0"
    return event(_common("sched_process_exec", pid) + body, 1000)


# CPU 1's page begins between the two of CPU 0.
PAGES: Final = {
    10: [
        page(7 * S_NS, switch(0, 5), call(5, 39)),
        page(9 * S_NS, switch(5, 0), call(6, 39), lost=3),
    ],
    11: [page(8 * S_NS, exec_(5, b"/bin/\x1b[2J"), call(5, -1), call(77, 39))],
}


def write(
    directory: Path,
    pages: Mapping[int, Sequence[bytes]],
    ledger: Mapping[str, int] = MappingProxyType({}),
    metadata: Metadata = METADATA,
) -> Path:
    """A sealed segment that holds these pages, by ring; its ledger says this beside the usual."""
    comms = {5: b"five", 6: b"si\x7f\xffx"}
    sink = support.make_sink(directory, metadata=metadata, comms=lambda: comms)
    segment = sink.next_segment(1, support.opening())
    for ring, written in pages.items():
        support.write_pages(segment, ring, written)
    closing = support.closing(ledger={**support.LEDGER, **ledger})
    info = sink.seal(segment, support.closed(segment, pages), closing)
    assert info is not None
    return info.path


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    """Return a sealed segment of two CPUs, with a loss."""
    return write(tmp_path, PAGES)


def test_text(segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """CPUs are merged by time; each event is a line, each loss one before what came after it."""
    call = "(1, 2, 3, 4, 5, ffff800000000000)"
    assert shown(capsys, "-e", "raw*,*exec", segment) == [
        f"     7.000002000 [000] five-5                 raw_syscalls:sys_enter:   NR 39 {call}",
        (
            r"     8.000001000 [001] five-5                 sched:sched_process_exec: "
            r"filename=/bin/\x1b[2J pid=5 old_pid=5"
        ),
        f"     8.000002000 [001] five-5                 raw_syscalls:sys_enter:   NR -1 {call}",
        f"     8.000003000 [001] <...>-77               raw_syscalls:sys_enter:   NR 39 {call}",
        "CPU 0: 3 events lost",
        rf"     9.000002000 [000] si\x7f\xffx-6          raw_syscalls:sys_enter:   NR 39 {call}",
    ]
    first, *_ = shown(capsys, segment)
    assert first == (
        "     7.000001000 [000] <idle>-0               sched:sched_switch:       prev_comm=a task "
        "prev_pid=0 prev_prio=120 prev_state=S ==> next_comm=next next_pid=5 next_prio=100"
    )


def test_json(segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each line is an object, with the fields that all events share and the event's own."""
    found = objects(capsys, segment)
    assert [one["time_ns"] for one in found] == sorted(one["time_ns"] for one in found)
    assert found[3] == {
        "time_ns": 8 * S_NS + 2000,
        "cpu": 1,
        "pid": 5,
        "comm": "five",
        "event": "raw_syscalls:sys_enter",
        "fields": {
            "common_type": IDS["sys_enter"],
            "common_flags": 0,
            "common_preempt_count": 0,
            "common_pid": 5,
            "id": -1,
            "args": [1, 2, 3, 4, 5, 0xFFFF_8000_0000_0000],
        },
    }
    assert found[5] == {"time_ns": 9 * S_NS, "cpu": 0, "lost": 3}
    assert found[2]["fields"]["filename"] == "/bin/\x1b[2J"


@pytest.mark.parametrize(
    ("words", "count"),
    [
        (["-e", "raw_syscalls:*"], 4),
        (["-e", "sys_enter"], 4),
        (["-e", "sched_switch", "-e", "*exec"], 3),
        (["-e", "sched_switch,*exec"], 3),
        (["--filter", "id == 39"], 3),
        (["--filter", "id == 39 && common_pid > 5"], 2),
        (["--filter", "id > 38"], 3),
        (["--filter", "pid == 5"], 1),
        (["--filter", "common_pid == 5"], 4),
        (["-e", "sched:*", "--filter", "filename ~ /bin/*"], 1),
        (["--filter", "prev_comm == nobody"], 0),
    ],
)
def test_choice(
    segment: Path, capsys: pytest.CaptureFixture[str], words: list[str], count: int
) -> None:
    """-e takes globs of names, --filter what fits; the losses are shown in any case."""
    found = objects(capsys, *words, segment)
    assert sum("event" in one for one in found) == count
    assert [one["lost"] for one in found if "lost" in one] == [3]
    counted = json.loads("\n".join(shown(capsys, "--count", "--json", *words, segment)))
    assert sum(row["count"] for row in counted["events"]) == count


def test_count(segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The events with their numbers over all segments, the most frequent first, and the losses."""
    assert [line.split() for line in shown(capsys, "--count", segment, segment)] == [
        ["EVENT", "COUNT"],
        ["raw_syscalls:sys_enter", "8"],
        ["sched:sched_switch", "4"],
        ["sched:sched_process_exec", "2"],
        ["CPU", "0:", "6", "events", "lost"],
    ]
    assert json.loads("\n".join(shown(capsys, "--count", "--json", segment))) == {
        "events": [
            {"event": "raw_syscalls:sys_enter", "count": 4, "cpus": {"0": 2, "1": 2}},
            {"event": "sched:sched_switch", "count": 2, "cpus": {"0": 2}},
            {"event": "sched:sched_process_exec", "count": 1, "cpus": {"1": 1}},
        ],
        "lost": {"0": 3},
    }


def test_csv(segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each record is a line with the fields of all events that are shown; stderr has losses."""
    assert events.run(["-o", "csv", "-e", "raw_syscalls:*,*exec", str(segment)]) == 0
    captured = capsys.readouterr()
    titles, *rows = csv.reader(captured.out.splitlines())
    assert titles == [
        *("time_ns", "cpu", "pid", "tid", "comm", "event"),
        *("filename", "event_pid", "old_pid", "id", "args"),
    ]
    args = "[1,2,3,4,5,18446603336221196288]"
    assert rows[0] == [
        *("7000002000", "0", "", "5", "five", "raw_syscalls:sys_enter"),
        *("", "", "", "39", args),
    ]
    assert rows[1][5:] == ["sched:sched_process_exec", "/bin/\x1b[2J", "5", "5", "", ""]
    assert len(rows) == 5
    assert captured.err == f"collectord: {segment}: CPU 0: 3 events lost\n"


@pytest.mark.parametrize(
    ("words", "stamps"),
    [
        (["--since", "1970-01-01T00:00:08.000003Z"], [8000003000, 9000001000, 9000002000]),
        (["--until", "1970-01-01T00:00:07.000001Z"], [7000001000]),
        (["--since", "1970-01-01T00:00:08Z", "-n", "2"], [8000001000, 8000002000]),
        (["-n", "0"], []),
        (["--since", "-1m"], []),
    ],
)  # fmt: skip
def test_part(
    segment: Path, capsys: pytest.CaptureFixture[str], words: list[str], stamps: list[int]
) -> None:
    """Only records of the time, and as many as are asked for, are printed; the time is UTC."""
    found = objects(capsys, *words, segment)
    assert [one["time_ns"] for one in found if "event" in one] == stamps


def test_number_of_several_files(segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The number is that of all files together, losses included."""
    assert len(objects(capsys, "-n", "10", segment, segment)) == 10


def test_time_that_nothing_tells(segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file without its manifest is left out of a window, with the reason."""
    segment.with_name(segment.name + ".json").unlink()
    assert events.run(["--since", "-1m", str(segment)]) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("was left out")) == ("", 1)


def test_format_that_would_reach_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A format of a file is foreign text: its control characters and odd bytes are visible."""
    text = FORMATS["sys_enter"].replace(b'"NR %ld', b'"\x1b[2J\xff\xe2\x80\xae%ld')
    metadata = replace(METADATA, events={"raw\x1b": [text]})
    segment = write(tmp_path, {10: [page(S_NS, call(5, 39))]}, metadata=metadata)
    (line,) = shown(capsys, segment)
    assert line.split("five-5", 1)[1].split(" (")[0].split() == [
        r"raw\x1b:sys_enter:",
        r"\x1b[2J\xff\u202e39",
    ]


def test_loss_of_unknown_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A number that no page tells is not made up, in a sum neither."""
    pages = [page(S_NS, call(5, 1), lost=1), page(2 * S_NS, call(5, 1), lost=None)]
    segment = write(tmp_path, {10: pages})
    lines = [line for line in shown(capsys, segment) if line.startswith("CPU")]
    assert lines == ["CPU 0: 1 event lost", "CPU 0: events lost"]
    assert shown(capsys, "--count", segment)[-1] == "CPU 0: events lost"


@pytest.mark.parametrize(("overwritten", "how"), [(4, "overwritten"), (0, "lost")])
def test_a_flight_recorders_wrap_is_no_loss(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], overwritten: int, how: str
) -> None:
    """Overwritten events of a flight recorder are not lost, as the ledger beside it says."""
    pages = [page(S_NS, call(5, 1), lost=3), page(2 * S_NS, call(5, 1), lost=None)]
    segment = write(tmp_path, {10: pages}, {"overwritten": overwritten})
    told = [line for line in shown(capsys, segment) if line.startswith("CPU")]
    assert told == [f"CPU 0: 3 events {how}", f"CPU 0: events {how}"]
    assert [one[how] for one in objects(capsys, segment) if how in one] == [3, None]
    count = json.loads("\n".join(shown(capsys, "--count", "--json", segment)))
    assert count["lost"] == ({} if overwritten else {"0": None})


def test_what_slots_of_programs_lack_is_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their records tell no wrap: what was overwritten is in the ledger alone."""
    segment = write(tmp_path, {10: [page(S_NS, call(5, 1), lost=3)]}, {"overwritten": 4})
    manifest = segment.with_name(f"{segment.name}.json")
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "source": "bpf"}))
    told = [line for line in shown(capsys, segment) if line.startswith("CPU")]
    assert told == ["CPU 0: 3 events lost"]


def test_event_without_a_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is shown with its bytes, unless particular events are asked for."""
    strange = event(struct.pack("<HBBiI", 9999, 0, 0, 5, 0x01020304), 1000)
    segment = write(tmp_path, {10: [page(S_NS, strange, call(5, 1), event(b"", long=True))]})
    first, _, empty = shown(capsys, segment)
    assert first.endswith("five-5                 unknown:9999:             data=04030201")
    assert empty.endswith("<...>-?                unknown:0:                data=?")
    assert len(shown(capsys, "-e", "*", segment)) == 1


def test_segment_that_is_being_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An unsealed segment is shown as far as the head claims, and no further."""
    partial = support.orphan(tmp_path)
    assert shown(capsys, partial) == []
    with partial.open("r+b") as file:
        offset, data = read_head(file.fileno()).size_patch(0, support.PAGE_BYTES)
        file.seek(offset)
        file.write(data)
    assert len(shown(capsys, partial)) == support.PER_PAGE


def test_damaged_page(segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Readable events are shown; stderr and the status report the damage."""
    with segment.open("r+b") as file:
        at = read_head(file.fileno()).extents[0].offset + 16
        file.seek(at + 4 + 64)  # behind the first event
        file.write(bytes(4) + b"\1\0\0\0")
    assert events.run([str(segment)]) == cli.EXIT_FAILURE
    captured = capsys.readouterr()
    assert captured.out.count("\n") == 7
    assert captured.err.count("\n") == 1
    assert f"{segment}: bad_length at byte {at + 4 + 64}, of CPU 0" in captured.err


def test_cut_file(segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A copy that is shorter than it claims ends with one complaint for each CPU."""
    with segment.open("rb") as file:
        at = read_head(file.fileno()).extents[0].offset
    os.truncate(segment, at + 100)
    assert events.run([str(segment)]) == cli.EXIT_FAILURE
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 2)


@pytest.mark.parametrize(
    ("words", "kind", "message"),
    [
        (["-e", "sched_swich"], UnknownEvent, 'did you mean "sched_switch"?'),
        (["-e", "raw_syscals:*"], UnknownEvent, "in the segments; "),
        (["--filter", "prev_com == 1"], UsageError, 'did you mean "prev_comm"?'),
        (["-e", "sys_enter", "--filter", "prev_pid == 1"], UsageError, "no event has a field"),
        (["--filter", "id == 1 && prev_pid == 1"], UsageError, "no event has all of id, prev_pid"),
        (["--filter", "prev_comm > 1"], UsageError, "one of == != ~"),
        (["--filter", "prev_pid = 1"], UsageError, "one of == !="),
        ([], UsageError, "required: SEGMENT"),
    ],
)
def test_choice_that_fits_nothing(
    segment: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    kind: type[UsageError],
    message: str,
) -> None:
    """A name, a field or an operator that the segments lack is refused before any output."""
    with pytest.raises(kind) as caught:
        events.run([*words, *([str(segment)] if words else [])])
    assert message in str(caught.value)
    assert capsys.readouterr().out == ""


def test_files_without_events(tmp_path: Path, segment: Path) -> None:
    """Each is refused in one line, even behind a good segment."""
    text = tmp_path / "text"
    text.write_text("no trace")
    with pytest.raises(UsageError, match=r"neither trace\.dat nor perf\.data"):
        events.run([str(segment), str(text)])
    cut = tmp_path / "cut.dat"
    with segment.open("rb") as file:
        cut.write_bytes(file.read(3000))
    with pytest.raises(SinkError, match="does not have the layout of a segment"):
        events.run([str(cut)])
    for path, why in ((tmp_path / "none", "cannot read the segment"), (tmp_path, "not a regular")):
        with pytest.raises(SinkError, match=why):
            events.run([str(path)])


@pytest.mark.parametrize("words", [[], ["--json"], ["--count"]])
def test_reader_that_leaves(segment: Path, words: list[str]) -> None:
    """A closed pipe on stdout ends the program without a word."""
    read, write_ = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "collectord", "events", *words, segment],
            stdout=write_,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            check=False,
        )
    finally:
        os.close(write_)
    assert (done.returncode, done.stderr) == (cli.EXIT_FAILURE, b"")
