# SPDX-License-Identifier: Apache-2.0
"""The application for Alertmanager's webhook, behind a listener that asks for certificates.

    POST /v1/alerts              a notification, version 4: a trigger may make an incident of it

The answer is there at once, and names each alert with what becomes of it. It is one of success
whatever that is, as Alertmanager repeats what fails: while the daemon ends, and nothing else, is
worth a repetition.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
import structlog
from aiohttp import web

from collectord.control.listener import REQUEST_S
from collectord.errors import CollectordError
from collectord.sink.alert import Alert  # noqa: TC001 - msgspec reads annotations
from collectord.text.foreign import decode_json, encode_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    # Makes incidents of alerts; returns what becomes of each, by its fingerprint.
    Alerted = Callable[[Sequence[Alert]], Mapping[str, str]]

_LOG: Final = structlog.get_logger()
# A group of a thousand alerts of a kilobyte each.
_BODY_BYTES: Final = 1 << 20
_ALERTS_MAX: Final = 1000
_BAD_REQUEST: Final = 400
_TOO_LARGE: Final = 413
_UNAVAILABLE: Final = 503


class Notification(msgspec.Struct, frozen=True):
    """The body of a request, as far as it matters; other keys are left alone."""

    version: Literal["4"]
    alerts: Annotated[tuple[Alert, ...], msgspec.Meta(max_length=_ALERTS_MAX)]


def alerts_app(alerted: Alerted) -> web.Application:
    """Return the application.

    Args:
        alerted: takes the alerts of a notification. Raises CollectordError.
    """

    async def take(request: web.Request) -> web.Response:
        try:
            async with asyncio.timeout(REQUEST_S):
                told = decode_json(await request.read(), Notification)
        except web.HTTPRequestEntityTooLarge:
            return _refused(request, f"more than {_BODY_BYTES} bytes", _TOO_LARGE)
        except TimeoutError:
            return _refused(request, f"it did not end within {REQUEST_S:.0f} s")
        except (msgspec.DecodeError, web.RequestPayloadError, ConnectionError) as error:
            return _refused(request, f"not a notification of version 4: {error}")
        try:
            results = alerted(told.alerts)
        except CollectordError as error:
            return _answer({"error": str(error)}, status=_UNAVAILABLE)
        found = [{"fingerprint": one, "result": result} for one, result in results.items()]
        return _answer({"alerts": found})

    app = web.Application(client_max_size=_BODY_BYTES)
    app.router.add_post("/v1/alerts", take)
    return app


def _refused(request: web.Request, reason: str, status: int = _BAD_REQUEST) -> web.Response:
    _LOG.warning("alerts_refused", reason=reason, limit_by=str(request.remote))
    return _answer({"error": reason}, status=status)


def _answer(value: dict[str, Any], *, status: int = 200) -> web.Response:
    return web.Response(body=encode_json(value), status=status, content_type="application/json")
