# SPDX-License-Identifier: Apache-2.0
"""A listener with limits: a few connections per address or user, and a short time per request.

When all places are taken, the connection that has waited longest for its request is closed: a peer
that connects and sends nothing keeps nobody out. The last descriptors of the process are reserved
for segments. With TLS a connection has its place from the beginning of its handshake.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import ssl
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from collectord.control.peers import Peer

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_LOG: Final = structlog.get_logger()
CONNECTIONS_MAX: Final = 16
# Room for several scrapers behind one address, or one with remains of its earlier connections.
PER_ADDRESS_MAX: Final = 8
# Room for a verb that waits for its answer, and for others meanwhile. Root and the daemon's own
# user, who could stop the daemon, have no limit of their own.
PER_USER_MAX: Final = 4
# The limit for each of: the head of a request, its body, and the reading of the answer.
REQUEST_S: Final = 10.0
BODY_BYTES: Final = 64 << 10
_LINE_BYTES: Final = 4 << 10
_FIELD_BYTES: Final = 8 << 10
_FIELDS_MAX: Final = 64
_LINGER_S: Final = 1.0
# A scrape in progress may finish; an idle keep-alive connection does not hold up the stop.
_SHUTDOWN_S: Final = 1.0
_EXHAUSTED_PAUSE_S: Final = 1.0
_REASON_CHARS: Final = 200


def _tell_refusal(record: logging.LogRecord) -> bool:
    """Log one line for a malformed request; pass on the server's other records."""
    error = record.exc_info[1] if record.exc_info else None
    if not isinstance(error, HttpProcessingError):
        return True
    reason = " ".join(error.message.split())[:_REASON_CHARS]
    _LOG.warning("request_refused", reason=reason, limit_by=record.name)
    return False


_REQUESTS: Final = logging.getLogger("collectord.requests")
_REQUESTS.addFilter(_tell_refusal)


@dataclass(slots=True, eq=False)
class _Connection:
    """An accepted connection; what handles its requests is there once it is open."""

    peer: str
    opening: asyncio.Task[None] | None = None
    transport: asyncio.Transport | None = None
    handler: web.RequestHandler | None = None


