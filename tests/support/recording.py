# SPDX-License-Identifier: Apache-2.0
"""Runs of the program under test on the real kernel, and the balance expected of each."""

from __future__ import annotations

import json
import os
import re
import signal
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from collectord.codec.perf_attr import RecordType
from collectord.codec.perf_data import parse_header
from collectord.codec.perf_record import iter_records
from tests.support import daemons
from tests.support.daemons import FILTER
from tests.support.perf_tools import Perf, in_each

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator, Sequence

    Cli = Callable[..., subprocess.CompletedProcess[str]]
    Start = Callable[..., subprocess.Popen[str]]

# A drain thread in real time loses little of what a test wants to see lost. These have it
# scheduled as others are: a line of [daemon], and what starts a program.
USUAL_PRIORITY: Final = 'drain_priority = "normal"'
AT_USUAL_PRIORITY: Final = ("nice", "-n", "1")
SYS_ENTER: Final = daemons.EVENT
SYS_EXIT: Final = "raw_syscalls:sys_exit"
CALLS: Final = ("-e", SYS_ENTER, "--filter", FILTER)
# The command of `record`: it runs from the moment that everything counts until a line comes.
GATE: Final = 'echo open >&2 && read -r _ < "$0"'
_LOSS_WARNING: Final = re.compile(
    r"Warning:\s*Processed \d+ (events and lost \d+ chunks!\s*Check IO/CPU overload!"
    r"|samples and lost [\d.]+%!)\s*"
)
# Where the number is: behind the header, and in LOST behind the id too.
_LOSS_AT: Final[dict[int, int]] = {RecordType.LOST: 16, RecordType.LOST_SAMPLES: 8}


def result_of(stdout: str) -> dict[str, Any]:
    """Return the one session of a --json result."""
    (session,) = json.loads(stdout)["sessions"]
    assert isinstance(session, dict)
    return session


def segments_of(session: dict[str, Any]) -> list[Path]:
    """Return the files that a --json result names."""
    return [Path(path) for path in session["segments"]]


def recorded_by(
    recorder: Perf | Cli, words: Sequence[str], load: Sequence[str], place: Path
) -> Path:
    """Return the one file in which a recorder, perf or ours, has recorded a load.

    Args:
        recorder: perf, or what runs our program.
        words: `record` and its options, which both know.
        load: the command that is recorded.
        place: a directory for the file.
    """
    if isinstance(recorder, Perf):
        done = recorder.run(*words, "-q", "-o", place / "perf.data", "--", *load)
        assert done.returncode == 0, done.stderr
        return place / "perf.data"
    done = recorder(*words, "--output-dir", place / "out", "--json", "--", *load)
    assert done.returncode == 0, done.stderr
    (segment,) = segments_of(result_of(done.stdout))
    return segment


def check_balance(
    session: dict[str, Any], perfs: Sequence[Perf], *, generated: int | None = None
) -> None:
    """Assert that every record is stored or lost, that none is unaccounted, and that perf agrees.

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

    def count(perf: Perf, segment: Path) -> int:
        return len(script(perf, segment, "-F", "comm,tid,time,event"))

    listed = in_each(perfs, segments_of(session), count)
    for perf in perfs:
        found = sum(lines for (by, _), lines in listed.items() if by is perf)
        assert found == session["stored"], f"perf {perf.version}"


def script(perf: Perf, segment: Path, *words: str) -> list[str]:
    """Return the lines of `perf script`, which may tell of losses but complain of nothing else.

    A segment whose ring was full has records of that, and perf warns of them.
    """
    done = perf.run("script", "--force", "-i", segment, *words)
    complaints = _LOSS_WARNING.sub("", done.stderr).strip()
    assert (done.returncode, complaints) == (0, ""), f"perf {perf.version} script {segment}"
    return [line for line in done.stdout.splitlines() if line.strip()]


def outputs_of(perf: Perf, file: Path) -> list[str]:
    """Return tasks, CPUs and bytes of a BPF program's events, without times and code addresses."""
    done = perf.run("script", "-i", file)
    assert (done.returncode, done.stderr) == (0, "")
    return re.sub(r"\] +[\d.]+: +[01] (\w+:).*", r"] \1", done.stdout).splitlines()


