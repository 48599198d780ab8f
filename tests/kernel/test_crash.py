# SPDX-License-Identifier: Apache-2.0
"""kill -9 at random instants: what had been flushed is found again, and every segment opens.

COLLECTORD_KILLS sets how many instants are tried (5 by default).
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pytest

from collectord.sink.formats import open_stored
from tests.support import daemons, segments
from tests.support.daemons import EVENT, FILTER, NUMBER

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.generator import Generator
    from tests.support.perf_tools import Perf

    Cli = Callable[..., subprocess.CompletedProcess[str]]
    Start = Callable[..., subprocess.Popen[str]]

pytestmark = pytest.mark.beside

KILLS: Final = int(os.environ.get("COLLECTORD_KILLS", "5"))
BURST: Final = 3_000
RATE: Final = 40_000.0
# One and a half flush intervals of `record`, fifteen of the daemon here.
LAST_BURST: Final = 60_000
SEGMENT: Final = "512KiB"  # 4,000 records: a kill may meet any step of a rotation


class Work:
    """Bursts of a known number of calls.

    Attributes:
        made: their sum, without the one that a kill cut off.
        paced: what that one made by its rate until the kill, about.
    """

    def __init__(self, generator: Generator, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311  # no secret
        self.made = 0
        self.paced = 0
        self._generator = generator

    def burst(self, count: int = BURST) -> int:
        """Make a burst, and give the sum of all."""
        with self._generator.start("count", count=count, nr=NUMBER) as running:
            assert running.run()["events"] == count
        self.made += count
        return self.made

    def burst_and_kill(self, kill: Callable[[], None]) -> int:
        """Kill at a random instant of a long, paced burst; give its length, the most it made."""
        with self._generator.start("count", count=LAST_BURST, rate=RATE, nr=NUMBER) as running:
            begun_ns = time.monotonic_ns()
            running.go()
            self.pause(LAST_BURST / RATE)
            self.paced = int((time.monotonic_ns() - begun_ns) * RATE / 1e9)
            kill()
            os.kill(running.pid, signal.SIGKILL)
        return LAST_BURST

    def pause(self, at_most_s: float) -> None:
        """Let a random time pass: the instant is what the test is about."""
        time.sleep(self.random.uniform(0, at_most_s))


@pytest.mark.parametrize("seed", range(0, KILLS, 2))
def test_killed_daemon(  # noqa: PLR0917  # fixtures
    tmp_path: Path,
    start_cli: Start,
    generator: Generator,
    perfs: tuple[Perf, ...],
    record_property: Callable[[str, object], None],
    seed: int,
) -> None:
    """The next daemon seals the data flushed by a killed one, and reports the kill."""
    work = Work(generator, seed)
    state = tmp_path / "state"
    config = daemons.write_config(tmp_path, segment_bytes=SEGMENT)
    at_most = 0
    with daemons.running(start_cli, config) as daemon:
        assert daemon.metric("collectord_unclean_stops_total") == 0
        for _ in range(work.random.randrange(4)):
            daemon.await_stored(work.burst())
        if seed % 5:
            at_most = work.burst_and_kill(daemon.kill)
        else:
            daemon.kill()
    assert daemons.left_open(state), "the kill left nothing to repair"

    with daemons.running(start_cli, config) as successor:
        recovered = [p for p in daemons.sealed(state) if daemons.manifest(p)["recovered"]]
        assert successor.metric("collectord_unclean_stops_total") == 1
        ended = successor.stop()
    assert ended.status == 0
    told = [line for line in ended.named("segment_repaired") if line["action"] == "recovered"]
    assert {line["path"] for line in told} == {str(path) for path in recovered}

    found = _check(state, perfs)
    assert work.made <= found <= work.made + at_most
    if at_most:
        assert recovered
        record_property("missing", work.made + work.paced - found)


def test_damaged_files_keep_nobody_down(tmp_path: Path, start_cli: Start) -> None:
    """A start reports each unreadable manifest, and goes on."""
    sealed = segments.write_segment(segments.make_sink(tmp_path / "state" / "old")).path
    deep, invalid = (segments.orphan(tmp_path / "state" / name) for name in ("deep", "invalid"))
    untrue = segments.orphan(tmp_path / "state" / "untrue")
    for data, name, damage in (
        (sealed, sealed.name + ".json", b'{"schema": 1, "host": "\xff"}'),
        (deep, deep.name.replace(".partial", ".json.partial"), b"[" * 100_000),
        (invalid, invalid.name.replace(".partial", ".json.partial"), b'{"host": "\xff"}'),
    ):
        data.with_name(name).write_bytes(damage)
    manifest = untrue.with_name(untrue.name.replace(".partial", ".json.partial"))
    told = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(told | {"data_offset": -1}))
    config = daemons.write_config(tmp_path, segment_bytes=SEGMENT)
    with daemons.running(start_cli, config) as daemon:
        assert daemon.metric("collectord_damaged_files") == 4
        ended = daemon.stop()
    assert ended.status == 0
    left = {line["path"]: line["action"] for line in ended.named("segment_not_repaired")}
    assert left == {str(sealed): "damaged", str(untrue): "refused"}
    repaired = {line["path"]: line["detail"] for line in ended.named("segment_repaired")}
    assert set(repaired) == {str(path).removesuffix(".partial") for path in (deep, invalid)}
    assert all(".json.damaged" in detail for detail in repaired.values())


@contextmanager
def _recording(start_cli: Start, out: Path, begun: Path) -> Iterator[Callable[[], None]]:
    """Record everything into `out`; `begun` is there once it counts. Killed at the end at last."""
    command = ("sh", "-c", f"echo $$ > {begun}.new; mv {begun}.new {begun}; exec sleep infinity")
    what = ("-a", "-e", EVENT, "--filter", FILTER, "--output-dir", out)
    process = start_cli("record", *what, "--", *command)

    def kill() -> None:
        process.kill()
        process.wait()

    try:
        yield kill
    finally:
        kill()
        if begun.exists():
            os.kill(int(begun.read_text()), signal.SIGKILL)


@pytest.mark.parametrize("seed", range(1, KILLS, 2))
def test_killed_recording(  # noqa: PLR0917  # fixtures
    tmp_path: Path,
    start_cli: Start,
    run_cli: Cli,
    generator: Generator,
    perfs: tuple[Perf, ...],
    record_property: Callable[[str, object], None],
    seed: int,
) -> None:
    """`segments repair` seals the data flushed by a killed `record --output-dir`."""
    work = Work(generator, seed)
    out, begun = tmp_path / "out", tmp_path / "begun"
    at_most = 0
    with _recording(start_cli, out, begun) as kill:
        if seed % 5:
            daemons.wait_for(begun.exists, "the command's beginning")
            work.burst()
            daemons.wait_for(lambda: _written(out) >= work.made, "a flush")
            at_most = work.burst_and_kill(kill)
        else:
            work.pause(0.5)  # anywhere in its start
    if not out.exists():
        return
    done = run_cli("segments", "repair", "--json", out)
    assert done.returncode == 0, done.stdout + done.stderr
    outcomes = json.loads(done.stdout)["segments"]
    recovered = [o for o in outcomes if o["action"] == "recovered"]
    found = _check(out, perfs)
    assert sum(o["samples"] for o in recovered) == found
    if at_most:
        record_property("missing", work.made + work.paced - found)
    assert work.made <= found <= work.made + at_most
    assert run_cli("segments", "verify", out).returncode == 0


def _written(out: Path) -> int:
    """Return the samples in the segments that are open, as a repair would find them now."""
    samples = 0
    for path in out.glob("*.perf.data.partial"):
        fd = os.open(path, os.O_RDONLY)
        try:
            samples += open_stored(fd).survey().samples
        finally:
            os.close(fd)
    return samples


def _check(state: Path, perfs: tuple[Perf, ...]) -> int:
    """Every segment is sealed, opens in every perf, and says what a kill means; give samples."""
    assert daemons.left_open(state) == []
    segments = daemons.sealed(state)
    for segment in segments:
        said = daemons.manifest(segment)
        assert said["complete"] is not said["recovered"], segment
        if said["recovered"]:
            assert said["produced"] is None
            assert said["ledger"] == {
                "basis": "none",
                "produced": None,
                "stored": said["samples"],
            }
    return daemons.readable_samples(perfs, segments)


def test_clean_stop_is_no_unclean_one(
    tmp_path: Path, start_cli: Start, generator: Generator
) -> None:
    """After a stop by signal the next daemon repairs nothing and counts nothing."""
    work = Work(generator, 0)
    config = daemons.write_config(tmp_path)
    with daemons.running(start_cli, config) as daemon:
        daemon.await_stored(work.burst())
        assert daemon.stop().status == 0
    with daemons.running(start_cli, config) as daemon:
        assert daemon.metric("collectord_unclean_stops_total") == 0
        ended = daemon.stop()
    assert ended.named("segment_repaired") == []
