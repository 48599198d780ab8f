# SPDX-License-Identifier: Apache-2.0
"""Block traces go on while the daemon restarts or is killed: every record is stored once."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter, defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.support import block_traces, daemons, kills, openers
from tests.support.block_traces import bases, disk, traces_of, write_requests
from tests.support.daemons import wait_for
from tests.support.patience import patient
from tests.vm.test_relay import await_stored, write_config

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    Run = Callable[..., subprocess.CompletedProcess[str]]
    Start = Callable[..., subprocess.Popen[str]]

REQUESTS: Final = 300
KILLS: Final = max(2, int(os.environ.get("COLLECTORD_KILLS", "12")) // 6)
# More than it takes to read a sub-buffer that is not complete: two flushes.
_STILL_S: Final = 4.0
# Writes on two CPUs until it is told to stop, and then says how many requests that were. The
# buffers of the trace hold what a slow machine's restart takes.
_LOAD: Final = """
import mmap, os, sys, threading, time
data = mmap.mmap(-1, 4096)
stop = threading.Event()
made = [0, 0]
def write(which):
    os.sched_setaffinity(0, {which % (os.cpu_count() or 1)})
    fd = os.open(sys.argv[1], os.O_WRONLY | os.O_DIRECT)
    while not stop.is_set():
        os.pwrite(fd, data, 4096 * (made[which] % 256))
        made[which] += 1
        if made[which] % 64 == 0:
            time.sleep(0.001)
threads = [threading.Thread(target=write, args=(which,)) for which in (0, 1)]
for one in threads:
    one.start()
print("writing", flush=True)
sys.stdin.readline()
stop.set()
for one in threads:
    one.join()
print(sum(made), flush=True)
"""


class Load:
    """Requests that are being written."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def stop(self) -> int:
        """Stop, and return how many there were."""
        done, _ = self._process.communicate("stop\n")
        return int(done.split()[-1])


@contextmanager
def loaded(device: Path) -> Iterator[Load]:
    """Write requests to a device without a pause."""
    words = (sys.executable, "-c", _LOAD, device)
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield Load(process)
        finally:
            process.kill()


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Path]:
    """Provide an idle block device, of which no trace is left at the end."""
    with disk(tmp_path) as found:
        yield found
        assert traces_of(found) == []


@pytest.fixture
def config(tmp_path: Path, device: Path) -> Path:
    """Configure a session of the device that goes on in the next daemon.

    Under load a sub-buffer is completed before each flush. One that is not is read in part, and
    may then hold a record that is being written (docs/relay.md).
    """
    source = f'device = "{device}"\nsubbuf = "16KiB"\nsubbufs = 2048'
    limit = 'segment_bytes = "4MiB"'
    return openers.with_opener(write_config(tmp_path, source, session=limit, flush="1s"))


def manifests(state: Path) -> list[list[dict[str, Any]]]:
    """Return the manifests of each set, oldest first."""
    return [
        [daemons.manifest(path) for path in sorted(state.rglob(f"{base.name}.blktrace.?"))]
        for base in bases(state)
    ]


def check_once(state: Path) -> None:
    """Check that each number of each CPU is in the files once, from 1 on."""
    numbers: dict[str, list[int]] = defaultdict(list)
    for base in bases(state):
        for values, times in block_traces.values(base).items():
            numbers[values[0]] += [int(values[1])] * times
    for cpu, found in numbers.items():
        wrong = Counter(found)
        wrong.subtract(range(1, max(found) + 1))
        assert not {n: times for n, times in wrong.items() if times}, f"CPU {cpu}"


def check_ledger(state: Path) -> None:
    """Check that nothing is lost or unaccounted in any segment that was sealed in order."""
    for one in (manifest for found in manifests(state) for manifest in found):
        if one["recovered"]:
            continue
        ledger = one["ledger"]
        assert (ledger["basis"], openers.lost(ledger)) == ("exact", {}), ledger
        assert ledger["unaccounted"] == 0, ledger


def written(state: Path, sets: Sequence[Path] = ()) -> int:
    """Return the completed writes in these sets of files, by default in all."""
    return sum(block_traces.written(block_traces.parsed(base)) for base in sets or bases(state))


def await_all(look: Callable[[], dict[str, Any]]) -> None:
    """Wait until a session, as it looks now, has all that was written, the loads being over."""
    seen: list[tuple[int, float]] = []

    def is_still() -> bool:
        stored = look()["stored"]
        if not seen or seen[-1][0] != stored:
            seen.append((stored, time.monotonic()))
        return time.monotonic() - seen[-1][1] > _STILL_S

    wait_for(is_still, "all records")
    session = look()
    assert session["unaccounted"] == 0, session
    assert openers.lost(session) == {}, session