class Listener:
    """Accepts the connections of one server.

    Args:
        name: for the log.
        reserved_files: descriptors that are left for other uses.
        tls: what peers have to meet; None for connections without TLS.
    """

    def __init__(self, name: str, reserved_files: int, tls: ssl.SSLContext | None = None) -> None:
        self._name = name
        self._reserved_files = reserved_files
        self._tls = tls
        self._connections: list[_Connection] = []  # the oldest first
        self._busy: set[web.RequestHandler] = set()

    @web.middleware
    async def answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer a request; its connection keeps its place meanwhile."""
        self._busy.add(request.protocol)
        try:
            response = await handler(request)
            try:
                async with asyncio.timeout(REQUEST_S):
                    await response.prepare(request)
                    await response.write_eof()
            except (TimeoutError, ConnectionError):
                # The peer does not read, or is gone: the server finds no connection any more.
                for one in self._connections:
                    if one.handler is request.protocol:
                        self._close(one)
                        break
            return response
        finally:
            self._busy.discard(request.protocol)

    async def accept(self, server: web.Server, bound: socket.socket) -> None:
        """Accept connections one by one, without end."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(bound)
            except ConnectionError:  # gone before it was accepted
                continue
            except OSError as error:
                self._say_refused(error.strerror)
                await asyncio.sleep(_EXHAUSTED_PAUSE_S)
                continue
            peer, most = _peer(connection, address)
            if not self._has_place(server, connection.fileno(), peer, most):
                connection.close()
                continue
            one = _Connection(peer)
            self._connections.append(one)
            one.opening = asyncio.ensure_future(self._open(server, connection, one))
            if self._tls is None:  # nothing to wait for
                await asyncio.wait([one.opening])

    async def _open(self, server: web.Server, connection: socket.socket, one: _Connection) -> None:
        """Hand a connection to the server, with TLS after its handshake."""
        limits: dict[str, Any] = {}
        if self._tls is not None:
            limits = {"ssl_handshake_timeout": REQUEST_S, "ssl_shutdown_timeout": _LINGER_S}
        loop = asyncio.get_running_loop()
        try:
            one.transport, one.handler = await loop.connect_accepted_socket(
                server, connection, ssl=self._tls, **limits
            )
        except ssl.SSLError as error:
            reason = (error.reason or "unknown").lower().replace("_", " ")
            _LOG.warning(
                "handshake_refused",
                listener=self._name,
                peer=one.peer,
                reason=reason,
                limit_by=self._name,
            )
        except OSError:  # gone already, or silent for too long
            pass
        finally:
            if one.transport is None:
                connection.close()

    def _has_place(self, server: web.Server, fd: int, peer: str, most: int) -> bool:
        """Whether one more connection may stay; an idle one is closed for it if necessary.

        Args:
            server: knows which connections live.
            fd: the new connection's.
            peer: who has connected.
            most: how many connections this peer may have.
        """
        living = set(server.connections)
        self._connections = [
            one
            for one in self._connections
            if one.handler in living or (one.opening is not None and not one.opening.done())
        ]
        # The kernel assigns the lowest free number: all below this one are taken.
        if fd >= resource.getrlimit(resource.RLIMIT_NOFILE)[0] - self._reserved_files:
            self._say_refused("the last descriptors are for segments")
            self._close_one(self._connections)
            return False
        same = [one for one in self._connections if one.peer == peer]
        if len(same) >= most:
            return self._close_one(same)
        return len(self._connections) < CONNECTIONS_MAX or self._close_one(self._connections)

    def _close_one(self, connections: Sequence[_Connection]) -> bool:
        """Close the oldest of these connections that waits for a request; False without one."""
        waiting = next((one for one in connections if one.handler not in self._busy), None)
        if waiting is None:
            self._say_refused("all connections are in use")
            return False
        self._close(waiting)
        return True

    def _close(self, one: _Connection) -> None:
        """Close a connection at once, even if data are unsent."""
        self._connections = [other for other in self._connections if other is not one]
        if one.handler is not None:
            one.handler.force_close()
        if one.transport is not None:
            one.transport.abort()
        elif one.opening is not None:
            one.opening.cancel()

    async def close(self) -> None:
        """Close all connections that are left."""
        opening = [one.opening for one in self._connections if one.opening is not None]
        for one in tuple(self._connections):
            self._close(one)
        if opening:
            await asyncio.wait(opening)

    def _say_refused(self, reason: str | None) -> None:
        _LOG.warning("connection_refused", listener=self._name, reason=reason, limit_by=self._name)


def _peer(connection: socket.socket, address: object) -> tuple[str, int]:
    """Return the peer, an address without its port or a user, and its most connections."""
    if isinstance(address, tuple):
        return str(address[0]), PER_ADDRESS_MAX
    peer = Peer.of(connection)
    return f"user {peer.uid}", CONNECTIONS_MAX if peer.trusted else PER_USER_MAX


@asynccontextmanager
async def serve(
    app: web.Application,
    bound: Sequence[socket.socket],
    *,
    name: str,
    reserved_files: int = 0,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[None]:
    """Serve an app on listening sockets for the duration of a block.

    Args:
        app: not frozen yet.
        bound: the sockets; they are made non-blocking.
        name: for the log.
        reserved_files: see `Listener`.
        tls: likewise.
    """
    listener = Listener(name, reserved_files, tls)
    app.middlewares.append(listener.answer)
    runner = web.AppRunner(
        app,
        access_log=None,
        logger=_REQUESTS,
        shutdown_timeout=_SHUTDOWN_S,
        keepalive_timeout=REQUEST_S,
        lingering_time=_LINGER_S,
        max_line_size=_LINE_BYTES,
        max_field_size=_FIELD_BYTES,
        max_headers=_FIELDS_MAX,
        auto_decompress=False,
    )
    await runner.setup()
    server = runner.server
    if server is None:
        raise RuntimeError("a runner that is set up has a server")
    accepting = []
    try:
        for one in bound:
            one.setblocking(False)  # noqa: FBT003  # the standard library's
            accepting.append(asyncio.ensure_future(listener.accept(server, one)))
        yield
    finally:
        for task in accepting:
            task.cancel()
        await asyncio.gather(*accepting, return_exceptions=True)
        await runner.cleanup()
        await listener.close()
