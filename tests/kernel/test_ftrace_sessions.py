# SPDX-License-Identifier: Apache-2.0
"""ftrace sessions of a daemon: recorder, markers, other readers, refusals, and what stays."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.kernel.test_ftrace_record import write_config
from tests.support import daemons
from tests.support.daemons import EVENT, FILTER, NUMBER

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.generator import Generator
    from tests.support.trace_cmds import TraceCmd

    Cli = Callable[..., subprocess.CompletedProcess[str]]
    Start = Callable[..., subprocess.Popen[str]]
    TraceCmds = tuple[TraceCmd, ...]

BURST: Final = 3_000
RECORDER: Final = 'mode = "flight-recorder"'
WINDOW: Final = 'collectord_recorder_window_seconds{session="calls",source="tracefs"}'


def instances(tracefs: Path) -> list[str]:
    """Instances of these sessions that are there."""
    names = ("collectord-calls", "collectord-record~")
    found = (path.name for path in (tracefs / "instances").iterdir())
    return [name for name in found if name.startswith(names)]


def make(generator: Generator, count: int) -> None:
    """Make so many of this run's calls."""
    with generator.start("count", count=count, nr=NUMBER) as running:
        assert running.run()["events"] == count


@pytest.mark.vm
@pytest.mark.usefixtures("tracefs")
def test_snapshots_take_the_window(
    tmp_path: Path, start_cli: Start, run_cli: Cli, generator: Generator, trace_cmds: TraceCmds
) -> None:
    """A snapshot holds what came since the last one; the rest is kept to the end."""
    config = write_config(tmp_path, session=RECORDER, source='keep = "30s"\nmax = "16MiB"')
    with daemons.running(start_cli, config) as daemon:
        taken = []
        for count in (BURST, 5):
            make(generator, count)
            done = run_cli("snapshot", "calls", "--socket", tmp_path / "control.sock", "--json")
            assert done.returncode == 0, done.stderr
            (path,) = json.loads(done.stdout)["segments"]
            taken.append(Path(path))
        assert [daemons.manifest(path)["samples"] for path in taken] == [BURST, 5]
        session = daemon.session()
        assert (session["produced"], session["stored"]) == (BURST + 5, BURST + 5)
        assert (session["overwritten"], session["unaccounted"], session["in_flight"]) == (0, 0, 0)
        make(generator, 7)
        daemons.wait_for(lambda: daemon.session()["in_flight"] == 7, "events in the rings")
        ended = daemon.stop()
    assert ended.status == 0, ended.log
    segments = sorted((tmp_path / "state").rglob("*.trace.dat"))
    assert [daemons.manifest(path)["samples"] for path in segments] == [BURST, 5, 7]
    for trace_cmd in trace_cmds:
        assert [len(trace_cmd.report(path)) for path in segments] == [BURST, 5, 7]


def test_a_snapshot_of_nothing(tmp_path: Path, start_cli: Start, generator: Generator) -> None:
    """It says so at once, before any event and after another snapshot."""
    with daemons.running(start_cli, write_config(tmp_path, session=RECORDER)) as daemon:
        assert daemon.post("/v1/snapshot", {})["segments"] == []
        make(generator, BURST)
        assert len(daemon.post("/v1/snapshot", {})["segments"]) == 1
        assert daemon.post("/v1/snapshot", {})["segments"] == []
        assert daemon.stop().status == 0


def test_a_snapshot_larger_than_a_segment(
    tmp_path: Path, start_cli: Start, generator: Generator, trace_cmds: TraceCmds
) -> None:
    """All its segments are named, and together they hold all."""
    session = RECORDER + '\nsegment_bytes = "1MiB"'
    config = write_config(tmp_path, session=session, source='max = "64MiB"\nring = "32MiB"')
    with daemons.running(start_cli, config) as daemon:
        make(generator, 200_000)
        paths = [Path(path) for path in daemon.post("/v1/snapshot", {})["segments"]]
        balance = daemon.session()
        assert daemon.stop().status == 0
    assert (balance["stored"], balance["unaccounted"]) == (200_000, 0), balance["lost"]
    assert len(paths) > 1  # how many, says how fast the next files are prepared
    for trace_cmd in trace_cmds:
        assert sum(len(trace_cmd.report(path)) for path in paths) == 200_000


