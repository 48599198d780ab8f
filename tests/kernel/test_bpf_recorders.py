# SPDX-License-Identifier: Apache-2.0
"""Flight recorders of BPF programs: each record is stored, or accounted for by its number."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from collectord.kernel.linux import LinuxKernel
from tests.support import cpus, daemons, pinned
from tests.support.features import require
from tests.support.recording import result_of, script, segments_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.support.daemons import Daemon
    from tests.support.perf_tools import Perf

    Cli = Callable[..., subprocess.CompletedProcess[str]]
    Start = Callable[..., subprocess.Popen[str]]
    Perfs = tuple[Perf, ...]
    Events = list[dict[str, Any]]

pytestmark = pytest.mark.usefixtures("tracefs", "bcc")

CPUS: Final = LinuxKernel().online_cpus()
SLEEPS: Final = 3000
SLOT_BYTES: Final = 24
_PINNED: Final = (sys.executable, "-I", pinned.__file__)
_SLOTS: Final = """
[[session]]
name = "slots"
mode = "flight-recorder"
[[session.source]]
kind = "bpf"
program = "blackbox"
ring = "{ring}"
when = "always"
"""
_PAGES: Final = """
[[session]]
name = "pages"
mode = "flight-recorder"
[[session.source]]
kind = "tracefs"
events = [
    "sched:sched_switch",
    "sched:sched_wakeup",
    "sched:sched_process_exec",
    "sched:sched_process_exit",
]
ring = "16MiB"
keep = "1ms" # a ring that grows records nothing meanwhile
"""


def events_of(run_cli: Cli, segments: Iterable[str | Path]) -> Events:
    """Return the records of segments, in the order of time, without what tells of losses."""
    done = run_cli("events", "--json", *segments)
    assert done.returncode == 0, done.stderr
    lines = map(json.loads, done.stdout.splitlines())
    return [line for line in lines if "event" in line]


def named(events: Events, name: str) -> Events:
    """Return those of one event."""
    return [event for event in events if event["event"].rpartition(":")[2] == name]


def record(run_cli: Cli, tmp_path: Path, command: Iterable[object], *words: str) -> dict[str, Any]:
    """Record what happens beside a command, and return the session."""
    options = ("--overwrite", "--bpf", "blackbox", "--output-dir", tmp_path / "out", "--json")
    done = run_cli("record", *options, *words, "--", *command)
    assert done.returncode == 0, done.stderr
    return {**result_of(done.stdout), "output": done.stdout}


def snapshot(daemon: Daemon, *sessions: str) -> dict[str, dict[str, Any]]:
    """Ask for snapshots of sessions."""
    made = daemon.post("/v1/snapshot", {"sessions": [*sessions]})["snapshots"]
    return {one["session"]: one for one in made}


def check_exact(session: dict[str, Any]) -> None:
    """Assert that each record of a session that has ended is accounted for."""
    lost = sum(session["lost"].values())
    assert session["ledger_basis"] == "exact"
    assert session["unaccounted"] == 0
    assert session["produced"] == session["stored"] + session["overwritten"] + lost


@pytest.mark.vm
def test_context_switches_are_those_that_the_kernel_counts(
    run_cli: Cli, tmp_path: Path, perfs: Perfs
) -> None:
    """A pinned thread's switches away are all recorded, and perf lists what is stored."""
    # The result is the recording's output: what the command prints goes to a file.
    told = tmp_path / "told"
    cpu = CPUS[-1]
    command = ("sh", "-c", f'exec "$@" >{told}', "sh", *_PINNED, cpu, SLEEPS)
    session = record(run_cli, tmp_path, command, "-m", "16M")
    check_exact(session)
    assert session["overwritten"] == 0
    pid, since_ns, before, until_ns, after = json.loads(told.read_text())
    switches = named(events_of(run_cli, segments_of(session)), "sched_switch")
    away = [
        event
        for event in switches
        if event["fields"]["prev_pid"] == pid and since_ns <= event["time_ns"] <= until_ns
    ]
    assert after - before >= SLEEPS
    assert len(away) == after - before
    assert {(event["cpu"], event["tid"]) for event in away} == {(cpu, pid)}
    for perf in perfs:
        assert perf.samples([Path(path) for path in segments_of(session)]) == session["stored"]
        (line, *_) = script(perf, Path(segments_of(session)[0]), "-F", "event")
        assert ":" in line


