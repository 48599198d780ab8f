# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus scrapes the service, and the alerts that come with it fire and resolve."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.support import daemons
from tests.support.daemons import EVENT, FILTER, NUMBER, wait_for
from tests.support.patience import patient
from tests.vm.service import CONFIG, STATE, UNIT, scrape, shown, systemctl

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.generator import Generator

INSTALLED: Final = Path("/usr/local/share/collectord/prometheus")
ADDRESS: Final = "127.0.0.1:9099"
# A ring holds some hundred of these.
SESSION: Final = f"""
[[session]]
name = "calls"
class = "must-not-lose"
segment_age = "2s"

[[session.source]]
kind = "perf"
events = ["{EVENT}"]
filter = "{FILTER}"
ring = "32KiB"
"""
LABELS: Final = 'session="calls",source="perf"'
LOST: Final = f'collectord_lost_records_total{{reason="ring_full",{LABELS},stage="kernel_ring"}}'
STORED: Final = f"collectord_stored_records_total{{{LABELS}}}"
TOO_MANY: Final = 20_000


class Prometheus:
    """The HTTP API of a Prometheus."""

    def get(self, path: str, **query: str) -> Any:  # noqa: ANN401 - its JSON
        """Return the data of an answer."""
        url = f"http://{ADDRESS}{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=patient(10)) as answer:  # ours
            return json.load(answer)["data"]

    def is_up(self) -> bool:
        """Whether it scrapes the service."""
        try:
            (target,) = self.get("/api/v1/targets")["activeTargets"]
        except urllib.error.URLError:  # it starts
            return False
        return bool(target["health"] == "up")

    def firing(self) -> set[tuple[str, str | None]]:
        """Return the alerts that fire, with their sessions."""
        alerts = self.get("/api/v1/alerts")["alerts"]
        return {
            (alert["labels"]["alertname"], alert["labels"].get("session"))
            for alert in alerts
            if alert["state"] == "firing"
        }


@contextmanager
def prometheus(directory: Path) -> Iterator[Prometheus]:
    """Provide a Prometheus with the installed example and rules, which are quicker here."""
    rules = (INSTALLED / "collectord.rules.yml").read_text()
    rules = re.sub(r"\[(?:2|5|10|15)m\]|\[1h\]", "[40s]", rules)
    rules = re.sub(r"^( +for): .*$", r"\1: 0s", rules, flags=re.MULTILINE)
    (directory / "collectord.rules.yml").write_text(rules)
    config = (INSTALLED / "scrape.yml").read_text().replace("15s", "4s")
    (directory / "scrape.yml").write_text(config)
    process = subprocess.Popen(
        [
            "prometheus",
            f"--config.file={directory / 'scrape.yml'}",
            f"--storage.tsdb.path={directory / 'data'}",
            f"--web.listen-address={ADDRESS}",
            "--log.level=warn",
        ]
    )
    with ExitStack() as stack:
        stack.callback(process.wait)
        stack.callback(process.terminate)
        yield Prometheus()


@pytest.mark.usefixtures("service")
def test_alerts_of_a_loss_and_of_a_kill(tmp_path: Path, generator: Generator) -> None:
    """A loss fires and resolves; a kill under load is a gap and an unclean stop, all accounted."""
    CONFIG.write_text(SESSION)
    systemctl("start", UNIT)
    with prometheus(tmp_path) as server:
        wait_for(server.is_up, "a scrape")
        wait_for(lambda: server.get("/api/v1/query", query=LOST)["result"], "its series")
        lost_it = ("CollectordMustNotLose", "calls")
        assert lost_it not in server.firing()
        systemctl("kill", "--kill-whom=main", f"--signal={int(signal.SIGSTOP)}", UNIT)
        try:
            with generator.start("count", nr=NUMBER, count=TOO_MANY) as running:
                assert running.run()["events"] == TOO_MANY
        finally:
            systemctl("kill", "--kill-whom=main", f"--signal={int(signal.SIGCONT)}", UNIT)
        wait_for(lambda: lost_it in server.firing(), "an alert")
        wait_for(lambda: lost_it not in server.firing(), "its end")
        told = scrape()
        assert told.value(LOST) + told.value(STORED) == TOO_MANY

        with generator.start("count", nr=NUMBER, endless=1) as running:
            running.go()
            wait_for(lambda: scrape().value(STORED) > told.value(STORED), "records of the load")
            os.kill(int(shown("MainPID")[0]), signal.SIGKILL)
            wait_for(lambda: shown("ActiveState", "NRestarts") == ("active", "1"), "a restart")
            wait_for(lambda: scrape().value(STORED) > 0, "records after the kill")
            assert running.end()["events"] > TOO_MANY
        expected = {("CollectordUncleanStop", None), ("CollectordGap", "calls")}
        wait_for(lambda: expected <= server.firing(), f"{expected}")
        assert server.is_up()
        assert "CollectordUnaccounted" not in {name for name, _ in server.firing()}
    told = scrape()
    assert told.value(f'collectord_gap_seconds_total{{cause="kill",{LABELS}}}') > 0
    assert told.value("collectord_unclean_stops_total") == 1
    systemctl("stop", UNIT)
    assert shown("Result", "ExecMainStatus") == ("success", "0")
    assert daemons.left_open(STATE) == []
    manifests = [daemons.manifest(path) for path in daemons.sealed(STATE / "calls")]
    assert any(said["recovered"] for said in manifests)
    last = manifests[-1]["ledger"]
    assert (last["basis"], last["closed"], last["unaccounted"]) == ("exact", True, 0)
