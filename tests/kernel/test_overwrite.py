# SPDX-License-Identifier: Apache-2.0
"""Flight recorders of perf rings: what was last before an instant, once, and nothing hidden."""

from __future__ import annotations

import json
import re
import signal
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest

from collectord.kernel.linux import LinuxKernel
from tests.support import cpus, daemons
from tests.support import mutant as mutants
from tests.support.daemons import EVENT, FILTER, NUMBER
from tests.support.features import require
from tests.support.recording import result_of, script

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterable, Sequence

    from tests.support.daemons import Daemon
    from tests.support.generator import Generator
    from tests.support.perf_tools import Perf

    Cli = Callable[..., subprocess.CompletedProcess[str]]
    Start = Callable[..., subprocess.Popen[str]]
    Perfs = tuple[Perf, ...]

pytestmark = pytest.mark.usefixtures("tracefs")

CPUS: Final = LinuxKernel().online_cpus()
# A system call that nobody makes but to stop a ring.
TRIGGER: Final = NUMBER + 1
RING_KIB: Final = 64
# Its samples: id, ip, pid and tid, time, cpu, period, and 68 bytes of raw data with their size.
RECORD_BYTES: Final = 128
RING_RECORDS: Final = RING_KIB * 1024 // RECORD_BYTES
# At the oldest end of a full ring someone may still be writing: as much as four records.
MARGIN: Final = 5
FEW: Final = RING_RECORDS // 2
MANY: Final = 40 * RING_RECORDS
PAUSED: Final = "kernel_ring/paused"
WINDOW: Final = 'collectord_recorder_window_{}{{session="calls",source="perf"}}'
# The command of `record -- COMMAND`: it makes the calls, says so, and stays.
_THEN_WAIT: Final = '"$0" "$@" && echo made >&2 && exec sleep 60'
_LINE: Final = re.compile(r"\[(\d+)\]\s+[\d.]+:\s+NR (\d+) \(([0-9a-f]+),")


class Call(NamedTuple):
    """One of the generator's calls, as stored in a segment."""

    cpu: int
    number: int
    serial: int


def calls_in(perfs: Perfs, segments: Iterable[str | Path]) -> list[Call]:
    """Return the calls in segments, in the order of time; each perf must list the same."""
    listed = []
    for perf in perfs:
        lines = [
            line
            for path in segments
            for line in script(perf, Path(path), "-F", "trace:cpu,time,trace")
        ]
        found = [_LINE.search(line) for line in lines]
        assert all(found), lines[:3]
        listed.append([Call(int(m[1]), int(m[2]), int(m[3], 16)) for m in found if m])
    assert all(calls == listed[0] for calls in listed)
    return listed[0]


def check_run(counts: Sequence[int], last: int) -> None:
    """Assert that the counts are one contiguous run, in order, up to `last`."""
    assert counts
    assert all(after == before + 1 for before, after in pairwise(counts))
    assert counts[-1] == last


def write_config(
    directory: Path, *, session: str = "", source: str = "", staging: str = "16MiB", more: str = ""
) -> Path:
    """Configure one flight recorder, `calls`, of this run's marked system calls."""
    recorder = f"""
[[session]]
name = "calls"
mode = "flight-recorder"
{session}
[[session.source]]
kind = "perf"
events = ["{EVENT}"]
filter = "{FILTER}"
{source or f'ring = "{RING_KIB}KiB"'}
{more}
"""
    return daemons.write_sessions(directory, recorder, staging=staging)


def make_on_each_cpu(generator: Generator, count: int) -> None:
    """Make so many calls on each CPU, on all of them at once."""
    with ExitStack() as stack:
        started = [
            stack.enter_context(generator.start("count", count=count, nr=NUMBER, cpu=cpu))
            for cpu in CPUS
        ]
        for one in started:
            one.go()
        for one in started:
            assert one.result()["events"] == count