def test_what_is_not_in_the_window_was_overwritten(run_cli: Cli, tmp_path: Path) -> None:
    """In a small ring the last records are whole and in order, and all others are overwritten."""
    session = record(run_cli, tmp_path, (*_PINNED, CPUS[0], SLEEPS), "-m", "16K")
    check_exact(session)
    assert session["overwritten"] > SLEEPS
    # An interrupt may have come while a record took its slots.
    assert {name for name, lost in session["lost"].items() if lost} <= {"program/recursion"}
    (made,) = json.loads(session["output"])["snapshots"]
    assert (made["trigger"], made["samples"]) == ("end", session["stored"])
    data = [ring for ring in session["rings"] if ring["role"] == "data"]
    assert {ring["cpu"] for ring in data} == {*CPUS}
    for ring in data:
        # 16 KiB are 512 slots: of these a record has one or several.
        assert ring["capacity_bytes"] == 512 * SLOT_BYTES
        assert 0 < ring["stored"] <= 512


def test_each_record_is_in_one_snapshot(tmp_path: Path, start_cli: Start, run_cli: Cli) -> None:
    """Snapshots under load repeat nothing, pause nothing, and name tasks that have ended."""
    config = daemons.write_sessions(tmp_path, _SLOTS.format(ring="4MiB"))
    made = []
    with daemons.running(start_cli, config) as daemon:
        for _ in range(3):
            load = [
                subprocess.Popen([*_PINNED, str(cpu), str(SLEEPS)], stdout=subprocess.DEVNULL)
                for cpu in CPUS
            ]
            made.append(snapshot(daemon, "slots")["slots"])
            assert [one.wait() for one in load] == [0] * len(CPUS)
        made.append(snapshot(daemon, "slots")["slots"])
        session = daemon.session("slots")
        assert session["ledger_basis"] == "exact"
        assert session["snapshots"] == 4
        assert daemon.stop().status == 0
    assert all(one["paused_ns"] == one["repeated"] == 0 for one in made)
    events = events_of(run_cli, (path for one in made for path in one["segments"]))
    assert len(events) == sum(one["samples"] for one in made)
    seen = Counter(
        (event["cpu"], event["time_ns"], event["event"], json.dumps(event["fields"]))
        for event in events
    )
    # Two records of one instant may be the same; twice as many are a repetition.
    assert sum(count - 1 for count in seen.values()) < len(events) // 1000
    of_load = [one["fields"]["pid"] for one in named(events, "sched_process_exit")]
    assert len(of_load) >= 3 * len(CPUS)
    named_so = [one for one in named(events, "sched_switch") if one["comm"].startswith("python")]
    assert len(named_so) >= 3 * len(CPUS) * SLEEPS


def test_the_ledger_adds_up_between_snapshots(tmp_path: Path, start_cli: Start) -> None:
    """Until the next one, what is in the slots and what was overwritten are in flight."""
    config = daemons.write_sessions(tmp_path, _SLOTS.format(ring="16KiB"))
    with daemons.running(start_cli, config) as daemon:
        before = snapshot(daemon, "slots")["slots"]["samples"]
        load = [*_PINNED, str(CPUS[0]), str(SLEEPS)]
        subprocess.run(load, stdout=subprocess.DEVNULL, check=True)

        def counted() -> bool:
            return bool(daemon.session("slots")["produced"] >= before + SLEEPS)

        daemons.wait_for(counted, "the load's records in the figures")
        told = daemon.session("slots")
        assert told["in_flight"] >= SLEEPS
        known = told["stored"] + told["overwritten"] + sum(told["lost"].values())
        assert told["produced"] == known + told["in_flight"]
        assert daemon.stop().status == 0


def test_the_same_answers_as_from_ftrace(tmp_path: Path, start_cli: Start, run_cli: Cli) -> None:
    """It has the switches that ftrace has beside it, and the answers say the same of a load."""
    config = daemons.write_sessions(tmp_path, _SLOTS.format(ring="16MiB") + _PAGES)
    with daemons.running(start_cli, config) as daemon:
        load = [*_PINNED, str(CPUS[0]), str(SLEEPS)]
        pid = json.loads(subprocess.run(load, capture_output=True, check=True).stdout)[0]
        made = snapshot(daemon, "slots", "pages")
        assert daemon.stop().status == 0
    switches = {}
    answers: dict[str, dict[str, Events]] = {}
    for session, one in made.items():
        events = named(events_of(run_cli, one["segments"]), "sched_switch")
        fields = ("prev_pid", "prev_state", "next_pid")
        switches[session] = [
            tuple(event["fields"][name] for name in fields)
            for event in events
            if pid in (event["fields"]["prev_pid"], event["fields"]["next_pid"])
        ]
        for answer, key in (
            ("cpu-share", "tid"),
            ("run-queue", "tid"),
            ("off-cpu", "tid"),
            ("who-woke-whom", "woken_tid"),
        ):
            asked = run_cli(
                "answer", "--json", answer, "--param", "limit=100000", *one["segments"]
            )
            assert asked.returncode == 0, asked.stderr
            rows = [json.loads(line) for line in asked.stdout.splitlines()]
            answers.setdefault(answer, {})[session] = [row for row in rows if row[key] == pid]
    assert len(switches["slots"]) > SLEEPS
    # A hosted machine may hide a few from ftrace, on a CPU that was idle.
    rest = iter(switches["slots"])
    assert all(switch in rest for switch in switches["pages"])
    assert len(switches["pages"]) > 0.95 * len(switches["slots"])
    for answer, found in answers.items():
        assert found["slots"], answer
        for name in ("turns", "waits", "times", "wakeups"):
            of_slots, of_pages = (
                sum(row.get(name, 0) for row in found[session]) for session in ("slots", "pages")
            )
            assert of_slots == pytest.approx(of_pages, rel=0.05, abs=3), (answer, name)
        names = [
            {row.get(name) for row in rows for name in ("comm", "woken")}
            for rows in found.values()
        ]
        assert names[0] == names[1], answer