def test_rings_that_somebody_empties(
    tmp_path: Path, tracefs: Path, start_cli: Start, generator: Generator
) -> None:
    """A reset is told, and from then on the kernel's count proves nothing."""
    with daemons.running(start_cli, write_config(tmp_path)) as daemon:
        make(generator, BURST)
        daemon.await_stored(BURST)
        (tracefs / "instances" / "collectord-calls" / "trace").write_text("\n")
        daemons.wait_for(lambda: "emptied the rings" in str(daemon.session()), "the reset")
        make(generator, 7)
        daemon.await_stored(BURST + 7)
        session = daemon.session()
        assert (session["ledger_basis"], session["unaccounted"]) == ("lost_only", None)
        ended = daemon.stop()
    assert ended.status == 0, ended.log
    assert ended.named("rings_reset")


def test_overwriting_is_no_loss(tmp_path: Path, start_cli: Start, generator: Generator) -> None:
    """Events replaced in a recorder's rings are `overwritten`; the window is reported."""
    config = write_config(tmp_path, session=RECORDER, source='keep = "30s"\nmax = "256KiB"')
    with daemons.running(start_cli, config) as daemon:
        make(generator, 100_000)
        daemons.wait_for(lambda: daemon.session()["produced"] == 100_000, "the calls")
        assert daemon.session()["overwritten"] > 0
        daemons.wait_for(lambda: 0 < daemon.metric(WINDOW) < 30, "the window")
        daemons.wait_for(lambda: "MiB would be needed" in str(daemon.session()), "the shortfall")
        ended = daemon.stop()
    assert ended.status == 0, ended.log
    (segment,) = (tmp_path / "state").rglob("*.trace.dat")
    ledger = daemons.manifest(segment)["ledger"]
    assert ledger["overwritten"] > 0
    assert not any(ledger["lost"].values())
    assert ledger["produced"] == ledger["stored"] + ledger["overwritten"] == 100_000
    assert ledger["unaccounted"] == 0


def test_rings_grow_to_what_is_to_be_kept(
    tmp_path: Path, tracefs: Path, start_cli: Start, generator: Generator
) -> None:
    """While there is room below `max`, rings that overwrote too early become larger."""
    source = 'keep = "30s"\nmax = "64MiB"\nring = "128KiB"'
    config = write_config(tmp_path, session=RECORDER, source=source)
    with daemons.running(start_cli, config) as daemon:
        first = _ring_kib(tracefs)

        def grown() -> bool:
            make(generator, 20_000)
            return _ring_kib(tracefs) > 4 * first

        daemons.wait_for(grown, "larger rings")
        # While it resizes the kernel records nothing, and counts nothing of that.
        daemons.wait_for(lambda: daemon.session()["ledger_basis"] == "lost_only", "a weaker basis")
        ended = daemon.stop()
    assert ended.status == 0, ended.log


def _ring_kib(tracefs: Path) -> int:
    folder = tracefs / "instances" / "collectord-calls" / "per_cpu"
    return sum(int(path.read_text().split()[0]) for path in folder.glob("cpu*/buffer_size_kb"))


def test_marks_reach_the_file(
    tmp_path: Path, start_cli: Start, run_cli: Cli, trace_cmds: TraceCmds
) -> None:
    """`collectord mark` is in the trace once, and in the balance."""
    config = write_config(tmp_path)
    with daemons.running(start_cli, config) as daemon:
        control = ("--socket", tmp_path / "control.sock")
        assert run_cli("mark", "deploy 42 begins", *control).returncode == 0
        wrong = run_cli("mark", "text", "--session", "cals", *control)
        assert wrong.returncode == 2
        assert "calls" in wrong.stderr
        daemon.await_stored(1)
        ended = daemon.stop()
    assert ended.status == 0
    (segment,) = (tmp_path / "state").rglob("*.trace.dat")
    for trace_cmd in trace_cmds:
        (line,) = trace_cmd.report(segment)
        assert "deploy 42 begins" in line


