# SPDX-License-Identifier: Apache-2.0
"""The ledger is exact in every scope: generated = produced = stored + lost = what perf lists."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.support.daemons import FILTER, NUMBER
from tests.support.generator import Generator, Running
from tests.support.recording import (
    CALLS,
    SYS_ENTER,
    SYS_EXIT,
    check_balance,
    recording,
    result_of,
    script,
    segments_of,
)

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator

    from tests.support.perf_tools import Perf
    from tests.support.recording import Start

    Run = Callable[..., subprocess.CompletedProcess[str]]
    Perfs = tuple[Perf, ...]

pytestmark = [pytest.mark.usefixtures("tracefs"), pytest.mark.beside]

_CPUS: Final = ",".join(map(str, sorted(os.sched_getaffinity(0))))
COUNT: Final = 10_000  # calls per thread of the generator
SOMEBODY: Final = 200_000 + os.getpid()  # no account has this uid, and no process but ours


@pytest.mark.parametrize(
    ("scope", "options"),
    [
        ((), {"threads": 4, "later": 4}),
        (("--per-thread",), {}),
        pytest.param(("-a",), {"threads": 4, "later": 4}, marks=pytest.mark.vm),
        (("-C", "0"), {"cpu": 0, "threads": 2, "later": 2}),
    ],
    ids=["default", "per-thread", "system", "cpu 0"],
)
def test_a_command_is_counted(
    run_cli: Run,
    tmp_path: Path,
    *,
    generator: Generator,
    perfs: Perfs,
    scope: tuple[str, ...],
    options: dict[str, int],
) -> None:
    """Every call of a command's threads, whenever they begin, is in the balance."""
    command = generator.command("count", now=True, hold=False, nr=NUMBER, count=COUNT, **options)
    where = ("--output-dir", tmp_path / "out", "--json")
    done = run_cli("record", *CALLS, *scope, *where, "--", *command)
    assert done.returncode == 0, done.stderr
    threads = options.get("threads", 1) + options.get("later", 0)
    check_balance(result_of(done.stdout), perfs, generated=threads * COUNT)


@pytest.mark.parametrize(
    ("scope", "counted"),
    [
        ((), 8),
        (("-i",), 4),
        pytest.param(("--per-thread",), 4, marks=pytest.mark.vm),
        (("-C", _CPUS), 8),
    ],
    ids=["inherit", "no inherit", "per-thread", "its CPUs"],
)
def test_a_process_is_counted(
    start_cli: Start,
    tmp_path: Path,
    *,
    generator: Generator,
    perfs: Perfs,
    require: Callable[[str], None],
    scope: tuple[str, ...],
    counted: int,
) -> None:
    """All four threads that exist before -p, and the four that come after it if inherited."""
    require("two CPUs")
    with (
        generator.start("count", nr=NUMBER, count=COUNT, threads=4, later=4) as running,
        recording(start_cli, tmp_path, *CALLS, "-p", str(running.pid), *scope) as record,
    ):
        running.run()
    check_balance(record.session, perfs, generated=counted * COUNT)


@pytest.mark.parametrize("scope", [("-C", "0"), ("-a",)], ids=["cpu 0", "system"])
def test_names_come_from_every_cpu(
    run_cli: Run,
    tmp_path: Path,
    *,
    generator: Generator,
    perfs: Perfs,
    require: Callable[[str], None],
    scope: tuple[str, ...],
) -> None:
    """A task that got its name on one CPU and is sampled on another has that name."""
    require("two CPUs")
    command = generator.command("count", nr=NUMBER, count=COUNT, cpu=0)
    where = ("--output-dir", tmp_path / "out", "--json")
    done = run_cli("record", *CALLS, *scope, *where, "--", "taskset", "--cpu-list", "1", *command)
    assert done.returncode == 0, done.stderr
    session = result_of(done.stdout)
    check_balance(session, perfs, generated=COUNT)
    assert len(session["rings"]) == (1 if scope == ("-C", "0") else len(os.sched_getaffinity(0)))
    (segment,) = segments_of(session)
    for perf in perfs:
        names = {line.strip() for line in script(perf, segment, "-F", "comm")}
        assert names == {generator.program.name}


@pytest.mark.parametrize("per_thread", [(), ("--per-thread",)], ids=["per CPU", "per-thread"])
def test_threads_are_counted(
    start_cli: Start,
    tmp_path: Path,
    *,
    generator: Generator,
    perfs: Perfs,
    per_thread: tuple[str, ...],
) -> None:
    """The calls of the threads that -t names, and of no other."""
    with generator.start("count", nr=NUMBER, count=COUNT, threads=4) as running:
        named = running.tids[1:3]
        words = ("-t", ",".join(map(str, named)), *per_thread)
        with recording(start_cli, tmp_path, *CALLS, *words) as record:
            running.run()
    check_balance(record.session, perfs, generated=2 * COUNT)
    (segment,) = segments_of(record.session)
    tids = {int(line) for line in script(perfs[0], segment, "-F", "tid")}
    assert tids == set(named)


@pytest.fixture
def as_somebody(generator: Generator, stage: Path) -> list[str]:
    """Return a command that runs the generator as a user who owns nothing else."""
    program = shutil.copy(generator.program, stage)
    return ["setpriv", f"--reuid={SOMEBODY}", "--clear-groups", str(program)]


def test_a_user_is_counted(
    start_cli: Start,
    tmp_path: Path,
    *,
    generator: Generator,
    perfs: Perfs,
    as_somebody: list[str],
) -> None:
    """The calls of all processes of a user, and of nobody else's."""
    options = generator.command("count", now=False, nr=NUMBER, count=COUNT, threads=4, later=4)
    with (
        Running([*as_somebody, *options[1:]]) as one,
        Running([*as_somebody, *options[1:]]) as two,
        generator.start("count", nr=NUMBER, count=COUNT) as other,
        recording(start_cli, tmp_path, *CALLS, "-u", str(SOMEBODY)) as record,
    ):
        for running in (one, two, other):
            running.run()
    check_balance(record.session, perfs, generated=16 * COUNT)


