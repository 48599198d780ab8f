# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus scrapes the daemon, and the alerts that come with it fire and resolve."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.support import daemons, promtool
from tests.support.daemons import EVENT, FILTER, NUMBER, wait_for
from tests.support.patience import patient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.generator import Generator

    Start = Callable[..., subprocess.Popen[str]]

pytestmark = pytest.mark.usefixtures("tracefs")

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


class Prometheus:
    """The HTTP API of a Prometheus."""

    def __init__(self, port: int) -> None:
        self._port = port

    def get(self, path: str, **query: str) -> Any:  # noqa: ANN401 - its JSON
        """Return the data of an answer."""
        url = f"http://127.0.0.1:{self._port}{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=patient(10)) as answer:
            return json.load(answer)["data"]

    def is_up(self) -> bool:
        """Whether it scrapes the daemon."""
        try:
            targets = self.get("/api/v1/targets")["activeTargets"]  # none while it starts
        except urllib.error.URLError:  # it starts
            return False
        return [target["health"] for target in targets] == ["up"]

    def firing(self) -> set[tuple[str, str | None]]:
        """Return the alerts that fire, with their sessions."""
        alerts = self.get("/api/v1/alerts")["alerts"]
        return {
            (alert["labels"]["alertname"], alert["labels"].get("session"))
            for alert in alerts
            if alert["state"] == "firing"
        }


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


@contextmanager
def prometheus(directory: Path, target: int) -> Iterator[Prometheus]:
    """Provide a Prometheus with the project's example and rules, which are quicker here."""
    rules = (EXAMPLES / "collectord.rules.yml").read_text()
    rules = re.sub(r"\[(?:2|5|10|15)m\]|\[1h\]", "[10s]", rules)
    rules = re.sub(r"^( +for): .*$", r"\1: 0s", rules, flags=re.MULTILINE)
    (directory / "collectord.rules.yml").write_text(rules)
    config = (EXAMPLES / "scrape.yml").read_text().replace("15s", "1s")
    (directory / "scrape.yml").write_text(config.replace("9590", str(target)))
    port = free_port()
    process = subprocess.Popen(
        [
            promtool.fetched().server,
            f"--config.file={directory / 'scrape.yml'}",
            f"--storage.tsdb.path={directory / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--log.level=warn",
        ]
    )
    with ExitStack() as stack:
        stack.callback(process.wait)
        stack.callback(process.terminate)
        yield Prometheus(port)


def test_alerts_of_a_loss_and_of_a_kill(
    tmp_path: Path, start_cli: Start, generator: Generator
) -> None:
    """That of a loss fires and resolves; a kill under load is a gap and an unclean stop."""
    config, port = daemons.write_sessions(tmp_path, SESSION), free_port()
    config.write_text(config.read_text().replace("127.0.0.1:0", f"127.0.0.1:{port}"))
    (tmp_path / "server").mkdir()
    with prometheus(tmp_path / "server", port) as server:
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