def test_a_foreign_reader_is_named(
    tmp_path: Path, tracefs: Path, start_cli: Start, generator: Generator
) -> None:
    """Events that another process reads are told, with its name, and unaccounted."""
    config = write_config(tmp_path, source='watermark = "90%"', session="")
    config.write_text(config.read_text().replace('"100ms"', '"2s"'))
    with daemons.running(start_cli, config) as daemon:
        pipe = tracefs / "instances" / "collectord-calls" / "trace_pipe"
        with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE) as thief:
            assert thief.stdout is not None
            make(generator, BURST)
            stolen = thief.stdout.readline()
            daemons.wait_for(lambda: "another reader took" in str(daemon.session()), "the theft")
            told = str(daemon.session()["degraded"])
            thief.kill()
        assert stolen
        assert "cat" in told
        ended = daemon.stop()
    assert ended.named("foreign_reader")
    ledger = daemons.manifest(next((tmp_path / "state").rglob("*.trace.dat")))["ledger"]
    assert ledger["unaccounted"] > 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_nothing_remains(
    tmp_path: Path, tracefs: Path, start_cli: Start, number: signal.Signals
) -> None:
    """After a stop by signal no instance is left."""
    with daemons.running(start_cli, write_config(tmp_path)) as daemon:
        assert instances(tracefs) == ["collectord-calls"]
        assert daemon.stop(number).status == 0
    assert instances(tracefs) == []


REFUSED: Final[dict[str, tuple[tuple[str, ...], int, str]]] = {
    "unknown event": (("-e", "sched:sched_swich"), 2, "sched_switch"),
    "unknown field": (("-e", EVENT, "--filter", "idd == 1"), 2, "idd"),
    "bad filter": (("-e", EVENT, "--filter", "id =="), 2, "id =="),
    "no tracepoint": (("-e", "cycles"), 2, "cycles"),
    "user scope": (("-e", EVENT, "-u", "root"), 2, "-u cannot be combined"),
    "offline CPU": (("-e", EVENT, "-C", "4095"), 6, "4095"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_are_one_line(tmp_path: Path, tracefs: Path, run_cli: Cli, case: str) -> None:
    """Bad input has a status and one clear line, and leaves neither files nor an instance."""
    words, status, told = REFUSED[case]
    out = tmp_path / "out"
    done = run_cli("record", *words, "--via", "ftrace", "--output-dir", out)
    assert done.returncode == status, done.stderr
    assert told in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert instances(tracefs) == []
    assert not list(out.glob("*"))


def test_two_recordings_side_by_side(
    tmp_path: Path, run_cli: Cli, start_cli: Start, generator: Generator
) -> None:
    """Each has an instance of its own, and all events."""
    words = ("record", "-e", EVENT, "--filter", FILTER, "--via", "ftrace", "-a", "--json")
    gate = tmp_path / "gate"
    script = f"while [ ! -e {gate} ]; do sleep 0.05; done"
    first = start_cli(*words, "--output-dir", tmp_path / "a", "--", "sh", "-c", script)
    daemons.wait_for(lambda: list((tmp_path / "a").glob("*.partial")), "the first recording")
    load = generator.command("count", count=BURST, nr=NUMBER)
    second = run_cli(*words, "--output-dir", tmp_path / "b", "--", *load)
    gate.touch()
    answers = [first.communicate()[0], second.stdout]
    for answer in answers:
        (session,) = json.loads(answer[answer.index("{\n") :])["sessions"]
        assert (session["stored"], session["unaccounted"]) == (BURST, 0)
