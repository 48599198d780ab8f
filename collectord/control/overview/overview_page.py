# SPDX-License-Identifier: Apache-2.0
"""The routes of the page.

    GET /                        the page; with page.css and page.js all that a browser loads
    GET /overview.json           its figures, which it asks for every two seconds

It can only read. Its policy lets a browser load nothing but these, from this address, and texts
of the traced system are data for the script, never markup.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from aiohttp import web

from collectord.control.overview.figures import TimeLine, figures
from collectord.text.foreign import encode_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from collectord.session.daemon_status import DaemonStatus

_HERE: Final = Path(__file__).parent
_FILES: Final = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class OverviewPage:
    """Answers the page and its figures.

    Args:
        status: returns the daemon's present status.
    """

    def __init__(self, status: Callable[[], DaemonStatus]) -> None:
        self._status = status
        self._line = TimeLine()

    def add_to(self, app: web.Application) -> None:
        """Add the routes."""
        for place in _FILES:
            app.router.add_get(place, self._file)
        app.router.add_get("/overview.json", self._figures)

    def status(self) -> DaemonStatus:
        """Return the present status, of which the time line gets a point, as of each scrape."""
        status = self._status()
        self._line.add(status)
        return status

    async def _file(self, request: web.Request) -> web.Response:
        name, kind = _FILES[request.path]
        return web.Response(
            text=(_HERE / name).read_text(), content_type=kind, charset="utf-8", headers=_HEADERS
        )

    async def _figures(self, _request: web.Request) -> web.Response:
        body = encode_json(figures(self.status(), self._line))
        return web.Response(body=body, content_type="application/json", headers=_HEADERS)
