# SPDX-License-Identifier: Apache-2.0
"""A daemon whose disk takes far less than one of its sessions makes, and two others beside it.

`busy` records as many events a second as one CPU makes; `quiet`, and a flight recorder, some
hundreds. All three write to one slow disk.
"""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.support.daemons import EVENT, NUMBER

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.generator import Generator

BUSY: Final = "busy"
QUIET: Final = "quiet"
RECORDER: Final = f"recorder-{os.getpid()}"  # what names an instance of tracefs
SESSIONS: Final = (BUSY, QUIET, RECORDER)
PAIR: Final = "pair"  # what two sessions record, each more than half of what the disk takes
DISK_BYTES_PER_SECOND: Final = 10_000_000
_BLOCK_BYTES: Final = 512  # of st_blocks
# System calls that nobody makes but this scene's generators.
NUMBERS: Final = {name: NUMBER + n for n, name in enumerate((*SESSIONS, PAIR), 1)}


class _Run(NamedTuple):
    """A run of the generator; without a rate at full speed, on CPU -1 anywhere."""

    events: int
    rate: float
    cpu: int


_RUNS: Final = {
    BUSY: _Run(500_000, 0, 0),
    QUIET: _Run(100, 400, -1),
    RECORDER: _Run(100, 400, -1),
    PAIR: _Run(10_000, 50_000, 0),
}


def write_config(
    directory: Path,
    state: Path,
    *,
    flush: str,
    staging: str,
    chunk: str,
    segment: str,
    retained: str,
    busy: Path | None = None,
) -> Path:
    """Write the configuration of the three sessions.

    Args:
        directory: of the file and the control socket.
        state: on the slow disk.
        flush: the flush interval.
        staging: memory for chunks.
        chunk: one of them.
        segment: how large one of `busy` is; those of `quiet` are a second long.
        retained: bytes of all segments.
        busy: where the segments of `busy` go, if not below `state`.
    """
    elsewhere = f'directory = "{busy}"' if busy is not None else ""
    path = directory / "collectord.toml"
    path.write_text(
        f"""
[daemon]
state_dir = "{state}"
flush_interval = "{flush}"
staging = "{staging}"
chunk = "{chunk}"
log_format = "json"
[metrics]
listen = "127.0.0.1:0"
[control]
socket = "{directory / "control.sock"}"
[retention]
bytes = "{retained}"
age = "0"
free = "0"

[[session]]
name = "{BUSY}"
segment_bytes = "{segment}"
{elsewhere}
[[session.source]]
kind = "perf"
events = ["{EVENT}"]
filter = "id == {NUMBERS[BUSY]}"

[[session]]
name = "{QUIET}"
segment_age = "1s"
[[session.source]]
kind = "perf"
events = ["{EVENT}"]
filter = "id == {NUMBERS[QUIET]}"
ring = "64KiB"

[[session]]
name = "{RECORDER}"
mode = "flight-recorder"
[[session.source]]
kind = "tracefs"
events = ["{EVENT}"]
filter = "id == {NUMBERS[RECORDER]}"
ring = "4MiB"
max = "256MiB"
"""
    )
    return path


class Load:
    """Successive runs of the generator for one session, until told to end.

    Args:
        generator: makes the events.
        session: which one records them.
        like: the session whose rate they have, if not that one's.

    Attributes:
        made: events so far, of runs that are over.
    """

    def __init__(self, generator: Generator, session: str, like: str = "") -> None:
        self.made = 0
        self._how = _RUNS[like or session]
        self._generator = generator
        self._session = session
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"load-{session}")
        self._thread.start()

    def _run(self) -> None:
        number, run = NUMBERS[self._session], self._how
        while not self._ending.is_set():
            with self._generator.start(
                "count", nr=number, count=run.events, rate=run.rate, cpu=run.cpu
            ) as running:
                self.made += running.run()["events"]

    def end(self) -> None:
        """Let the present run end."""
        self._ending.set()
        self._thread.join()


@contextmanager
def loads(generator: Generator, *, calm: bool = False) -> Iterator[dict[str, Load]]:
    """Provide the load of each session, while the block runs; if `calm`, none at full speed."""
    with ExitStack() as stack:
        running = {}
        for name in SESSIONS:
            running[name] = Load(generator, name, QUIET if calm else name)
            stack.callback(running[name].end)
        yield running


def segments(state: Path, session: str) -> list[Path]:
    """Return the sealed segments that a session has, oldest first."""
    return sorted(path.with_suffix("") for path in (state / session).glob("*.json"))


def retained_bytes(state: Path) -> int:
    """Return the disk space of sealed segments, in bytes."""
    total = 0
    for manifest in state.rglob("*.json"):
        for path in (manifest, manifest.with_suffix("")):
            with suppress(FileNotFoundError):  # deleted since it was listed
                total += path.stat().st_blocks * _BLOCK_BYTES
    return total
