# SPDX-License-Identifier: Apache-2.0
"""`collectord top` on a running daemon: its rates, and the busiest of the last seconds."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Final

import pytest

from collectord.cli import top, top_busy
from tests.support import daemons

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Cli = Callable[..., subprocess.CompletedProcess[str]]
    Start = Callable[..., subprocess.Popen[str]]

pytestmark = pytest.mark.usefixtures("tracefs")

_SESSION: Final = """
[[session]]
name = "load"

[[session.source]]
kind = "perf"
events = ["cpu-clock", "sched:sched_process_exec"]
call_graph = "fp"
"""
_SAMPLES: Final = 2000
_SPIN: Final = "while True: pass"


def test_a_busy_program_is_seen(start_cli: Start, run_cli: Cli, tmp_path: Path) -> None:
    """`--once` has the rate of the session, and the busiest process and stack are its own."""
    config = daemons.write_sessions(tmp_path, _SESSION)
    control = tmp_path / "control.sock"
    with daemons.running(start_cli, config) as daemon:
        spinning = subprocess.Popen([sys.executable, "-c", _SPIN])
        try:
            daemons.wait_for(lambda: daemon.session("load")["stored"] > _SAMPLES, "samples")
            told = run_cli("top", "--once", "--interval", "2s", "--socket", str(control))
            assert told.returncode == 0, told.stderr
            row = next(line for line in told.stdout.splitlines() if line.startswith("load "))
            assert row.split()[1] not in {"0", "-"}
            status = top.read_status(control).status
            found = top_busy.busiest(status, "load")
        finally:
            spinning.kill()
            spinning.wait()
        daemon.stop()
    processes = [name for name, _ in found["PROCESSES, BY SAMPLES"]]
    assert any(name.endswith(f"({spinning.pid})") for name in processes), processes
    assert found["EVENTS"]
    assert found["STACKS, BY SAMPLES"]
