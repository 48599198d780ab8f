# SPDX-License-Identifier: Apache-2.0
"""Sessions that follow processes: who is attached, exactly once, and who was missed is counted."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.support.daemons import FILTER, NUMBER, readable_samples, running, sealed, wait_for
from tests.support.daemons import write_sessions as write
from tests.support.generator import Generator, Running
from tests.support.recording import (
    CALLS,
    SYS_ENTER,
    SYS_EXIT,
    check_balance,
    recording,
    script,
    stopped,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.daemons import Daemon
    from tests.support.perf_tools import Perf
    from tests.support.recording import Start

    Perfs = tuple[Perf, ...]

pytestmark = [pytest.mark.usefixtures("tracefs"), pytest.mark.beside]

COUNT: Final = 1000
NAME: Final = f"fw{os.getpid() % 100_000}"
STARTED: Final = int(os.environ.get("COLLECTORD_FOLLOWED", "1000"))
BATCH: Final = 20
# Each message takes 768 bytes of a buffer of 8 MiB.
THREADS: Final = 8000
# A batch of processes that live some milliseconds, and stay zombies until all have ended: their
# names can be read until then.
CHURN: Final = """
import os, sys
for _ in range(int(sys.argv[2])):
    pids = [os.posix_spawn(sys.argv[1], [sys.argv[1], "0.004"], {}) for _ in range(20)]
    for pid in pids:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    print(flush=True)
    sys.stdin.readline()
    for pid in pids:
        os.waitpid(pid, 0)
"""


def named(generator: Generator, directory: Path, name: str) -> Generator:
    """Return the generator as a program of this name."""
    return Generator(Path(shutil.copy(generator.program, directory / name)))


def session(name: str, target: str, events: str = f'"{SYS_ENTER}"', text: str = FILTER) -> str:
    """Return the tables of a session with this target."""
    chosen = f'filter = "{text}"' if text else ""
    return f"""
[[session]]
name = "{name}"
[session.target]
{target}
[[session.source]]
kind = "perf"
events = [{events}]
{chosen}
"""


def followed(daemon: Daemon, name: str) -> dict[str, Any]:
    """Return what a session says of its processes."""
    (found,) = daemon.session(name)["followed"]
    return dict(found)


def await_attached(daemon: Daemon, name: str, count: int) -> None:
    """Wait until so many processes have been attached."""
    wait_for(lambda: followed(daemon, name)["attached"] >= count, f"{count} attached")


def await_none_open(daemon: Daemon, *names: str) -> None:
    """Wait until the events of all processes are closed."""
    wait_for(
        lambda: not any(followed(daemon, name)["open"] for name in names),
        "the end of all processes",
    )


def missed(counts: dict[str, Any]) -> int:
    """Return how many processes matched and were not attached; names of all could be read."""
    return sum(count for reason, count in counts["missed"].items() if reason != "unknown")


def known(daemon: Daemon) -> int:
    """Return how many processes of the session `short` were attached or missed."""
    counts = followed(daemon, "short")
    return int(counts["attached"]) + missed(counts)


def await_known(daemon: Daemon, count: int) -> None:
    """Wait until so many processes of the session `short` were attached or missed."""
    wait_for(lambda: known(daemon) >= count, f"{count} processes")


def begun(program: Generator) -> Running:
    """Start a program that makes its calls when it is told to."""
    return program.start("count", nr=NUMBER, count=COUNT)


def events_open(daemon: Daemon) -> int:
    """Count a daemon's descriptors of perf events."""
    return sum("perf_event" in target for target in daemon.fds())


def check_exact(daemon: Daemon, name: str, produced: int) -> None:
    """Assert that a session has counted and stored exactly this, once all is on disk."""
    wait_for(lambda: daemon.session(name)["stored"] >= produced, f"{produced} records")
    balance = daemon.session(name)
    assert balance["ledger_basis"] == "exact"
    assert not any(balance["lost"].values())
    assert (balance["produced"], balance["stored"]) == (produced, produced)


