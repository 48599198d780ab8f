# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus scrapes the daemon, and the alerts that come with it fire and resolve."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.support import daemons, promtool
from tests.support.daemons import EVENT, FILTER, NUMBER, wait_for
from tests.support.prometheus import free_port, prometheus

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    from tests.support.generator import Generator

    Start = Callable[..., subprocess.Popen[str]]

pytestmark = [pytest.mark.usefixtures("tracefs"), pytest.mark.beside]

EXAMPLES: Final = Path("config/prometheus").resolve()
# A ring holds some hundred of these.
SESSION: Final = f"""
[[session]]
name = "calls"
class = "must-not-lose"

[[session.source]]
kind = "perf"
events = ["{EVENT}"]
filter = "{FILTER}"
ring = "32KiB"
"""
LABELS: Final = 'session="calls",source="perf"'
LOST: Final = f'collectord_lost_records_total{{reason="ring_full",{LABELS},stage="kernel_ring"}}'
STORED: Final = f"collectord_stored_records_total{{{LABELS}}}"
GAP: Final = f'collectord_gap_seconds_total{{cause="kill",{LABELS}}}'
TOO_MANY: Final = 20_000
LOSES: Final = ("CollectordMustNotLose", "calls")
KILLED: Final = {("CollectordUncleanStop", None), ("CollectordGap", "calls")}


def test_alerts_of_a_loss_and_of_a_kill(
    tmp_path: Path, start_cli: Start, generator: Generator
) -> None:
    """That of a loss fires and resolves; a kill under load is a gap and an unclean stop."""
    config, port = daemons.write_sessions(tmp_path, SESSION), free_port()
    config.write_text(config.read_text().replace("127.0.0.1:0", f"127.0.0.1:{port}"))
    (tmp_path / "server").mkdir()
    program = promtool.fetched().server
    with prometheus(program, EXAMPLES, tmp_path / "server", port) as server:
        with daemons.running(start_cli, config) as daemon:
            wait_for(server.is_up, "a scrape")
            wait_for(lambda: server.get("/api/v1/query", query=LOST)["result"], "its series")
            assert LOSES not in server.firing()
            daemon.process.send_signal(signal.SIGSTOP)
            try:
                with generator.start("count", nr=NUMBER, count=TOO_MANY) as running:
                    assert running.run()["events"] == TOO_MANY
            finally:
                daemon.process.send_signal(signal.SIGCONT)
            wait_for(lambda: LOSES in server.firing(), "an alert")
            wait_for(lambda: LOSES not in server.firing(), "its end")
            assert daemon.metric(LOST) + daemon.metric(STORED) == TOO_MANY
            with generator.start("count", nr=NUMBER, count=TOO_MANY) as running:
                running.go()
                daemon.kill()
                assert running.result()["events"] == TOO_MANY
        with daemons.running(start_cli, config) as daemon:
            wait_for(lambda: server.firing() >= KILLED, f"{KILLED}")
            assert server.is_up()
            assert not {"CollectordUnaccounted", "CollectordDown"} & {
                name for name, _ in server.firing()
            }
            assert daemon.metric(GAP) > 0
            ended = daemon.stop()
        wait_for(lambda: ("CollectordDown", None) in server.firing(), "the alert of the stop")
    assert ended.status == 0
    assert daemons.left_open(tmp_path / "state") == []
