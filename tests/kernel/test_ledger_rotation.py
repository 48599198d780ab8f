# SPDX-License-Identifier: Apache-2.0
"""Rotation costs no record, and every segment stands alone: in its balance, names and order."""

from __future__ import annotations

import os
import shutil
import struct
from collections import Counter
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from collectord.codec.perf_attr import RecordType
from collectord.codec.perf_record import Misc
from tests.support import daemons
from tests.support.daemons import NUMBER
from tests.support.recording import (
    CALLS,
    USUAL_PRIORITY,
    check_balance,
    daemon,
    daemon_config,
    daemon_result,
    kernel_records,
    record_types,
    result_of,
    script,
    segments_of,
    stopped,
    told_losses,
)

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator

    from tests.support.generator import Generator
    from tests.support.perf_tools import Perf
    from tests.support.recording import Start

    Run = Callable[..., subprocess.CompletedProcess[str]]
    Perfs = tuple[Perf, ...]

pytestmark = [pytest.mark.usefixtures("tracefs"), pytest.mark.beside]

COUNT: Final = 40_000
SMALL_CHUNKS: Final = 'chunk = "128KiB"\nstaging = "16MiB"'
OFTEN: Final = f'{SMALL_CHUNKS}\nflush_interval = "100ms"'
BY_BYTES: Final = 'segment_bytes = "512KiB"\nsegment_age = "0"'
CPU_0: Final = 'scope = "cpus"\ncpus = "0"'
ROOM_FOR_ALL: Final = 'ring = "16MiB"'
# The head of FORK, EXIT and COMM: type, misc, size, pid, and the parent's pid or the tid.
_TASK: Final = struct.Struct("<IHHII")
COMM: Final = "exe"  # an exec of /proc/self/exe


def _manifests(session: dict[str, Any]) -> list[dict[str, Any]]:
    return [daemons.manifest(segment) for segment in segments_of(session)]


@pytest.mark.parametrize(
    ("rotation", "segments"),
    [
        (BY_BYTES, 4),
        ('segment_bytes = "0"\nsegment_age = "300ms"', 3),
    ],
    ids=["by bytes", "by age"],
)
def test_rotation_loses_nothing(
    start_cli: Start,
    tmp_path: Path,
    *,
    generator: Generator,
    perfs: Perfs,
    rotation: str,
    segments: int,
) -> None:
    """The samples of all segments together are the calls, and each manifest has its share."""
    config = daemon_config(
        tmp_path, core=OFTEN, session=rotation, target=CPU_0, source=ROOM_FOR_ALL
    )
    with (
        generator.start("count", nr=NUMBER, count=COUNT, rate=30_000, cpu=0) as running,
        daemon(start_cli, config),
    ):
        running.run()
    session = daemon_result(tmp_path)
    check_balance(session, perfs, generated=COUNT)
    assert session["stored"] == COUNT
    manifests = _manifests(session)
    assert len(manifests) >= segments
    assert sum(manifest["samples"] for manifest in manifests) == COUNT
    for manifest in manifests:
        ledger = manifest["ledger"]
        assert (ledger["basis"], ledger["unaccounted"]) == ("exact", 0)
        assert ledger["produced_before"] <= ledger["produced"] == ledger["produced_after"]


