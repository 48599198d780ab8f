# SPDX-License-Identifier: Apache-2.0
"""The scrape endpoint: Prometheus text.

    GET /metrics                 on [metrics] listen

A scrape reads only counters that the daemon keeps anyway.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aiohttp import web
from prometheus_client import exposition

from collectord.control.listener import BODY_BYTES

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_INDEX: Final = "collectord: metrics are at /metrics\n"


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