def await_look(daemon: Daemon) -> None:
    """Wait until the rings have been looked at once more."""

    def reach() -> list[int]:
        """Return the time span of each ring, which grows while the ring is not empty."""
        return [ring["window_ns"] for ring in daemon.session()["rings"]]

    before = reach()
    daemons.wait_for(lambda: reach() != before, "a look")


def await_segment(state: Path, number: int) -> Path:
    """Wait for the segment of that number, counted from 1."""
    daemons.wait_for(lambda: len(daemons.sealed(state)) == number, "a segment")
    return daemons.sealed(state)[-1]


def trigger(generator: Generator, cpu: int) -> None:
    """Make the one call that stops a ring, on a CPU."""
    with generator.start("count", count=1, nr=TRIGGER, cpu=cpu) as one:
        assert one.run()["events"] == 1


def snapshot(daemon: Daemon) -> dict[str, Any]:
    """Ask for one; there is one session with one source."""
    (made,) = daemon.post("/v1/snapshot", {"sessions": ["calls"]})["snapshots"]
    return dict(made)


@pytest.mark.parametrize(
    "count",
    [pytest.param(FEW, id="room left"), pytest.param(MANY, id="wrapped", marks=pytest.mark.vm)],
)
def test_a_snapshot_holds_the_last_records(
    tmp_path: Path, start_cli: Start, generator: Generator, perfs: Perfs, *, count: int
) -> None:
    """On every CPU: a contiguous run up to the last event, as long as the ring allows."""
    with daemons.running(start_cli, write_config(tmp_path)) as daemon:
        make_on_each_cpu(generator, count)
        made = snapshot(daemon)
        calls = calls_in(perfs, made["segments"])
        for cpu in CPUS:
            counts = [call.serial for call in calls if call.cpu == cpu]
            check_run(counts, count - 1)
            if count == FEW:
                assert len(counts) == FEW
            else:
                assert RING_RECORDS - MARGIN <= len(counts) <= RING_RECORDS
        assert made["samples"] == len(calls)
        assert made["bytes"] == len(calls) * RECORD_BYTES
        (path,) = made["segments"]
        manifest = daemons.manifest(path)
        assert manifest["last_ns"] - manifest["first_ns"] == made["last_ns"] - made["first_ns"]
        assert manifest["snapshot"]["trigger"] == made["trigger"] == "request"
        assert manifest["snapshot"]["paused_ns"] == made["paused_ns"] > 0
        assert daemon.stop().status == 0


@pytest.mark.parametrize("count", [FEW, MANY], ids=["room left", "wrapped"])
def test_all_that_is_not_stored_was_overwritten(
    run_cli: Cli, generator: Generator, perfs: Perfs, *, count: int
) -> None:
    """`record --overwrite` ends with the window; the kernel's count tells what it gave up."""
    load = generator.command("count", count=count, nr=NUMBER, cpu=CPUS[-1])
    words = ("record", "--overwrite", "-m", f"{RING_KIB}K", "-e", EVENT, "--filter", FILTER)
    done = run_cli(*words, "-a", "-o", "box.data", "--json", "--", *load)
    assert done.returncode == 0, done.stderr
    session = result_of(done.stdout)
    calls = calls_in(perfs, session["segments"])
    check_run([call.serial for call in calls], count - 1)
    assert session["stored"] == len(calls)
    assert session["stored"] + session["overwritten"] == count
    assert (session["produced"], session["unaccounted"]) == (None, None)
    assert (session["ledger_basis"], session["lost"][PAUSED]) == ("lost_only", 0)
    (made,) = json.loads(done.stdout)["snapshots"]
    assert (made["trigger"], made["samples"]) == ("end", len(calls))


