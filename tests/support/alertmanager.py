# SPDX-License-Identifier: Apache-2.0
"""A real Alertmanager that tells daemons of alerts, over and over while they fire."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.error
import urllib.request
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from tests.support.daemons import wait_for
from tests.support.patience import patient
from tests.support.prometheus import free_port

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from tests.support.certificates import Pair

_CONFIG: Final = """
route:
  receiver: collectord
  group_wait: 0s
  group_interval: 1s
  repeat_interval: 1s
receivers:
  - name: collectord
    webhook_configs:
"""
_WEBHOOK: Final = """\
      - url: {url}
        http_config:
          tls_config:
            ca_file: {authority}
{client}
"""
_CLIENT: Final = """\
            cert_file: {0.certificate}
            key_file: {0.key}
"""
_SENT: Final = r'^alertmanager_{}\{{[^}}]*integration="webhook"[^}}]*\}} (\S+)$'


class Alertmanager:
    """The HTTP API of an Alertmanager."""

    def __init__(self, port: int) -> None:
        self._port = port

    def fire(self, **labels: str) -> None:
        """Tell it of an alert that fires, as Prometheus does."""
        alert = {"labels": labels, "startsAt": datetime.now(UTC).isoformat()}
        self._open("/api/v2/alerts", json.dumps([alert]).encode())

    def alerts(self) -> list[dict[str, Any]]:
        """Return the alerts that it has."""
        found: list[dict[str, Any]] = json.loads(self._open("/api/v2/alerts"))
        return found

    def is_up(self) -> bool:
        """Whether it answers."""
        try:
            return bool(self._open("/-/ready"))
        except urllib.error.URLError:
            return False

    def count(self, what: str) -> float:
        """Return a counter of its notifications, such as "notifications_failed_total"."""
        found = re.findall(_SENT.format(what), self._open("/metrics").decode(), re.MULTILINE)
        return sum(map(float, found))

    def _open(self, path: str, body: bytes | None = None) -> bytes:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}{path}", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=patient(10)) as answer:  # noqa: S310  # ours
            data: bytes = answer.read()
        return data


@contextmanager
def alertmanager(
    program: str, directory: Path, urls: Iterable[str], authority: Path, client: Pair | None
) -> Iterator[Alertmanager]:
    """Provide an Alertmanager.

    Args:
        program: of it.
        directory: empty; for its files.
        urls: where it tells of each alert.
        authority: the certificate by which it knows those that it tells.
        client: its own certificate; None for none.
    """
    own = _CLIENT.format(client) if client is not None else ""
    config = directory / "alertmanager.yml"
    told = (_WEBHOOK.format(url=url, authority=authority, client=own) for url in urls)
    config.write_text(_CONFIG + "".join(told))
    port = free_port()
    words = [
        f"--config.file={config}",
        f"--storage.path={directory}/data",
        f"--web.listen-address=127.0.0.1:{port}",
        "--cluster.listen-address=",
    ]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen([program, *words], stdout=log, stderr=log)
        try:
            made = Alertmanager(port)
            wait_for(lambda: made.is_up() or process.poll() is not None, "an Alertmanager")
            assert process.poll() is None, (directory / "log").read_text()
            yield made
        finally:
            process.terminate()
            process.wait()
