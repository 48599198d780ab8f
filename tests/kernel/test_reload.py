# SPDX-License-Identifier: Apache-2.0
"""Reloads of a running daemon: what stays, what is changed, and what changes nothing."""

from __future__ import annotations

import functools
import json
import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from collectord.errors import CollectordError
from tests.support import daemons
from tests.support.daemons import EVENT, FILTER, NUMBER

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    from tests.support.daemons import Daemon
    from tests.support.generator import Generator

    Start = Callable[..., subprocess.Popen[str]]
    Run = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = pytest.mark.usefixtures("tracefs")

BURST: Final = 3_000
RATE: Final = 100_000
LOAD: Final = 300_000
RELOADS: Final = 20
RSS_GROWTH_MAX: Final = 4 << 20
BAD_CONFIG: Final = 6
TRACED: Final = f"traced-{os.getpid()}"
BLACKBOX: Final = f"blackbox-{os.getpid()}"


def session(
    name: str, kind: str = "perf", *, ring: str = "4MiB", mode: str = "stream", more: str = ""
) -> str:
    """Return a session of this run's marked system calls."""
    return f"""
[[session]]
name = "{name}"
mode = "{mode}"

[[session.source]]
kind = "{kind}"
events = ["{EVENT}"]
filter = "{FILTER}"
ring = "{ring}"
{more}
"""


CALLS: Final = session("calls")
# It exports an event, and does not compile.
BROKEN: Final = """
struct broken { u64 number; };
#define COLLECTORD_EVENT struct broken
#include "collectord.h"

RAW_TRACEPOINT_PROBE(sys_enter)
{
    struct broken event = { .number = missing };
    collectord_submit(ctx, &event);
    return 0;
}
"""


def changes(answer: dict[str, Any]) -> dict[str, str]:
    """Return the kind of each session's difference."""
    return {one["name"]: one["kind"] for one in answer["sessions"]}


def reload(daemon: Daemon) -> dict[str, Any]:
    """Reload the configuration."""
    return daemon.post("/v1/reload", {})


