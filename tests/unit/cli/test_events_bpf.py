# SPDX-License-Identifier: Apache-2.0
"""`events` of perf.data segments: what BPF programs submitted, in tables, as data, counted."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import pytest

from collectord import cli
from collectord.cli import events
from collectord.errors import UnknownEvent, UsageError
from collectord.programs.program_manifest import ColumnConfig
from collectord.sink.manifest import EventLayout
from tests.support import bpf_segments as support
from tests.support import segments as perf_support
from tests.support import trace_segments
from tests.support.asking import objects, shown
from tests.support.bpf_segments import (
    EXITS,
    LAYOUTS,
    OPENS,
    S_NS,
    chunk,
    comm,
    exited,
    lost,
    opened,
    sample,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

ENOENT: Final = -2
# Where events are lost beside full rings.
ELSEWHERE: Final = (
    "program/recursion",
    "program/dropped",
    "kernel_ring/dropped",
    "staging/quarantined",
    "staging/dropped",
    "sink/disk_full",
    "sink/dropped",
)
CHUNKS: Final = (
    chunk(
        comm(S_NS, 500, b"five\x1b[2J"),
        sample(7 * S_NS, opened(5)),
        sample(9 * S_NS + 1, opened(123456, b"/x/\x1b\xff", result=ENOENT, took=2_500_000)),
    ),
    chunk(
        sample(8 * S_NS, exited(5, -1), event=EXITS, cpu=1, tid=0),
        lost(10 * S_NS, 3, cpu=1),
        sample(10 * S_NS, opened(6, result=0, flags=7), cpu=1, tid=77),
        ends_round=True,
    ),
)


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    """Return a sealed segment with the events of two programs, and losses."""
    return support.write(tmp_path, *CHUNKS, lost_samples={11: 1, 12: 2})


def test_table_of_one_event(segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It has the program's columns, wider from where a value needs it; text is escaped."""
    assert shown(capsys, "-e", OPENS, segment) == [
        "            TIME     PID  COMM              RESULT     TOOK  PATH",
        "     7.000000000       5  task 5                 3    1.5us  /etc/hosts",
        r"     9.000000001  123456  task 123456       ENOENT    2.5ms  /x/\x1b\xff",
        "CPU 1: 3 events lost",
        "    10.000000000       6  task 6                 0    1.5us  /etc/hosts",
        "opensnoop: 3 events lost in this segment",
    ]
    wide = [sample(S_NS, opened(12345678, took=10**9)), sample(2 * S_NS, opened(9))]
    path = support.write(segment.parent / "wide", chunk(*wide, ends_round=True), events=(OPENS,))
    titles, *rows = shown(capsys, path)
    assert titles.index("COMM") == 26
    assert [row.index("task") for row in rows] == [28, 28]


def test_lines_of_several_events(segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each record says what it is of; a program without columns has all its fields shown."""
    first, second, *_ = shown(capsys, segment)
    assert first == (
        r"     7.000000000 [000] five\x1b[2J-500        opensnoop: "
        "pid=5 comm=task 5 result=3 took=1.5us path=/etc/hosts"
    )
    assert second == "     8.000000000 [001] <idle>-0               exits:     pid=5 code=-1"


def test_json(segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All fields are there by name, as they are; losses are objects of their own."""
    found = objects(capsys, segment)
    assert found[2] == {
        "time_ns": 9 * S_NS + 1,
        "cpu": 0,
        "pid": 500,
        "tid": 500,
        "comm": "five\x1b[2J",
        "event": OPENS,
        "fields": {
            "pid": 123456,
            "result": ENOENT,
            "took": 2_500_000,
            "comm": "task 123456",
            "path": "/x/\x1b\\xff",
            "flags": 0,
        },
    }
    assert found[3] == {"time_ns": 10 * S_NS, "cpu": 1, "lost": 3}
    assert found[5] == {"segment_lost": {OPENS: 3}}
    assert [one.get("comm") for one in found if "event" in one] == [
        "five\x1b[2J", "<idle>", "five\x1b[2J", "<...>",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "count"),
    [
        (["-e", OPENS], 3),
        (["-e", "open*", "-e", "ex*"], 4),
        (["--filter", "pid == 5"], 2),
        (["--filter", "result < 0"], 1),
        (["--filter", "flags & 4 && result == 0"], 1),
        (["--filter", 'comm ~ "task [56]" && path == /etc/hosts'], 2),
        (["-e", EXITS, "--filter", "code == -1"], 1),
        (["--filter", "pid == 0"], 0),
    ],
)
def test_choice(
    segment: Path, capsys: pytest.CaptureFixture[str], words: list[str], count: int
) -> None:
    """-e takes globs of names, --filter compares fields as they are, not as they are shown."""
    assert sum("event" in one for one in objects(capsys, *words, segment)) == count
    counted = json.loads("\n".join(shown(capsys, "--count", "--json", *words, segment)))
    assert sum(row["count"] for row in counted["events"]) == count