def test_losses_are_told_once_over_all_segments(
    start_cli: Start, tmp_path: Path, generator: Generator, perfs: Perfs
) -> None:
    """A loss before a rotation is reported in that segment and in no later one."""
    config = daemon_config(
        tmp_path,
        core=OFTEN,
        session='segment_bytes = "0"\nsegment_age = "150ms"',
        target=CPU_0,
        source='ring = "4pages"',
    )
    bursts = 3
    with daemon(start_cli, config) as running:
        stored = sealed = 0
        for _ in range(bursts):
            with generator.start("count", nr=NUMBER, count=COUNT, cpu=0) as burst:
                with stopped(running.process):
                    burst.run()
                running.await_stored(stored + 1)
                stored = running.session()["stored"]
            daemons.wait_for(
                lambda: len(running.session()["segments"]) > sealed,  # noqa: B023  # at once
                "a rotation",
            )
            sealed = len(running.session()["segments"])
    session = daemon_result(tmp_path)
    check_balance(session, perfs, generated=bursts * COUNT)
    lost = session["lost"]["kernel_ring/ring_full"]
    told = [told_losses(path)[RecordType.LOST_SAMPLES] for path in segments_of(session)]
    assert sum(told) == lost == sum(session["lost"].values())
    assert sum(1 for count in told if count) >= 2
    assert told == [sum(m["lost_samples"].values()) for m in _manifests(session)]


