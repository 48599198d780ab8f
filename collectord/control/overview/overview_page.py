# SPDX-License-Identifier: Apache-2.0
"""The routes of the page.

    GET /                        the page; with page.css and page.js all that a browser loads
    GET /overview.json           its figures, which it asks for every two seconds
    GET /incidents/ID/summary    the text about an incident, and
    GET /incidents/ID/flame.svg  the load before it, which it asks for when one is opened

It can only read. Its policy lets a browser load nothing but these, from this address, and texts
of the traced system are data for the script, never markup. What incidents tell of processes is
for clients of this host alone, unless [metrics] incidents says otherwise.
"""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from aiohttp import web

from collectord.control.overview.figures import TimeLine, figures
from collectord.errors import CollectordError
from collectord.sink.incident_folder import PICTURE, SUMMARY
from collectord.text.foreign import encode_json

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from collectord.session.daemon_status import DaemonStatus
    from collectord.sink.incident_folder import Kept

_HERE: Final = Path(__file__).parent
_FILES: Final = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
_OTHERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    **_OTHERS,
}
# The policy for a file that a daemon's child has written: it is shown, and nothing in it runs
# or is loaded.
_SANDBOX: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; sandbox"
    ),
    **_OTHERS,
}
_PARTS: Final = {"summary": (SUMMARY, "text/plain"), PICTURE: (PICTURE, "image/svg+xml")}


class Incidents(Protocol):
    """The incidents of a daemon."""

    @property
    def kept(self) -> Sequence[Kept]:
        """The incidents on the disk, the oldest first."""

    async def file(self, name: str, file: str) -> bytes:
        """Return a file of one of these. Raises CollectordError."""


class OverviewPage:
    """Answers the page and its figures.

    Args:
        status: returns the daemon's present status.
        incidents: of the daemon.
        shown: who sees incidents, as in [metrics] incidents.
    """

    def __init__(
        self, status: Callable[[], DaemonStatus], incidents: Incidents, shown: str
    ) -> None:
        self._status = status
        self._incidents = incidents
        self._shown = shown
        self._line = TimeLine()

    def add_to(self, app: web.Application) -> None:
        """Add the routes."""
        for place in _FILES:
            app.router.add_get(place, self._file)
        app.router.add_get("/overview.json", self._figures)
        app.router.add_get("/incidents/{id}/{part}", self._part)

    def status(self) -> DaemonStatus:
        """Return the present status, and add a point to the time line, as each scrape does."""
        status = self._status()
        self._line.add(status)
        return status

    async def _file(self, request: web.Request) -> web.Response:
        name, kind = _FILES[request.path]
        return web.Response(
            text=(_HERE / name).read_text(), content_type=kind, charset="utf-8", headers=_HEADERS
        )

    async def _figures(self, request: web.Request) -> web.Response:
        kept = self._incidents.kept if self._may_see(request) else None
        body = encode_json(figures(self.status(), self._line, kept))
        return web.Response(body=body, content_type="application/json", headers=_HEADERS)

    async def _part(self, request: web.Request) -> web.Response:
        found = _PARTS.get(request.match_info["part"])
        if found is None or not self._may_see(request):
            raise web.HTTPNotFound(headers=_SANDBOX)
        file, kind = found
        try:
            body = await self._incidents.file(request.match_info["id"], file)
        except CollectordError as error:
            raise web.HTTPNotFound(headers=_SANDBOX) from error
        return web.Response(body=body, content_type=kind, charset="utf-8", headers=_SANDBOX)

    def _may_see(self, request: web.Request) -> bool:
        """Whether incidents are shown to this client."""
        return self._shown == "all" or (self._shown == "local" and is_local(request))


class Connected(Protocol):
    """A request that has come over a connection."""

    def get_extra_info(self, name: str) -> Any:  # noqa: ANN401  # as aiohttp has it
        """Return a property of the connection, as a transport of asyncio does."""


def is_local(request: Connected) -> bool:
    """Whether a client is on this host: it comes from the address to which it has connected."""
    peer, own = (request.get_extra_info(name) for name in ("peername", "sockname"))
    if not peer or not own:
        return False
    return bool(ipaddress.ip_address(peer[0]).is_loopback or peer[0] == own[0])
