# SPDX-License-Identifier: Apache-2.0
"""kill -9 at random instants: segments open, balances close, nothing stays in the kernel.

COLLECTORD_KILLS sets how many (12 by default). Each dozen is a line of daemons, one the successor
of the other, in one state directory, and a few recordings.
"""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

import pytest

from collectord.kernel.tracefs.instance_note import NOTES
from tests.support import daemons, kills
from tests.support.daemons import EVENT, FILTER, NUMBER, wait_for
from tests.support.kills import Instant, Left, Stock, Tally

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.generator import Generator
    from tests.support.perf_tools import Perf
    from tests.support.trace_cmds import TraceCmd

    Cli = Callable[..., subprocess.CompletedProcess[str]]
    Start = Callable[..., subprocess.Popen[str]]

pytestmark = [pytest.mark.usefixtures("bcc"), pytest.mark.timeout(900), pytest.mark.alone]

KILLS: Final = int(os.environ.get("COLLECTORD_KILLS", "12"))
OF_A_LINE: Final = 8  # daemons, and one recording for each of these:
RECORDINGS: Final = {
    "perf": ("-e", EVENT, "--filter", FILTER, "--output-dir", "out"),
    "one file": ("-e", EVENT, "--filter", FILTER, "-o", "out/one.perf.data"),
    "ftrace": ("-e", EVENT, "--filter", FILTER, "--via", "ftrace", "--output-dir", "out"),
    "bpf": ("--bpf", "syscall_stream", "--bpf-arg", f"nr={NUMBER}", "--output-dir", "out"),
}
DOZEN: Final = OF_A_LINE + len(RECORDINGS)
WITH_BPF: Final = 0.3  # of the daemons: to compile a program takes longest
TRANSPORTS: Final = ("read", "mmap", "splice", "auto")
FLUSH_S: Final = 0.1
START_S: Final = 1.5  # of a daemon, before one was measured
STOP_S: Final = 0.3
# Instances of ftrace carry their session's name, and this host may have other daemons.
PERF, TRACE, PROGRAM = (f"{kind}{NUMBER}" for kind in ("perf", "trace", "bpf"))


def write_config(directory: Path, transport: str, *, with_bpf: bool) -> Path:
    """Configure sessions that record this run's marked system calls, each in its way."""
    events = f'events = ["{EVENT}"]\nfilter = "{FILTER}"'
    sources = {
        PERF: f'kind = "perf"\n{events}',
        TRACE: f'kind = "tracefs"\n{events}\ntransport = "{transport}"',
        PROGRAM: f'kind = "bpf"\nprogram = "syscall_stream"\narguments = {{ nr = {NUMBER} }}',
    }
    sessions = "".join(
        f'[[session]]\nname = "{name}"\nsegment_bytes = "512KiB"\n[[session.source]]\n{source}\n'
        for name, source in sources.items()
        if with_bpf or name != PROGRAM
    )
    return daemons.write_sessions(directory, sessions, flush=f"{FLUSH_S}s")