def test_tasks_resolve_in_every_segment(
    start_cli: Start, tmp_path: Path, generator: Generator, perfs: Perfs
) -> None:
    """A task that execs, maps and exits around a rotation has its names in every segment."""
    library = Path(shutil.copy(generator.program, tmp_path / "mapped.so"))
    # The samples are read before the timer would read their sideband.
    source = f'{ROOM_FOR_ALL}\nwatermark = "64KiB"\ncall_graph = "fp"'
    config = daemon_config(tmp_path, core=SMALL_CHUNKS, session=BY_BYTES, source=source)
    with (
        generator.start(
            "exec", nr=NUMBER, count=1, each=COUNT // 4, library=str(library)
        ) as running,
        daemon(start_cli, config),
    ):
        running.run()
    session = daemon_result(tmp_path)
    check_balance(session, (), generated=COUNT // 4)
    for perf in perfs:
        seen = []
        for segment in segments_of(session):
            pids = _resolved(perf, segment, generator.program)
            assert pids <= _pids_that_map(perf, segment, library), segment
            seen += list(pids)
        # One process, whose calls are in this segment and in that.
        assert len(seen) >= 2
        assert len(set(seen)) == 1


def test_tasks_of_each_cpu_resolve_with_several_shards(
    start_cli: Start, tmp_path: Path, generator: Generator, perfs: Perfs
) -> None:
    """Tasks that exec around rotations have their names, whichever drain thread their CPU has."""
    children = 100
    each = COUNT // 2 // children
    source = f'{ROOM_FOR_ALL}\nwatermark = "64KiB"\ncall_graph = "fp"'
    core = f"{SMALL_CHUNKS}\nshards = 4"
    config = daemon_config(tmp_path, core=core, session=BY_BYTES, source=source)
    with ExitStack() as stack:
        stack.enter_context(daemon(start_cli, config))
        cpus = sorted(os.sched_getaffinity(0))[:2]
        loads = []
        for cpu in cpus:
            with _pinned(cpu):
                load = generator.start("exec", nr=NUMBER, count=children, each=each)
            loads.append(stack.enter_context(load))
        for load in loads:
            load.go()
        for load in loads:
            load.result()
    session = daemon_result(tmp_path)
    check_balance(session, (), generated=len(cpus) * children * each)
    assert len(segments_of(session)) >= 4
    for perf in perfs:
        for segment in segments_of(session):
            _resolved(perf, segment, generator.program)


@pytest.mark.vm
def test_tasks_that_migrate_resolve_with_several_shards(
    start_cli: Start,
    tmp_path: Path,
    *,
    generator: Generator,
    perfs: Perfs,
    require: Callable[[str], None],
) -> None:
    """Tasks that exec on one CPU and go on to others around rotations have their names."""
    require("two CPUs")
    children = 250
    each = 64
    source = f'{ROOM_FOR_ALL}\nwatermark = "16KiB"\ncall_graph = "fp"'
    core = f"{SMALL_CHUNKS}\nshards = 4"
    config = daemon_config(tmp_path, core=core, session=BY_BYTES, source=source)
    with ExitStack() as stack:
        stack.enter_context(daemon(start_cli, config))
        loads = [
            stack.enter_context(
                generator.start("exec", nr=NUMBER, count=children, each=each, hop=8)
            )
            for _ in range(2)
        ]
        for load in loads:
            load.go()
        for load in loads:
            load.result()
    session = daemon_result(tmp_path)
    check_balance(session, (), generated=len(loads) * children * each)
    # The ends of the last tasks can come behind the last sample's segment, in one without samples.
    samples = {segment: daemons.manifest(segment)["samples"] for segment in segments_of(session)}
    assert sum(1 for count in samples.values() if count) >= 4
    for perf in perfs:
        for segment, count in samples.items():
            lines = [line.split() for line in script(perf, segment, "-F", "comm,pid")]
            assert len(lines) == count, segment
            assert {comm for comm, _ in lines} <= {COMM}, segment
            pids = {int(pid) for _, pid in lines}
            assert pids <= _pids_that_map(perf, segment, generator.program), segment


@contextmanager
def _pinned(cpu: int) -> Iterator[None]:
    """Have what is begun in the block run on one CPU."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _resolved(perf: Perf, segment: Path, program: Path) -> set[int]:
    """Return the processes of a segment's samples, whose names and frames must all be known."""
    pids: set[int] = set()
    frames: list[str] = []
    for line in script(perf, segment, "-F", "comm,pid,ip,sym,dso"):
        if line.startswith("\t"):
            assert "[unknown]" not in line, segment
            frames.append(line)
            continue
        assert not pids or any(str(program) in frame for frame in frames), frames
        frames.clear()
        comm, pid = line.split()
        assert comm == COMM, segment
        pids.add(int(pid))
    return pids


def _pids_that_map(perf: Perf, segment: Path, library: Path) -> set[int]:
    lines = script(perf, segment, "--show-mmap-events", "-F", "comm,pid,time")
    return {int(line.split()[1]) for line in lines if line.endswith(str(library))}


def test_short_lived_processes_have_their_names(
    run_cli: Run, tmp_path: Path, generator: Generator, perfs: Perfs
) -> None:
    """Samples of processes that are long gone at the end still have their comms."""
    command = generator.command("exec", nr=NUMBER, count=100, each=7)
    words = ("-a", "--output-dir", tmp_path / "out", "--json")
    done = run_cli("record", *CALLS, *words, "--", *command)
    assert done.returncode == 0, done.stderr
    session = result_of(done.stdout)
    check_balance(session, perfs, generated=700)
    (segment,) = segments_of(session)
    for perf in perfs:
        lines = [line.split() for line in script(perf, segment, "-F", "comm,pid")]
        assert {comm for comm, _ in lines} == {COMM}
        assert len({pid for _, pid in lines}) == 100


def test_each_fork_and_exec_is_told_once(
    start_cli: Start, tmp_path: Path, generator: Generator, perfs: Perfs
) -> None:
    """No record stands twice in a segment; all together have each fork, exec and exit once.

    A segment begins with what was there before, as perf tells that: a name that is no exec, a fork
    with FORK_EXEC.
    """
    children = 250
    config = daemon_config(tmp_path, core=SMALL_CHUNKS, session=BY_BYTES, source=ROOM_FOR_ALL)
    with (
        generator.start("exec", nr=NUMBER, count=children, each=COUNT // children) as running,
        daemon(start_cli, config),
    ):
        running.run()
    session = daemon_result(tmp_path)
    check_balance(session, perfs, generated=COUNT)
    segments = segments_of(session)
    assert len(segments) >= 4
    forked: list[int] = []
    told: Counter[tuple[int, int]] = Counter()
    replayed = 0
    for segment in segments:
        records = kernel_records(segment)
        assert len(records) == len(set(records)), segment
        for record in records:
            kind, misc, _, pid, second = _TASK.unpack_from(record)
            replayed += kind == RecordType.FORK and bool(misc & Misc.FORK_EXEC)
            if kind == RecordType.FORK and second == running.pid and not misc & Misc.FORK_EXEC:
                forked.append(pid)
            elif kind == RecordType.EXIT or (kind == RecordType.COMM and misc & Misc.COMM_EXEC):
                told[kind, pid] += 1
    assert replayed
    assert len(forked) == len(set(forked)) == children
    for kind in (RecordType.COMM, RecordType.EXIT):
        assert [told[kind, pid] for pid in forked] == [1] * children


def test_a_slow_shard_keeps_the_order(
    start_cli: Start,
    tmp_path: Path,
    *,
    generator: Generator,
    perfs: Perfs,
    require: Callable[[str], None],
) -> None:
    """Two shards, one of which hardly runs: perf finds every sample in its place in time."""
    require("two CPUs")
    # In real time it would run whatever its niceness is.
    core = f"{OFTEN}\nshards = 2\n{USUAL_PRIORITY}"
    config = daemon_config(tmp_path, core=core, source=ROOM_FOR_ALL)
    rounds = 3
    work = {"nr": NUMBER, "count": COUNT, "rate": 40_000}
    with daemon(start_cli, config) as running:
        slow = _thread(running.pid, "drain/1")
        # Not SCHED_IDLE: beside other load that may not run at all before the burner ends.
        os.setpriority(os.PRIO_PROCESS, slow, 19)
        os.sched_setaffinity(slow, {1})
        with (
            generator.start("spin", hold=False, seconds=1.5, cpu=1) as burner,
            generator.start("count", hold=False, cpu=0, **work) as quick,
            generator.start("count", hold=False, cpu=1, **work) as slowed,
        ):
            for part in (burner, quick, slowed):
                part.go()
            for part in (quick, slowed, burner):
                part.result()
        # However few rounds it let come.
        for number in range(1, rounds + 1):
            with generator.start("count", nr=NUMBER, count=1) as late:
                late.run()
            running.await_stored(2 * COUNT + number)
    session = daemon_result(tmp_path)
    check_balance(session, perfs, generated=2 * COUNT + rounds)
    (segment,) = segments_of(session)
    assert record_types(segment)[RecordType.FINISHED_ROUND] >= rounds
    for perf in perfs:
        lines = [line.split() for line in script(perf, segment, "--ns", "-F", "cpu,time")]
        times = [float(time.rstrip(":")) for _, time in lines]
        assert times == sorted(times)
        assert {cpu for cpu, _ in lines} == {"[000]", "[001]"}


def _thread(pid: int, name: str) -> int:
    (found,) = (
        int(task.name)
        for task in Path(f"/proc/{pid}/task").iterdir()
        if (task / "comm").read_text().strip() == name
    )
    return found


def test_rotation_beside_many_processes_loses_nothing(
    start_cli: Start, tmp_path: Path, generator: Generator, perfs: Perfs
) -> None:
    """A rotation a second at 100,000 events a second, with 600 processes alive, costs nothing."""
    rate = 100_000
    config = daemon_config(
        tmp_path,
        core='flush_interval = "250ms"',
        session='segment_bytes = "0"\nsegment_age = "1s"',
        source='ring = "8MiB"',
    )
    with (
        generator.start("idle", processes=600, maps=11),
        daemon(start_cli, config) as running,
        generator.start("count", nr=NUMBER, count=3 * rate, rate=rate, cpu=0) as busy,
    ):
        busy.run()
        assert running.session()["lost"] == dict.fromkeys(running.session()["lost"], 0)
    session = daemon_result(tmp_path)
    check_balance(session, perfs[:1], generated=3 * rate)
    assert session["stored"] == 3 * rate
    manifests = _manifests(session)
    assert len(manifests) >= 3
    # Each has the 600 processes with 11 mappings each, without a look into /proc.
    assert min(manifest["replayed"] for manifest in manifests[1:]) > 600 * 12
