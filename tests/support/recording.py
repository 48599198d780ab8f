# SPDX-License-Identifier: Apache-2.0
"""Runs of the program under test on the real kernel, and the balance that each must show."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from collectord.codec.perf_attr import RecordType
from collectord.codec.perf_data import parse_header
from collectord.codec.perf_record import iter_records

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator, Sequence

    from tests.support.perf_tools import Perf

    Start = Callable[..., subprocess.Popen[str]]

SYS_ENTER: Final = "raw_syscalls:sys_enter"
SYS_EXIT: Final = "raw_syscalls:sys_exit"
# A system call that nobody on this machine makes but the generators of this run.
NUMBER: Final = 100_000 + os.getpid()
FILTER: Final = f"id == {NUMBER}"
CALLS: Final = ("-e", SYS_ENTER, "--filter", FILTER)
# Of `record -- COMMAND`: it runs from the moment that everything counts until a line comes.
_GATE: Final = 'echo open && read -r _ < "$0"'
_STATUS: Final = "status   curl --unix-socket "
_METRICS: Final = "metrics  http://"
# Where the number is: behind the header, and in LOST behind the id too.
_LOSS_AT: Final = {RecordType.LOST: 16, RecordType.LOST_SAMPLES: 8}


def result_of(stdout: str) -> dict[str, Any]:
    """The one session of a --json result, which follows what the command printed."""
    lines = stdout.splitlines()
    (session,) = json.loads("\n".join(lines[lines.index("{") :]))["sessions"]
    assert isinstance(session, dict)
    return session


def segments_of(session: dict[str, Any]) -> list[Path]:
    """The files that a --json result names."""
    return [Path(path) for path in session["segments"]]


def check_balance(
    session: dict[str, Any], perfs: Sequence[Perf], *, generated: int | None = None
) -> None:
    """Assert that every record is stored or lost, that nothing is over, and that perf agrees.

    Args:
        session: of a --json result.
        perfs: each lists exactly the stored samples.
        generated: what the kernel must have counted, where the test knows it.
    """
    lost = sum(session["lost"].values())
    figures = {key: session[key] for key in ("produced", "stored", "lost", "unaccounted")}
    assert session["ledger_basis"] == "exact", session["degraded"]
    if generated is not None:
        assert session["produced"] == generated, figures
    assert session["produced"] == session["stored"] + lost, figures
    assert (session["unaccounted"], session["in_flight"], session["overwritten"]) == (0, 0, 0)
    for ring in session["rings"]:
        assert ring["produced"] == ring["stored"] + sum(ring["lost"].values()), ring
        assert ring["unaccounted"] == 0, ring
    for key in ("produced", "stored"):
        assert sum(ring[key] for ring in session["rings"]) == session[key]
    check_listed(session, perfs)


def check_listed(session: dict[str, Any], perfs: Sequence[Perf]) -> None:
    """Assert that each perf lists exactly the samples that are said to be stored."""
    listed = {perf.version: perf.samples(segments_of(session)) for perf in perfs}
    assert listed == dict.fromkeys(listed, session["stored"])


def record_types(segment: Path) -> Counter[int]:
    """How many records of each type the segment's data section holds."""
    return Counter(header.type for header in iter_records(_records(segment)))


def told_losses(segment: Path) -> Counter[int]:
    """What the records of losses add up to, by their type: LOST and LOST_SAMPLES."""
    told: Counter[int] = Counter()
    section = _records(segment)
    for header in iter_records(section):
        if header.type in _LOSS_AT:
            at = header.offset + _LOSS_AT[header.type]
            told[header.type] += int.from_bytes(section[at : at + 8], "little")
    return told


def _records(segment: Path) -> bytes:
    content = segment.read_bytes()
    data = parse_header(content).data
    return content[data.offset : data.offset + data.size]


