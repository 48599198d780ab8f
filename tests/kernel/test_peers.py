# SPDX-License-Identifier: Apache-2.0
"""Peers that misbehave: the daemon goes on, others are served, and the log stays small."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import pytest

from tests.support import daemons
from tests.support.daemons import NUMBER

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.daemons import Daemon
    from tests.support.generator import Generator
    from tests.support.perf_tools import Perf

    Start = Callable[..., subprocess.Popen[str]]

pytestmark = [pytest.mark.usefixtures("tracefs"), pytest.mark.beside]

FILES: Final = 100
PEERS: Final = 198
HALF: Final = b"POST /v1/mark HTTP/1.1\r\nHost: x\r\nContent-Le"
BURST: Final = 5_000
SEGMENTS: Final = 10
# Each event that a peer can cause, once in each interval.
LINES_MAX: Final = 10


def _besiege(daemon: Daemon, control: Path, stack: ExitStack) -> None:
    """Begin a request on each of many connections, half of them over TCP."""
    for number in range(PEERS):
        family = socket.AF_INET if number % 2 else socket.AF_UNIX
        peer = stack.enter_context(socket.socket(family))
        peer.connect(daemon.metrics_address if number % 2 else str(control))
        peer.send(HALF)


def test_half_requests_take_nothing_from_segments(
    tmp_path: Path, start_cli: Start, generator: Generator, perfs: tuple[Perf, ...]
) -> None:
    """With few descriptors rotation and retention go on beside peers who only begin requests."""
    config = daemons.write_config(tmp_path, retention={"bytes": "3MiB"}, segment_bytes="512KiB")
    state = tmp_path / "state"
    prefix = ("prlimit", f"--nofile={FILES}:{FILES}")
    with ExitStack() as stack, daemons.running(start_cli, config, prefix=prefix) as daemon:
        _besiege(daemon, tmp_path / "control.sock", stack)
        made = 0
        series = 'collectord_segments_deleted_total{reason="quota",session="calls",source="perf"}'
        while made < BURST or daemon.metric(series) < SEGMENTS:
            with generator.start("count", count=BURST, nr=NUMBER) as load:
                made += load.run()["events"]
        daemon.await_stored(made)
        assert len(os.listdir(f"/proc/{daemon.pid}/fd")) < FILES  # noqa: PTH208  # names suffice
        ended = daemon.stop()
    assert ended.status == 0, ended.log[-2_000:]
    own = {"stop_requested", "segment_sealed", "segment_deleted"}
    others = [line for line in ended.events() if line["event"] not in own]
    assert len(others) <= LINES_MAX, others
    assert {line["event"] for line in others} <= {"connection_refused", "request_refused"}
    assert daemons.readable_samples(perfs, daemons.sealed(state)) > 0
    assert daemons.left_open(state) == []
