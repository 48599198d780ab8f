# SPDX-License-Identifier: Apache-2.0
"""Records of blktrace as a table, and as `events` shows them."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Final

import pytest

from collectord import cli
from collectord.codec import relay_packed
from collectord.codec.blktrace import Action
from collectord.kernel.linux import LinuxKernel
from collectord.reader.event_file import Window
from collectord.reader.relay_events import files_of
from tests.support.query_tables import rows_of, tables_in
from tests.support.relay_records import SECOND_NS, note, record
from tests.support.relay_segments import DATA, make_sink, seal

if TYPE_CHECKING:
    from contextlib import ExitStack
    from pathlib import Path

_FRAME_BYTES: Final = 1 << 19
COLUMNS: Final = ("mono_ns", "cpu", "tid", "comm", "action", "rwbs", "sector", "bytes", "error")


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """Return a set of two files: its name without the format."""
    first = note("dd", pid=5) + record(1, pid=5, time_ns=3 * SECOND_NS, cpu=0)
    second = record(1, pid=5, time_ns=2 * SECOND_NS, cpu=1, what=8, error=0xFFFB)
    (tmp_path / "set.blktrace.0").write_bytes(first)
    (tmp_path / "set.blktrace.1").write_bytes(second)
    return tmp_path / "set"


def _files(base: Path) -> list[Path]:
    return [*files_of(base).values()]


def shown(capsys: pytest.CaptureFixture[str], *words: str | Path, status: int = 0) -> list[str]:
    """Lines that `collectord events WORDS...` prints."""
    assert cli.main(LinuxKernel, ["events", *map(str, words)]) == status
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("request_", "letters"),
    [
        ((7, ("write", "issue"), 4096), "issue W"),
        ((8, ("read", "complete", "sync"), 512), "complete RS"),
        ((1, ("flush", "write", "fua", "queue"), 512), "queue FWF"),
        ((8, ("complete",), 0), "complete N"),
        ((15, ("discard", "write"), 512), "remap D"),
        ((2, ("read", "ahead", "meta"), 512), "back_merge RAM"),
        ((99, ("read",), 512), "action_31 R"),
    ],
)
def test_letters_are_blkparses(
    tmp_path: Path, stack: ExitStack, request_: tuple[int, tuple[str, ...], int], letters: str
) -> None:
    """They stand for the kind of request."""
    path = tmp_path / "a.blktrace.0"
    what, classes, size = request_
    path.write_bytes(record(1, what=what, classes=tuple(map(Action, classes)), size=size))
    rows = rows_of(tables_in(stack, path)["blktrace"], "action", "rwbs")
    assert [" ".join(row) for row in rows] == [letters]


def test_records_are_rows_with_the_names_that_notes_of_the_set_tell(
    base: Path, stack: ExitStack
) -> None:
    """From the note on, whichever CPU it is of; notes have no numbers."""
    table = tables_in(stack, *_files(base))["blktrace"]
    assert rows_of(table, *COLUMNS) == [
        (3 * SECOND_NS, 0, 5, "dd", "issue", "W", 8, 4096, 0),
        (1, 0, 5, "dd", "process", None, None, None, None),
        (2 * SECOND_NS, 1, 5, "dd", "complete", "W", 8, 4096, -5),
    ]
    names = ("device", "sequence", "text", "payload")
    assert rows_of(table, *names) == [
        ("7:1", 1, None, b""),
        ("0:0", None, "dd", b"dd".ljust(16, b"\0")),
        ("7:1", 1, None, b""),
    ]
    alone = tables_in(stack, _files(base)[1])["blktrace"]
    assert rows_of(alone, "comm") == [("dd",)]
    window = Window(2 * SECOND_NS, 2 * SECOND_NS)
    assert rows_of(alone, "mono_ns", window=window) == []  # nothing tells the time of day


def test_a_name_is_that_of_the_time_of_a_record(tmp_path: Path, stack: ExitStack) -> None:
    """Numbers of threads are used again; before its first note a thread has no name."""
    path = tmp_path / "a.blktrace.0"
    path.write_bytes(
        record(1, pid=5, time_ns=1)
        + note("old", pid=5, time_ns=2)
        + record(2, pid=5, time_ns=3)
        + note("new", pid=5, time_ns=4, cgroup=99)
        + record(3, pid=5, time_ns=5)
    )
    table = tables_in(stack, path)["blktrace"]
    rows = [row[1:] for row in rows_of(table, "action", "mono_ns", "comm") if row[0] == "issue"]
    assert rows == [(1, None), (3, "old"), (5, "new")]
    # The id of a cgroup is no part of the text.
    assert ("new",) in rows_of(table, "text")


def test_gaps_in_the_numbers_are_losses(
    tmp_path: Path, stack: ExitStack, capsys: pytest.CaptureFixture[str]
) -> None:
    """Numbers are modulo 2^32; a lower one begins a trace anew. Pieces do not hide a gap."""
    path = tmp_path / "a.blktrace.2"
    many = b"".join(record(at, time_ns=at) for at in range(7, 7007))
    more = (
        record(7010, time_ns=8000) + record(5, time_ns=8001) + record((1 << 32) - 2, time_ns=8002)
    )
    path.write_bytes(record(4, time_ns=4) + many + more + record(1, time_ns=8003))
    tables = tables_in(stack, path)
    losses = rows_of(tables["losses"], "mono_ns", "cpu", "events")
    assert losses == [(7, 2, 2), (8000, 2, 3), (8003, 2, 2)]
    assert len(rows_of(tables["blktrace"], "cpu")) == 7005
    lines = shown(capsys, path)
    assert [line for line in lines if line.startswith("CPU")] == [
        "CPU 2: 2 events lost", "CPU 2: 3 events lost", "CPU 2: 2 events lost",
    ]  # fmt: skip


def test_damage_is_a_row_and_the_next_record_is_read(
    base: Path, stack: ExitStack, capsys: pytest.CaptureFixture[str]
) -> None:
    """However far it reaches; a record that is cut short at the end is none yet."""
    path = _files(base)[0]
    before = path.stat().st_size
    with path.open("ab") as file:
        file.write(b"\0" * 300_001 + record(2, time_ns=4 * SECOND_NS) + record(3)[:-1])
    tables = tables_in(stack, *_files(base))
    damage = rows_of(tables["damage"], "cpu", "byte", "reason")
    assert damage == [(0, before, "no_blktrace_magic")]
    assert len(rows_of(tables["blktrace"], "cpu")) == 4
    assert cli.main(LinuxKernel, ["events", str(base)]) == 1
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 4
    assert (
        f"no_blktrace_magic at byte {before}, of CPU 0; it is skipped up to the next record" in err
    )


def test_a_segment_has_times_of_day(tmp_path: Path, stack: ExitStack) -> None:
    """By its manifest; compressed, it has the same rows, or says what is missing."""
    seal(make_sink(tmp_path), 1, DATA, final=True)
    path = next(one for one in tmp_path.iterdir() if one.name.endswith("blktrace.0"))
    rows = rows_of(tables_in(stack, path)["blktrace"], "time", "sequence")
    assert [row[1] for row in rows] == [1, 2]
    assert None not in rows[0]
    packed = b"".join(piece.data for piece in relay_packed.pack(memoryview(path.read_bytes())))
    path.write_bytes(packed)
    assert rows_of(tables_in(stack, path)["blktrace"], "time", "sequence") == rows
    path.write_bytes(packed[:-1])
    table = tables_in(stack, path)["blktrace"]
    assert rows_of(table, "sequence") == []
    assert "compressed" in table.files[0].damage


def test_sound_parts_of_a_compressed_file_are_read(tmp_path: Path, stack: ExitStack) -> None:
    """Rows on both sides of damage are shown; a record over its edge is made of no other bytes."""
    path = tmp_path / "a.blktrace.0"
    count = 3 * _FRAME_BYTES // len(record(1))
    plain = b"".join(record(number, time_ns=number) for number in range(1, count + 1))
    first, *frames = (piece.data for piece in relay_packed.pack(memoryview(plain)))
    assert len(frames) == 3
    path.write_bytes(b"".join((first, *frames, b"\xff" * 7)))
    table = tables_in(stack, path)["blktrace"]
    assert rows_of(table, "sequence") == [(number,) for number in range(1, count + 1)]
    assert table.files[0].damage.startswith("its compressed form: a frame is cut short")
    for number in range(len(frames)):
        damaged = [bytearray(frame) for frame in frames]
        damaged[number][-1] ^= 1  # of its checksum
        path.write_bytes(b"".join((first, *damaged)))
        tables = tables_in(stack, path)
        sequences = [row[0] for row in rows_of(tables["blktrace"], "sequence")]
        # Numbers of records that are whole in the other frames.
        gone = range(
            number * _FRAME_BYTES // len(record(1)) + 1,
            -(-(number + 1) * _FRAME_BYTES // len(record(1))) + 1,
        )
        assert sequences == [one for one in range(1, count + 1) if one not in gone]
        assert "zstd" in tables["blktrace"].files[0].damage
        edges = rows_of(tables["damage"], "byte", "reason")
        at = (number + 1) * _FRAME_BYTES
        assert edges == ([(at, "no_blktrace_magic")] if at < len(plain) else [])


def test_events_of_a_set_come_by_time(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the names of tasks that notes tell; an error is shown."""
    lines = shown(capsys, base)
    assert [line.split()[1] for line in lines] == ["[000]", "[001]", "[000]"]
    assert lines[0].endswith("dd-5                       0:0  m process dd")
    assert lines[1].endswith("dd-5                       7:1  C W    8 + 8 error -5")
    assert lines[2].endswith("D W    8 + 8")
    found = [json.loads(line) for line in shown(capsys, "--json", base)]
    assert [one["event"] for one in found] == [
        f"blktrace:{name}" for name in ("process", "complete", "issue")
    ]
    assert [one["fields"].get("sequence") for one in found] == [None, 1, 1]
    assert (found[1]["comm"], found[1]["fields"]["rwbs"]) == ("dd", "W")
    table = shown(capsys, "-o", "csv", "-e", "issue", base)
    assert table[0].split(",")[:6] == ["time_ns", "cpu", "pid", "tid", "comm", "event"]
    assert len(table) == 2