@contextmanager
def stopped(process: subprocess.Popen[str]) -> Iterator[None]:
    """Stop all threads of a process for the length of a block, as SIGSTOP does."""
    os.kill(process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    try:
        yield
    finally:
        os.kill(process.pid, signal.SIGCONT)


@dataclass(slots=True)
class Recording:
    """A `collectord record` that counts already. `session` is there after the block."""

    process: subprocess.Popen[str]
    session: dict[str, Any] = field(default_factory=dict)


@contextmanager
def recording(start_cli: Start, directory: Path, *words: str | Path) -> Iterator[Recording]:
    """`collectord record WORDS... --output-dir OUT --json` for the length of a block.

    Its events count when the block begins. WORDS name the scope: the command that holds it open
    is not observed.
    """
    gate = directory / "gate"
    os.mkfifo(gate)
    command = ("--", "sh", "-c", _GATE, gate)
    out = ("--output-dir", directory / "out", "--json")
    running = Recording(start_cli("record", *words, *out, *command))
    assert running.process.stdout is not None
    if running.process.stdout.readline() != "open\n":
        raise AssertionError(running.process.communicate()[1])
    yield running
    gate.write_text("\n")
    stdout, stderr = running.process.communicate()
    assert running.process.returncode == 0, stderr
    assert not stderr, stderr
    running.session = result_of(stdout)


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket; the host is its path."""

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(self.host)


@dataclass(slots=True)
class Daemon:
    """A `collectord run` of one session. `segments` are there after the block.

    Attributes:
        process: it counts already.
        directory: of the session's segments.
        socket: of the control API.
        metrics: HOST:PORT.
    """

    process: subprocess.Popen[str]
    directory: Path
    socket: str
    metrics: str
    segments: list[Path] = field(default_factory=list)

    def session(self) -> dict[str, Any]:
        """The session's entry of /v1/status."""
        body = _get(_UnixConnection(self.socket), "/v1/status")
        (session,) = json.loads(body)["sessions"]
        assert isinstance(session, dict)
        return session

    def metric(self, name: str) -> float:
        """The sum over the series of a metric."""
        body = _get(http.client.HTTPConnection(self.metrics), "/metrics")
        lines = [line for line in body.splitlines() if line.startswith((f"{name}{{", f"{name} "))]
        assert lines, f"no metric {name}"
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    def manifests(self) -> list[dict[str, Any]]:
        """What is written beside each segment."""
        return [json.loads(Path(f"{path}.json").read_text()) for path in self.segments]

    def closed_session(self) -> dict[str, Any]:
        """The final balance, as the last manifest has it, in the shape of a --json result."""
        ledger = self.manifests()[-1]["ledger"]
        assert ledger["closed"]
        paths = [str(path) for path in self.segments]
        named = {"ledger_basis": ledger["basis"], "segments": paths, "degraded": []}
        total = {key: ledger[key] for key in ("produced", "stored", "lost", "unaccounted")}
        return {**ledger, **named, "rings": [total]}


def _get(connection: http.client.HTTPConnection, path: str) -> str:
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read().decode()
    finally:
        connection.close()
    assert answer.status == http.client.OK, body
    return body


@contextmanager
def daemon(
    start_cli: Start,
    directory: Path,
    *,
    target: str = 'scope = "system"',
    events: str = f'[{{ event = "{SYS_ENTER}", filter = "{FILTER}" }}]',
    core: str = "",
    session: str = "",
    source: str = "",
) -> Iterator[Daemon]:
    """`collectord run` for the length of a block; its events count when the block begins.

    Args:
        start_cli: the fixture.
        directory: for its files.
        target: lines of `[session.target]`.
        events: value of the source's `events`.
        core: lines of `[daemon]`.
        session: lines of `[[session]]`.
        source: more lines of `[[session.source]]`.
    """
    config = directory / "collectord.toml"
    config.write_text(
        f"""
[daemon]
state_dir = "{directory}/state"
log_level = "warning"
{core}
[metrics]
listen = "127.0.0.1:0"
[control]
socket = "{directory}/control"
[[session]]
name = "ledger"
{session}
[session.target]
{target}
[[session.source]]
kind = "perf"
events = {events}
{source}
"""
    )
    process = start_cli("run", "--config", config)
    running = Daemon(process, directory / "state/ledger", socket="", metrics="")
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(_METRICS):
            running.metrics = line.removeprefix(_METRICS).partition("/")[0]
        if line.startswith(_STATUS):
            running.socket = line.removeprefix(_STATUS).split()[0]
            break
    else:
        raise AssertionError(process.communicate()[1])
    yield running
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate()
    assert process.returncode == 0, stderr
    assert not list(running.directory.glob("*.partial"))
    running.segments = sorted(running.directory.glob("*.perf.data"))
