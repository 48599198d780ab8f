# SPDX-License-Identifier: Apache-2.0
"""A proxy in front of an S3 server that fails as stores and networks do, at a given rate."""

from __future__ import annotations

import http.client
import random
import threading
from collections import Counter
from contextlib import suppress
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Final, Self

from tests.support.object_stores import HOST

if TYPE_CHECKING:
    from collections.abc import Sequence

_SERVER_ERROR: Final = 500
_TIMEOUT_S: Final = 60


class Oddity(StrEnum):
    """A thing that may happen to a request.

    REFUSE: it is not carried out, and 500 is the answer. SILENCE: it is not carried out, and there
    is no answer. DROP: it is carried out, and the connection ends without an answer. LIE: a PUT is
    not carried out, and 200 is the answer.
    """

    REFUSE = "refuse"
    SILENCE = "silence"
    DROP = "drop"
    LIE = "lie"


class OddStore:
    """The proxy, in threads of this process.

    Args:
        upstream: port of the S3 server.
        rate: the share of requests to which something happens.
        oddities: what; each as often as the others.
        seed: of the choices.
        only: in the paths of requests to which something may happen.

    Attributes:
        port: that it listens on.
        rate, only: may be changed while it runs.
        done: how often each thing has happened.
    """

    def __init__(
        self,
        upstream: int,
        rate: float,
        oddities: Sequence[Oddity] = (*Oddity,),
        *,
        seed: int = 1,
        only: str = "",
    ) -> None:
        self.only = only
        self.rate = rate
        self.done: Counter[Oddity] = Counter()
        self._random = random.Random(seed)  # noqa: S311  # chooses failures
        self._lock = threading.Lock()
        self._oddities = oddities
        self.ended = threading.Event()
        odd = self

        class Handler(_Handler):
            of = odd
            server_port = upstream

        self._server = ThreadingHTTPServer((HOST, 0), Handler)
        self._server.daemon_threads = False
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self) -> Self:
        """Serve."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End all threads."""
        self.ended.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def choose(self, method: str, path: str) -> Oddity | None:
        """Return what happens to a request."""
        with self._lock:
            if self.only not in path or self._random.random() >= self.rate:
                return None
            chosen = self._random.choice(self._oddities)
            if chosen is Oddity.LIE and method != "PUT":
                return None
            self.done[chosen] += 1
            return chosen


class _Handler(BaseHTTPRequestHandler):
    """Hands a request on, or not."""

    of: OddStore
    server_port: int
    protocol_version = "HTTP/1.0"  # a connection for each request: threads end with it

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        oddity = self.of.choose(self.command, self.path)
        if oddity is Oddity.REFUSE:
            self._answer(_SERVER_ERROR, {}, b"")
            return
        if oddity is Oddity.SILENCE:
            self.of.ended.wait(1.0)
            return
        if oddity is Oddity.LIE:
            self._answer(http.client.OK, {"ETag": '"0"'}, b"")
            return
        connection = http.client.HTTPConnection(HOST, self.server_port, timeout=_TIMEOUT_S)
        try:
            connection.request(self.command, self.path, body, dict(self.headers))
            with connection.getresponse() as answer:
                data = answer.read()
                if oddity is not Oddity.DROP:
                    self._answer(answer.status, dict(answer.getheaders()), data)
        finally:
            connection.close()

    def _answer(self, status: int, headers: dict[str, str], data: bytes) -> None:
        with suppress(OSError):
            self.send_response_only(status)
            for name, value in headers.items():
                if name.lower() not in {"connection", "transfer-encoding"}:
                    self.send_header(name, value)
            if not any(name.lower() == "content-length" for name in headers):
                self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _handle  # noqa: N815  # as the library calls

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # of the library
        """Say nothing."""
