# SPDX-License-Identifier: Apache-2.0
"""Flight recorders whose rings the opener holds: windows reach back over restarts and kills."""

from __future__ import annotations

import json
import os
import random
import threading
from collections import Counter, defaultdict
from contextlib import ExitStack, suppress
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, Final

import pytest

from collectord.cli.daemon_config import read as load
from collectord.daemon.host_facts import daemon_facts
from collectord.errors import CollectordError
from collectord.kernel.linux import LinuxKernel
from collectord.kernel.values.kept_rings import STATE_BYTES, KeptRings
from collectord.plan.build import build
from collectord.source.perf_kept import ask_opener, own_given
from tests.kernel.test_overwrite import (
    CPUS,
    FEW,
    MANY,
    PAUSED,
    RING_RECORDS,
    TRIGGER,
    await_look,
    calls_in,
    check_run,
    make_on_each_cpu,
    snapshot,
    trigger,
    write_config,
)
from tests.support import cpus, daemons
from tests.support.daemons import EVENT, NUMBER
from tests.support.features import require
from tests.support.openers import held, opening, with_opener

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tests.support.daemons import Daemon
    from tests.support.generator import Generator
    from tests.support.perf_tools import Perf
    from tests.support.recording import Start

pytestmark = pytest.mark.usefixtures("tracefs")

KILLS: Final = 6
RATE: Final = 60_000.0
CALLS: Final = 240_000


def end(daemon: Daemon, *, kill: bool) -> None:
    """Kill a daemon, or stop it."""
    if kill:
        daemon.kill()
    else:
        assert daemon.stop().status == 0


def filled(state: Path) -> list[Path]:
    """Return the segments with calls: the last one of a daemon that was stopped has none."""
    return [path for path in daemons.sealed(state) if daemons.manifest(path)["samples"]]


def await_filled(state: Path, number: int) -> Path:
    """Wait for the segment with calls of that number, counted from 1."""
    daemons.wait_for(lambda: len(filled(state)) == number, "its window")
    return filled(state)[-1]


def told(segments: Iterable[Path]) -> tuple[int, dict[str, int]]:
    """Return what all runs of some segments tell of as overwritten, and as lost by reason."""
    overwritten: Counter[str] = Counter()
    lost: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for path in segments:
        manifest = daemons.manifest(path)
        run, ledger = manifest["run"], manifest["ledger"]
        overwritten[run] = max(overwritten[run], ledger.get("overwritten") or 0)
        lost[run] |= Counter(ledger.get("lost", {}))
    return overwritten.total(), dict(sum(lost.values(), Counter()))


@pytest.mark.parametrize("kill", [False, True], ids=["restart", "kill"])
def test_a_snapshot_reaches_back_over_a_restart(
    tmp_path: Path, start_cli: Start, generator: Generator, perfs: tuple[Perf, ...], *, kill: bool
) -> None:
    """It has what came before, during and after it, without what an earlier snapshot has."""
    config = with_opener(write_config(tmp_path))
    state = tmp_path / "state"
    part = FEW // 8
    with opening(start_cli, config) as opener:
        with daemons.running(start_cli, config) as daemon:
            make_on_each_cpu(generator, part)
            before = snapshot(daemon)
            make_on_each_cpu(generator, part)
            end(daemon, kill=kill)
        assert [str(path) for path in filled(state)] == before["segments"]
        make_on_each_cpu(generator, part)
        with daemons.running(start_cli, config) as daemon:
            make_on_each_cpu(generator, part)
            made = snapshot(daemon)
            session = daemon.session()
            opener.terminate()
            opener.wait()
            ended = daemon.stop()
    calls = calls_in(perfs, made["segments"])
    for cpu in CPUS:
        serials = [call.serial for call in calls if call.cpu == cpu]
        assert serials == [*range(part)] * 3
    assert made["repeated"] == part * len(CPUS)
    assert session["degraded"] == []
    assert (session["stored"], session["overwritten"]) == (3 * part * len(CPUS), 0)
    assert not any(session["lost"].values())
    (path,) = made["segments"]
    assert daemons.manifest(path)["gap"] is None
    assert not ended.named("gap_before") + ended.named("events_of_killed_lost")


