# SPDX-License-Identifier: Apache-2.0
"""The verbs of the control socket: what they ask a daemon for, and what they print."""

from __future__ import annotations

import json
import os
import socket
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from collectord import __version__, cli
from collectord.cli.sessions import print_sessions
from collectord.control import client
from collectord.errors import (
    CollectordError,
    ConfigError,
    KernelError,
    NoDaemon,
    NotAllowed,
    SinkError,
    UsageError,
)
from collectord.kernel.linux import LinuxKernel
from collectord.session.maps.program_status import session_json
from tests.support import balances
from tests.support import segments as support
from tests.support.commands import ENDS_NS, Commands, lost, served, snapshot

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from collectord.session.ring_snapshot import Lost


def run(path: Path, verb: str, *words: str) -> int:
    """Run one command line against a socket."""
    return cli.main(LinuxKernel, [verb, "--socket", str(path), *words])


def test_mark_reaches_the_daemon(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Text and session arrive as they are, odd bytes included; the answer says how many."""
    commands, path = Commands(), tmp_path / "s"
    odd = os.fsdecode(b"deploy \xff\n\xc3\xa9")
    with served(commands, path):
        assert run(path, "mark", odd) == 0
        assert run(path, "mark", "--session", "blackbox", "x") == 0
        assert run(path, "mark", "--json", "x") == 0
    assert commands.asked == [(odd, None), ("x", "blackbox"), ("x", None)]
    text, _, document = capsys.readouterr().out.partition("{")
    assert text == "marked 2 sessions\n" * 2
    assert json.loads("{" + document) == {"marked": 2}


@pytest.mark.parametrize(
    ("words", "asked"), [((), ()), (("a",), ("a",)), (("--json", "a", "b"), ("a", "b"))]
)
def test_rotate_names_what_is_sealed(
    words: Sequence[str],
    asked: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each sealed file is a line, and so is each session, or all are one JSON document."""
    info = support.write_segment(support.make_sink(tmp_path / "out"), samples=250)
    commands, path = Commands(sealed=[info]), tmp_path / "s"
    with served(commands, path):
        assert run(path, "rotate", *words) == 0
    assert commands.asked == [asked]
    out = capsys.readouterr().out
    if "--json" not in words:
        assert out == f"sealed {info.path}\nexec: 250 events\n"
        return
    rotated = {"session": "exec", "source": "perf", "segment": str(info.path), "samples": 250}
    assert json.loads(out) == {"segments": [str(info.path)], "rotated": [rotated]}


@pytest.mark.parametrize("action", ["pause", "resume", "stop"])
def test_sessions_are_changed_one_by_one(
    action: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each is named in the path; the answer is their entries, and what a stop has sealed."""
    commands, path = Commands(), tmp_path / "s"
    with served(commands, path):
        assert run(path, "sessions", action, "exec") == 0
        assert run(path, "sessions", action) == 2
        assert run(path, "sessions", action, "../exec") == 1
    assert commands.asked == [(action, "exec")]
    out = capsys.readouterr().out
    assert "exec     perf" in out
    assert ("sealed /s/1.perf.data\n" in out) is (action == "stop")


def test_a_session_is_started_with_the_options_of_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The daemon gets a table, and its answer has the name and the end."""
    commands, path = Commands(), tmp_path / "s"
    event = ("-e", "sched:sched_switch")
    with served(commands, path):
        assert run(path, "sessions", "start", *event, "--duration", "2", "--name", "x") == 0
        assert run(path, "sessions", "start", *event, "--duration", "2", "--json") == 0
        assert run(path, "sessions", "start", *event) == 2
        assert run(path, "sessions", "start", *event, "--duration", "2", "x") == 2
        assert run(path, "sessions", *event) == 2
    source = {"kind": "perf", "events": [{"event": "sched:sched_switch"}]}
    table = {"duration": "2000000000ns", "source": [source]}
    assert commands.asked == [{"name": "x", **table}, table]
    text, _, document = capsys.readouterr().out.partition("{")
    assert text.startswith("session timed-1 records until 2023-11-1")
    assert json.loads("{" + document) == {"session": "timed-1", "ends_ns": ENDS_NS}


def test_an_error_of_the_configuration_language_arrives(tmp_path: Path) -> None:
    """It has the exit status of a wrong file."""
    commands = Commands(error=ConfigError("is unknown", path="request", key="source[0].kind"))
    path = tmp_path / "s"
    told = pytest.raises(ConfigError, match=r"request: source\[0\].kind: is unknown")
    with served(commands, path), told:
        client.post(path, "/v1/sessions", {"name": "x"})


def test_rotate_without_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It says so, and nothing has failed."""
    with served(Commands(), tmp_path / "s"):
        assert run(tmp_path / "s", "rotate") == 0
    assert capsys.readouterr().out == "nothing was written since the last rotation\n"


@pytest.mark.parametrize(
    ("words", "asked"), [((), ()), (("a",), ("a",)), (("--json", "a", "b"), ("a", "b"))]
)
def test_snapshot_names_its_segments(
    words: Sequence[str],
    asked: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each segment is a line, or all are one JSON document."""
    commands, path = Commands(segments=["/s/a", "/s/b"]), tmp_path / "s"
    with served(commands, path):
        assert run(path, "snapshot", *words) == 0
    assert commands.asked == [asked]
    out = capsys.readouterr().out
    if "--json" in words:
        shown = json.loads(out)
        assert shown["segments"] == ["/s/a", "/s/b"]
        assert [one["seconds"] for one in shown["snapshots"]] == [2]
    else:
        assert out == (
            "wrote /s/a\nwrote /s/b\nblackbox: 1,000 events of 2 s, 125 KiB; 30 more were taken "
            "with the snapshot before; the rings were paused for 0.25 ms\n"
        )


def test_snapshot_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rings without an event give no segment, and that is said."""
    path = tmp_path / "s"
    with served(Commands(made=[replace(snapshot(()), repeated=0)]), path):
        assert run(path, "snapshot") == 0
    assert capsys.readouterr().out == "the flight recorders hold no event\n"


def test_snapshot_of_nothing_new(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rings that hold what the snapshot before has are not empty, whatever others gave."""
    path = tmp_path / "s"
    same = replace(snapshot(()), session="rot", repeated=32_764)
    with served(Commands(made=[snapshot(("/s/a",)), same]), path):
        assert run(path, "snapshot") == 0
    *others, line = capsys.readouterr().out.splitlines()
    assert others[0] == "wrote /s/a"
    assert line == "rot: nothing new: 32,764 events were taken with the snapshot before"


@pytest.mark.parametrize(
    ("gone", "words"),
    [
        (lost(full=47_616), "47,616 more were lost: the disk is full"),
        (lost(failed=5), "5 more were lost: writing failed"),
        (lost(aux_full=3 << 20), "3 MiB of trace were lost: the disk is full"),
    ],
)
@pytest.mark.parametrize("segments", [("/s/a",), ()])
def test_snapshot_says_what_it_lost(
    segments: tuple[str, ...],
    gone: Lost,
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The text and the JSON report the loss; one that lost everything is not called empty."""
    path = tmp_path / "s"
    with served(Commands(made=[replace(snapshot(segments), lost=gone)]), path):
        assert run(path, "snapshot") == 0
        *wrote, line = capsys.readouterr().out.splitlines()
        assert run(path, "snapshot", "--json") == 0
    assert wrote == [f"wrote {one}" for one in segments]
    assert line.startswith("blackbox: ")
    assert f"; {words}; " in line
    (shown,) = json.loads(capsys.readouterr().out)["snapshots"]
    assert (shown["lost"], shown["lost_aux_bytes"]) == (gone.events, gone.aux_bytes)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UsageError("no session x", hint='did you mean "y"?'), 2),
        (KernelError("the marker was not written into session x"), 1),
        (SinkError("cannot write", path="/s", errno=28), 1),
        (NotAllowed("user 1 may not", hint="root may"), 4),
    ],
)
@pytest.mark.parametrize("verb", [("mark", "x"), ("snapshot",)])
def test_what_the_daemon_refuses(
    error: CollectordError,
    status: int,
    verb: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The daemon's error is one line with its hint, and has the status of its class."""
    path = tmp_path / "s"
    with served(Commands(error=error), path):
        assert run(path, *verb) == status
    captured = capsys.readouterr()
    told = [line for line in captured.err.splitlines() if "control_request" not in line]
    assert told == [f"collectord: {error}"]  # beside the daemon's log, which is this process's
    assert captured.out == ""


@pytest.mark.parametrize("verb", [("mark", "x"), ("snapshot",), ("sessions",), ("status",)])
@pytest.mark.parametrize("left", [True, False])
def test_no_daemon(
    left: bool,  # parametrized
    verb: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Without a daemon, or with the socket of a killed one, the status is 3 with each verb.

    The message says which socket was tried.
    """
    path = tmp_path / "s"
    if left:
        with socket.socket(socket.AF_UNIX) as killed:
            killed.bind(str(path))
    assert run(path, *verb) == NoDaemon.exit_code == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"no daemon is listening at {path}" in captured.err


def test_status_of_a_socket_that_cannot_be_used(tmp_path: Path) -> None:
    """It is a failure: whether a daemon runs is not known."""
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(path))
        assert run(path, "status") == KernelError.exit_code


def test_status_and_sessions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The daemon, then a row for each session; `sessions` has those that are named."""
    path = tmp_path / "s"
    with served(Commands(), path):
        assert run(path, "status") == 0
        whole = capsys.readouterr().out.splitlines()
        assert run(path, "sessions", "exec", "profile") == 0
        rows = capsys.readouterr().out.splitlines()
        assert run(path, "sessions") == 0
        every = capsys.readouterr().out.splitlines()
    assert whole[0].startswith(f"collectord {__version__}, pid {os.getpid()}, since 2023-11-14T")
    assert whole[8].startswith("  2023-11-1")
    assert whole[8].endswith("20231114T221325Z-io-stall: tasks waited for io more than 1 s of 2 s")
    assert [*whole[1:8], *whole[9:13]] == [
        "sessions: 3 running",
        "CPUs: 2 of 2 covered",
        "cost: 0.12% of all CPUs; the budget is 0.50%",
        "unclean stops so far: 1",
        "damaged files: 2",
        "lines of the log that nobody took: 3",
        "incidents: 1 kept, 3 MiB; `collectord incident list`",
        "trigger io-stall: held back 7 times",
        "trigger io-stall: looked at once per flush interval",
        "incidents that could not be written: 4",
        "drain threads: something was refused",
    ]
    assert whole[13:] == every
    assert [line.split() for line in rows] == [
        ["SESSION", "SOURCE", "STATE", "BASIS", "PRODUCED", "STORED", "LOST", "UNACCOUNTED"],
        ["profile", "perf", "running", "lost_only", "-", "180", "20", "-"],
        ["exec", "perf", "running", "exact", "200", "180", "20", "0"],
    ]


def test_status_and_sessions_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both are the documents of the API."""
    path = tmp_path / "s"
    with served(Commands(), path):
        assert run(path, "status", "--json") == 0
        whole = json.loads(capsys.readouterr().out)
        assert run(path, "sessions", "--json", "exec") == 0
        one = json.loads(capsys.readouterr().out)
    assert whole["core"]["chunks"] == 64
    assert one == {"sessions": [s for s in whole["sessions"] if s["name"] == "exec"]}


def test_unknown_session(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong name is a wrong command line, with the nearest name."""
    path = tmp_path / "s"
    with served(Commands(), path):
        assert run(path, "sessions", "exce") == UsageError.exit_code
    assert 'no session exce; did you mean "exec"?' in capsys.readouterr().err


def test_what_sessions_lack(capsys: pytest.CaptureFixture[str]) -> None:
    """Each reason is a line below the table."""
    lacking = replace(
        balances.session("exec"), state="degraded", degraded_reasons=("CPU 1 is gone", "x\x1b")
    )
    print_sessions([session_json(lacking, ())])
    assert capsys.readouterr().out.splitlines()[2:] == [
        "exec: degraded, CPU 1 is gone",
        "exec: degraded, x\\x1b",
    ]


def test_somebody_elses_socket(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An answer that is not a daemon's is an error, not a traceback."""
    path = tmp_path / "s"
    answers = [b"hello\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", b""]
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()

        def answer() -> None:
            for text in answers:
                client, _ = server.accept()
                with client:
                    asked = b""
                    while b"}" not in asked:  # head and body may come apart
                        asked += client.recv(1 << 16)
                    client.sendall(text)

        thread = threading.Thread(target=answer)
        thread.start()
        statuses = [run(path, "snapshot") for _ in answers]
        thread.join()
    assert statuses == [1, 1, 1]
    err = capsys.readouterr().err.splitlines()
    assert len(err) == 3
    for line, words in zip(
        err,
        ["no answer from", "is not the control socket of a daemon", "no daemon is listening"],
        strict=True,
    ):
        assert words in line


def test_empty_marker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An unset variable of a script must not become a marker that says nothing."""
    assert run(tmp_path / "s", "mark", "") == UsageError.exit_code
    assert "has no text" in capsys.readouterr().err
