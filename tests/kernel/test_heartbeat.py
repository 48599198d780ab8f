# SPDX-License-Identifier: Apache-2.0
"""Heartbeats of real sessions in which nothing else happens."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import pytest

from collectord.config.schema import Config, DaemonConfig
from collectord.config.schema_session import SessionConfig, TargetConfig
from collectord.daemon.daemon import Daemon
from collectord.kernel.linux import LinuxKernel
from collectord.model import ScopeKind
from collectord.text.units import Nanoseconds
from tests.support.configs import perf_source, tracefs_source
from tests.support.daemons import EVENT, FILTER

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("tracefs")


def test_heartbeats_arrive_where_no_event_happens(tmp_path: Path) -> None:
    """In perf's sideband rings and in ftrace's rings, again and again, and none is unaccounted.

    A session of one process hears none.
    """
    pid = os.getpid()
    target = TargetConfig(scope=ScopeKind.PROCESS, pids=(pid,))
    config = Config(
        daemon=DaemonConfig(
            state_dir=str(tmp_path / "state"),
            flush_interval=Nanoseconds(20_000_000),
            heartbeat=Nanoseconds(50_000_000),
        ),
        session=(
            SessionConfig(name=f"beat{pid}", source=(perf_source(EVENT, filter=FILTER),)),
            SessionConfig(name=f"mark{pid}", source=(tracefs_source(EVENT, filter=FILTER),)),
            SessionConfig(
                name=f"task{pid}", source=(perf_source(EVENT, filter=FILTER),), target=target
            ),
        ),
    )
    daemon = Daemon(LinuxKernel(), config)
    heard: dict[str, set[int]] = {}
    stop = asyncio.Event()

    def on_tick(status: Any) -> None:  # noqa: ANN401 - of the daemon
        for session in status.sessions:
            heard.setdefault(session.name, set()).add(session.heard_ns)
        if all(len(heard[f"{name}{pid}"]) > 3 for name in ("beat", "mark")):
            stop.set()

    ended = asyncio.run(daemon.run(stop, on_tick=on_tick, salvage_all=False))
    perf, ftrace, task = ended
    assert heard[task.name] == {0}
    assert (perf.stored, perf.unaccounted) == (0, 0)
    assert (ftrace.unaccounted, ftrace.in_flight) == (0, 0)
    assert ftrace.produced == ftrace.stored
    assert ftrace.stored > 0
