# SPDX-License-Identifier: Apache-2.0
"""kill -9 of daemons whose rings and staging the opener holds, also before a slow disk."""

from __future__ import annotations

import os
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from collectord.folders.folder import opened
from collectord.sink.earlier_run import last_records
from collectord.sink.repair import repair
from tests.support import daemons, kills, segments
from tests.support.daemons import wait_for
from tests.support.disks import ext4, slow_ext4
from tests.support.openers import all_counted, allowed, configured, lost, notes, opening

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tests.support.generator import Generator
    from tests.support.perf_tools import Perf
    from tests.support.recording import Start

pytestmark = [pytest.mark.usefixtures("tracefs"), pytest.mark.beside]

RATE: Final = 100_000.0
KILLS: Final = 4
CALLS: Final = 800_000
FLUSH_S: Final = 0.1
DISK_BYTES: Final = 512 << 20
DISK_BYTES_PER_SECOND: Final = 12 << 20  # little more than comes
SLOW_BYTES_PER_SECOND: Final = 1 << 20
ENDED_CALLS: Final = 60_000
READ_BYTES_PER_SECOND: Final = 8 << 20
LEFT_CALLS: Final = 300_000
FEW_CALLS: Final = 100
STAGED_CALLS: Final = 50_000
NEW_CALLS: Final = 350_000
PASSES: Final = "collectord_drain_duration_seconds_count"


@pytest.mark.parametrize("slow", [False, True], ids=["quick disk", "slow disk"])
def test_kills_lose_nothing(  # noqa: PLR0917  # fixtures
    tmp_path: Path,
    start_cli: Start,
    generator: Generator,
    perfs: tuple[Perf, ...],
    require: Callable[[str], None],
    slow: bool,  # a case
) -> None:
    """Each daemon writes what the one before it had in staging: every call is stored once."""
    dice = random.Random(f"opener {slow}")  # noqa: S311  # no secret
    with ExitStack() as stack:
        root = tmp_path
        prefix: tuple[str, ...] = ()
        if slow:
            require("loop devices")
            require("write cgroups")
            root, prefix = stack.enter_context(
                slow_ext4(tmp_path / "disk", DISK_BYTES, DISK_BYTES_PER_SECOND)
            )
        state = root / "state"
        # A ring as large as the time without a daemon is long. It wakes often, so that a part of a
        # chunk waits for the flush at nearly any instant.
        config = configured(tmp_path, "128MiB", state=state, watermark="64KiB")
        stack.enter_context(opening(start_cli, config))
        running = stack.enter_context(
            generator.start("count", count=CALLS, rate=RATE, nr=daemons.NUMBER)
        )
        for number in range(KILLS):
            with daemons.running(start_cli, config, prefix=prefix) as daemon:
                if number == 0:
                    running.go()
                    daemon.await_stored(1)
                kills.pause(dice, 2 * FLUSH_S)
                daemon.kill()
        made = running.result()["events"]
        with daemons.running(start_cli, config, prefix=prefix) as daemon:
            wait_for(lambda: all_counted(daemon, made, state), "all events")
            balance = daemon.session()
            ended = daemon.stop()
        assert balance["unaccounted"] == 0
        assert set(lost(balance)) <= allowed(ended)
        manifests = [daemons.manifest(path) for path in daemons.sealed(state)]
        *killed, last = (one["recovered"] for one in manifests)
        assert (all(killed), last) == (True, False)
        assert sum(one["staged"] for one in manifests) > 0
        assert not any(one["cut"] for one in manifests)
        read = Counter(calls(daemons.sealed(state), perfs[0]))
    assert [call for call, times in read.items() if times > 1] == []
    assert len(read) + sum(lost(balance).values()) == made


def test_tasks_that_ended_before_a_kill_have_names(
    tmp_path: Path,
    start_cli: Start,
    generator: Generator,
    perfs: tuple[Perf, ...],
    require: Callable[[str], None],
) -> None:
    """Their end is in the old segment, since names are read first, and samples are in the ring."""
    require("loop devices")
    require("write cgroups")
    with slow_ext4(tmp_path / "disk", DISK_BYTES, SLOW_BYTES_PER_SECOND) as (root, prefix):
        state = root / "state"
        config = configured(tmp_path, "16MiB", state=state, staging="1MiB")
        with opening(start_cli, config):
            with daemons.running(start_cli, config, prefix=prefix) as daemon:
                with generator.start("count", count=ENDED_CALLS, nr=daemons.NUMBER) as running:
                    made = running.run()["events"]
                passes = daemon.metric(PASSES)
                wait_for(lambda: daemon.metric(PASSES) > passes + 1, "a pass after its end")
                assert daemon.session()["stored"] < made / 2
                daemon.kill()
            with daemons.running(start_cli, config) as daemon:
                wait_for(lambda: all_counted(daemon, made, state), "all events")
                assert daemon.session()["stored"] > 0
                daemon.stop()
        names = Counter(
            name
            for path in daemons.sealed(state)
            for name in perfs[0].script(path, "-F", "comm", losses=True)
        )
    assert {name.strip() for name in names} == {"generator"}