class Line:
    """Daemons in one state directory, each the successor of one that was killed.

    Attributes:
        made: calls since the first one.
        least: records that were known to be on disk, by session.
    """

    def __init__(
        self,
        directory: Path,
        instances: Path,
        start_cli: Start,
        generator: Generator,
        *,
        stock: Stock,
        tally: Tally,
    ) -> None:
        self.made = 0
        self.least = dict.fromkeys((PERF, TRACE, PROGRAM), 0)
        self._directory = directory
        self._instance = instances / f"collectord-{TRACE}"
        self._start_cli = start_cli
        self._generator = generator
        self._stock = stock
        self._tally = tally
        self._left = Left()
        self._checked: set[Path] = set()
        self._start_s = START_S
        # Counts of the ftrace session's rings, from the kill on: calls since they began, and how
        # many of them were known to be stored.
        self._in_rings = self._stored = 0

    def live_and_die(self, seed: int) -> None:
        """Start a daemon, and kill it in one part of its life."""
        dice = random.Random(seed)  # noqa: S311  # no secret
        instant = dice.choices(list(Instant), (3, 5, 2))[0]
        with_bpf = dice.random() < WITH_BPF
        config = write_config(self._directory, dice.choice(TRANSPORTS), with_bpf=with_bpf)
        self._tally.figures[f"run, at {instant}{', bpf' if with_bpf else ''}"] += 1
        if instant is Instant.START:
            process = self._start_cli("run", "--config", config)
            kills.pause(dice, self._start_s)
            process.kill()
            self._bury(process)
            return
        made, least = self.made, self.least[TRACE]
        begun = time.monotonic()
        with daemons.running(self._start_cli, config) as daemon:
            if not with_bpf:
                self._start_s = time.monotonic() - begun
            self.check()
            if instant is Instant.WORK:
                self._count_calls(dice, daemon)
            else:
                self._count_calls(dice, daemon, wait=True)
                daemon.process.send_signal(signal.SIGTERM)
                kills.pause(dice, STOP_S)
            daemon.kill()
            stored = self.least[TRACE] - least
            self._bury(daemon.process)
            if self._instance.is_dir():  # else it had come to the end of its stop
                self._in_rings, self._stored = self.made - made, stored

    def _count_calls(
        self, dice: random.Random, daemon: daemons.Daemon, *, wait: bool = False
    ) -> None:
        def kill() -> None:
            if wait:
                return
            for session in daemon.status()["sessions"]:
                self.least[session["name"]] += session["stored"]
            kills.pause(dice, FLUSH_S)
            daemon.kill()

        self.made += kills.calls_around(self._generator, dice, kill)

    def _bury(self, process: subprocess.Popen[str]) -> None:
        """Read what it told of the ftrace session of the one before it."""
        _, log = process.communicate()
        self._left.await_processes()
        salvaged = kills.named(log, "instance_salvaged")
        for told in (one for one in salvaged if one["instance"] == f"collectord-{TRACE}"):
            kills.check_salvaged(told, self._in_rings)
            self.least[TRACE] += told["stored"] - self._stored
            self._in_rings = self._stored = 0
            self._tally.figures["salvaged"] += 1

    def check(self) -> None:
        """Check what a daemon that has started makes of those before it."""
        state = self._directory / "state"
        segments = [path for path in kills.sealed(state) if path not in self._checked]
        self._checked.update(segments)
        self._stock.check(segments)
        self._tally.count(segments)
        for session in (PERF, TRACE, PROGRAM):
            found = sum(
                daemons.manifest(path)["samples"] for path in kills.sealed(state / session)
            )
            assert self.least[session] <= found <= self.made, session

    def end(self, instances: Path) -> None:
        """The last one stops as it should, and nothing is left of all."""
        config = write_config(self._directory, "auto", with_bpf=False)
        with daemons.running(self._start_cli, config) as daemon:
            self.check()
            ended = daemon.stop()
        assert ended.status == 0, ended.log
        self.check()
        state = self._directory / "state"
        left = [path for path in daemons.left_open(state) if not path.name.startswith(".")]
        assert left == []
        for place in (instances, NOTES):
            assert not list(place.glob(f"*collectord-{TRACE}*"))
        self._left.await_nothing()


@pytest.fixture
def instances(tracefs: Path) -> Iterator[Path]:
    """Return the folder of ftrace instances; a failing test leaves none of its own there."""
    found = tracefs / "instances"
    yield found
    for path in found.glob(f"collectord-{TRACE}*"):
        path.rmdir()


@pytest.fixture
def stock(perfs: tuple[Perf, ...], trace_cmds: tuple[TraceCmd, ...]) -> Stock:
    """Return the tools that must open what is left."""
    return Stock(perfs, trace_cmds)