def descriptors(daemon: Daemon) -> dict[int, str]:
    """Return the files of events and ftrace rings that a daemon has open, by descriptor."""
    found = {}
    for path in Path(f"/proc/{daemon.pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            target = str(path.readlink())
            if "perf_event" in target or "trace_pipe_raw" in target:
                found[int(path.name)] = f"{target} {path.stat().st_ino}"
    return found


def planned_descriptors(daemon: Daemon) -> dict[int, str]:
    """Return them once they are those of the plan: who reads clocks opens an event for that."""
    planned: int = daemon.get("/v1/plan")[1]["files"]
    found: dict[int, str] = {}

    def are_planned() -> bool:
        nonlocal found
        found = descriptors(daemon)
        return bool(len(found) == planned)

    daemons.wait_for(are_planned, f"{planned} descriptors")
    return found


def programs(daemon: Daemon) -> set[str]:
    """Return the kernel's ids of the BPF programs that a daemon has open."""
    found: set[str] = set()
    for path in Path(f"/proc/{daemon.pid}/fdinfo").iterdir():
        with suppress(FileNotFoundError):
            found.update(re.findall(r"^prog_id:\t(\d+)$", path.read_text(), re.MULTILINE))
    return found


def rss_bytes(daemon: Daemon) -> int:
    """Return the memory of a daemon that it shares with no other process."""
    text = Path(f"/proc/{daemon.pid}/status").read_text()
    found = re.search(r"^RssAnon:\s+(\d+) kB$", text, re.MULTILINE)
    assert found
    return int(found[1]) << 10


def metric(daemon: Daemon, name: str, session: str, source: str = "perf") -> float:
    """Return a series of a session."""
    return daemon.metric(f'collectord_{name}{{session="{session}",source="{source}"}}')


def burst(generator: Generator) -> None:
    """Make some marked system calls."""
    with generator.start("count", count=BURST, nr=NUMBER) as running:
        assert running.run()["events"] == BURST


def stored(daemon: Daemon, *names: str) -> dict[str, int]:
    """Return how many records each session has stored."""
    return {name: daemon.session(name)["stored"] for name in names}


def test_sessions_change_while_others_record(
    tmp_path: Path, start_cli: Start, run_cli: Run, generator: Generator
) -> None:
    """One that stays loses nothing and keeps its rings; others are changed, added and removed."""
    first = CALLS + session("other") + session(TRACED, "tracefs") + session("leaving")
    roomy = session(BLACKBOX, "tracefs", mode="flight-recorder", more='max = "256MiB"')
    roomy = roomy.replace('ring = "4MiB"\n', "")
    first += roomy
    config = daemons.write_sessions(tmp_path, first)
    names = ("calls", "other", TRACED)
    with daemons.running(start_cli, config) as daemon:
        before = descriptors(daemon)
        burst(generator)
        daemons.wait_for(lambda: set(stored(daemon, *names).values()) == {BURST}, "what was made")
        second = (
            CALLS
            + session("other", ring="1MiB")
            + session(TRACED, "tracefs", ring="1MiB")
            + session("renamed")
            + roomy.replace("max =", 'keep = "5s"\nmax =')
        )
        daemons.write_sessions(tmp_path, second)
        with generator.start("count", count=LOAD, rate=RATE, nr=NUMBER) as running:
            running.go()
            done = run_cli("reload", "--socket", tmp_path / "control.sock", "--json")
            assert done.returncode == 0, done.stderr
            made = running.result()["events"]
        answer = json.loads(done.stdout)
        assert changes(answer) == {
            "calls": "unchanged",
            "other": "changed",
            TRACED: "changed",
            "leaving": "removed",
            BLACKBOX: "changed",
            "renamed": "added",
        }
        daemon.await_stored(BURST + made)
        assert [one["name"] for one in daemon.status()["sessions"]] == [
            *("calls", "other", TRACED, "renamed", BLACKBOX)
        ]
        assert {s["state"] for s in daemon.status()["sessions"]} == {"running"}
        # What followed counts on, and what the two have recorded together is not less.
        for name, source in (("other", "perf"), (TRACED, "tracefs")):
            assert metric(daemon, "produced_records_total", name, source) >= BURST + made
            labels = f'cause="reload",session="{name}",source="{source}"'
            assert daemon.metric(f"collectord_gap_seconds_total{{{labels}}}") == 0
        daemons.wait_for(lambda: 'session="leaving"' not in daemon.metrics(), "no series of it")
        kept = {fd: file for fd, file in descriptors(daemon).items() if before.get(fd) == file}
        (calls,) = (one for one in daemon.status()["sessions"] if one["name"] == "calls")
        assert len(kept) >= len(calls["rings"])
        ended = daemon.stop()
    assert ended.status == 0, ended.log
    assert ended.complaints() == []
    assert daemons.left_open(tmp_path / "state") == []
    for name in names:
        manifests = [
            json.loads(path.read_text()) for path in (tmp_path / "state" / name).glob("*.json")
        ]
        assert {one["ledger"]["unaccounted"] for one in manifests} == {0}
        assert all(one["complete"] for one in manifests)
    samples = [daemons.manifest(p)["samples"] for p in (tmp_path / "state/calls").glob("*.data")]
    assert sum(samples) == BURST + made
    verified = run_cli("segments", "verify", tmp_path / "state")
    assert verified.returncode == 0, verified.stdout


def test_what_is_wrong_changes_nothing(
    tmp_path: Path, start_cli: Start, run_cli: Run, generator: Generator
) -> None:
    """It is reported by the verb, the log and a metric; so is a setting that needs a restart."""
    config = daemons.write_sessions(tmp_path, CALLS)
    good = config.read_text()
    words = ("reload", "--socket", tmp_path / "control.sock")
    with daemons.running(start_cli, config) as daemon:
        first = daemon.status()["config_sha256"]
        open_before = planned_descriptors(daemon)
        config.write_text(good + session("new").replace("perf", "purf"))
        done = run_cli(*words)
        assert done.returncode == BAD_CONFIG
        assert "purf" in done.stderr
        assert daemon.metric("collectord_config_last_reload_successful") == 0
        assert daemon.status()["config_sha256"] == first

        program = tmp_path / "bpf"
        program.mkdir()
        (program / "broken.bpf.c").write_text(BROKEN)
        (program / "broken.toml").write_text('summary = "a test"\nlicense = "GPL"\n')
        bpf = f"""
[bpf]
programs = "{program}"

[[session]]
name = "broken"

[[session.source]]
kind = "bpf"
program = "broken"
"""
        config.write_text(good + bpf + session("new"))
        with pytest.raises(CollectordError):
            reload(daemon)
        assert [one["name"] for one in daemon.status()["sessions"]] == ["calls"]
        assert planned_descriptors(daemon) == open_before

        config.write_text(
            good.replace('chunk = "128KiB"', 'chunk = "256KiB"').replace(
                'bytes = "0"', 'bytes = "1GiB"'
            )
        )
        done = run_cli(*words)
        assert done.returncode == 0, done.stderr
        assert "session calls (perf): unchanged" in done.stdout
        assert "needs a restart: daemon.chunk" in done.stdout
        assert daemon.metric("collectord_store_limit_bytes") == 1 << 30
        assert daemon.metric("collectord_config_last_reload_successful") == 1
        assert daemon.status()["config_sha256"] != first
        burst(generator)
        daemon.await_stored(BURST)
        ended = daemon.stop()
    assert len(ended.named("config_not_applied")) == 2


def test_hangups_under_load(tmp_path: Path, start_cli: Start, generator: Generator) -> None:
    """SIGHUP reloads; those who ask at once share one; descriptors and memory stay flat."""
    configs = [CALLS + session("other", ring=size) for size in ("1MiB", "2MiB")]
    path = daemons.write_sessions(tmp_path, configs[0])
    with daemons.running(start_cli, path, fresh=True) as daemon:
        reloaded = "collectord_config_last_reload_success_timestamp_seconds"

        def is_later(at: float) -> bool:
            return daemon.metric(reloaded) > at

        with generator.start("count", count=LOAD, rate=RATE, nr=NUMBER) as running:
            running.go()
            for config in (configs[1], configs[0]):
                daemons.write_sessions(tmp_path, config)
                daemon.read_notices()
                at = daemon.metric(reloaded)
                daemon.process.send_signal(signal.SIGHUP)
                daemons.wait_for(functools.partial(is_later, at), "a reload")
            with ThreadPoolExecutor(4) as four:
                answers = [*four.map(lambda _: reload(daemon), range(4))]
            unchanged = {"calls": "unchanged", "other": "unchanged"}
            assert [changes(one) for one in answers] == [unchanged] * 4
            assert all(one["settings"] == one["needs_restart"] == [] for one in answers)
            made = running.result()["events"]
        daemons.wait_for(lambda: daemon.session()["produced"] >= made, "what was made")
        daemon.await_stored(made)
        # The first ones may have made what the next ones use again.
        figures = []
        for number in range(RELOADS):
            daemons.write_sessions(tmp_path, configs[(number + 1) % 2])
            assert changes(reload(daemon))["other"] == "changed"
            notices = daemon.read_notices()  # the daemon would wait for a manager that reads none
            if number % 2:
                figures.append((len(daemon.fds()), rss_bytes(daemon)))
        # A segment that is being sealed may be open at either reading.
        first, last = figures[:5], figures[-5:]
        assert min(fds for fds, _ in last) <= max(fds for fds, _ in first), figures
        assert figures[-1][1] - figures[1][1] <= RSS_GROWTH_MAX, figures
        assert sum(one.startswith("RELOADING=1\nMONOTONIC_USEC=") for one in notices) > RELOADS
        calls = daemon.session()
        assert (calls["stored"], calls["unaccounted"], sum(calls["lost"].values())) == (made, 0, 0)
        ended = daemon.stop()
    assert ended.complaints() == []


@pytest.mark.usefixtures("bcc")
def test_programs_change_while_others_record(
    tmp_path: Path, start_cli: Start, generator: Generator
) -> None:
    """One with other settings is open beside its predecessor; one that stays is the same one."""

    def program(name: str, ring: str) -> str:
        return f"""
[[session]]
name = "{name}"
[[session.source]]
kind = "bpf"
program = "syscall_stream"
arguments = {{ nr = {NUMBER} }}
ring = "{ring}"
"""

    names = ("changes", "stays")
    config = daemons.write_sessions(
        tmp_path, program("changes", "4MiB") + program("stays", "4MiB")
    )
    with daemons.running(start_cli, config) as daemon:
        before = programs(daemon)
        assert len(before) == len(names)
        burst(generator)
        daemons.wait_for(lambda: set(stored(daemon, *names).values()) == {BURST}, "what was made")
        daemons.write_sessions(tmp_path, program("changes", "1MiB") + program("stays", "4MiB"))
        with generator.start("count", count=LOAD, rate=RATE, nr=NUMBER) as running:
            running.go()
            assert changes(reload(daemon)) == {"changes": "changed", "stays": "unchanged"}
            made = BURST + running.result()["events"]
        daemons.wait_for(lambda: stored(daemon, "stays")["stays"] == made, "what was made")
        assert metric(daemon, "produced_records_total", "changes", "bpf") >= made
        assert len(programs(daemon)) == len(names)
        assert len(programs(daemon) & before) == 1
        for name in names:
            labels = f'cause="reload",session="{name}",source="bpf"'
            assert daemon.metric(f"collectord_gap_seconds_total{{{labels}}}") == 0
            session = daemon.session(name)
            assert (session["unaccounted"], sum(session["lost"].values())) == (0, 0)
        ended = daemon.stop()
    assert ended.complaints() == []
