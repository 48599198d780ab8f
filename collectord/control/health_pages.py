# SPDX-License-Identifier: Apache-2.0
"""The pages that a supervisor or a load balancer asks, beside the metrics.

    GET /healthz                 200 while the event loop answers and all drain threads make passes
    GET /readyz                  200 while all planned sessions record

Otherwise they are 503, with the reason in a line. It has numbers and no names: whoever reaches the
port can read it.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

_UNAVAILABLE: Final = 503
# Each look makes the drain threads pass over their rings, and so write what is in them.
_KEPT_S: Final = 1.0


class HealthPages:
    """Answers both pages.

    Args:
        silent: looks for drain threads that make no passes, and returns their numbers.
        unready: returns why not everything is recorded, "" if it is.
    """

    def __init__(
        self, silent: Callable[[], Awaitable[Sequence[int]]], unready: Callable[[], str]
    ) -> None:
        self._silent = silent
        self._unready = unready
        self._found: Sequence[int] = ()
        self._until_s = 0.0  # the last finding is good
        self._looking = asyncio.Lock()

    def add_to(self, app: web.Application) -> None:
        """Add the routes of both pages."""
        app.router.add_get("/healthz", self._health)
        app.router.add_get("/readyz", self._readiness)

    async def _health(self, _request: web.Request) -> web.Response:
        silent = await self._look()
        numbers = ", ".join(map(str, silent))
        return _page(f"drain threads that make no passes: {numbers}" if silent else "")

    async def _readiness(self, _request: web.Request) -> web.Response:
        return _page(self._unready())

    async def _look(self) -> Sequence[int]:
        """Return what is found now, or was a moment ago: many clients cause no more passes."""
        async with self._looking:
            if time.monotonic() >= self._until_s:
                self._found = await self._silent()
                self._until_s = time.monotonic() + _KEPT_S
            return self._found


def _page(trouble: str) -> web.Response:
    if trouble:
        return web.Response(text=f"{trouble}\n", status=_UNAVAILABLE)
    return web.Response(text="ok\n")
