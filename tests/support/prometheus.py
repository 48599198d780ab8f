# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus with the alerts that come with the project."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from tests.support.patience import patient

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


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
def prometheus(
    program: Path, examples: Path, directory: Path, target: int
) -> Iterator[Prometheus]:
    """Provide a Prometheus that scrapes this port, with the example and rules, quicker here.

    Args:
        program: the server.
        examples: folder of the configuration and the rules that come with the project.
        directory: empty; for its files.
        target: where a daemon listens.
    """
    rules = (examples / "collectord.rules.yml").read_text()
    rules = re.sub(r"\[(?:2|5|10|15)m\]|\[1h\]", "[10s]", rules)
    rules = re.sub(r"^( +for): .*$", r"\1: 0s", rules, flags=re.MULTILINE)
    (directory / "collectord.rules.yml").write_text(rules)
    config = (examples / "scrape.yml").read_text().replace("15s", "1s")
    (directory / "scrape.yml").write_text(config.replace("9590", str(target)))
    port = free_port()
    process = subprocess.Popen(
        [
            program,
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
