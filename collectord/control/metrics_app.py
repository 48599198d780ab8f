# SPDX-License-Identifier: Apache-2.0
"""The application on the address of the metrics: Prometheus text, and the pages of `health_pages`.

    GET /metrics                 on [metrics] listen

A scrape reads only counters that the daemon keeps anyway.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aiohttp import web

from collectord.control.listener import BODY_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from collectord.control.health_pages import HealthPages

    # Returns the text of a scrape and its content type, by what the client accepts.
    Scrape = Callable[[str], tuple[bytes, str]]

_INDEX: Final = "collectord: metrics are at /metrics, health is at /healthz and /readyz\n"


def metrics_app(scrape: Scrape, health: HealthPages) -> web.Application:
    """Return the application."""

    async def metrics(request: web.Request) -> web.Response:
        body, kind = scrape(request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": kind})

    async def index(_request: web.Request) -> web.Response:
        return web.Response(text=_INDEX)

    app = web.Application(client_max_size=BODY_BYTES)
    app.router.add_get("/", index)
    app.router.add_get("/metrics", metrics)
    health.add_to(app)
    return app
