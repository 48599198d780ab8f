# SPDX-License-Identifier: Apache-2.0
"""The control API: HTTP and JSON on a Unix socket, a line in `_ROUTES` for each request.

    GET /v1/status               daemon, core and all sessions
    GET /v1/sessions             the balances of all sessions
    GET /v1/sessions/NAME        those of one session
    POST /v1/sessions            a session's table and its duration: started; answers with name
    POST /v1/sessions/NAME/stop    ends a started one; answers as GET, for the last time
    POST /v1/sessions/NAME/pause   disables its events; answers as GET
    POST /v1/sessions/NAME/resume  enables them again; answers as GET
    GET /v1/plan                 what is recorded, as `check --json` prints it
    POST /v1/mark                {"text": TEXT, "session": NAME or null}: a marker
    POST /v1/snapshot            {"sessions": [NAME...]}: what flight recorders hold, to segments
    POST /v1/incident            {"reason": TEXT} or {"unit": NAME}: an incident is stored
    POST /v1/rotate              {"sessions": [NAME...]}: to new segments; answers once sealed

GET only reads counters that the daemon keeps anyway. A POST changes something: `peers.Admins` says
who may, and logs who did.
"""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

import msgspec
from aiohttp import web

from collectord.control.documents import (
    incident_json,
    rotated_json,
    sessions_json,
    snapshots_json,
    status_json,
)
from collectord.control.listener import BODY_BYTES, REQUEST_S
from collectord.control.peers import Admins
from collectord.errors import CollectordError, ConfigError, NotAllowed, PlanError, UsageError
from collectord.session.maps.program_status import session_json
from collectord.text.foreign import convert, encode_json

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from collectord.config.schema_session import TimedSessionConfig
    from collectord.ledger.record_ledger import SessionBalance
    from collectord.session.daemon_status import DaemonStatus
    from collectord.session.incident_status import Suppression
    from collectord.session.ring_snapshot import Snapshot
    from collectord.sink.base import SegmentInfo
    from collectord.sink.incident_folder import IncidentNote

    StatusReader = Callable[[], DaemonStatus]
    Handler = Callable[["Served", web.Request], Awaitable[dict[str, Any]]]

_BAD_REQUEST: Final = 400
_FORBIDDEN: Final = 403
_NOT_FOUND: Final = 404
_FAILED: Final = 500
_STATUSES: Final = (
    ((UsageError, ConfigError, PlanError), _BAD_REQUEST),
    ((NotAllowed,), _FORBIDDEN),
)


Body = TypeVar("Body", bound=msgspec.Struct)


class Timed(Protocol):
    """Sessions that users start, and that end by themselves. Raises CollectordError."""

    async def start(self, document: Mapping[str, object]) -> TimedSessionConfig:
        """Start a session with this table."""

    async def stop(self, name: str) -> Sequence[SessionBalance]:
        """End a started session; return its last balances."""


class Incidents(Protocol):
    """Incidents that somebody asks for. Raises CollectordError."""

    async def request(self, reason: str) -> IncidentNote:
        """Make one, whatever the limits of triggers are."""

    async def unit_failed(self, unit: str) -> IncidentNote | Suppression:
        """Make one if the trigger of this unit may; else return why not."""


class Planned(Protocol):
    """The plan of a daemon."""

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data for JSON."""


class Commands(Protocol):
    """A daemon's plan, and the commands that it carries out. Raises CollectordError."""

    @property
    def plan(self) -> Planned:
        """The plan of all that the configuration has recorded."""

    @property
    def timed(self) -> Timed:
        """The sessions that users start."""

    @property
    def incidents(self) -> Incidents:
        """The maker of incidents."""

    async def mark(self, text: str, session: str | None) -> int:
        """Write a marker to the ftrace rings of a session, or of all; return how many took it."""

    async def snapshot(self, names: Sequence[str]) -> list[Snapshot]:
        """Store the contents of these flight recorders, or of all."""

    async def rotate(self, names: Sequence[str]) -> list[SegmentInfo]:
        """Continue these sessions, or all, in new segments; return what was sealed."""

    async def pause(self, name: str) -> None:
        """Disable a session's events until `resume`."""

    async def resume(self, name: str) -> None:
        """Enable the events of a paused session again."""

    async def reload(self) -> dict[str, Any]:
        """Read the configuration anew and change what differs; return the difference."""


class ReloadRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of POST /v1/reload, which has no keys: the files are those of the start."""


class MarkRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of POST /v1/mark."""

    text: str
    session: str | None = None


class IncidentRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of POST /v1/incident: a reason in words, or the unit that has failed."""

    reason: str = ""
    unit: str = ""


class SessionsRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of POST /v1/snapshot and /v1/rotate; no names mean all that it applies to."""

    sessions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Served:
    """The daemon, as the API shows and controls it.

    Attributes:
        status: reads the daemon's figures.
        commands: has the plan, and carries out requests.
        admins: those who may change something.
    """

    status: StatusReader
    commands: Commands
    admins: Admins


class Route(NamedTuple):
    """A request of the API: its method and path, and the maker of its answer."""

    method: str
    path: str
    handler: Handler


class _UnknownSession(UsageError):
    """A request about a session that does not exist."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        super().__init__(f"no session {name!r}")
        self.known = known


def control_app(
    status: StatusReader, commands: Commands, admins: Admins | None = None
) -> web.Application:
    """Return the control API.

    Args:
        status: what GET shows.
        commands: the plan, and what POST asks for.
        admins: who may POST; by default root and this process's user alone.
    """
    served = Served(status, commands, admins or Admins())
    app = web.Application(client_max_size=BODY_BYTES)
    for route in _ROUTES:
        handler = partial(_answer, served, route.handler)
        if route.method == "GET":
            app.router.add_get(route.path, handler)
        else:
            app.router.add_post(route.path, handler)
    return app


async def _status(served: Served, _request: web.Request) -> dict[str, Any]:
    return status_json(served.status())


async def _sessions(served: Served, _request: web.Request) -> dict[str, Any]:
    return sessions_json(served.status())


async def _session(served: Served, request: web.Request) -> dict[str, Any]:
    return sessions_json(served.status(), _named(served, request))


def _named(served: Served, request: web.Request) -> str:
    """Return the name of the session that the path names."""
    name = request.match_info["name"]
    known = sorted({balance.name for balance in served.status().sessions})
    if name not in known:
        raise _UnknownSession(name, known)
    return name


async def _pause(served: Served, request: web.Request) -> dict[str, Any]:
    with served.admins.change(request, [request.match_info["name"]]):
        name = _named(served, request)
        await served.commands.pause(name)
    return sessions_json(served.status(), name)


async def _resume(served: Served, request: web.Request) -> dict[str, Any]:
    with served.admins.change(request, [request.match_info["name"]]):
        name = _named(served, request)
        await served.commands.resume(name)
    return sessions_json(served.status(), name)


async def _start(served: Served, request: web.Request) -> dict[str, Any]:
    document = await _document(request)
    name = document.get("name")
    with served.admins.change(request, [name] if isinstance(name, str) else ()):
        session = await served.commands.timed.start(document)
    return {"session": session.name, "ends_ns": session.ends_ns}


async def _stop(served: Served, request: web.Request) -> dict[str, Any]:
    with served.admins.change(request, [request.match_info["name"]]):
        balances = await served.commands.timed.stop(_named(served, request))
    return {"sessions": [session_json(balance, ()) for balance in balances]}


async def _plan(served: Served, _request: web.Request) -> dict[str, Any]:
    return served.commands.plan.to_dict()


async def _mark(served: Served, request: web.Request) -> dict[str, Any]:
    asked = await _body(request, MarkRequest)
    if not asked.text:
        raise UsageError("the marker has no text")
    with served.admins.change(request, [asked.session] if asked.session else ()):
        return {"marked": await served.commands.mark(asked.text, asked.session)}


async def _snapshot(served: Served, request: web.Request) -> dict[str, Any]:
    asked = await _body(request, SessionsRequest)
    with served.admins.change(request, asked.sessions):
        return snapshots_json(await served.commands.snapshot(asked.sessions))


async def _incident(served: Served, request: web.Request) -> dict[str, Any]:
    asked = await _body(request, IncidentRequest)
    incidents = served.commands.incidents
    with served.admins.change(request):
        if asked.unit:
            return incident_json(await incidents.unit_failed(asked.unit))
        return incident_json(await incidents.request(asked.reason))


async def _rotate(served: Served, request: web.Request) -> dict[str, Any]:
    asked = await _body(request, SessionsRequest)
    with served.admins.change(request, asked.sessions):
        return rotated_json(await served.commands.rotate(asked.sessions))


async def _reload(served: Served, request: web.Request) -> dict[str, Any]:
    await _body(request, ReloadRequest)
    with served.admins.change(request):
        return await served.commands.reload()


_ROUTES: Final = (
    Route("GET", "/v1/status", _status),
    Route("GET", "/v1/sessions", _sessions),
    Route("GET", "/v1/sessions/{name}", _session),
    Route("POST", "/v1/sessions", _start),
    Route("POST", "/v1/sessions/{name}/stop", _stop),
    Route("POST", "/v1/sessions/{name}/pause", _pause),
    Route("POST", "/v1/sessions/{name}/resume", _resume),
    Route("GET", "/v1/plan", _plan),
    Route("POST", "/v1/mark", _mark),
    Route("POST", "/v1/snapshot", _snapshot),
    Route("POST", "/v1/incident", _incident),
    Route("POST", "/v1/rotate", _rotate),
    Route("POST", "/v1/reload", _reload),
)


async def _body(request: web.Request, kind: type[Body]) -> Body:
    """Return the request's JSON; the defaults for an empty body.

    Raises:
        UsageError: it is not JSON, or another object, or does not arrive.
    """
    document = await _document(request)
    try:
        return convert(document, kind)
    except ValueError as error:
        raise UsageError(f"not a request: {error}") from error


async def _document(request: web.Request) -> dict[str, object]:
    """Return the request's JSON, an object. Raises UsageError."""
    try:
        async with asyncio.timeout(REQUEST_S):
            data = await request.read()
        # Not msgspec's decoder: it refuses bytes of a marker that are not UTF-8.
        document = json.loads(data or b"{}")
        os.fsencode(json.dumps(document, ensure_ascii=False))  # other surrogates are not bytes
        return convert(document, dict[str, object])
    except TimeoutError as error:
        raise UsageError(f"not a request: it did not end within {REQUEST_S:.0f} s") from error
    except web.HTTPRequestEntityTooLarge as error:
        raise UsageError(f"not a request: more than {BODY_BYTES} bytes") from error
    except RecursionError as error:
        raise UsageError("not a request: nested too deeply") from error
    except (ValueError, web.RequestPayloadError, ConnectionError) as error:
        # From the decoder or msgspec; or the rest of the body is malformed, or does not arrive.
        raise UsageError(f"not a request: {error}") from error


async def _answer(served: Served, handler: Handler, request: web.Request) -> web.Response:
    """Return the answer, or the error with its exit status on the command line."""
    try:
        return _json(await handler(served, request))
    except _UnknownSession as error:
        return _json({"error": str(error), "sessions": error.known}, status=_NOT_FOUND)
    except CollectordError as error:
        status = next((one for kinds, one in _STATUSES if isinstance(error, kinds)), _FAILED)
        place = {"key": error.key} if isinstance(error, ConfigError) else {}
        return _json({"error": str(error), "exit_code": error.exit_code, **place}, status=status)


def _json(value: dict[str, Any], *, status: int = 200) -> web.Response:
    body = encode_json(value)
    return web.Response(body=body, status=status, content_type="application/json")
