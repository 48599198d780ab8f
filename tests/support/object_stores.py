# SPDX-License-Identifier: Apache-2.0
"""An S3 server for tests, and stores in it."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import time
from itertools import count
from typing import TYPE_CHECKING, Final, Self

import obstore
from obstore.store import MemoryStore

from tests.support.patience import patient

if TYPE_CHECKING:
    from collections.abc import Iterator

HOST: Final = "127.0.0.1"
_START_S: Final = patient(60)
_OPTIONS: Final = {
    "aws_access_key_id": "somebody",
    "aws_secret_access_key": "secret of somebody",
    "aws_region": "us-east-1",
    "aws_virtual_hosted_style_request": "false",
}


class S3Server:
    """moto's S3 server, in a process of its own.

    Attributes:
        port: that it listens on.
    """

    def __init__(self) -> None:
        with socket.create_server((HOST, 0)) as free:
            self.port: int = free.getsockname()[1]
        self._numbers = count(1)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", HOST, "-p", str(self.port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONWARNINGS": "ignore"},
        )

    def __enter__(self) -> Self:
        """Wait until it answers."""
        deadline = time.monotonic() + _START_S
        while True:
            try:
                self.ask("GET", "/")
            except OSError:
                assert self._process.poll() is None, "the server ended"
                assert time.monotonic() < deadline, "the server does not answer"
                time.sleep(0.05)
            else:
                return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()

    def ask(self, method: str, path: str) -> int:
        """Send a request without a body; return the status of the answer."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=_START_S)
        try:
            connection.request(method, path)
            with connection.getresponse() as answer:
                answer.read()
                return answer.status
        finally:
            connection.close()

    def new_bucket(self) -> str:
        """Make a bucket; return the address of a store in it."""
        name = f"bucket-{next(self._numbers)}"
        assert self.ask("PUT", f"/{name}") == http.client.OK
        return f"s3://{name}/below"

    def options(self, port: int | None = None) -> dict[str, str]:
        """Return the options of stores in it, or behind another port."""
        return {**_OPTIONS, "aws_endpoint": f"http://{HOST}:{port or self.port}"}


def start_runtime() -> None:
    """Have obstore make what it keeps for the process, which is no leak of a test."""
    obstore.put(MemoryStore(), "key", b"")


def serve() -> Iterator[S3Server]:
    """Run a server for a fixture."""
    with S3Server() as server:
        yield server
