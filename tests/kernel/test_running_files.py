# SPDX-License-Identifier: Apache-2.0
"""A running perf.data is a whole file at every instant, and so is any copy of it."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from collectord.codec.perf_attr import RecordType
from collectord.codec.perf_data import parse_header
from collectord.codec.perf_record import iter_records
from collectord.errors import UsageError
from collectord.reader.verify import State, list_segments, verify
from collectord.sink.trace_file import read_head
from tests.support import daemons
from tests.support.daemons import EVENT, FILTER, NUMBER
from tests.support.recording import check_balance, daemon, daemon_config, daemon_result

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    from tests.support.generator import Generator
    from tests.support.perf_tools import Perf
    from tests.support.recording import Start

pytestmark = pytest.mark.usefixtures("tracefs")

COPIES: Final = 100
COUNT: Final = 5_000
RATE: Final = 2_000
PAUSE_MAX_S: Final = 0.04  # twice the mean: the copies are spread over the time of the load
ROTATIONS: Final = 100
MANY: Final = 10_000
BOTH: Final = f"""ring = "16MiB"
[[session]]
name = "traced-{os.getpid()}"
[[session.source]]
kind = "tracefs"
events = ["{EVENT}"]
filter = "{FILTER}"
"""
SMALL_AND_OFTEN: Final = 'chunk = "128KiB"\nstaging = "16MiB"\nflush_interval = "50ms"'


def shown(path: Path) -> bytes:
    """Return the records that a file's header shows."""
    content = path.read_bytes()
    data = parse_header(content).data
    return content[data.offset : data.offset + data.size]


def samples(records: bytes) -> int:
    """Return how many of them are samples."""
    return sum(header.type == RecordType.SAMPLE for header in iter_records(records))


def test_copies_of_a_running_file(
    start_cli: Start, tmp_path: Path, *, generator: Generator, perfs: tuple[Perf, ...]
) -> None:
    """Stock perf lists of each copy what a flush had shown, without a word, and at last all."""
    chance = random.Random(COPIES)  # noqa: S311
    config = daemon_config(tmp_path, core=SMALL_AND_OFTEN, source='ring = "16MiB"')
    copies = [tmp_path / f"copy{number}" for number in range(COPIES)]
    work = {"nr": NUMBER, "count": COUNT, "rate": RATE}
    with daemon(start_cli, config):
        # The one behind it is prepared, and empty.
        running_file = min((tmp_path / "state").rglob("*.perf.data.partial"))
        with generator.start("count", hold=False, **work) as load:
            load.go()
            for copy in copies:
                time.sleep(chance.uniform(0, PAUSE_MAX_S))
                shutil.copyfile(running_file, copy)
            load.result()
        daemons.wait_for(
            lambda: samples(shown(running_file)) == COUNT, "the flush behind the last sample"
        )
        for perf in perfs:
            assert len(perf.script(running_file)) == COUNT, perf.version
    check_balance(daemon_result(tmp_path), perfs, generated=COUNT)
    contents = list(map(shown, copies))
    # perf reads the same of two copies that show the same.
    different = dict(zip(contents, copies, strict=True))
    counts = {copy: samples(content) for content, copy in different.items()}
    assert contents == sorted(contents, key=len)
    assert len(counts) >= COPIES // 10
    with ThreadPoolExecutor(len(perfs)) as both:
        for read in both.map(lambda perf: [len(perf.script(copy)) for copy in counts], perfs):
            assert read == list(counts.values())


def test_rotation_on_request(
    start_cli: Start,
    run_cli: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
    *,
    generator: Generator,
    perfs: tuple[Perf, ...],
) -> None:
    """It seals all that was recorded, also on a signal, and the link leads to the next file."""
    config = daemon_config(tmp_path, core=SMALL_AND_OFTEN, source='ring = "16MiB"')
    state = tmp_path / "state"
    rotate = ("rotate", "--socket", tmp_path / "control.sock", "--json")
    with daemon(start_cli, config) as running:
        with generator.start("count", hold=False, nr=NUMBER, count=COUNT, rate=RATE) as load:
            load.go()
            running.await_stored(100)
            sealed = list(map(Path, json.loads(run_cli(*rotate).stdout)["segments"]))
            assert daemons.sealed(state) == sealed
            (link,) = state.rglob("current-perf.data")
            assert link.resolve(strict=True).name.endswith(".perf.data.partial")
            load.result()
        with pytest.raises(UsageError, match="no session nobody"):
            running.post("/v1/rotate", {"sessions": ["nobody"]})
        running.await_stored(COUNT)
        assert daemons.sealed(state) == sealed
        running.process.send_signal(signal.SIGUSR1)
        daemons.wait_for(lambda: len(daemons.sealed(state)) > len(sealed), "the signal's rotation")
        assert sum(samples(shown(path)) for path in daemons.sealed(state)) == COUNT
    assert not list(state.rglob("current-*"))
    check_balance(daemon_result(tmp_path), perfs, generated=COUNT)


def look_at(state: Path, perf: Perf) -> None:
    """Check that all segments are listed, and that the links lead to files that can be read."""
    rows = list_segments([state])
    assert {row.state for row in rows} <= {State.RUNNING, State.SEALED}
    assert all(row.samples is not None for row in rows if row.state is State.SEALED)
    perf.script(state / "calls" / "current-perf.data")
    (link,) = state.rglob("current-trace.dat")
    with link.open("rb") as file:
        assert read_head(file.fileno()).extents


def test_rotations_in_a_row(
    start_cli: Start, tmp_path: Path, *, generator: Generator, perfs: tuple[Perf, ...]
) -> None:
    """Each of two that run at the same time answers, nothing is lost, and all stays readable.

    The segments of the answers are all there are, and each event is in one of them.
    """
    config = daemon_config(tmp_path, core=SMALL_AND_OFTEN, source=BOTH)
    state, ended = tmp_path / "state", threading.Event()

    def look() -> int:
        looks = 0
        while not ended.is_set() or not looks:
            look_at(state, perfs[looks % len(perfs)])
            looks += 1
        return looks

    def rotate(running: daemons.Daemon, times: int = ROTATIONS // 2) -> set[str]:
        answers = [running.post("/v1/rotate", {}) for _ in range(times)]
        return {segment for answer in answers for segment in answer["segments"]}

    with daemon(start_cli, config) as running, ThreadPoolExecutor(3) as threads:
        with generator.start("count", hold=False, nr=NUMBER, count=MANY, rate=RATE) as load:
            load.go()
            running.await_stored(100)
            looking = threads.submit(look)
            try:
                answered = set[str]().union(*threads.map(rotate, [running, running]))
            finally:
                ended.set()
            assert looking.result()
            assert load.result()["events"] == MANY
        running.await_stored(MANY)
        answered |= rotate(running, 1)
        found = {str(path) for path in [*state.rglob("*.perf.data"), *state.rglob("*.trace.dat")]}
        assert answered == found
        assert len(found) >= ROTATIONS // 10
    for source in ("perf.data", "trace.dat"):
        manifests = [daemons.manifest(path) for path in sorted(state.rglob(f"*.{source}"))]
        assert sum(manifest["samples"] for manifest in manifests) == MANY
        for manifest in manifests:
            ledger = manifest["ledger"]
            assert (ledger["unaccounted"], sum(ledger["lost"].values())) == (0, 0), manifest
        assert manifests[-1]["ledger"]["produced"] == MANY
    assert {verdict.finding for verdict in verify([state])} == {None}