def test_a_forgotten_record_is_missed(
    tmp_path: Path, generator: Generator, perf: Perf, mutant: Path
) -> None:
    """A record that was in a window and is in no segment does not count as overwritten."""
    load = generator.command("count", count=MANY, nr=NUMBER, cpu=0)
    words = ("--overwrite", "-m", f"{RING_KIB}K", "-e", EVENT, "--filter", FILTER, "-a")
    session = mutants.record(mutant, tmp_path, load, words)
    assert session["stored"] == perf.samples([Path(path) for path in session["segments"]])
    lost = sum(session["lost"].values())
    assert session["stored"] + session["overwritten"] + lost == MANY - 1


def test_each_record_is_stored_once(
    tmp_path: Path, start_cli: Start, generator: Generator, perfs: Perfs
) -> None:
    """Records in two snapshots are stored in the first, and `repeated` in the second."""
    with daemons.running(start_cli, write_config(tmp_path)) as daemon:
        make_on_each_cpu(generator, FEW)
        first = snapshot(daemon)
        make_on_each_cpu(generator, FEW // 4)
        second = snapshot(daemon)
        third = snapshot(daemon)
        assert len(calls_in(perfs, first["segments"])) == FEW * len(CPUS)
        for cpu in CPUS:
            again = [
                call.serial for call in calls_in(perfs, second["segments"]) if call.cpu == cpu
            ]
            check_run(again, FEW // 4 - 1)
            assert len(again) == FEW // 4
        assert (first["repeated"], second["repeated"]) == (0, FEW * len(CPUS))
        assert second["repeated_bytes"] == FEW * len(CPUS) * RECORD_BYTES
        assert (third["segments"], third["samples"]) == ([], 0)
        assert third["repeated"] == (FEW + FEW // 4) * len(CPUS)
        session = daemon.session()
        assert session["stored"] == (FEW + FEW // 4) * len(CPUS)
        assert session["snapshots"] == 3
        assert daemon.stop().status == 0


def test_a_pause_is_counted(
    tmp_path: Path, start_cli: Start, generator: Generator, perfs: Perfs
) -> None:
    """While the rings stand still events are lost, and each of them is counted, once."""
    count = 400_000
    with daemons.running(start_cli, write_config(tmp_path, source='ring = "64MiB"')) as daemon:
        with generator.start("count", count=count, nr=NUMBER, cpu=CPUS[0]) as load:
            load.go()
            made = 0
            while made < count // 50:  # it has not begun
                made += snapshot(daemon)["samples"]
            snapshots = [snapshot(daemon) for _ in range(4)]
            assert load.result()["events"] == count
        assert daemon.stop().status == 0
    segments = daemons.sealed(tmp_path / "state")
    calls = calls_in(perfs[:1], segments)
    counts = [call.serial for call in calls]
    assert sorted(set(counts)) == counts
    final = daemons.manifest(segments[-1])["ledger"]
    assert final["stored"] == len(counts)
    assert final["overwritten"] == 0
    assert final["lost"][PAUSED] == count - len(counts)
    assert {pair: n for pair, n in final["lost"].items() if n and pair != PAUSED} == {}
    assert sum(one["paused_ns"] for one in snapshots) > 0


def test_a_window_larger_than_staging(
    tmp_path: Path, start_cli: Start, generator: Generator, perfs: Perfs
) -> None:
    """It waits for chunks, and the rings do not wait for it."""
    config = write_config(tmp_path, source='ring = "4MiB"', staging="512KiB")
    records = (4 << 20) // RECORD_BYTES
    with daemons.running(start_cli, config) as daemon:
        make_on_each_cpu(generator, 2 * records)
        calls = calls_in(perfs, snapshot(daemon)["segments"])
        for cpu in CPUS:
            counts = [call.serial for call in calls if call.cpu == cpu]
            check_run(counts, 2 * records - 1)
            assert len(counts) >= records - MARGIN
        assert daemon.stop().status == 0


def test_a_window_of_several_segments(
    tmp_path: Path, start_cli: Start, generator: Generator, perfs: Perfs
) -> None:
    """Each is read alone, all are named, and together they are the run."""
    config = write_config(tmp_path, session='segment_bytes = "1MiB"', source='ring = "4MiB"')
    count = (4 << 20) // RECORD_BYTES - 10
    with daemons.running(start_cli, config) as daemon:
        with generator.start("count", count=count, nr=NUMBER, cpu=0) as load:
            load.run()
        made = snapshot(daemon)
        assert len(made["segments"]) > 1
        check_run([call.serial for call in calls_in(perfs, made["segments"])], count - 1)
        assert made["samples"] == count
        assert daemon.stop().status == 0


def test_those_that_exited_have_their_names(
    tmp_path: Path, start_cli: Start, generator: Generator, perfs: Perfs
) -> None:
    """The sideband goes on in a stream: names are those of the time of the sample."""
    with daemons.running(start_cli, write_config(tmp_path)) as daemon:
        for _ in range(3):
            with generator.start("exec", count=20, each=2, nr=NUMBER) as load:
                load.run()
            await_look(daemon)
        (segment,) = snapshot(daemon)["segments"]
        for perf in perfs:
            names = perf.script(segment, "-F", "comm")
            assert len(names) == 3 * 20 * 2
            assert not [name for name in names if name.strip().startswith(":")]
        assert daemon.stop().status == 0


def test_the_window_is_a_metric(tmp_path: Path, start_cli: Start, generator: Generator) -> None:
    """It is the content of a snapshot taken now, in bytes and in seconds."""
    with daemons.running(start_cli, write_config(tmp_path)) as daemon:
        seconds, held = WINDOW.format("seconds"), WINDOW.format("bytes")
        make_on_each_cpu(generator, FEW)
        daemons.wait_for(
            lambda: daemon.metric(held) == FEW * RECORD_BYTES * len(CPUS), "its bytes"
        )
        young = daemon.metric(seconds)
        daemons.wait_for(lambda: daemon.metric(seconds) > young, "a longer window")
        make_on_each_cpu(generator, MANY)
        daemons.wait_for(lambda: daemon.metric(held) == RING_KIB * 1024 * len(CPUS), "full rings")
        daemon.post("/v1/snapshot", {})
        assert daemon.metric('collectord_snapshots_total{session="calls",source="perf"}') == 1
        assert daemon.metric('collectord_paused_seconds_total{session="calls",source="perf"}') > 0
        assert daemon.stop().status == 0


@pytest.mark.parametrize("cpu", [pytest.param(CPUS[0], marks=pytest.mark.vm), *CPUS[1:2]])
def test_an_event_freezes_its_ring(
    tmp_path: Path, start_cli: Start, generator: Generator, perfs: Perfs, *, cpu: int
) -> None:
    """No later event is recorded on its CPU; then it is armed again."""
    freeze = f'freeze_on = "{EVENT}"\nfreeze_filter = "id == {TRIGGER}"'
    config = write_config(tmp_path, session=freeze)
    with daemons.running(start_cli, config) as daemon, ExitStack() as stack:
        loads = [
            stack.enter_context(generator.start("count", count=10**9, nr=NUMBER, cpu=one))
            for one in CPUS
        ]
        for load in loads:
            stack.callback(load.kill)
        for load in loads:
            load.go()
        segments = []
        for number in range(1, 4):
            await_look(daemon)
            trigger(generator, cpu)
            segments.append(await_segment(tmp_path / "state", number))
        for load in loads:
            load.kill()
        assert len(daemon.stop().named("ring_frozen")) == 3
    for segment in segments:
        assert daemons.manifest(segment)["snapshot"]["trigger"] == "freeze"
        calls = calls_in(perfs[:1], [segment])
        here = [call for call in calls if call.cpu == cpu]
        assert here[-1].number == TRIGGER
        assert [call.number for call in here].count(TRIGGER) == 1
        check_run([call.serial for call in here[:-1]], here[-2].serial)
        assert len(here) >= RING_RECORDS - MARGIN


def test_a_ring_that_freezes_while_another_window_is_stored(
    tmp_path: Path, start_cli: Start, generator: Generator
) -> None:
    """It is stored next, and does not wait for the flush interval."""
    freeze = f'freeze_on = "{EVENT}"\nfreeze_filter = "id == {TRIGGER}"'
    config = write_config(tmp_path, session=freeze)
    config.write_text(config.read_text().replace('"100ms"', '"10m"'))
    with daemons.running(start_cli, config) as daemon:
        with generator.start("count", count=10**9, nr=TRIGGER, cpu=CPUS[0]) as load:
            load.go()
            daemons.wait_for(lambda: len(daemons.sealed(tmp_path / "state")) >= 3, "three windows")
            load.kill()
        assert daemon.stop().status == 0


def test_a_cpu_that_freezes_and_leaves_freezes_again(
    tmp_path: Path, start_cli: Start, generator: Generator, perfs: Perfs
) -> None:
    """Its frozen window is stored, though its ring is gone; its new ring is armed as that was."""
    require("CPU hotplug")
    freeze = f'freeze_on = "{EVENT}"\nfreeze_filter = "id == {TRIGGER}"'
    cpu = cpus.with_switch()[-1]
    config = write_config(tmp_path, session=freeze)
    with daemons.running(start_cli, config) as daemon:
        held = cpus.open_events(daemon)
        for number in range(1, 4):
            make_on_each_cpu(generator, FEW)
            with cpus.offline(cpu):
                trigger(generator, CPUS[0])
                daemons.wait_for(lambda: daemon.metric(cpus.ONLINE) < cpus.CPUS, "its end")
            segment = await_segment(tmp_path / "state", 2 * number - 1)
            calls = calls_in(perfs[:1], [segment])
            assert [call.number for call in calls].count(TRIGGER) == 1
            assert {call.cpu for call in calls} == set(CPUS)
            daemons.wait_for(lambda: daemon.metric(cpus.COVERED) == cpus.CPUS, "its new ring")
            make_on_each_cpu(generator, FEW)
            trigger(generator, cpu)
            with cpus.offline(cpu):
                segment = await_segment(tmp_path / "state", 2 * number)
            assert daemons.manifest(segment)["snapshot"]["trigger"] == "freeze"
            here = [call for call in calls_in(perfs[:1], [segment]) if call.cpu == cpu]
            assert here[-1].number == TRIGGER
            check_run([call.serial for call in here[:-1]], FEW - 1)
            assert len(here) == FEW + 1
            daemons.wait_for(lambda: daemon.metric(cpus.COVERED) == cpus.CPUS, "its new ring")
        assert daemon.session()["degraded"] == []
        daemons.wait_for(lambda: cpus.open_events(daemon) == held, "as many events")
        ended = daemon.stop()
    assert ended.status == 0, ended.log
    assert len(ended.named("ring_frozen")) == 6
    assert {line["event"] for line in ended.complaints()} <= {"cpus_changed", "ring_frozen"}


def test_a_freeze_of_both_kinds(
    tmp_path: Path, start_cli: Start, generator: Generator, perfs: Perfs
) -> None:
    """A session of perf and ftrace rings: one event stops both, each in the kernel's way."""
    freeze = f'freeze_on = "{EVENT}"\nfreeze_filter = "id == {TRIGGER}"'
    ftrace = f'[[session.source]]\nkind = "tracefs"\nevents = ["{EVENT}"]\n'
    ftrace += f'filter = "id == {NUMBER} || id == {TRIGGER}"\nmax = "4MiB"\n'
    config = write_config(tmp_path, session=freeze, more=ftrace)
    with daemons.running(start_cli, config) as daemon:
        with generator.start("count", count=100, nr=NUMBER, cpu=0) as load:
            load.run()
        trigger(generator, 0)
        state = tmp_path / "state"
        daemons.wait_for(lambda: daemons.sealed(state), "perf's window")
        daemons.wait_for(lambda: sorted(state.rglob("*.trace.dat")), "ftrace's window")
        assert [call.number for call in calls_in(perfs, daemons.sealed(state))][-1] == TRIGGER
        (trace,) = sorted(state.rglob("*.trace.dat"))
        assert daemons.manifest(trace)["samples"] == 101
        assert daemons.manifest(trace)["snapshot"]["trigger"] == "freeze"
        # Both go on, and one request stores both.
        with generator.start("count", count=50, nr=NUMBER, cpu=0) as load:
            load.run()
        answer = daemon.post("/v1/snapshot", {})
        assert {one["source"]: one["samples"] for one in answer["snapshots"]} == {
            "perf": 50,
            "tracefs": 50,
        }
        assert daemon.stop().status == 0


def test_signal_makes_a_snapshot_of_run(
    tmp_path: Path, start_cli: Start, generator: Generator, perfs: Perfs
) -> None:
    """SIGUSR2 works like a request."""
    with daemons.running(start_cli, write_config(tmp_path)) as daemon:
        with generator.start("count", count=30, nr=NUMBER, cpu=0) as load:
            load.run()
        daemon.process.send_signal(signal.SIGUSR2)
        state = tmp_path / "state/calls"  # its incident has it, too
        daemons.wait_for(lambda: daemons.sealed(state), "a segment")
        (segment,) = daemons.sealed(state)
        check_run([call.serial for call in calls_in(perfs, [segment])], 29)
        assert daemons.manifest(segment)["snapshot"]["trigger"] == "signal"
        assert daemon.stop().status == 0


@pytest.mark.parametrize("into", ["directory", pytest.param("file", marks=pytest.mark.vm)])
def test_signal_makes_a_snapshot_of_record(
    tmp_path: Path, start_cli: Start, generator: Generator, perfs: Perfs, *, into: str
) -> None:
    """Each signal gets a segment of its own; one file takes none but the window at the end."""
    where = ("--output-dir", "out") if into == "directory" else ("-o", "box.data")
    load = generator.command("count", count=25, nr=NUMBER, cpu=0)
    words = ("-e", EVENT, "--filter", FILTER, "-a", *where, "--json")
    process = start_cli("record", "--overwrite", *words, "--", "sh", "-c", _THEN_WAIT, *load)
    assert process.stderr is not None
    lines = iter(process.stderr.readline, "")
    assert any("made" in line for line in lines)
    process.send_signal(signal.SIGUSR2)
    if into == "directory":
        daemons.wait_for(lambda: daemons.sealed(tmp_path / "out"), "a segment")
    else:
        assert any("snapshot_failed" in line for line in lines)
    process.send_signal(signal.SIGINT)
    stdout, _ = process.communicate(timeout=60)
    result = json.loads(stdout)
    assert result["sessions"][0]["stored"] == 25
    expected = ["signal", "end"] if into == "directory" else ["end"]
    assert [one["trigger"] for one in result["snapshots"]] == expected
    check_run([c.serial for c in calls_in(perfs, result["sessions"][0]["segments"])], 24)


def test_a_kill_loses_nothing_that_was_sealed(
    tmp_path: Path, start_cli: Start, run_cli: Cli, generator: Generator, perfs: Perfs
) -> None:
    """The window dies with the process; snapshots do not, and the next run goes on."""
    config = write_config(tmp_path)
    with daemons.running(start_cli, config) as daemon:
        make_on_each_cpu(generator, 40)
        (segment,) = snapshot(daemon)["segments"]
        make_on_each_cpu(generator, 40)
        daemon.kill()
    with daemons.running(start_cli, config) as daemon:
        assert len(calls_in(perfs, [segment])) == 40 * len(CPUS)
        assert daemon.stop().status == 0
    assert daemons.left_open(tmp_path / "state") == []
    assert run_cli("segments", "verify", tmp_path / "state" / "calls").returncode == 0
