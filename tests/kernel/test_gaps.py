# SPDX-License-Identifier: Apache-2.0
"""The time between two runs of a daemon is in the log, the manifests, the status and a metric."""

from __future__ import annotations

import os
import time
from functools import partial
from typing import TYPE_CHECKING, Final

import pytest

from collectord.sink import covered_note
from tests.support import daemons
from tests.support.daemons import EVENT, FILTER

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.daemons import Daemon
    from tests.support.recording import Start

pytestmark = [pytest.mark.usefixtures("tracefs"), pytest.mark.alone]

TRACED: Final = f"traced-{os.getpid()}"
SESSIONS: Final = f"""
[[session]]
name = "calls"

[[session.source]]
kind = "perf"
events = ["{EVENT}"]
filter = "{FILTER}"

[[session]]
name = "{TRACED}"

[[session.source]]
kind = "tracefs"
events = ["{EVENT}"]
filter = "{FILTER}"
"""


def gap_seconds(daemon: Daemon, cause: str) -> float:
    """Return the total of the gaps of the perf session."""
    labels = f'cause="{cause}",session="calls",source="perf"'
    return daemon.metric(f"collectord_gap_seconds_total{{{labels}}}")


def is_noted(state: Path) -> bool:
    """Whether both sessions have noted that they run."""
    places = (("calls", "perf"), (TRACED, "tracefs"))
    notes = [covered_note.read(state / name, source) for name, source in places]
    return all(note is not None and not note.stopped for note in notes)


def test_gaps_of_a_stop_and_of_a_kill(tmp_path: Path, start_cli: Start) -> None:
    """Each start has the gap before it; totals go on; rings of ftrace have none after a kill."""
    config = daemons.write_sessions(tmp_path, SESSIONS)
    state = tmp_path / "state"
    with daemons.running(start_cli, config) as daemon:
        assert [gap_seconds(daemon, cause) for cause in ("stop", "kill", "boot")] == [0, 0, 0]
        first = daemon.stop()
    assert first.named("gap_before") == []
    assert [daemons.manifest(path)["gap"] for path in daemons.sealed(state)] == [None]

    with daemons.running(start_cli, config) as daemon:
        stopped = gap_seconds(daemon, "stop")
        assert stopped > 0
        assert gap_seconds(daemon, "kill") == 0
        assert daemon.session()["gaps_ns"]["stop"] == pytest.approx(stopped * 1e9)
        daemons.wait_for(partial(is_noted, state), "the notes of this run")
        daemon.kill()
    dead_ns = time.time_ns()

    with daemons.running(start_cli, config) as daemon:
        assert gap_seconds(daemon, "stop") == stopped
        killed = gap_seconds(daemon, "kill")
        assert killed > 0
        ended = daemon.stop()
    assert {line["cause"] for line in ended.named("gap_before")} == {"kill"}
    last = daemons.manifest(daemons.sealed(state)[-1])
    gap = last["gap"]
    assert gap["cause"] == "kill"
    assert gap["until_ns"] - gap["from_ns"] == pytest.approx(killed * 1e9)
    assert gap["from_ns"] < dead_ns < gap["until_ns"] <= last["started_ns"]
    traced = max((state / TRACED).glob("*.trace.dat"))
    assert daemons.manifest(traced)["gap"]["from_ns"] > dead_ns