def record_types(segment: Path) -> Counter[int]:
    """Count the records of each type in the segment's data section."""
    return Counter(header.type for header in iter_records(shown_records(segment)))


def kernel_records(segment: Path) -> list[bytes]:
    """Yield each record of the kernel, or of a replay, in the segment's data section."""
    section = shown_records(segment)
    return [
        section[header.offset : header.offset + header.size]
        for header in iter_records(section)
        if header.type < RecordType.HEADER_ATTR
    ]


def told_losses(segment: Path) -> Counter[int]:
    """Sum up the records of losses by their type: LOST and LOST_SAMPLES."""
    told: Counter[int] = Counter()
    section = shown_records(segment)
    for header in iter_records(section):
        if header.type in _LOSS_AT:
            at = header.offset + _LOSS_AT[header.type]
            told[header.type] += int.from_bytes(section[at : at + 8], "little")
    return told


def shown_records(segment: Path) -> bytes:
    """Return the records that a file's header shows."""
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
    """A `collectord record` that already counts. `session` exists after the block."""

    process: subprocess.Popen[str]
    session: dict[str, Any] = field(default_factory=dict)


@contextmanager
def recording(
    start_cli: Start, directory: Path, *words: str | Path, warning: str = ""
) -> Iterator[Recording]:
    """Run `collectord record WORDS... --output-dir OUT --json` for the length of a block.

    Its events count when the block begins. WORDS name the scope: the command that holds it open
    is not observed. `warning` is the event that its log must have, once or more; without one it
    must be empty.
    """
    gate = directory / "gate"
    os.mkfifo(gate)
    command = ("--", "sh", "-c", GATE, gate)
    out = ("--output-dir", directory / "out", "--json")
    running = Recording(start_cli("record", *words, *out, *command))
    assert running.process.stderr is not None
    first = running.process.stderr.readline()
    if first != "open\n":
        raise AssertionError(first + running.process.communicate()[1])
    try:
        yield running
    finally:
        key = os.open(gate, os.O_RDWR)  # waits for no reader, should the command be gone
        try:
            os.write(key, b"\n")
            stdout, stderr = running.process.communicate()
        finally:
            os.close(key)
    assert running.process.returncode == 0, stderr
    said = {json.loads(line)["event"] for line in stderr.splitlines()}
    assert said == ({warning} if warning else set())
    running.session = result_of(stdout)


def daemon_config(
    directory: Path,
    *,
    log_level: str = "warning",
    core: str = "",
    session: str = "",
    target: str = 'scope = "system"',
    events: str = f'["{SYS_ENTER}"]\nfilter = "{FILTER}"',
    source: str = "",
    kind: str = "perf",
) -> Path:
    """Configure one session, `calls`, by default of this run's marked system calls.

    Args:
        directory: for all files of the daemon.
        log_level: of what a test does not expect.
        core: more lines of [daemon].
        session: more lines of [[session]].
        target: lines of [session.target].
        events: the value of `events`.
        source: more lines of [[session.source]].
        kind: of the source.
    """
    path = directory / "collectord.toml"
    path.write_text(
        f"""
[daemon]
state_dir = "{directory}/state"
log_level = "{log_level}"
{core}
[metrics]
listen = "127.0.0.1:0"
[control]
socket = "{directory}/control.sock"
[[session]]
name = "calls"
{session}
[session.target]
{target}
[[session.source]]
kind = "{kind}"
events = {events}
{source}
"""
    )
    return path


@contextmanager
def daemon(start_cli: Start, config: Path) -> Iterator[daemons.Daemon]:
    """Run `collectord run` for the length of a block; its events count when the block begins."""
    with daemons.running(start_cli, config) as running:
        yield running
        ended = running.stop()
        assert (ended.status, ended.complaints()) == (0, []), ended.complaints()


def daemon_result(directory: Path) -> dict[str, Any]:
    """Return a daemon session's final balance, from its manifests, in the shape of --json."""
    segments = daemons.sealed(directory / "state")
    assert not daemons.left_open(directory / "state")
    ledger = daemons.manifest(segments[-1])["ledger"]
    assert ledger["closed"]
    figures = {key: ledger[key] for key in ("produced", "stored", "lost", "unaccounted")}
    return {
        **ledger,
        "ledger_basis": ledger["basis"],
        "segments": list(map(str, segments)),
        "degraded": [],
        "rings": [figures],
    }
