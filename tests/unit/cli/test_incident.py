# SPDX-License-Identifier: Apache-2.0
"""`collectord incident`: what it prints, whatever processes are called, and what it exports."""

from __future__ import annotations

import json
import os
import tarfile
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from collectord import cli
from collectord.errors import NoDaemon
from collectord.folders.folder import opened
from collectord.kernel.linux import LinuxKernel
from collectord.sink.incident_folder import AnswerNote, IncidentFolder
from tests.support.commands import Commands, incident_note, served, snapshot

if TYPE_CHECKING:
    from pathlib import Path

EVIL = "\x1b[2J\x07[red]x\n\udcff"
SHOWN = r"\x1b[2J\x07[red]x\n\xff"
PROCESS = {"pid": 7, "comm": EVIL, "state": "D", "cpu_ns": 10**9, "resident_bytes": 1 << 20}
MOMENT: dict[str, Any] = {
    "interval_ns": 2 * 10**9,
    "load": [1.0, 2.5, 3.25],
    "running_threads": 3,
    "threads": 1_000,
    "processes": 400,
    "left_out": 0,
    "pressure": [{"resource": "io", "share": "some", "avg10": 12.5, "avg60": 3.0, "avg300": 0.5}],
    "devices": [{"number": "7:1", "name": "loop1", "in_flight": 1_200}],
    "busiest": [PROCESS],
    "blocked": [PROCESS],
    "runnable": [],
    "largest": [],
}


def run(*words: object) -> int:
    """Run one command line."""
    return cli.main(LinuxKernel, ["incident", *map(str, words)])


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Return a state directory with one incident."""
    folder = IncidentFolder(tmp_path)
    name = folder.begin(1_767_323_045 * 10**9, "io-stall")
    with opened(folder.create(name, "answers/why-io.txt")) as fd:
        os.write(fd, b"Who waited:\n  \x1b[1msomebody\n\n\n")
    note = incident_note((snapshot(("/s/1.trace.dat",)).to_json(),), name=name)
    folder.put(
        msgspec.structs.replace(
            note,
            reason=f"tasks waited {EVIL}",
            moment=MOMENT,
            also=("oom: the kernel killed 1 process",),
            suppressed={"cooldown": 3},
            problems=("recorder box has failed",),
            answers=(
                AnswerNote(name="why-io", file="answers/why-io.txt"),
                AnswerNote(name="why-mem", file="answers/why-mem.txt", problem="install it"),
            ),
        )
    )
    return tmp_path


def test_show(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All is told, in lines of readable width, and no name of a process moves the cursor."""
    assert run("show", "last", "--state-dir", state) == 0
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert "\x07" not in text
    lines = text.splitlines()
    assert lines[0] == "incident  20260102T030405Z-io-stall"
    assert lines[2] == "trigger   io-stall (request)"
    assert lines[3] == f"reason    tasks waited {SHOWN}"
    for line in (
        "          also oom: the kernel killed 1 process",
        "          held back since the last one: 3 times (cooldown)",
        "  missing: recorder box has failed",
        "load      1.00 2.50 3.25; 3 of 1,000 threads ran or waited for a CPU",
        "pressure  io     some  12.50% of 10 s   3.00% of 60 s   0.50% of 300 s",
        "devices   requests in flight: loop1 (7:1) 1,200",
        f"    7  {SHOWN}  D      50%   1 MiB",
        "answer why-io",
        "  Who waited:",
        r"    \x1b[1msomebody",
        "  missing: install it",
    ):
        assert line in lines
    assert max(map(len, lines)) <= 100
    assert any(line.startswith("  blackbox: 1,000 events of 2 s") for line in lines)
    assert run("show", "--json", "--state-dir", state) == 0
    note = json.loads(capsys.readouterr().out)
    assert note["reason"] == "tasks waited \x1b[2J\x07[red]x\n\\xff"
    assert note["moment"]["busiest"][0]["pid"] == 7


def test_list(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The newest is first; one that is unfinished says so."""
    left = IncidentFolder(state).begin(1_767_400_000 * 10**9, "oom")
    assert run("list", "--state-dir", state) == 0
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.split() == ["INCIDENT", "WHEN", "TRIGGER", "EVENTS", "SIZE", "REASON"]
    assert first.startswith(left)
    assert first.endswith("unfinished")
    assert "1,000" in second
    assert second.endswith(f"tasks waited {SHOWN}")
    assert run("list", "--json", "--state-dir", state) == 0
    listed = json.loads(capsys.readouterr().out)["incidents"]
    assert [(one["id"] == left, one["finished"]) for one in listed] == [
        (True, False),
        (False, True),
    ]
    assert run("show", left, "--state-dir", state) == 1
    assert "is unfinished" in capsys.readouterr().err


def test_nothing_to_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is said, and is no failure; there is nothing to show."""
    assert run("list", "--state-dir", tmp_path) == 0
    assert capsys.readouterr().out == f"no incident in {tmp_path}/incidents\n"
    assert run("show", "--state-dir", tmp_path) == 2
    assert "there is no incident" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["out.tar", "out.tar.gz"])
def test_export(
    name: str, state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file has all files of the incident, and never replaces another."""
    path = tmp_path / name
    assert run("export", "-o", path, "--state-dir", state) == 0
    assert capsys.readouterr().out.startswith(f"wrote {path}: 2 files, ")
    with tarfile.open(path) as archive:
        assert archive.getnames() == [
            "20260102T030405Z-io-stall/incident.json",
            "20260102T030405Z-io-stall/answers/why-io.txt",
        ]
        packed = archive.extractfile(archive.getnames()[1])
        assert packed is not None
        assert packed.read().startswith(b"Who waited")
    assert (path.read_bytes()[:2] == b"\x1f\x8b") is name.endswith(".gz")
    assert run("export", "-o", path, "--state-dir", state) == 2
    assert "exists" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("list", "last"), "takes no ID"),
        (("trigger", "last"), "takes no ID"),
        (("list", "-o", "x"), "-o is an option of incident export alone"),
        (("show", "--reason", "x"), "--reason is an option of incident trigger alone"),
        (("trigger", "--reason", "x", "--unit", "y"), "cannot be combined"),
        (("show", "../x"), "no incident"),
        (("make",), "invalid choice"),
        ((), "required"),
    ],
)
def test_wrong_words(
    words: tuple[str, ...], says: str, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are errors of usage, with the reason."""
    assert run(*words, "--state-dir", state) == 2
    assert says in capsys.readouterr().err


def test_trigger(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The daemon makes one, or says why the trigger of a unit makes none."""
    commands, path = Commands(), tmp_path / "s"
    with served(commands, path):
        assert run("trigger", "--reason", "slow page", "--socket", path) == 0
        assert run("trigger", "--unit", "nginx.service", "--socket", path) == 0
        assert run("trigger", "--json", "--socket", path) == 0
    assert commands.asked == [
        ("incident", "slow page"),
        ("unit", "nginx.service"),
        ("incident", ""),
    ]
    text, _, document = capsys.readouterr().out.partition("{")
    lines = text.splitlines()
    assert lines[0] == "made 20260102T030405Z-manual"
    assert lines[-2:] == [
        "next: collectord incident show 20260102T030405Z-manual",
        "no incident: the trigger is held back (cooldown)",
    ]
    assert json.loads("{" + document)["incident"] == "20260102T030405Z-manual"
    assert run("trigger", "--socket", tmp_path / "absent") == NoDaemon.exit_code
