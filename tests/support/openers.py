# SPDX-License-Identifier: Apache-2.0
"""An opener under test, and what daemons that come and go have counted."""

from __future__ import annotations

import socket
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collectord.kernel.values.kept_rings import STATE_BYTES
from tests.support import daemons
from tests.support.daemons import wait_for

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from tests.support.daemons import Daemon, Ended
    from tests.support.perf_tools import Perf
    from tests.support.recording import Cli, Start


@contextmanager
def opening(start_cli: Start, config: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
    """Start an opener with this configuration, and end it with the block."""
    process = start_cli("opener", "--config", config, *more)
    wait_for(lambda: answers(place_of(config)), "the opener's answer")
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


@contextmanager
def opening_and_ending(start_cli: Start, run_cli: Cli, config: Path) -> Iterator[None]:
    """Have an opener listen, and end with it what the daemons have left."""
    try:
        with opening(start_cli, config):
            yield
    finally:
        ended = run_cli("opener", "--end")
    assert ended.returncode == 0, ended.stderr


def answers(place: Path) -> bool:
    """Whether an opener listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
        return one.connect_ex(str(place)) == 0


def place_of(config: Path) -> Path:
    """Return the opener's socket."""
    return config.parent / "opener.sock"


def configured(
    directory: Path,
    ring: str = "8MiB",
    *,
    state: Path | None = None,
    watermark: str = "25%",
    staging: str = "16MiB",
) -> Path:
    """Write a configuration whose rings the opener holds."""
    config = daemons.write_config(directory, state, ring=ring)
    text = config.read_text().replace('staging = "16MiB"', f'staging = "{staging}"')
    config.write_text(text.replace("ring = ", f'watermark = "{watermark}"\nring = '))
    return with_opener(config)


def with_opener(config: Path) -> Path:
    """Let the sessions of a configuration be held."""
    text = config.read_text()
    config.write_text(text.replace("[daemon]\n", f'[daemon]\nopener = "{place_of(config)}"\n'))
    return config


def notes(opener: subprocess.Popen[str]) -> list[bytes]:
    """Return what the opener's memory says of how far the rings were read."""
    found = []
    for path in Path(f"/proc/{opener.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # a connection that has ended
            target = str(path.readlink())
            if target.startswith("/memfd:") and "staging" not in target:
                found.append(path.read_bytes()[STATE_BYTES:])
    return found


def held(opener: subprocess.Popen[str]) -> int:
    """Return how many events an opener holds."""
    links = []
    for path in Path(f"/proc/{opener.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # a connection that has ended
            links.append(str(path.readlink()))
    return sum("perf_event" in link for link in links)


def lost(said: dict[str, Any]) -> dict[str, int]:
    """Return the losses of a balance that are not 0."""
    return {name: count for name, count in said["lost"].items() if count}


def stored(state: Path, perfs: tuple[Perf, ...]) -> int:
    """Return the samples that perf reads in all segments."""
    return daemons.readable_samples(perfs[:1], daemons.sealed(state))


def all_counted(daemon: Daemon, made: int, state: Path) -> bool:
    """Whether all events are in sealed segments, or stored or lost by this daemon."""
    sealed = sum(daemons.manifest(path)["samples"] for path in daemons.sealed(state))
    said = daemon.session()
    return bool(sealed + said["stored"] + sum(said["lost"].values()) == made)


def allowed(ended: Ended) -> set[str]:
    """Return the losses of rings that a CPU has left meanwhile: they are replaced, with a gap."""
    return {"kernel_ring/dropped"} if ended.named("gap_before") else set()
