# SPDX-License-Identifier: Apache-2.0
"""`collectord ledger`: whether a window is complete, and what is missing in one that is not."""

from __future__ import annotations

import json
import os
import platform
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import pytest

from collectord.sink import covered_note
from tests.kernel.test_ledger_suppression import attached
from tests.support import daemons
from tests.support.daemons import EVENT, FILTER, NUMBER, wait_for

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.generator import Generator
    from tests.support.recording import Start

    Run = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = [pytest.mark.usefixtures("tracefs"), pytest.mark.alone]

BURST: Final = 2_000
# A harmless call that is rare, so that nobody else misses its events meanwhile.
NAME: Final = "sched_get_priority_max"
CALL: Final = {"x86_64": 146}.get(platform.machine(), 125)
HIDDEN: Final = f"syscalls:sys_enter_{NAME}"
SESSION: Final = f"""
[[session]]
name = "calls"

[[session.source]]
kind = "perf"
events = ["{EVENT}"]
filter = "{FILTER}"
"""


def told_by(run_cli: Run, state: Path, *options: str, status: int) -> dict[str, Any]:
    """Return the answer about the only source of the session; text has the same verdict."""
    ended = run_cli("ledger", "--json", *options, str(state))
    assert ended.returncode == status, ended.stdout + ended.stderr
    answer: dict[str, Any] = json.loads(ended.stdout)
    text = run_cli("ledger", *options, str(state))
    assert text.returncode == status
    assert max(map(len, text.stdout.splitlines())) <= 80
    (session,) = answer["sessions"]
    assert ("NOT COMPLETE" in text.stdout) is not session["complete"]
    assert session["complete"] is (status == 0)
    for finding in session["findings"]:
        assert f"  {finding['what']} " in text.stdout
    return dict(session)


def kinds(session: dict[str, Any]) -> set[str]:
    """Return what the findings are about."""
    return {finding["what"] for finding in session["findings"]}