@pytest.mark.parametrize("kill", [False, True], ids=["restart", "kill"])
def test_a_ring_that_freezes_while_no_daemon_runs_is_stored(
    tmp_path: Path, start_cli: Start, generator: Generator, perfs: tuple[Perf, ...], *, kill: bool
) -> None:
    """By the next one, which arms it again; one that was armed already freezes at the first."""
    freeze = f'freeze_on = "{EVENT}"\nfreeze_filter = "id == {TRIGGER}"'
    config = with_opener(write_config(tmp_path, session=freeze))
    state = tmp_path / "state"
    cpu = CPUS[-1]
    segments = []
    with opening(start_cli, config):
        for number in (1, 2):
            with daemons.running(start_cli, config) as daemon:
                assert daemon.session()["degraded"] == []
                end(daemon, kill=kill)
            make_on_each_cpu(generator, FEW // 8)
            trigger(generator, cpu)
            make_on_each_cpu(generator, FEW // 8)
            with daemons.running(start_cli, config) as daemon:
                segments.append(await_filled(state, 2 * number - 1))
                make_on_each_cpu(generator, FEW // 8)
                end(daemon, kill=kill)
            with daemons.running(start_cli, config) as daemon:
                trigger(generator, cpu)
                segments.append(await_filled(state, 2 * number))
                end(daemon, kill=kill)
    for segment in segments:
        assert daemons.manifest(segment)["snapshot"]["trigger"] == "freeze"
        calls = calls_in(perfs[:1], [segment])
        here = [call for call in calls if call.cpu == cpu]
        assert here[-1].number == TRIGGER
        assert [call.serial for call in here[:-1]] == [*range(FEW // 8)]


@pytest.mark.parametrize("kill", [False, True], ids=["restart", "kill"])
def test_what_is_overwritten_meanwhile_is_counted_once(
    tmp_path: Path, start_cli: Start, generator: Generator, perfs: tuple[Perf, ...], *, kill: bool
) -> None:
    """By whichever daemon makes the next snapshot: all that was made is stored or overwritten."""
    config = with_opener(write_config(tmp_path))
    state = tmp_path / "state"
    with opening(start_cli, config) as opener:
        for _ in range(3):
            with daemons.running(start_cli, config) as daemon:
                make_on_each_cpu(generator, MANY)
                snapshot(daemon)
                make_on_each_cpu(generator, MANY)
                end(daemon, kill=kill)
            make_on_each_cpu(generator, MANY)
        with daemons.running(start_cli, config) as daemon:
            opener.terminate()
            opener.wait()
            assert daemon.stop().status == 0
    segments = filled(state)
    assert len(segments) == 4
    calls = calls_in(perfs[:1], segments)
    overwritten, lost = told(daemons.sealed(state))
    assert sum(lost.values()) == 0
    assert len(calls) + overwritten == 9 * MANY * len(CPUS)
    for cpu in CPUS:
        last = [call.serial for call in calls_in(perfs[:1], segments[-1:]) if call.cpu == cpu]
        check_run(last, MANY - 1)
        assert len(last) > RING_RECORDS // 2


def test_a_kill_at_any_instant_of_a_snapshot_is_counted(
    tmp_path: Path, start_cli: Start, generator: Generator, perfs: tuple[Perf, ...]
) -> None:
    """Its window is in staging or still in the ring; no call is stored twice, or missing."""
    dice = random.Random("recorder")  # noqa: S311  # no secret
    config = with_opener(write_config(tmp_path, source='ring = "2MiB"', staging="1MiB"))
    state = tmp_path / "state"
    with ExitStack() as stack:
        opener = stack.enter_context(opening(start_cli, config))
        running = stack.enter_context(
            generator.start("count", count=CALLS, rate=RATE, nr=NUMBER, cpu=CPUS[0])
        )
        for number in range(KILLS):
            with daemons.running(start_cli, config) as daemon:
                if number == 0:
                    running.go()
                snapshot(daemon)
                timer = threading.Timer(dice.uniform(0, 0.03), daemon.process.kill)
                timer.start()
                with suppress(CollectordError, OSError, HTTPException):
                    while True:
                        snapshot(daemon)
                timer.join()
                daemon.kill()
        made = running.result()["events"]
        with daemons.running(start_cli, config) as daemon:
            opener.terminate()
            opener.wait()
            assert daemon.stop().status == 0
    segments = daemons.sealed(state)
    calls = calls_in(perfs[:1], segments)
    serials = Counter(call.serial for call in calls)
    assert [serial for serial, times in serials.items() if times > 1] == []
    overwritten, lost = told(segments)
    assert set(+Counter(lost)) <= {PAUSED}
    assert len(calls) + overwritten + sum(lost.values()) == made


def test_tasks_that_ended_before_a_kill_have_their_names(
    tmp_path: Path, start_cli: Start, generator: Generator, perfs: tuple[Perf, ...]
) -> None:
    """The rings that name them keep their last records for the next daemon."""
    config = with_opener(write_config(tmp_path))
    made = 0
    with opening(start_cli, config):
        for _ in range(2):
            with daemons.running(start_cli, config) as daemon:
                with generator.start("exec", count=20, each=2, nr=NUMBER) as load:
                    load.run()
                made += 40
                await_look(daemon)
                daemon.kill()
        with daemons.running(start_cli, config) as daemon:
            (segment,) = snapshot(daemon)["segments"]
            assert daemon.stop().status == 0
    for perf in perfs:
        names = perf.script(segment, "-F", "comm")
        assert len(names) == made
        assert not [name for name in names if name.strip().startswith(":")]


def test_a_cpu_that_was_away_has_a_new_ring(
    tmp_path: Path, start_cli: Start, generator: Generator, perfs: tuple[Perf, ...]
) -> None:
    """The account of its place goes on in it, also over a kill."""
    require("CPU hotplug")
    config = with_opener(write_config(tmp_path))
    state = tmp_path / "state"
    made = 0
    with opening(start_cli, config) as opener:
        for _ in range(2):
            with daemons.running(start_cli, config) as daemon:
                for _ in range(2):
                    make_on_each_cpu(generator, MANY)
                    made += MANY * len(CPUS)
                    snapshot(daemon)
                    cpus.bounce(daemon, cpus.with_switch()[-1], [lambda: None])
                daemon.kill()
            make_on_each_cpu(generator, MANY)
            made += MANY * len(CPUS)
        with daemons.running(start_cli, config) as daemon:
            opener.terminate()
            opener.wait()
            assert daemon.stop().status == 0
    overwritten, lost = told(daemons.sealed(state))
    assert not lost
    assert len(calls_in(perfs[:1], filled(state))) + overwritten == made


def test_rings_that_were_paused_at_a_kill_go_on(
    tmp_path: Path, start_cli: Start, generator: Generator
) -> None:
    """The next daemon counts the calls that they refused, and the time is a gap."""
    config = with_opener(write_config(tmp_path))
    with opening(start_cli, config):
        with daemons.running(start_cli, config) as daemon:
            make_on_each_cpu(generator, FEW // 2)
            end(daemon, kill=False)
        pause_as_if_killed(config)
        make_on_each_cpu(generator, 100)
        with daemons.running(start_cli, config) as daemon:
            make_on_each_cpu(generator, FEW // 4)
            made = snapshot(daemon)
            session = daemon.session()
            ended = daemon.stop()
    assert made["samples"] == (FEW // 2 + FEW // 4) * len(CPUS)
    assert session["lost"][PAUSED] == 100 * len(CPUS)
    (path,) = made["segments"]
    manifest = daemons.manifest(path)
    assert manifest["ledger"]["lost"][PAUSED] == 100 * len(CPUS)
    assert manifest["gap"]["cause"] == "kill"
    assert manifest["gap"]["until_ns"] > manifest["gap"]["from_ns"]
    assert [one["cause"] for one in ended.named("gap_before")] == ["kill"]


def pause_as_if_killed(config: Path) -> None:
    """Be a daemon that has begun a snapshot, and is no more."""
    kernel = LinuxKernel()
    loaded = load(config)
    with ExitStack() as stack:
        facts = daemon_facts(kernel, loaded.config, mount=False)
        (plan,) = build(loaded.config, facts).sessions
        given = ask_opener(kernel, plan)
        assert isinstance(given, KeptRings)
        own_given(kernel, given, stack)
        for ring in given.rings:
            for fd in ring.fds:
                stack.callback(kernel.close, fd)
        note: dict[str, Any] = json.loads(read_state(given.memory))
        note["paused_ns"] = kernel.clocks().monotonic_ns
        write_state(given.memory, json.dumps(note))
        for kept, fds in given.rings:
            if plan.rings[kept.number].overwrite:
                kernel.pause_output(fds[0], paused=True)


def read_state(memory: int) -> str:
    """Return the text of a session's memory."""
    return os.pread(memory, STATE_BYTES, 0).rstrip(b"\0").decode()


def write_state(memory: int, text: str) -> None:
    """Write the text of a session's memory."""
    os.pwrite(memory, text.encode().ljust(STATE_BYTES, b"\0"), 0)


def test_a_reload_that_ends_a_recorder_stores_its_window(
    tmp_path: Path, start_cli: Start, generator: Generator, perfs: tuple[Perf, ...]
) -> None:
    """Its rings end with it; those of the session in its place are the opener's again."""
    config = with_opener(write_config(tmp_path))
    state = tmp_path / "state"
    with opening(start_cli, config) as opener, daemons.running(start_cli, config) as daemon:
        make_on_each_cpu(generator, FEW)
        events = held(opener)
        config.write_text(config.read_text().replace('ring = "64KiB"', 'ring = "128KiB"'))
        daemon.post("/v1/reload", {})
        (path,) = daemons.sealed(state)
        manifest = daemons.manifest(path)
        assert manifest["snapshot"]["trigger"] == "end"
        assert manifest["ledger"]["closed"]
        assert len(calls_in(perfs[:1], [path])) == FEW * len(CPUS)
        make_on_each_cpu(generator, FEW)
        made = snapshot(daemon)
        assert made["samples"] == FEW * len(CPUS)
        assert daemon.session()["degraded"] == []
        assert held(opener) == events
        config.write_text(config.read_text().replace('name = "calls"', 'name = "others"'))
        daemon.post("/v1/reload", {})
        assert [daemons.manifest(path)["snapshot"]["trigger"] for path in filled(state)] == [
            "end",
            "request",
        ]
        daemons.wait_for(lambda: held(opener) == events, "the end of the old rings")
        assert daemon.stop().status == 0
