# SPDX-License-Identifier: Apache-2.0
"""The page on the metrics address, as a real browser shows it, and its figures."""

from __future__ import annotations

import asyncio
import base64
import os
import threading
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import pytest
from aiohttp import web

from collectord.control.metrics_app import metrics_app
from collectord.control.overview.figures import TimeLine, figures
from collectord.control.overview.overview_page import OverviewPage
from collectord.model import GapCause
from tests.support import balances
from tests.support.browser import Page, browser_page

if TYPE_CHECKING:
    from collections.abc import Iterator

    from collectord.session.daemon_status import DaemonStatus

MARKUP: Final = "<img src=x onerror=alert(1)>\x1b[31m"
SECOND_NS: Final = 1_000_000_000
CPUS: Final = 500


class Served:
    """A daemon's figures, which a test changes, behind the page on a port of this host."""

    def __init__(self, status: DaemonStatus) -> None:
        self.status = status
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        self._ended = asyncio.Event()
        app = metrics_app(lambda _: (b"", "text/plain"), OverviewPage(lambda: self.status))
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{port}"
        self._ready.set()
        await self._ended.wait()
        await runner.cleanup()

    @contextmanager
    def running(self) -> Iterator[Served]:
        """Serve during the block."""
        self._thread.start()
        try:
            assert self._ready.wait(60)
            yield self
        finally:
            self._loop.call_soon_threadsafe(self._ended.set)
            self._thread.join()
            self._loop.close()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """A page of one browser for all tests."""
    with browser_page(tmp_path_factory.mktemp("browser")) as page:
        yield page


@pytest.fixture
def page(browser: Page) -> Iterator[Page]:
    """It has had no problem in the end, and has fetched nothing but from its own address."""
    browser.requests.clear()
    yield browser
    assert browser.problems == []
    parts = {url.split("/", 3)[2] for url in browser.requests if not url.startswith("data:")}
    assert len(parts) == 1, browser.requests
    assert {url.rsplit("/", 1)[1] for url in browser.requests if not url.startswith("data:")} == {
        *("", "page.css", "page.js", "overview.json")
    }


def shown(page: Page, url: str) -> None:
    """Open the page, and wait until its figures are drawn."""
    page.visit(f"{url}/")
    page.value(
        "new Promise((done) => { const look = () => "
        "document.body.dataset.drawn ? done(1) : setTimeout(look, 20); look(); })"
    )


def text(page: Page, selector: str) -> str:
    """Return the text of an element."""
    found: str = page.value(f"document.querySelector({selector!r}).innerText")
    return found


def picture(page: Page, name: str) -> None:
    """Keep a picture of the page where somebody wants to look at it."""
    folder = os.environ.get("COLLECTORD_PICTURES")
    data = base64.b64decode(page.call("Page.captureScreenshot", format="png")["data"])
    assert data.startswith(b"\x89PNG")
    if folder:
        (Path(folder) / f"{name}.png").write_bytes(data)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_figures_are_shown(page: Page, scheme: str) -> None:
    """Sessions, their ledgers, windows, rings and segments, on a light and on a dark ground."""
    page.call(
        "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}]
    )
    with Served(balances.status()).running() as served:
        shown(page, served.url)
        rows = text(page, "#sessions tbody").splitlines()
        assert [row.split("\t")[0] for row in rows] == ["profile", "exec", "blackbox"]
        assert "kernel_ring/ring_full: 20" in rows[1]
        assert page.value("document.querySelectorAll('#rings .cell').length") == 6
        assert page.value("document.querySelectorAll('#rings .cell.lost').length") == 4
        assert text(page, "#windows").startswith("blackbox: 30.0 s")
        assert "20260101T000000Z-000001.perf.data" in text(page, "#segments")
        assert "/var/lib" not in text(page, "body")
        ground = page.value("getComputedStyle(document.body).backgroundColor")
        assert ground == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 26)"}[scheme]
        picture(page, f"overview-{scheme}")


def test_a_thousand_rings(page: Page) -> None:
    """Each ring of a large machine has its square, and the page is no wider than the window."""
    with Served(balances.status(*(balances.session(n, cpus=CPUS) for n in "ab"))).running() as on:
        shown(page, on.url)
        assert page.value("document.querySelectorAll('#rings .cell').length") == 2 * CPUS
        assert page.value("document.documentElement.scrollWidth <= innerWidth") is True
        picture(page, "overview-rings")


def test_markup_is_text(page: Page) -> None:
    """Names and reasons of the traced system run nothing, whatever they are."""
    bad = replace(
        balances.session(MARKUP), degraded_reasons=(MARKUP,), segments=(f"/x/{MARKUP}.data",)
    )
    with Served(balances.status(bad)).running() as served:
        shown(page, served.url)
        assert text(page, "#sessions tbody").startswith("<img src=x onerror=alert(1)>\\x1b[31m")
        assert "<img" in text(page, "#troubles")
        assert page.value("document.images.length") == 0


def test_the_page_follows_and_says_when_it_cannot(page: Page) -> None:
    """New figures come by themselves; when the daemon is gone, the page says that they are old."""
    served = Served(balances.status(balances.session("a")))
    with served.running():
        shown(page, served.url)
        served.status = balances.status(balances.session("b"))
        _until(page, "document.querySelector('#sessions tbody').innerText.startsWith('b')")
    _until(page, "document.querySelector('#problem').innerText.includes('figures are old')")
    # the browser's own lines about a fetch that failed, here and in the console
    page.problems.clear()


def _until(page: Page, condition: str) -> None:
    page.value(
        f"new Promise((done) => {{ const look = () => ({condition}) ? done(1) "
        ": setTimeout(look, 20); look(); })"
    )


def test_the_policy_is_strict() -> None:
    """Every answer of the page lets a browser load nothing from elsewhere, nor frame it."""

    async def policies() -> set[str]:
        with Served(balances.status()).running() as served:
            async with aiohttp.ClientSession(served.url) as client:
                answers = [
                    await client.get(p) for p in ("/", "/page.css", "/page.js", "/overview.json")
                ]
                assert {answer.status for answer in answers} == {200}
                post = await client.post("/overview.json")
                assert post.status == 405
                return {answer.headers["Content-Security-Policy"] for answer in answers}

    (policy,) = asyncio.run(policies())
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy


def test_a_point_for_each_scrape() -> None:
    """The time line has sums of losses and gaps, at most one point in two seconds, and a limit."""
    line = TimeLine()
    one = replace(balances.session("exec"), gaps_ns={GapCause.STOP: 5})
    line.add(balances.status(one), now_ns=10 * SECOND_NS)
    line.add(balances.status(one), now_ns=11 * SECOND_NS)
    (point,) = line.points
    assert point == {"time_ms": 10_000, "sessions": {"exec/perf": [20, 5]}}
    for number in range(1000):
        line.add(balances.status(one), now_ns=(20 + 2 * number) * SECOND_NS)
    assert len(line.points) == 360


def test_figures_have_no_paths() -> None:
    """Whoever reaches the port can read them: of segments they have the names alone."""
    told: dict[str, Any] = figures(balances.status(), TimeLine())
    assert "/" not in "".join(name for one in told["sessions"] for name in one["segments"])