@pytest.fixture
def cgroup(require: Callable[[str], None]) -> Iterator[Path]:
    """Provide an empty cgroup. perf events need no controller in the cgroup2 hierarchy."""
    require("cgroup v2")
    mounts = Path("/proc/self/mountinfo").read_text()
    found = re.search(r"^\S+ \S+ \S+ \S+ (\S+) .* - cgroup2 ", mounts, re.MULTILINE)
    assert found
    directory = Path(found[1]) / f"collectord-test-{os.getpid()}"
    directory.mkdir()
    yield directory
    directory.rmdir()


@pytest.mark.parametrize("form", ["{0}", "{0.name}", "/{0.name}"])
def test_a_cgroup_is_counted(
    start_cli: Start,
    tmp_path: Path,
    *,
    generator: Generator,
    perfs: Perfs,
    cgroup: Path,
    form: str,
) -> None:
    """The calls of a cgroup's tasks, and of none outside it."""
    with (
        generator.start("count", nr=NUMBER, count=COUNT, threads=4, later=4) as inside,
        generator.start("count", nr=NUMBER, count=COUNT) as outside,
    ):
        (cgroup / "cgroup.procs").write_text(str(inside.pid))
        with recording(start_cli, tmp_path, *CALLS, "-G", form.format(cgroup)) as record:
            inside.run()
            outside.run()
    check_balance(record.session, perfs, generated=8 * COUNT)


def test_the_root_of_the_cgroups_is_everything(
    start_cli: Start,
    tmp_path: Path,
    *,
    generator: Generator,
    perfs: Perfs,
    cgroup: Path,
) -> None:
    """`-G /` counts the tasks of every cgroup, as with perf."""
    with (
        generator.start("count", nr=NUMBER, count=COUNT) as inside,
        generator.start("count", nr=NUMBER, count=COUNT) as outside,
    ):
        (cgroup / "cgroup.procs").write_text(str(inside.pid))
        with recording(start_cli, tmp_path, *CALLS, "-G", "/") as record:
            inside.run()
            outside.run()
    check_balance(record.session, perfs, generated=2 * COUNT)


@pytest.mark.parametrize(
    "events",
    [
        ("-e", SYS_ENTER, "--filter", FILTER, "-e", SYS_EXIT, "--filter", FILTER),
        ("-e", f"{{{SYS_ENTER},{SYS_EXIT}}}", "--filter", FILTER),
    ],
    ids=["two events", "a group"],
)
@pytest.mark.parametrize("scope", [("-a",), ()], ids=["system", "default"])
def test_events_share_a_ring(
    run_cli: Run,
    tmp_path: Path,
    *,
    generator: Generator,
    perfs: Perfs,
    events: tuple[str, ...],
    scope: tuple[str, ...],
) -> None:
    """Each of two events in one ring has its own exact count, grouped or not."""
    command = generator.command("count", nr=NUMBER, count=COUNT, threads=2, later=2)
    where = ("--output-dir", tmp_path / "out", "--json")
    room_for_all = ("-m", "16M")
    done = run_cli("record", *events, *room_for_all, *scope, *where, "--", *command)
    assert done.returncode == 0, done.stderr
    session = result_of(done.stdout)
    assert len(session["rings"]) == len(os.sched_getaffinity(0))
    check_balance(session, perfs, generated=2 * 4 * COUNT)
    (segment,) = segments_of(session)
    for perf in perfs:
        names = [line.strip().rstrip(":") for line in script(perf, segment, "-F", "event")]
        assert (names.count(SYS_ENTER), names.count(SYS_EXIT)) == (4 * COUNT, 4 * COUNT)


def test_a_filter_counts_what_it_lets_through(
    run_cli: Run, tmp_path: Path, generator: Generator, perfs: Perfs
) -> None:
    """Filtered events are in no count: `produced` is the number of calls that pass."""
    command = generator.command("count", nr=NUMBER, count=COUNT, threads=2)
    events = ("-e", SYS_ENTER, "--filter", f"id == {NUMBER + 1}", *CALLS)
    where = ("--output-dir", tmp_path / "out", "--json")
    done = run_cli("record", *events, "-a", *where, "--", *command)
    assert done.returncode == 0, done.stderr
    check_balance(result_of(done.stdout), perfs, generated=2 * COUNT)


def test_page_faults_are_counted(
    start_cli: Start, tmp_path: Path, generator: Generator, perfs: Perfs
) -> None:
    """A software event of period 1 is exact: one fault is one sample."""
    with (
        generator.start("faults", pages=COUNT) as running,
        recording(start_cli, tmp_path, "-e", "page-faults", "-p", str(running.pid)) as record,
    ):
        running.run()
    check_balance(record.session, perfs)
    assert record.session["produced"] >= COUNT


@pytest.mark.vm
def test_breakpoint_hits_are_counted(
    start_cli: Start,
    tmp_path: Path,
    *,
    generator: Generator,
    perfs: Perfs,
    require: Callable[[str], None],
) -> None:
    """Every store to a watched address is one sample."""
    require("breakpoint events")
    with generator.start("mem", count=COUNT) as running:
        event = f"mem:{running.ready['address']:#x}/8:w"
        with recording(start_cli, tmp_path, "-e", event, "-p", str(running.pid)) as record:
            running.run()
    check_balance(record.session, perfs, generated=COUNT)