def test_processes_are_attached_and_released(
    start_cli: Start, tmp_path: Path, *, generator: Generator, perfs: Perfs
) -> None:
    """Processes before and after the start are counted once in each session that they match."""
    first, second, other = (
        named(generator, tmp_path, name) for name in (f"{NAME}-a", f"{NAME}-b", f"x{NAME}")
    )
    both = f'"{SYS_ENTER}", "{SYS_EXIT}"'
    config = write(
        tmp_path,
        session("names", f'scope = "comm"\ncomm = "{NAME}-?"', both)
        + session("paths", f'scope = "executable"\nexecutable = "{tmp_path}/*-b"'),
    )
    with ExitStack() as stack:
        old = stack.enter_context(first.start("count", nr=NUMBER, count=COUNT, threads=4, later=4))
        daemon = stack.enter_context(running(start_cli, config))
        await_attached(daemon, "names", 1)
        assert events_open(daemon) > 0
        new = stack.enter_context(begun(second))
        foreign = stack.enter_context(begun(other))
        await_attached(daemon, "names", 2)
        await_attached(daemon, "paths", 1)
        for process in (old, new, foreign):
            process.run()
        await_none_open(daemon, "names", "paths")
        check_exact(daemon, "names", 2 * 9 * COUNT)
        check_exact(daemon, "paths", COUNT)
        again = stack.enter_context(begun(second))
        await_attached(daemon, "paths", 2)
        again.run()
        check_exact(daemon, "paths", 2 * COUNT)
        ended = daemon.stop()
        assert (ended.status, ended.complaints()) == (0, [])
    segments = sealed(tmp_path / "state")
    assert readable_samples(perfs, segments) == (2 * 10 + 2) * COUNT
    (names,) = (segment for segment in segments if "names" in segment.parts)
    lines = script(perfs[0], names, "-F", "comm,event")
    for event in (SYS_ENTER, SYS_EXIT):
        found = [line.split()[0] for line in lines if event in line]
        assert (found.count(f"{NAME}-a"), found.count(f"{NAME}-b")) == (8 * COUNT, 2 * COUNT)


def test_children_are_counted_once(
    start_cli: Start, tmp_path: Path, *, generator: Generator, perfs: Perfs
) -> None:
    """Children of an attached process inherit its events, whether they match or not."""
    shell = Path(shutil.copy("/bin/sh", tmp_path / f"{NAME}-sh")).resolve()
    programs = [named(generator, tmp_path, name) for name in (f"{NAME}-c", f"x{NAME}")]
    work = [" ".join(p.command("count", nr=NUMBER, count=COUNT)) for p in programs]
    line = f"read -r _; {work[0]}; {work[1]} & wait"
    with (
        subprocess.Popen(
            [shell, "-c", line], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
        ) as process,
        recording(start_cli, tmp_path, *CALLS, "-p", f"{NAME}-*") as record,
    ):
        process.communicate(b"\n")
    (found,) = record.session["followed"]
    assert (found["attached"], missed(found)) == (1, 0)
    check_balance(record.session, perfs, generated=2 * COUNT)


@pytest.fixture
def unit(require: Callable[[str], None]) -> Iterator[Path]:
    """Provide an empty cgroup that is named like a unit."""
    require("cgroup v2")
    mounts = Path("/proc/self/mountinfo").read_text()
    found = re.search(r"^\S+ \S+ \S+ \S+ (\S+) .* - cgroup2 ", mounts, re.MULTILINE)
    assert found
    place = Path(found[1], f"{NAME}.service")
    place.mkdir()
    yield place
    place.rmdir()