def at(realtime_ns: int) -> str:
    """Return a time as options take it."""
    moment = datetime.fromtimestamp(realtime_ns // 10**9, tz=UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{realtime_ns % 10**9:09d}+00:00"


def produce(daemon: daemons.Daemon, generator: Generator, before: int = 0) -> None:
    """Make some events, and wait until they are stored and counted."""
    with generator.start("count", nr=NUMBER, count=BURST) as calls:
        assert calls.run()["events"] == BURST
    daemon.await_stored(before + BURST)


def test_a_clean_window_is_complete(
    tmp_path: Path, start_cli: Start, run_cli: Run, generator: Generator
) -> None:
    """A run of two segments balances; so does a window within one, with the burst or without."""
    config, state = daemons.write_sessions(tmp_path, SESSION), tmp_path / "state"
    with daemons.running(start_cli, config) as daemon:
        quiet_ns = time.time_ns()
        produce(daemon, generator)
        middle_ns = time.time_ns()
        # No segment is sealed yet, so that there is no list of them either.
        told = told_by(run_cli, state, status=1)
        assert kinds(told) == {"running"}
        assert told["until_ns"] > told["since_ns"]
        assert run_cli("rotate", "--socket", tmp_path / "control.sock").returncode == 0
        told = told_by(run_cli, state, status=0)
        assert [one["produced"] for one in told["figures"]] == [BURST]
        produce(daemon, generator, BURST)
        # The segment that is still written is known once it is sealed.
        told = told_by(run_cli, state, "--until", at(time.time_ns()), status=1)
        assert kinds(told) == {"running"}
        daemon.stop()
    told = told_by(run_cli, state, status=0)
    (figures,) = told["figures"]
    assert (figures["produced"], figures["stored"], figures["lost"]) == (2 * BURST, 2 * BURST, {})
    assert (figures["unaccounted"], figures["settled"]) == (0, True)
    (plan,) = told["in_force"]
    assert plan["filters"] == {EVENT: FILTER}
    assert len(plan["plan_sha256"]) == 64
    inside = told_by(run_cli, state, "--since", at(quiet_ns), "--until", at(middle_ns), status=0)
    assert inside["figures"][0]["produced"] == BURST


def test_what_is_missing_is_named(
    tmp_path: Path, start_cli: Start, run_cli: Run, generator: Generator
) -> None:
    """A restart, a kill, an eviction, damage, and what somebody removed: each is found."""
    config, state = daemons.write_sessions(tmp_path, SESSION), tmp_path / "state"
    with daemons.running(start_cli, config) as daemon:
        for number in range(5):
            produce(daemon, generator, BURST * number)
            run_cli("rotate", "--socket", tmp_path / "control.sock")
        daemon.stop()
    told_by(run_cli, state, status=0)
    with daemons.running(start_cli, config) as daemon:
        produce(daemon, generator)
        daemon.stop()
    told = told_by(run_cli, state, status=1)
    assert [one["what"] for one in told["findings"]] == ["down"]
    assert told["findings"][0]["detail"] == "stop"
    newest = told["newest"]["manifest"]

    first, second, third, fourth, *_, last = daemons.sealed(state)
    assert newest == f"{last.name}.json"
    data = bytearray(second.read_bytes())
    data[len(data) // 2] ^= 1
    second.write_bytes(data)
    fourth.unlink()
    fourth.with_name(f"{fourth.name}.json").unlink()
    last.unlink()
    last.with_name(f"{last.name}.json").unlink()
    told = told_by(run_cli, state, "--until", at(time.time_ns()), status=1)
    found = {(one["what"], one["file"]) for one in told["findings"]}
    assert ("damaged", str(second)) in found
    assert ("missing", str(fourth)) in found
    assert ("missing", str(last)) in found
    verified = run_cli("segments", "verify", "--json", str(state))
    gone = [one for one in json.loads(verified.stdout)["segments"] if one["state"] == "unknown"]
    assert [one["path"] for one in gone] == [str(fourth), str(last)]

    # Retention deletes the oldest one, and says so.
    config = daemons.write_sessions(tmp_path, SESSION, retention={"bytes": "64KiB"})
    with daemons.running(start_cli, config) as daemon:
        wait_for(lambda: not first.exists() and not third.exists(), "the eviction")
        daemon.stop()
    window = "--since", at(told["since_ns"]), "--until", at(told["until_ns"])
    told = told_by(run_cli, state, *window, status=1)
    found = {(one["what"], one["file"]) for one in told["findings"]}
    assert ("evicted", str(first)) in found
    assert ("missing", str(fourth)) in found
    assert ("missing", str(last)) in found
    assert "down" in kinds(told)


def test_a_kill_leaves_what_nobody_counted(
    tmp_path: Path, start_cli: Start, run_cli: Run, generator: Generator
) -> None:
    """The last segment of a killed process has no balance, and the time behind it is a gap."""
    config, state = daemons.write_sessions(tmp_path, SESSION), tmp_path / "state"
    with daemons.running(start_cli, config) as daemon:
        produce(daemon, generator)
        wait_for(lambda: covered_note.read(state / "calls", "perf"), "the note of this run")
        daemon.kill()
    with daemons.running(start_cli, config) as daemon:
        daemon.stop()
    told = told_by(run_cli, state, status=1)
    assert kinds(told) == {"killed", "down"}
    (killed,) = [one for one in told["findings"] if one["what"] == "killed"]
    assert killed["file"] == str(daemons.sealed(state)[0])


def call(daemon: daemons.Daemon, generator: Generator, stored: int) -> None:
    """Make calls whose events can be hidden, and wait until so many in all are counted."""
    with generator.start("count", nr=CALL, count=BURST) as calls:
        calls.run()
    daemon.await_stored(stored)


def test_hidden_and_paused_times(
    tmp_path: Path,
    start_cli: Start,
    run_cli: Run,
    generator: Generator,
    require: Callable[[str], None],
) -> None:
    """A foreign BPF program, and a pause, spoil their own time and no other."""
    require("BPF")
    session = SESSION.replace(EVENT, HIDDEN).replace(FILTER, f"common_pid != {os.getpid()}")
    config, state = daemons.write_sessions(tmp_path, session), tmp_path / "state"
    with daemons.running(start_cli, config) as daemon:
        began_ns = time.time_ns()
        call(daemon, generator, BURST)
        clean_ns = time.time_ns()
        for more in (2, 3):  # balances that are older than the look that finds the program
            call(daemon, generator, more * BURST)
        with attached(0):
            wait_for(lambda: daemon.session()["suppression_possible"], "the program")
            hidden_ns = time.time_ns()
        wait_for(lambda: not daemon.session()["suppression_possible"], "its end")
        run_cli("sessions", "pause", "--socket", tmp_path / "control.sock", "calls")
        paused_ns = time.time_ns()
        run_cli("sessions", "resume", "--socket", tmp_path / "control.sock", "calls")
        daemon.stop()
    told = told_by(run_cli, state, status=1)
    assert kinds(told) == {"suppressed", "paused"}
    for finding, when_ns in (("suppressed", hidden_ns), ("paused", paused_ns)):
        (one,) = [found for found in told["findings"] if found["what"] == finding]
        assert one["since_ns"] <= when_ns <= one["until_ns"]
    told_by(run_cli, state, "--since", at(began_ns), "--until", at(clean_ns), status=0)
