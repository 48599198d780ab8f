# SPDX-License-Identifier: Apache-2.0
"""A listener's bounds: connections, sizes, times, and what peers can write into the log."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import pytest
import structlog
from aiohttp import web

from collectord.cli import log
from collectord.control import api, listener
from collectord.control.metrics_app import metrics_app
from collectord.metrics import prometheus
from collectord.metrics.exposition import Exposition
from tests.support import balances
from tests.support.commands import Commands, pages, serve_tcp, serve_unix

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from collectord.session.ring_snapshot import Snapshot

MARK: Final = b"POST /v1/mark HTTP/1.1\r\nHost: x\r\n"
HALF: Final = MARK + b"Content-Length: 50\r\n"
PEERS: Final = 60
ANSWER_S: Final = 10
ANSWER_BYTES: Final = 16 << 20
LINE_BYTES: Final = 500


@pytest.fixture
def logged(capsys: pytest.CaptureFixture[str]) -> Iterator[Logged]:
    """Provide the log as `run` writes it; put back afterwards."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    log.configure(console=False)
    yield Logged(capsys)
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


class Logged:
    """The messages written to the log, as text and by event."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def lines(self) -> list[str]:
        """Return all lines since the last look."""
        return self._capsys.readouterr().err.splitlines()

    def events(self) -> list[str]:
        """Return the events of the lines."""
        return [json.loads(line)["event"] for line in self.lines()]


class SlowCommands(Commands):
    """A daemon whose snapshots take until they may end."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = asyncio.Event()
        self.may_end = asyncio.Event()

    async def snapshot(self, names: Sequence[str]) -> list[Snapshot]:
        """Wait."""
        self.begun.set()
        await self.may_end.wait()
        return await super().snapshot(names)


Opening = Coroutine[Any, Any, tuple[asyncio.StreamReader, asyncio.StreamWriter]]


@asynccontextmanager
async def connected(place: Path | Opening, sent: bytes) -> AsyncIterator[asyncio.StreamReader]:
    """Provide a connection on which something was sent; returns what comes back."""
    opening = asyncio.open_unix_connection(place) if isinstance(place, Path) else place
    reader, writer = await opening
    try:
        writer.write(sent)
        await writer.drain()
        yield reader
    finally:
        writer.transport.abort()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def status_of(path: Path) -> int:
    """Return the HTTP status of GET /v1/status."""
    async with (
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as client,
        client.get("http://localhost/v1/status") as response,
    ):
        return response.status


async def settle() -> None:
    """Let data in transit arrive."""
    for _ in range(100):
        await asyncio.sleep(0)


async def still_open(readers: list[asyncio.StreamReader]) -> int:
    """Return how many connections the server has not closed."""
    ends = [asyncio.ensure_future(reader.read(1)) for reader in readers]
    await settle()
    living = [end for end in ends if not end.done()]
    for end in ends:
        end.cancel()
    await asyncio.gather(*ends, return_exceptions=True)
    return len(living)


def test_who_sends_nothing_keeps_nobody_out(tmp_path: Path, logged: Logged) -> None:
    """Half-sent requests hold few connections, others are answered, and the log stays small."""
    path = tmp_path / "control.sock"

    async def scenario() -> int:
        async with (
            serve_unix(api.control_app(balances.status, Commands()), path),
            AsyncExitStack() as stack,
        ):
            readers = []
            for _ in range(PEERS):
                readers.append(await stack.enter_async_context(connected(path, HALF)))
                assert await status_of(path) == 200
            return await still_open(readers)

    assert 0 < asyncio.run(scenario()) <= listener.CONNECTIONS_MAX
    assert logged.lines() == []


def test_one_peer_has_fewer_connections() -> None:
    """The server closes an address's own old connections before those of others."""

    async def scenario() -> int:
        registry = prometheus.registry(balances.status, kernel_release="6.12.0")
        app = metrics_app(Exposition(registry).answer, pages())
        async with serve_tcp(app) as (host, port), AsyncExitStack() as stack:
            readers = []
            for _ in range(PEERS):
                opening = asyncio.open_connection(host, port)
                readers.append(await stack.enter_async_context(connected(opening, b"")))
            async with (
                aiohttp.ClientSession() as client,
                client.get(f"http://{host}:{port}/metrics") as response,
            ):
                assert response.status == 200
            return await still_open(readers)

    assert 0 < asyncio.run(scenario()) < listener.PER_ADDRESS_MAX


def test_who_is_answered_keeps_the_place(tmp_path: Path, logged: Logged) -> None:
    """Requests under way are not closed for others; when all are, newcomers are turned away."""
    path = tmp_path / "control.sock"

    async def ask(client: aiohttp.ClientSession) -> int:
        async with client.post("http://localhost/v1/snapshot") as response:
            return response.status

    async def scenario() -> None:
        commands = SlowCommands()
        async with (
            serve_unix(api.control_app(balances.status, commands), path),
            AsyncExitStack() as stack,
        ):
            asking = []
            for _ in range(listener.CONNECTIONS_MAX):
                connector = aiohttp.UnixConnector(str(path))
                client = aiohttp.ClientSession(connector=connector)
                await stack.enter_async_context(client)
                commands.begun.clear()
                asking.append(asyncio.ensure_future(ask(client)))
                await asyncio.wait_for(commands.begun.wait(), ANSWER_S)
            for _ in range(3):
                with pytest.raises(aiohttp.ClientError):
                    await status_of(path)
            commands.may_end.set()
            assert await asyncio.gather(*asking) == [200] * len(asking)
            assert await status_of(path) == 200

    asyncio.run(scenario())
    assert Counter(logged.events()) == {
        "connection_refused": 1,
        "control_request": listener.CONNECTIONS_MAX,
    }