def test_a_restart_loses_nothing(
    config: Path, start_cli: Start, run_cli: Run, device: Path
) -> None:
    """Records between a stop and the next start are in the files of the next daemon, each once."""
    state = config.parent / "state"
    with openers.opening_and_ending(start_cli, run_cli, config):
        with loaded(device) as load:
            for _ in range(3):
                with daemons.running(start_cli, config) as daemon:
                    await_stored(daemon, daemon.session("disk")["stored"] + 10)
                    ended = daemon.stop()
                assert ended.status == 0, ended.log
                assert not ended.named("gap_before")
                assert not ended.named("trace_left_behind")
            load.stop()
        write_requests(device, REQUESTS)  # while no daemon runs
        with daemons.running(start_cli, config) as daemon:
            await_all(lambda: daemon.session("disk"))
            assert daemon.stop().status == 0
    check_ledger(state)
    check_once(state)


@pytest.mark.parametrize("seed", range(KILLS))
def test_a_kill_loses_nothing(
    config: Path, run_cli: Run, start_cli: Start, device: Path, seed: int
) -> None:
    """The next daemon writes what the killed one had read, and goes on with the trace."""
    dice = random.Random(seed)  # noqa: S311  # no secret
    state = config.parent / "state"
    with openers.opening_and_ending(start_cli, run_cli, config):
        with daemons.running(start_cli, config) as daemon:
            daemon.stop()
        with loaded(device) as load:
            for _ in range(3):
                with daemons.running(start_cli, config) as daemon:
                    kills.pause(dice, patient(1.0))
                    daemon.kill()
            made = load.stop()
        with daemons.running(start_cli, config) as daemon:
            await_all(lambda: daemon.session("disk"))
            ended = daemon.stop()
        assert ended.status == 0, ended.log
        assert not ended.named("gap_before")
        assert not ended.named("events_of_killed_lost"), ended.log
    check_ledger(state)
    check_once(state)
    assert written(state) == made
    staged = sum(one["staged"] for found in manifests(state) for one in found)
    assert staged > 0
    verified = run_cli("segments", "verify", state)
    assert verified.returncode == 0, verified.stdout


def test_without_an_opener_it_ends(tmp_path: Path, start_cli: Start, device: Path) -> None:
    """A trace that nobody would end is removed, and one that a kill left is ended by the next."""
    config = write_config(tmp_path, f'device = "{device}"')
    with daemons.running(start_cli, config) as daemon:
        write_requests(device, REQUESTS)
        assert daemon.stop().status == 0
    assert traces_of(device) == []
    assert written(tmp_path / "state") == REQUESTS


def test_a_changed_session_begins_anew(
    config: Path, start_cli: Start, run_cli: Run, device: Path
) -> None:
    """The trace of another plan is ended, and what was unread in it is told."""
    with openers.opening_and_ending(start_cli, run_cli, config):
        with daemons.running(start_cli, config) as daemon:
            assert daemon.stop().status == 0
        assert traces_of(device)
        write_requests(device, REQUESTS)
        config.write_text(config.read_text().replace("subbufs = 2048", "subbufs = 1024"))
        with daemons.running(start_cli, config) as daemon:
            ended = daemon.stop()
    (left,) = ended.named("trace_left_behind")
    assert left["unread"] >= REQUESTS
    assert len(ended.named("gap_before")) == 1


def test_its_end_tells_what_is_unread(
    config: Path, start_cli: Start, run_cli: Run, device: Path
) -> None:
    """The opener's end removes what a daemon has left, and says how many records that were."""
    with openers.opening_and_ending(start_cli, run_cli, config):
        with daemons.running(start_cli, config) as daemon:
            daemon.stop()
        write_requests(device, REQUESTS)
        ended = run_cli("opener", "--end")
        assert traces_of(device) == []
    told = [json.loads(line) for line in ended.stderr.splitlines()]
    (line,) = [line for line in told if line["event"] == "trace_ended"]
    assert line["unread"] >= REQUESTS


def test_a_reload_leaves_it_alone(
    config: Path, start_cli: Start, run_cli: Run, device: Path
) -> None:
    """A session that is not changed keeps its trace; one that is changed reads its old one out."""
    state = config.parent / "state"
    with (
        openers.opening_and_ending(start_cli, run_cli, config),
        daemons.running(start_cli, config) as daemon,
    ):
        with loaded(device) as load:
            daemon.post("/v1/reload", {})
            made = load.stop()
        await_all(lambda: daemon.session("disk"))
        config.write_text(config.read_text().replace("subbufs = 2048", "subbufs = 1024"))
        before = int(daemon.session("disk")["stored"])
        daemon.post("/v1/reload", {})

        def records() -> bool:  # its count begins anew
            write_requests(device, 1)
            return bool(0 < daemon.session("disk")["stored"] < before)

        wait_for(records, "records of the new trace")
        write_requests(device, REQUESTS)
        await_all(lambda: daemon.session("disk"))
        ended = daemon.stop()
    assert ended.status == 0, ended.log
    assert not ended.named("trace_left_behind")
    sets = bases(state)
    runs = [found[0]["run"] for found in manifests(state)]
    first = [base for base, run in zip(sets, runs, strict=True) if run == runs[0]]
    assert written(state, first) == made
    assert written(state) > made + REQUESTS
    check_ledger(state)