def test_rings_are_drained_while_what_was_left_is_sealed(
    tmp_path: Path,
    start_cli: Start,
    generator: Generator,
    perfs: tuple[Perf, ...],
    require: Callable[[str], None],
) -> None:
    """They are too small for the time that takes; a kill meanwhile loses nothing either.

    Calls are made as long as somebody drains, however long a daemon takes to start.
    """
    require("loop devices")
    require("write cgroups")
    slow = slow_ext4(tmp_path / "disk", DISK_BYTES, READ_BYTES_PER_SECOND, reads=True)
    with slow as (root, prefix):
        state = root / "state"
        config = configured(tmp_path, "16MiB", state=state, staging="96MiB")
        made = 0

        def call(count: int) -> None:
            nonlocal made
            with generator.start("count", count=count, nr=daemons.NUMBER) as burst:
                made += burst.run()["events"]

        with opening(start_cli, config) as opener, ExitStack() as stack:

            def drained() -> Callable[[], bool]:
                """Make a few calls; return whether they, or anything since, are drained."""
                read_to = notes(opener)
                call(FEW_CALLS)
                return lambda: notes(opener) != read_to

            with daemons.running(start_cli, config) as daemon:
                call(LEFT_CALLS)
                daemon.await_stored(made)
                daemon.kill()
            left = max(state.rglob("*.data.partial"), key=lambda path: path.stat().st_blocks)
            is_drained = drained()
            killed = start_cli("run", "--config", config, prefix=prefix)
            wait_for(is_drained, "a first drain")
            assert left.exists()  # and is not sealed
            is_drained = drained()
            call(STAGED_CALLS)
            wait_for(is_drained, "a second drain")
            killed.kill()
            killed.wait()
            running = stack.enter_context(
                generator.start("count", count=NEW_CALLS, rate=RATE, nr=daemons.NUMBER, cpu=0)
            )
            is_drained = drained()

            def go() -> None:
                wait_for(is_drained, "the last daemon's first drain")
                assert left.exists()  # and is not sealed
                running.go()

            gone = stack.enter_context(ThreadPoolExecutor(1)).submit(go)
            with daemons.running(start_cli, config, prefix=prefix) as daemon:
                gone.result()
                made += running.result()["events"]
                wait_for(lambda: all_counted(daemon, made, state), "all events")
                balance = daemon.session()
                ended = daemon.stop()
        assert (balance["unaccounted"], set(lost(balance)) - allowed(ended)) == (0, set())
        first, *others = daemons.sealed(state)
        assert first.with_name(f"{first.name}.partial") == left
        read = Counter(calls(others, perfs[0]))
        assert set(read.values()) == {1}
        assert daemons.manifest(first)["samples"] + len(read) == made


def test_the_segment_of_a_killed_daemon_is_read_once(
    tmp_path: Path, require: Callable[[str], None]
) -> None:
    """The repair reads it, and the names come from the page cache then, however slow the disk."""
    require("loop devices")
    with ext4(tmp_path / "disk", 64 << 20) as root:
        orphan = segments.orphan(root / "calls", samples=100_000)
        with opened(os.open(orphan, os.O_RDWR)) as fd:
            size = os.fstat(fd).st_size
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        before = read_bytes(root)
        repair(root / "calls")
        with last_records(root / "calls") as records:
            assert bytes(records)
        read = read_bytes(root) - before
    assert 0.9 * size < read < 1.2 * size


def read_bytes(root: Path) -> int:
    """Return what was ever read from a file system's device."""
    device = root.stat().st_dev
    stat = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat")
    return int(stat.read_text().split()[2]) * 512


def calls(paths: Iterable[Path], perf: Perf) -> Iterator[str]:
    """Yield the thread and the number of each call in segments, as perf reads it."""
    for path in paths:
        for line in perf.run("script", "-F", "tid,trace", "-i", path).stdout.splitlines():
            yield f"{line.split()[0]} {line.rpartition('(')[2].partition(',')[0]}"