def test_a_unit_that_comes_and_goes_is_followed(
    start_cli: Start, tmp_path: Path, *, generator: Generator, unit: Path
) -> None:
    """The processes of a unit are counted after each of its starts, and no others."""
    config = write(tmp_path, session("unit", f'scope = "unit"\nunit = "{NAME}"'))
    command = generator.command("count", now=False, nr=NUMBER, count=COUNT)
    inside = ["sh", "-c", 'echo $$ > "$0/cgroup.procs"; exec "$@"', str(unit), *command]
    with running(start_cli, config) as daemon, begun(generator) as outside:
        for start in (1, 2):
            with Running(inside) as process:
                await_attached(daemon, "unit", start)
                process.run()
            await_none_open(daemon, "unit")
        outside.run()
        check_exact(daemon, "unit", 2 * COUNT)
        assert daemon.stop().complaints() == []


def test_a_limit_bounds_the_processes(
    start_cli: Start, tmp_path: Path, *, generator: Generator
) -> None:
    """A process over the limit is counted as missed; one that comes after an end is attached."""
    program = named(generator, tmp_path, f"{NAME}-l")
    target = f'scope = "comm"\ncomm = "{NAME}-l"\nlimit = 1'
    config = write(tmp_path, session("few", target))
    series = 'collectord_followed_missed_processes_total{reason="%s",session="few",source="perf"}'
    with running(start_cli, config) as daemon:
        assert daemon.metric(series % "limit") == 0
        with begun(program) as first:
            await_attached(daemon, "few", 1)
            with begun(program) as second:
                wait_for(lambda: daemon.metric(series % "limit") == 1, "a process over the limit")
                second.run()
            first.run()
        await_none_open(daemon, "few")
        with begun(program) as third:
            await_attached(daemon, "few", 2)
            third.run()
        check_exact(daemon, "few", 2 * COUNT)
        assert daemon.metric(series % "limit") == 1


def test_every_short_process_is_attached_or_missed(start_cli: Start, tmp_path: Path) -> None:
    """The exit of each process that was attached is recorded; each other one is counted."""
    target = f'scope = "comm"\ncomm = "{NAME}-s"\nlimit = 8'
    config = write(tmp_path, session("short", target, '"sched:sched_process_exit"', ""))
    program = shutil.copy("/bin/sleep", tmp_path / f"{NAME}-s")
    words = [sys.executable, "-c", CHURN, program, str(STARTED // BATCH)]
    with running(start_cli, config) as daemon:
        before = events_open(daemon)
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as churn:
            assert churn.stdin is not None
            assert churn.stdout is not None
            for batch in range(1, STARTED // BATCH + 1):
                assert churn.stdout.readline()
                await_known(daemon, batch * BATCH)
                churn.stdin.write(b"\n")
                churn.stdin.flush()
        await_none_open(daemon, "short")
        counts = followed(daemon, "short")
        attached, gone = counts["attached"], counts["missed"]["gone"]
        assert attached + missed(counts) == STARTED

        def has_all() -> bool:
            balance = daemon.session("short")
            return bool(balance["stored"] == balance["produced"] >= attached)

        wait_for(has_all, "the ends of all")
        # One that had begun to exit may have done so when some of its events counted already.
        balance = daemon.session("short")
        assert balance["produced"] <= attached + gone
        assert balance["unaccounted"] == 0
        assert events_open(daemon) == before
        assert daemon.stop().complaints() == []


def test_lost_news_are_made_up_for(
    start_cli: Start, tmp_path: Path, *, generator: Generator
) -> None:
    """A process whose news did not fit into the socket is found by a look at all processes."""
    program = named(generator, tmp_path, f"{NAME}-n")
    config = write(tmp_path, session("news", f'scope = "comm"\ncomm = "{NAME}-n"'))
    with running(start_cli, config) as daemon, ExitStack() as stack:
        with stopped(daemon.process):
            for _ in range(THREADS):
                thread = threading.Thread()
                thread.start()
                thread.join()
            process = stack.enter_context(program.start("count", nr=NUMBER, count=COUNT))
        await_attached(daemon, "news", 1)
        assert followed(daemon, "news")["rescans"] > 0
        process.run()
        check_exact(daemon, "news", COUNT)
        assert daemon.stop().complaints() == []
