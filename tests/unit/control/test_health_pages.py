# SPDX-License-Identifier: Apache-2.0
"""The pages of health: what they answer, and how often they trouble the drain threads."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import aiohttp
import pytest

from collectord.control import health_pages
from collectord.control.health_pages import HealthPages
from collectord.control.metrics_app import metrics_app
from tests.support.commands import pages, serve_tcp

if TYPE_CHECKING:
    from collections.abc import Sequence


async def answers(served: HealthPages, *paths: str) -> list[tuple[int, str]]:
    """Return status and text of requests that are made at the same time."""

    async def get(client: aiohttp.ClientSession, url: str) -> tuple[int, str]:
        async with client.get(url) as response:
            return response.status, await response.text()

    app = metrics_app(lambda _: (b"", "text/plain"), served)
    async with serve_tcp(app) as (host, port), aiohttp.ClientSession() as client:
        return await asyncio.gather(*(get(client, f"http://{host}:{port}{p}") for p in paths))


@pytest.mark.parametrize(
    ("served", "found"),
    [
        (((), ""), [(200, "ok\n"), (200, "ok\n")]),
        (((0, 2), ""), [(503, "drain threads that make no passes: 0, 2\n"), (200, "ok\n")]),
        (((), "1 of 3 sessions failed"), [(200, "ok\n"), (503, "1 of 3 sessions failed\n")]),
    ],
)
def test_a_page_is_503_with_the_reason(
    served: tuple[Sequence[int], str], found: list[tuple[int, str]]
) -> None:
    """A drain thread that hangs is no matter of readiness, and a failed session none of health."""
    silent, unready = served

    async def scenario() -> list[tuple[int, str]]:
        return await answers(pages(*silent, unready=unready), "/healthz", "/readyz")

    assert asyncio.run(scenario()) == found


def test_many_clients_cause_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that come while one looks wait for it, and those soon after get what it found."""
    looks: list[int] = []

    async def look() -> tuple[int, ...]:
        looks.append(len(looks))
        await asyncio.sleep(0)
        return ()

    async def scenario() -> None:
        served = HealthPages(look, lambda: "")
        await answers(served, "/healthz", "/healthz", "/healthz")
        assert looks == [0]
        await answers(served, "/healthz")
        assert looks == [0]

    monkeypatch.setattr(health_pages, "_KEPT_S", 3600.0)
    asyncio.run(scenario())


def test_an_old_finding_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that hangs after a good look is found by the next one."""
    silent: list[int] = []

    async def look() -> tuple[int, ...]:
        return tuple(silent)

    async def scenario() -> None:
        served = HealthPages(look, lambda: "")
        assert (await answers(served, "/healthz"))[0][0] == 200
        silent.append(1)
        assert (await answers(served, "/healthz"))[0][0] == 503

    monkeypatch.setattr(health_pages, "_KEPT_S", 0.0)
    asyncio.run(scenario())