@pytest.fixture(scope="module")
def tally(request: pytest.FixtureRequest) -> Iterator[Tally]:
    """Return the results of all trials, which are printed at the end."""
    counted = Tally()
    yield counted
    told = ", ".join(f"{name} {count}" for name, count in sorted(counted.figures.items()))
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        request.config.get_terminal_writer().line(f"\nkills: {told}")


@pytest.mark.parametrize("dozen", range((KILLS + DOZEN - 1) // DOZEN))
def test_killed_daemons(  # noqa: PLR0917  # fixtures
    tmp_path: Path,
    instances: Path,
    start_cli: Start,
    run_cli: Cli,
    generator: Generator,
    stock: Stock,
    tally: Tally,
    dozen: int,
) -> None:
    """In starts, at work and in stops: each successor repairs and salvages, and goes on."""
    line = Line(tmp_path, instances, start_cli, generator, stock=stock, tally=tally)
    for seed in range(dozen * DOZEN, dozen * DOZEN + OF_A_LINE):
        line.live_and_die(seed)
    line.end(instances)
    verified = run_cli("segments", "verify", tmp_path / "state")
    assert verified.returncode == 0, verified.stdout


@pytest.mark.parametrize("seed", range((KILLS + DOZEN - 1) // DOZEN))
@pytest.mark.parametrize("kind", RECORDINGS)
def test_killed_recording(  # noqa: PLR0917  # fixtures
    tmp_path: Path,
    tracefs: Path,
    start_cli: Start,
    run_cli: Cli,
    generator: Generator,
    stock: Stock,
    tally: Tally,
    kind: str,
    seed: int,
) -> None:
    """The remains of a `record` are repaired, or salvaged by the next one like it."""
    dice = random.Random(f"{kind} {seed}")  # noqa: S311  # no secret
    left = Left()
    instant = dice.choices(list(Instant), (2, 5, 3))[0]
    tally.figures[f"record {kind}, at {instant}"] += 1
    out = tmp_path / "out"
    out.mkdir()
    begun = tmp_path / "begun"
    made = 0
    with _recording(start_cli, begun, "record", "-a", *RECORDINGS[kind]) as process:
        if instant is Instant.START:
            kills.pause(dice, START_S)
        else:
            wait_for(begun.exists, "the command's beginning")
            kill = process.kill if instant is Instant.WORK else lambda: None
            made = kills.calls_around(generator, dice, kill)
            if instant is Instant.STOP:
                process.send_signal(signal.SIGINT)
                kills.pause(dice, STOP_S)
        process.kill()
        process.wait()
    left.await_processes()
    (tmp_path / "out").mkdir(exist_ok=True)
    if kind == "ftrace":
        done = run_cli("record", "-a", *RECORDINGS[kind], "--", "true")
        assert done.returncode == 0, done.stderr
        for told in kills.named(done.stderr, "instance_salvaged"):
            kills.check_salvaged(told, made)
        assert not list((tracefs / "instances").glob(f"collectord-record@{process.pid}*"))
    done = run_cli("segments", "repair", "--json", out)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not [path for path in out.iterdir() if "partial" in path.name]
    segments = kills.sealed(out)
    stock.check(segments)
    tally.count(segments)
    assert sum(daemons.manifest(path)["samples"] for path in segments) <= made
    assert run_cli("segments", "verify", out).returncode == 0
    left.await_nothing()


@contextmanager
def _recording(
    start_cli: Start, begun: Path, *words: str | Path
) -> Iterator[subprocess.Popen[str]]:
    """Start a recording of the whole host; `begun` is there once it counts."""
    command = ("sh", "-c", f"echo $$ > {begun}.new; mv {begun}.new {begun}; exec sleep infinity")
    process = start_cli(*words, "--", *command)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        if begun.exists():
            with suppress(ProcessLookupError):  # a recording that stops takes it along
                os.kill(int(begun.read_text()), signal.SIGKILL)