def test_one_file_of_a_set(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its name stands for it alone."""
    assert len(shown(capsys, f"{base}.blktrace.1")) == 1
    assert list(files_of(base)) == [0, 1]
    assert files_of(base.parent / "other") == {}


def test_events_are_chosen_and_counted(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A filter uses name, letter and field."""
    assert len(shown(capsys, "-e", "complete", base)) == 1
    assert len(shown(capsys, "-e", "D", base)) == 1
    assert len(shown(capsys, "--filter", "error != 0", base)) == 1
    assert len(shown(capsys, "--filter", 'comm == "dd" && rwbs ~ "W*"', base)) == 2
    assert len(shown(capsys, "--filter", 'device == "7:1"', base)) == 2
    counted = json.loads("\n".join(shown(capsys, "--count", "--json", base)))
    assert {one["event"]: one["count"] for one in counted["events"]} == {
        "blktrace:process": 1,
        "blktrace:complete": 1,
        "blktrace:issue": 1,
    }


def test_a_foreign_length_reads_nothing_behind_the_file(tmp_path: Path, stack: ExitStack) -> None:
    """A record that seems to reach behind the end is none."""
    path = tmp_path / "a.blktrace.0"
    torn = bytearray(record(2))
    torn[46:48] = struct.pack("<H", 0xFFFF)
    path.write_bytes(record(1) + torn)
    assert len(rows_of(tables_in(stack, path)["blktrace"], "cpu", "payload")) == 1


def test_bytes_of_a_channel_are_dumped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody knows what they are: hexadecimal, text, and how many."""
    (tmp_path / "c.relay.0").write_bytes(b"hello\0world, it is\n")
    lines = shown(capsys, tmp_path / "c")
    assert lines[0].startswith("[000] 00000000  68 65 6c 6c 6f 00")
    assert lines[0].endswith("hello.world, it ")
    assert len(lines) == 2
    counted = json.loads("\n".join(shown(capsys, "--count", "--json", tmp_path / "c")))
    assert counted["events"][0]["count"] == 19