@pytest.mark.parametrize(
    ("words", "kind", "message"),
    [
        (["-e", "opensnop"], UnknownEvent, 'did you mean "opensnoop"?'),
        (["--filter", "flag == 1"], UsageError, 'did you mean "flags"?'),
        (["--filter", "path > 1"], UsageError, "one of == != ~"),
        (["-e", EXITS, "--filter", "path == x"], UsageError, "no event has a field"),
        (["--count", "-f"], UsageError, "not allowed with"),
    ],
)
def test_choice_that_fits_nothing(
    segment: Path, words: list[str], kind: type[UsageError], message: str
) -> None:
    """It is refused before any output."""
    with pytest.raises(kind) as caught:
        events.run([*words, str(segment)])
    assert message in str(caught.value)


def test_count(segment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Losses are those that were counted for the seal; where none was, those that rings told."""
    assert [line.split() for line in shown(capsys, "--count", segment, segment)] == [
        ["EVENT", "COUNT"],
        ["opensnoop", "6"],
        ["exits", "2"],
        ["opensnoop:", "6", "events", "lost"],
    ]
    assert json.loads("\n".join(shown(capsys, "--count", "--json", segment))) == {
        "events": [
            {"event": OPENS, "count": 3, "cpus": {"0": 2, "1": 1}, "lost": 3},
            {"event": EXITS, "count": 1, "cpus": {"1": 1}, "lost": 0},
        ],
        "lost": {},
        "segments_lost": dict.fromkeys(ELSEWHERE, 0),
    }
    writer = support.Writer(tmp_path / "running")
    writer.write(*CHUNKS)
    counted = json.loads("\n".join(shown(capsys, "--count", "--json", writer.path, segment)))
    writer.sink.close()
    assert counted["lost"] == {"1": 3}
    assert [row["lost"] for row in counted["events"]] == [None, None]
    assert counted["segments_lost"] == dict.fromkeys(ELSEWHERE)


def sealed(
    writer: support.Writer,
    total: Mapping[str, int],
    *,
    final: bool = True,
    lost_samples: Mapping[int, int] | None = None,
) -> Path:
    """Seal a segment with these losses since the session's start in its ledger."""
    ledger = perf_support.LEDGER | {"lost": total}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(perf_support, "LEDGER", ledger)
        return writer.seal(final=final, lost_samples=lost_samples)


def test_count_of_losses_before_the_rings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each segment has those of its own time, by stage; the rings' are told with their events."""
    first = support.Writer(tmp_path)
    second = support.Writer(tmp_path, first.sink, token=2)
    first.write(*CHUNKS)
    second.write(*CHUNKS)
    total = {"program/recursion": 4, "program/dropped": 0, "kernel_ring/ring_full": 3}
    one = sealed(first, total, final=False, lost_samples={11: 3})
    total = {"program/recursion": 5, "program/dropped": 2, "kernel_ring/ring_full": 3}
    two = sealed(second, total)
    first.sink.close()
    assert [line.split() for line in shown(capsys, "--count", one)][3:] == [
        ["opensnoop:", "3", "events", "lost"],
        ["program/recursion:", "4", "events", "lost"],
    ]
    assert [line.split() for line in shown(capsys, "--count", two)][3:] == [
        ["program/recursion:", "1", "event", "lost"],
        ["program/dropped:", "2", "events", "lost"],
    ]
    counted = json.loads("\n".join(shown(capsys, "--count", "--json", one, two)))
    assert counted["segments_lost"] == dict.fromkeys(ELSEWHERE, 0) | {
        "program/recursion": 5,
        "program/dropped": 2,
    }
    one.with_name(one.name + ".json").unlink()
    counted = json.loads("\n".join(shown(capsys, "--count", "--json", two)))
    assert counted["segments_lost"] == dict.fromkeys(ELSEWHERE)


def test_count_of_losses_of_another_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are none of this one's; and of a kernel that tells no event's they are by stage."""
    for total in (9, 2):
        writer = support.Writer(tmp_path)
        writer.write(*CHUNKS)
        path = sealed(writer, {"program/dropped": total, "kernel_ring/ring_full": total})
        writer.sink.close()
    assert [line.split() for line in shown(capsys, "--count", path)][3:] == [
        ["program/dropped:", "2", "events", "lost"],
        ["kernel_ring/ring_full:", "2", "events", "lost"],
    ]


def test_event_of_which_all_was_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Such an event is counted as well."""
    path = support.write(tmp_path, chunk(ends_round=True), lost_samples={21: 1})
    assert [line.split() for line in shown(capsys, "--count", path)] == [
        ["EVENT", "COUNT"],
        ["exits", "0"],
        ["exits:", "1", "event", "lost"],
    ]


def test_formats_together(
    segment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Segments of both formats are read one after the other, and chosen from together."""
    trace = trace_segments.orphan(tmp_path / "trace")
    assert len(objects(capsys, trace, segment)) == 6
    with pytest.raises(UnknownEvent, match="no event 'nothing'"):
        events.run(["-e", "nothing", str(trace), str(segment)])


def test_running_segment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its whole records are shown, using the manifest that it has."""
    writer = support.Writer(tmp_path, events=(EXITS,))
    writer.write(chunk(sample(S_NS, exited(5), event=EXITS), ends_round=True))
    writer.tear(chunk(sample(S_NS, exited(6), event=EXITS))[:40])
    titles, row = shown(capsys, writer.path)
    assert titles.split() == ["TIME", "PID", "CODE"]
    assert row.split() == ["1.000000000", "5", "0"]
    writer.sink.close()


def test_segment_without_its_manifest(segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Payloads are shown as bytes, with the reason."""
    segment.with_name(segment.name + ".json").unlink()
    assert events.run(["-e", EXITS, str(segment)]) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines()[0].split() == ["TIME", "DATA"]
    assert captured.out.splitlines()[1].split()[1].startswith(exited(5, -1).hex())
    assert captured.err == (
        f"collectord: {segment}: no manifest describes its events; they are shown as bytes\n"
    )
    with pytest.raises(UsageError, match="no event has a field 'pid'"):
        events.run(["--filter", "pid == 5", str(segment)])


def test_damage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Readable events are shown; stderr and the status report the rest."""
    path = support.write(
        tmp_path,
        chunk(sample(1, opened(1)), sample(2, exited(2)[:4], event=EXITS), sample(3, opened(3))),
        chunk(sample(4, opened(4)), ends_round=True),
    )
    whole = path.read_bytes()
    at = whole.index(sample(3, opened(3)))
    short = whole.index(sample(2, exited(2)[:4], event=EXITS))
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes(8))
    assert events.run([str(path)]) == cli.EXIT_FAILURE
    captured = capsys.readouterr()
    assert [line.split()[4] for line in captured.out.splitlines()] == ["pid=1", "pid=4"]
    assert captured.err.splitlines() == [
        f"collectord: {path}: bad_size at byte {at}, skipped up to the next chunk",
        f"collectord: {path}: short_event at byte {short}, a record of exits",
    ]


def test_segments_with_other_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each is shown by its own manifest, below its own titles."""
    code = ColumnConfig(field="code", title="STATUS")
    described = EventLayout(program=EXITS, layout=LAYOUTS[EXITS], columns=(code,))
    one = chunk(sample(S_NS, exited(5, -1), event=EXITS), ends_round=True)
    plain = support.write(tmp_path / "a", one, events=(EXITS,))
    other = support.write(tmp_path / "b", one, events=(EXITS,), layouts={EXITS: described})
    assert [line.split() for line in shown(capsys, plain, other)] == [
        ["TIME", "PID", "CODE"],
        ["1.000000000", "5", "-1"],
        ["TIME", "STATUS"],
        ["1.000000000", "-1"],
    ]


def test_columns_of_another_struct(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A column without its field, and a way to show it that nobody knows, break nothing."""
    columns = (
        ColumnConfig(field="gone", title="GONE"),
        ColumnConfig(field="pid", title="P\x1b", show="later"),
    )
    described = EventLayout(program=EXITS, layout=LAYOUTS[EXITS], columns=columns)
    path = support.write(
        tmp_path,
        chunk(sample(S_NS, exited(5), event=EXITS), ends_round=True),
        events=(EXITS,),
        layouts={EXITS: described},
    )
    titles, row = shown(capsys, path)
    assert titles.split() == ["TIME", "GONE", r"P\x1b"]
    assert row.split() == ["1.000000000", "?", "5"]
