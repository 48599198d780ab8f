# SPDX-License-Identifier: Apache-2.0
"""The log of a daemon whose lines nobody takes."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Final

import pytest

from collectord.errors import CollectordError
from tests.support import daemons
from tests.support.daemons import NUMBER
from tests.support.patience import patient

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.generator import Generator

    Start = Callable[..., subprocess.Popen[str]]

pytestmark = pytest.mark.usefixtures("tracefs")

BURST: Final = 5_000
LINE_CHARS: Final = 60_000  # of a request, which may have 64 KiB
END_S: Final = patient(60)


def _fill_log(daemon: daemons.Daemon) -> None:
    """Fill the pipe of its log, as its own lines would in time."""
    fd = os.open(f"/proc/{daemon.pid}/fd/2", os.O_WRONLY | os.O_NONBLOCK)
    try:
        while True:
            os.write(fd, b"\n")
    except BlockingIOError:
        os.close(fd)


def test_a_log_that_nobody_reads_stops_nothing(
    tmp_path: Path, start_cli: Start, generator: Generator
) -> None:
    """The daemon answers, stores, rotates and ends though its pipe is full."""
    with daemons.running(start_cli, daemons.write_config(tmp_path)) as daemon:
        _fill_log(daemon)
        for number in range(1, 3):
            with generator.start("count", count=BURST, nr=NUMBER) as running:
                running.run()
            daemon.await_stored(number * BURST)
            assert daemon.post("/v1/rotate", {})["segments"]
        assert len(daemons.sealed(tmp_path / "state")) == 2
        while not daemon.status()["log_lines_dropped"]:
            with pytest.raises(CollectordError, match="no session"):  # which is a line of its log
                daemon.post("/v1/rotate", {"sessions": ["x" * LINE_CHARS]})
        dropped = daemon.metric("collectord_log_lines_dropped_total")
        assert 0 < dropped <= daemon.status()["log_lines_dropped"]
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.process.wait(END_S) == 0
    segments = daemons.sealed(tmp_path / "state")
    assert sum(daemons.manifest(path)["samples"] for path in segments) == 2 * BURST
