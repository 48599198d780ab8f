# SPDX-License-Identifier: Apache-2.0
"""blktrace's setup and records, and what `events` makes of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from collectord import cli
from collectord._native import _core
from collectord.codec.blktrace import (
    ALL_ACTIONS,
    MAGIC,
    RECORD,
    Action,
    Setup,
    action_mask,
    action_names,
    read_records,
    setup_name,
)
from collectord.errors import CodecError
from collectord.kernel.linux import LinuxKernel
from collectord.reader.relay_events import files_of
from tests.support.relay_records import SECOND_NS, note, record

if TYPE_CHECKING:
    from pathlib import Path


def test_setup_is_the_kernels_struct() -> None:
    """It has 72 bytes on 64-bit machines."""
    setup = Setup(0x80, 4096, 2, start_lba=5, end_lba=9, pid=77)
    data = bytearray(setup.encode())
    assert len(data) == 72
    assert data[32:34] == b"\x80\0"
    assert (int.from_bytes(data[36:40], "little"), data[40]) == (4096, 2)
    assert (data[48], data[56], data[64]) == (5, 9, 77)
    data[:5] = b"vdb\0x"
    data[4] = 0
    assert setup_name(data) == "vdb"


def test_actions_have_names() -> None:
    """The kernel's own, in the order of its bits."""
    assert action_mask(()) == ALL_ACTIONS == 0xFFFF
    assert action_mask((Action.ISSUE, Action.COMPLETE)) == 1 << 6 | 1 << 7
    assert action_names(1 << 1 | 1 << 15) == ("write", "fua")
    assert all(action_names(action_mask((one,))) == (one,) for one in Action)


@pytest.mark.parametrize(
    ("what", "classes", "size", "letters"),
    [
        (7, ("write", "issue"), 4096, "D W"),
        (8, ("read", "complete", "sync"), 512, "C RS"),
        (1, ("flush", "write", "fua", "queue"), 512, "Q FWF"),
        (8, ("complete",), 0, "C N"),
        (15, ("discard", "write"), 512, "A D"),
        (2, ("read", "ahead", "meta"), 512, "M RAM"),
    ],
)
def test_letters_are_blkparses(
    what: int, classes: tuple[str, ...], size: int, letters: str
) -> None:
    """They stand for the action, and the kind of request."""
    (found,) = read_records(
        memoryview(record(1, what=what, classes=tuple(map(Action, classes)), size=size))
    )
    assert f"{found.letter} {found.rwbs}" == letters


def test_a_cgroup_is_told_apart_from_the_data() -> None:
    """Its id stands in front of a note's text."""
    (found,) = read_records(memoryview(note("bash", pid=3, cgroup=99)))
    assert (found.name, found.text, found.cgroup, found.pid) == ("process", "bash", 99, 3)


def test_what_is_no_record_is_told() -> None:
    """With its place; a record that is cut short is none yet."""
    data = record(1) + bytes(48)
    with pytest.raises(CodecError, match="at byte 48"):
        list(read_records(memoryview(data)))
    assert len(list(read_records(memoryview(record(1) + record(2)[:-1])))) == 1


def test_the_native_walk_agrees() -> None:
    """It has the same numbers, notes and gaps."""
    data = note("x") + record(3, time_ns=7) + record(6, time_ns=9)
    found = _core.scan_blktrace(data)
    assert (found.events, found.notes, found.numbered, found.missing) == (2, 1, 4, 2)
    assert (found.end, found.first_ns, found.last_ns, found.fault) == (len(data), 7, 9, "ok")
    stale = _core.scan_blktrace(record(3) + record(3))
    assert (stale.end, stale.fault) == (48, "stale_blktrace_record")
    assert RECORD.size == 48
    assert data[:4] == MAGIC.to_bytes(4, "little")


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """Return a set of two files: its name without the format."""
    first = note("dd", pid=5) + record(1, pid=5, time_ns=3 * SECOND_NS, cpu=0)
    second = record(1, pid=5, time_ns=2 * SECOND_NS, cpu=1, what=8, error=5)
    (tmp_path / "set.blktrace.0").write_bytes(first)
    (tmp_path / "set.blktrace.1").write_bytes(second)
    return tmp_path / "set"


def shown(capsys: pytest.CaptureFixture[str], *words: str | Path, status: int = 0) -> list[str]:
    """Lines that `collectord events WORDS...` prints."""
    assert cli.main(LinuxKernel, ["events", *map(str, words)]) == status
    return capsys.readouterr().out.splitlines()


def test_events_of_a_set_come_by_time(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the names of tasks that notes tell; an error is shown."""
    lines = shown(capsys, base)
    assert [line.split()[1] for line in lines] == ["[000]", "[001]", "[000]"]
    assert "dd-5" in lines[1]
    assert lines[1].endswith("C W    8 + 8 error 5")
    assert lines[2].endswith("D W    8 + 8")
    found = [json.loads(line) for line in shown(capsys, "--json", base)]
    assert [one["event"] for one in found] == ["process", "complete", "issue"]
    assert [one["sequence"] for one in found] == [None, 1, 1]


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
    counted = json.loads("\n".join(shown(capsys, "--count", "--json", base)))
    assert {one["event"]: one["count"] for one in counted["events"]} == {
        "process": 1,
        "complete": 1,
        "issue": 1,
    }


def test_a_damaged_file_is_complained_of(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Other files, and records before the damage, are shown."""
    with (base.parent / "set.blktrace.0").open("ab") as file:
        file.write(bytes(48))
    assert cli.main(LinuxKernel, ["events", str(base)]) == 1
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 3
    assert "the rest of the file is skipped" in err


def test_bytes_of_a_channel_are_dumped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody knows what they are: hexadecimal, text, and how many."""
    (tmp_path / "c.relay.0").write_bytes(b"hello\0world, it is\n")
    lines = shown(capsys, tmp_path / "c")
    assert lines[0].startswith("[000] 00000000  68 65 6c 6c 6f 00")
    assert lines[0].endswith("hello.world, it ")
    assert len(lines) == 2
    counted = json.loads("\n".join(shown(capsys, "--count", "--json", tmp_path / "c")))
    assert counted["events"][0]["count"] == 19
