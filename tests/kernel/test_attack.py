# SPDX-License-Identifier: Apache-2.0
"""A user who swaps names in a folder of theirs while root works there reaches nothing outside."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Final

import pytest

from collectord.errors import CollectordError
from collectord.plan.sink_plan import RetentionPlan
from collectord.reader.verify import list_segments, verify
from collectord.sink.eviction import evict
from collectord.sink.repair import repair
from tests.support import segments as support
from tests.support.attacker import Attack, attacking, fingerprint, make_home
from tests.support.patience import patient

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.recording import Start

    Run = Callable[..., subprocess.CompletedProcess[str]]
    Done = subprocess.CompletedProcess[str] | subprocess.Popen[str]

# The length of each of the two attacks; ATTACK_SECONDS=600 tries it in earnest.
SECONDS: Final = float(os.environ.get("ATTACK_SECONDS", "2"))
pytestmark = [pytest.mark.timeout(SECONDS + patient(240)), pytest.mark.beside]
CONFIG: Final = """
[daemon]
state_dir = "{state}"
flush_interval = "50ms"
staging = "8MiB"

[metrics]
listen = ""

[control]
socket = "{run}/control.sock"

[retention]
bytes = "1MiB"

[[session]]
name = "calls"
segment_age = "100ms"

[[session.source]]
kind = "perf"
events = ["cpu-clock"]

[[session]]
name = "recorder"
mode = "flight-recorder"

[[session.source]]
kind = "perf"
events = ["cpu-clock"]
"""
FULL_BYTES: Final = 1 << 20
NAMES: Final = tuple(
    f"{name}{suffix}"
    for name in ("x", "20260101T000000Z-000001.perf.data")
    for suffix in ("", ".json", ".json.partial", ".json.new", ".partial")
)


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """Root's own folder: a secret, sealed segments and one that waits for its repair."""
    place = tmp_path / "outside"
    place.mkdir()
    (place / "secret").write_bytes(b"root's own\n" * 600)
    support.write_segment(support.make_sink(place))
    support.orphan(place)
    before = fingerprint(place)
    yield place
    assert fingerprint(place) == before


def _attacked(rounds: Callable[[], object]) -> int:
    """Go on for the time of an attack, and for one round at least; give the number of rounds."""
    until = time.monotonic() + SECONDS
    done = 0
    while not done or time.monotonic() < until:
        rounds()
        done += 1
    return done


def _tell(attack: Attack, **figures: object) -> None:
    print({"seconds": SECONDS, "swaps": attack.swaps} | figures)  # noqa: T201  # shown by -s


class Library:
    """Segments are created, sealed, left, repaired, listed, verified and evicted."""

    def __init__(self, home: Path) -> None:
        self.figures: Counter[str] = Counter()
        self._home = home
        self._steps = (
            lambda: self._record(single_file=str(home / "x")),
            self._record,
            lambda: support.killed(self._leave),
            self._repair,
            lambda: list_segments([home]),
            lambda: verify([home]),
            lambda: evict(home, RetentionPlan(bytes=FULL_BYTES), time.time_ns()),
        )

    def work(self) -> None:
        """Do everything once; what is refused is counted."""
        for step in self._steps:
            try:
                step()
            except CollectordError:
                self.figures["refused"] += 1

    def _record(self, **options: str) -> None:
        with closing(support.make_sink(self._home, **options)) as sink:
            support.write_segment(sink)
            self.figures["sealed"] += 1

    def _leave(self) -> None:
        with suppress(CollectordError):
            support.fill(support.make_sink(self._home).next_segment(1, support.OPENING))

    def _repair(self) -> None:
        self.figures.update(str(outcome.action) for outcome in repair(self._home))


class Program:
    """The verbs of the program, and a daemon of which snapshots are asked."""

    def __init__(self, home: Path, config: Path, run_cli: Run, start_cli: Start) -> None:
        self.figures: Counter[str] = Counter()
        self._home = home
        self._config = config
        self._run = run_cli
        self._start = start_cli

    def work(self) -> None:
        """Do all operations once."""
        record = ("record", "-a", "-e", "cpu-clock", "--duration", "200ms")
        daemon = self._start("run", "--config", self._config)
        for words in (
            (*record, "-o", self._home / "x"),
            (*record, "--output-dir", self._home / "state" / "calls"),
            ("snapshot", "--socket", self._config.parent / "run" / "control.sock"),
            ("segments", "repair", self._home),
            ("segments", "list", self._home),
            ("segments", "verify", self._home),
        ):
            done = self._run(*words)
            self._note(words[0] if words[0] != "segments" else words[1], done, done.stderr)
        daemon.send_signal(signal.SIGTERM)
        _, log = daemon.communicate()
        self._note("run", daemon, log)

    def _note(self, verb: object, done: Done, log: str) -> None:
        assert done.returncode in {0, 1}, (verb, done.returncode, log)
        assert "Traceback" not in log, (verb, log)
        self.figures[f"{verb}: {done.returncode}"] += 1


def test_library(tmp_path: Path, outside: Path) -> None:
    """Each step is done or refused despite the planted files, and nothing outside is touched."""
    home = make_home(tmp_path / "home")
    library = Library(home)
    with attacking(home, outside, NAMES) as attack:
        rounds = _attacked(library.work)
        _tell(attack, rounds=rounds, **library.figures)
        assert attack.swaps


def test_program(
    tmp_path: Path, outside: Path, run_cli: Run, start_cli: Start, tracefs: Path
) -> None:
    """The whole program resists too, with a state directory and a socket's in the folder."""
    assert tracefs.is_dir()
    home = make_home(tmp_path / "home")
    config = tmp_path / "collectord.toml"
    config.write_text(CONFIG.format(state=home / "state", run=tmp_path / "run"))
    (tmp_path / "run").mkdir()
    program = Program(home, config, run_cli, start_cli)
    with attacking(home, outside, NAMES) as attack:
        rounds = _attacked(program.work)
        _tell(attack, rounds=rounds, **program.figures)
        assert attack.swaps