def test_a_program_does_in_a_session_what_it_is_for(run_cli: Cli, tmp_path: Path) -> None:
    """A flight recorder is not drained, and other programs are none: messages say so."""
    out = tmp_path / "out.data"
    streamed = run_cli("record", "--bpf", "blackbox", "-o", out, "--", "true")
    assert streamed.returncode != 0
    assert "--overwrite" in streamed.stderr
    kept = run_cli("record", "--overwrite", "--bpf", "opensnoop", "-o", out, "--", "true")
    assert kept.returncode != 0
    assert "not a flight recorder" in kept.stderr


_STAND_IN: Final = """
[bpf]
programs = "{folder}"

[[session]]
name = "box"
mode = "flight-recorder"
[[session.source]]
kind = "bpf"
program = "broken"
[[session.source]]
kind = "tracefs"
events = ["sched:sched_switch"]
ring = "1MiB"
keep = "1ms"
when = "otherwise"
"""


def test_ftrace_stands_in_for_a_program_that_does_not_compile(
    tmp_path: Path, start_cli: Start, run_cli: Cli, stage: Path
) -> None:
    """The plan says why, a reload leaves it so, and a snapshot has records of ftrace."""
    shipped = Path(__file__).resolve().parent.parent.parent / "bpf"
    text = (shipped / "blackbox.bpf.c").read_text()
    (stage / "broken.bpf.c").write_text(f"#error does not compile here\n{text}")
    (stage / "broken.toml").write_text((shipped / "blackbox.toml").read_text())
    config = daemons.write_sessions(tmp_path, _STAND_IN.format(folder=stage))
    with daemons.running(start_cli, config) as daemon:
        session = daemon.session("box")
        assert (session["source"], session["state"]) == ("tracefs", "running"), session
        (planned,) = daemon.get("/v1/plan")[1]["sessions"]
        assert "ftrace, as the host lacks what is preferred: broken" in planned["notes"][0]
        reloaded = run_cli("reload", "--socket", tmp_path / "control.sock")
        assert reloaded.returncode == 0, reloaded.stderr
        assert daemon.session("box")["source"] == "tracefs"
        subprocess.run([*_PINNED, str(CPUS[0]), "100"], stdout=subprocess.DEVNULL, check=True)
        made = snapshot(daemon, "box")["box"]
        assert daemon.stop().status == 0
    assert len(named(events_of(run_cli, made["segments"]), "sched_switch")) >= 100


def lacks(daemon: Daemon) -> list[str]:
    """Return what the session lacks on a CPU."""
    return [one for one in daemon.session("slots")["degraded"] if one.startswith("CPU")]


def test_a_cpu_that_comes_back_is_recorded_again(
    run_cli: Cli, start_cli: Start, tmp_path: Path
) -> None:
    """Its slots are memory of the map, which the program writes into as before."""
    require("CPU hotplug")
    (*_, cpu) = cpus.with_switch()
    config = daemons.write_sessions(tmp_path, _SLOTS.format(ring="1MiB"))
    with daemons.running(start_cli, config) as daemon:
        for _ in range(2):
            cpus.bounce(daemon, cpu, [lambda: None])
            daemons.wait_for(lambda: not lacks(daemon), "the CPU's names")
            command = [*_PINNED, str(cpu), "500"]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
            pid, since_ns, before, until_ns, after = json.loads(done.stdout)
            made = snapshot(daemon, "slots")["slots"]
            away = [
                event
                for event in named(events_of(run_cli, made["segments"]), "sched_switch")
                if event["fields"]["prev_pid"] == pid and since_ns <= event["time_ns"] <= until_ns
            ]
            assert {event["cpu"] for event in away} == {cpu}
            assert len(away) == after - before >= 500
        assert daemon.stop().status == 0
