# SPDX-License-Identifier: Apache-2.0
"""The application on the metrics address: Prometheus text, health, and a page for a browser.

    GET /metrics                 on [metrics] listen

A scrape reads only counters that the daemon keeps anyway.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from aiohttp import web

from collectord.control.listener import BODY_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    # Returns the text of a scrape and its content type, by what the client accepts.
    Scrape = Callable[[str], tuple[bytes, str]]


class Pages(Protocol):
    """Pages beside the metrics."""

    def add_to(self, app: web.Application) -> None:
        """Add their routes."""


def metrics_app(scrape: Scrape, *pages: Pages) -> web.Application:
    """Return the application."""

    async def metrics(request: web.Request) -> web.Response:
        body, kind = scrape(request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": kind})

    app = web.Application(client_max_size=BODY_BYTES)
    app.router.add_get("/metrics", metrics)
    for one in pages:
        one.add_to(app)
    return app