def test_last_descriptors_are_not_for_peers(
    tmp_path: Path, logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Near the limit of descriptors newcomers are turned away, and come in again with room."""
    path = tmp_path / "control.sock"
    limits = [0, 0]
    monkeypatch.setattr("collectord.control.listener.resource.getrlimit", lambda _: limits)

    async def scenario() -> None:
        async with serve_unix(api.control_app(balances.status, Commands()), path):
            with pytest.raises(aiohttp.ClientError):
                await status_of(path)
            limits[0] = 1 << 20
            assert await status_of(path) == 200

    asyncio.run(scenario())
    assert logged.events() == ["connection_refused"]


MALFORMED: Final = {
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\xa5" * 200 + b"\r\n\r\n",
    "zeros": b"\0" * 70_000,
    "long line": b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
    "long field": b"GET / HTTP/1.1\r\nX: " + b"a" * 70_000 + b"\r\n\r\n",
    "many fields": b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 5_000 + b"\r\n",
    "bad length": MARK + b"Content-Length: -1\r\n\r\n",
    "two lengths": MARK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "bad chunk": MARK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    "escapes": b"GET / \x1b[31mHTTP/9.9\r\n\r\n",
    "large body": MARK + b"Content-Length: 999999\r\n\r\n" + b"a" * 99_999,
    "bomb": MARK + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}",
}


@pytest.mark.parametrize("sent", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_requests(sent: bytes, tmp_path: Path, logged: Logged) -> None:
    """Malformed requests are refused; a thousand of them log one short line, no traceback."""
    path = tmp_path / "control.sock"

    async def scenario() -> None:
        async with serve_unix(api.control_app(balances.status, Commands()), path):
            for _ in range(20):
                async with connected(path, sent) as reader:
                    answer = await asyncio.wait_for(reader.readline(), ANSWER_S)
                    assert answer == b"" or answer.split()[1] in {b"400", b"413", b"505"}, answer
            assert await status_of(path) == 200

    asyncio.run(scenario())
    lines = logged.lines()
    assert len(lines) <= 1
    for line in lines:
        assert json.loads(line)["event"] == "request_refused"
        assert len(line) < LINE_BYTES
        assert "exception" not in line


def test_who_leaves_midway_is_no_error(tmp_path: Path, logged: Logged) -> None:
    """A connection that ends within a request, or before its answer, is not worth a line."""
    path = tmp_path / "control.sock"

    async def scenario() -> None:
        async with serve_unix(api.control_app(balances.status, Commands()), path):
            for sent in (HALF, HALF + b"\r\nabc", b"GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n"):
                async with connected(path, sent):
                    await settle()
            assert await status_of(path) == 200

    asyncio.run(scenario())
    assert logged.lines() == []


@pytest.mark.parametrize("sent", [b"", HALF, HALF + b"\r\nabc"], ids=["nothing", "head", "body"])
def test_requests_have_a_time(
    sent: bytes, tmp_path: Path, logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request whose head or body does not come is given up."""
    path = tmp_path / "control.sock"
    for module in (listener, api):
        monkeypatch.setattr(module, "REQUEST_S", 0.05)

    async def scenario() -> None:
        async with (
            serve_unix(api.control_app(balances.status, Commands()), path),
            connected(path, sent) as reader,
        ):
            whole = await asyncio.wait_for(reader.read(), ANSWER_S)
            assert whole == b"" or b"did not end" in whole

    asyncio.run(scenario())
    assert logged.lines() == []


def test_answers_have_a_time(
    tmp_path: Path, logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that does not read the answer loses the connection."""
    path = tmp_path / "control.sock"
    monkeypatch.setattr(listener, "REQUEST_S", 0.05)
    ended = asyncio.Event()

    async def large(_request: web.Request) -> web.Response:
        return web.Response(body=b"x" * ANSWER_BYTES)

    @web.middleware
    async def told(request: web.Request, handler: listener.Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        finally:
            ended.set()

    async def scenario() -> None:
        app = web.Application(middlewares=[told])
        app.router.add_get("/", large)
        async with (
            serve_unix(app, path),
            connected(path, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n") as reader,
        ):
            await asyncio.wait_for(ended.wait(), ANSWER_S)
            received = 0
            with suppress(ConnectionError):
                while piece := await asyncio.wait_for(reader.read(1 << 20), ANSWER_S):
                    received += len(piece)
            assert received < ANSWER_BYTES

    asyncio.run(scenario())
    assert logged.lines() == []
