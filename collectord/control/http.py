# SPDX-License-Identifier: Apache-2.0
"""HTTP: Prometheus text on a TCP address, the control API on a Unix socket.

    GET /metrics                 on [metrics] listen
    GET /v1/status               on [control] socket: daemon, core and all sessions
    GET /v1/sessions/NAME        the balances of one session
    POST /v1/mark                {"text": TEXT, "session": NAME or null}: a marker
    POST /v1/snapshot            {"sessions": [NAME...]}: what flight recorders hold, to segments

GET only reads counters that the daemon keeps anyway.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
import stat
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import msgspec
from aiohttp import web
from prometheus_client import exposition

from collectord import __version__
from collectord.control.listener import BODY_BYTES, REQUEST_S
from collectord.errors import CollectordError, ConfigError, KernelError, UsageError
from collectord.folders.trust import Trust
from collectord.folders.walk import open_folder
from collectord.session.maps.program_status import session_json
from collectord.text import cpu_list
from collectord.text.foreign import encode_json, plain
from collectord.text.units import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from prometheus_client import CollectorRegistry

    from collectord.config.listen_address import ListenAddress
    from collectord.folders.folder import Folder
    from collectord.session.daemon_status import DaemonStatus
    from collectord.session.ring_snapshot import Snapshot
    from collectord.session.running_threads import RunningThreads

    StatusReader = Callable[[], DaemonStatus]

# As in the unit and tmpfiles.d: the only directory that is created if it is missing.
RUN_DIRECTORY: Final = Path("/run/collectord")
# The owner and the socket's group may control the daemon.
SOCKET_UMASK: Final = 0o117
_BAD_REQUEST: Final = 400
_FAILED: Final = 500
_INDEX: Final = "collectord: metrics are at /metrics\n"


Body = TypeVar("Body", bound=msgspec.Struct)


class Commands(Protocol):
    """The commands that a daemon carries out on request. Raises CollectordError."""

    async def mark(self, text: str, session: str | None) -> int:
        """Write a marker to the ftrace rings of a session, or of all; return how many took it."""

    async def snapshot(self, names: Sequence[str]) -> list[Snapshot]:
        """Store the contents of these flight recorders, or of all."""


class MarkRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of POST /v1/mark."""

    text: str
    session: str | None = None


class SnapshotRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of POST /v1/snapshot; no names mean all flight recorders."""

    sessions: tuple[str, ...] = ()


def metrics_app(registry: CollectorRegistry) -> web.Application:
    """Return the scrape endpoint over `registry`."""

    async def metrics(request: web.Request) -> web.Response:
        encode, content_type = exposition.choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encode(registry), headers={"Content-Type": content_type})

    async def index(_request: web.Request) -> web.Response:
        return web.Response(text=_INDEX)

    app = web.Application(client_max_size=BODY_BYTES)
    app.router.add_get("/", index)
    app.router.add_get("/metrics", metrics)
    return app


def control_app(status: StatusReader, commands: Commands) -> web.Application:
    """Return the control API."""

    async def whole(_request: web.Request) -> web.Response:
        return _json(status_json(status()))

    async def session(request: web.Request) -> web.Response:
        name = request.match_info["name"]
        now = status()
        found = [session_json(one, now.bpf) for one in now.sessions if one.name == name]
        if not found:
            known = sorted({balance.name for balance in now.sessions})
            return _json({"error": f"no session {name!r}", "sessions": known}, status=404)
        return _json({"sessions": found})

    async def mark(request: web.Request) -> web.Response:
        async def done() -> dict[str, Any]:
            asked = await _body(request, MarkRequest)
            if not asked.text:
                raise UsageError("the marker has no text")
            return {"marked": await commands.mark(asked.text, asked.session)}

        return await _answer(done())

    async def snapshot(request: web.Request) -> web.Response:
        async def done() -> dict[str, Any]:
            asked = await _body(request, SnapshotRequest)
            made = await commands.snapshot(asked.sessions)
            return {
                "segments": [path for snapshot in made for path in snapshot.segments],
                "snapshots": [snapshot.to_json() for snapshot in made],
            }

        return await _answer(done())

    app = web.Application(client_max_size=BODY_BYTES)
    app.router.add_get("/v1/status", whole)
    app.router.add_get("/v1/sessions/{name}", session)
    app.router.add_post("/v1/mark", mark)
    app.router.add_post("/v1/snapshot", snapshot)
    return app


async def _body(request: web.Request, kind: type[Body]) -> Body:
    """Return the request's JSON; the defaults for an empty body.

    Raises:
        UsageError: it is not JSON, or another object, or does not arrive.
    """
    try:
        async with asyncio.timeout(REQUEST_S):
            data = await request.read()
        # Not msgspec's decoder: it refuses bytes of a marker that are not UTF-8.
        document = json.loads(data or b"{}")
        os.fsencode(json.dumps(document, ensure_ascii=False))  # other surrogates are not bytes
        return msgspec.convert(document, kind)
    except TimeoutError as error:
        raise UsageError(f"not a request: it did not end within {REQUEST_S:.0f} s") from error
    except web.HTTPRequestEntityTooLarge as error:
        raise UsageError(f"not a request: more than {BODY_BYTES} bytes") from error
    except RecursionError as error:
        raise UsageError("not a request: nested too deeply") from error
    except (ValueError, web.RequestPayloadError, ConnectionError) as error:
        # From the decoder or msgspec; or the rest of the body is malformed, or does not arrive.
        raise UsageError(f"not a request: {error}") from error


async def _answer(work: Awaitable[dict[str, Any]]) -> web.Response:
    """Return the result, or the error with its exit status on the command line."""
    try:
        return _json(await work)
    except CollectordError as error:
        status = _BAD_REQUEST if isinstance(error, UsageError) else _FAILED
        return _json({"error": str(error), "exit_code": error.exit_code}, status=status)


def status_json(status: DaemonStatus) -> dict[str, Any]:
    """Return the document of `/v1/status`: plain data, times in RFC 3339."""
    started = datetime.fromtimestamp(status.started_ns / NS_PER_SECOND, tz=UTC)
    return {
        "version": __version__,
        "pid": os.getpid(),
        "started": started.isoformat(timespec="milliseconds"),
        "config_sha256": status.config_sha256,
        "cpus_online": status.cpus_online,
        "cpus_covered": status.cpus_covered,
        "unclean_stops": status.unclean_stops,
        "damaged_files": status.damaged_files,
        "clocks": plain(status.clocks),
        "core": status.core._asdict(),
        "drain": _drain_json(status.drain),
        "sessions": [session_json(balance, status.bpf) for balance in status.sessions],
    }


def _drain_json(drain: RunningThreads) -> dict[str, Any]:
    """Return the drain threads with their present scheduling."""
    return {
        "lacks": list(drain.lacks),
        "threads": [
            {
                "name": one.name,
                "tid": one.tid,
                **plain(one.scheduling),
                "cpus": cpu_list.render(one.scheduling.cpus),
                "drains": cpu_list.render(one.drains),
            }
            for one in drain.threads
        ],
    }


@contextmanager
def claim_tcp(address: ListenAddress) -> Iterator[tuple[socket.socket, ...]]:
    """Listen on an address, at each address that its host's name has.

    Connections wait until somebody accepts them.

    Raises:
        ConfigError: the host's name does not resolve.
        KernelError: the address cannot be bound.
    """
    host = address.host
    try:
        found = socket.getaddrinfo(
            host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (socket.gaierror, UnicodeError) as error:
        raise ConfigError(f"{host} does not resolve: {error}", key="metrics.listen") from error
    with ExitStack() as stack:
        try:
            bound = tuple(
                stack.enter_context(_listening(family, place))
                for family, _, _, _, place in dict.fromkeys(found)
            )
        except OSError as error:
            raise KernelError(
                f"cannot serve metrics on {address}",
                syscall="bind",
                errno=error.errno or 0,
                hint="set another [metrics] listen address",
            ) from error
        yield bound


def _listening(family: int, place: Any) -> socket.socket:  # noqa: ANN401  # as getaddrinfo has it
    with ExitStack() as undo:
        made = undo.enter_context(socket.socket(family, socket.SOCK_STREAM))
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(place)
        made.listen()
        undo.pop_all()
        return made


@contextmanager
def claim_unix(path: Path) -> Iterator[tuple[socket.socket, ...]]:
    """Listen on a Unix socket that its owner and group may use; it is removed at the end.

    Connections wait until somebody accepts them.

    Raises:
        KernelError: another daemon serves it, or it cannot be created.
    """
    with _unix_socket(path) as bound:
        yield (bound,)


@contextmanager
def _unix_socket(path: Path) -> Iterator[socket.socket]:
    with ExitStack() as stack:
        try:
            make_mode = 0o755 if path.parent == RUN_DIRECTORY else None
            folder = open_folder(path.parent, Trust.WRITE, make_mode=make_mode)
            stack.enter_context(folder)
            bound = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            _remove_stale(folder, path.name)
            before = os.umask(SOCKET_UMASK)
            try:
                bound.bind(str(folder.place / path.name))
            finally:
                os.umask(before)
            bound.listen()
        except OSError as error:
            missing = f"make its folder {path.parent}, or " if error.errno == errno.ENOENT else ""
            raise KernelError(
                f"cannot serve the control API on {path}",
                syscall="bind",
                errno=error.errno or errno.ENAMETOOLONG,
                hint=f"{missing}set another [control] socket",
            ) from error
        stack.callback(folder.remove, path.name, missing_ok=True)
        yield bound


def _remove_stale(folder: Folder, name: str) -> None:
    """Remove a socket that a killed daemon left; leave one that answers."""
    status = folder.stat(name)
    if status is None:
        return
    if not stat.S_ISSOCK(status.st_mode):
        raise FileExistsError(errno.EEXIST, "not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(folder.place / name))
        except ConnectionRefusedError:
            folder.remove(name, missing_ok=True)
            return
    raise OSError(errno.EADDRINUSE, "another daemon answers")


def _json(value: dict[str, Any], *, status: int = 200) -> web.Response:
    body = encode_json(value)
    return web.Response(body=body, status=status, content_type="application/json")
