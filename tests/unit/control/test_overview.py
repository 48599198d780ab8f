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
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import aiohttp
import msgspec
import pytest
from aiohttp import web

from collectord.control.metrics_app import metrics_app
from collectord.control.overview.figures import TimeLine, figures
from collectord.control.overview.overview_page import OverviewPage, is_local
from collectord.errors import UsageError
from collectord.model import GapCause
from collectord.reader.flame.picture import Picture
from collectord.reader.flame.svg import draw
from collectord.reader.symbols.frame import Frame
from collectord.sink.incident_folder import AnswerNote, Kept
from collectord.text.foreign import visible
from tests.support import balances
from tests.support.commands import incident_note

if TYPE_CHECKING:
    from collections.abc import Iterator

    from collectord.session.daemon_status import DaemonStatus
    from collectord.sink.incident_folder import IncidentNote
    from tests.support.browser import Page

MARKUP: Final = "<img src=x onerror=alert(1)>\x1b[31m"
SECOND_NS: Final = 1_000_000_000
CPUS: Final = 500


class Stored:
    """Incidents, with their texts and pictures."""

    def __init__(self, *notes: IncidentNote, **files: bytes) -> None:
        self.kept = [Kept(note.id, 1, note) for note in notes]
        self._files = files

    async def file(self, name: str, file: str) -> bytes:
        """Return a file, as `Incidents.file` does."""
        found = self._files.get(file.replace(".", "_"))
        if found is None or name not in {one.id for one in self.kept}:
            raise UsageError(f"no {file} of {name}")
        return found


class Served:
    """A daemon's figures, which a test changes, behind the page on a port of this host."""

    def __init__(
        self, status: DaemonStatus, stored: Stored | None = None, shown: str = "local"
    ) -> None:
        self.status = status
        self._stored = stored or Stored()
        self._shown = shown
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        self._ended = asyncio.Event()
        app = metrics_app(lambda _: (b"", "text/plain"), self._page())
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{port}"
        self._ready.set()
        await self._ended.wait()
        await runner.cleanup()

    def _page(self) -> OverviewPage:
        return OverviewPage(lambda: self.status, self._stored, self._shown)

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


@pytest.fixture
def page(browser: Page) -> Iterator[Page]:
    """It has had no problem in the end, and has fetched nothing but from its own address."""
    # The page of another test asks no more; it may have asked when its server had ended.
    browser.visit("about:blank")
    browser.requests.clear()
    browser.problems.clear()
    yield browser
    assert browser.problems == []
    asked = [url.split("/", 3)[2:] for url in browser.requests if not url.startswith("data:")]
    assert len({host for host, _ in asked}) == 1, browser.requests
    assert {path for _, path in asked if not path.startswith("incidents/")} == {
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


NOTE: Final = msgspec.structs.replace(
    incident_note(name="20260102T030405Z-io-stall"),
    reason="tasks waited for io more than 1 s of 2 s",
    fired_ns=1_767_323_045_000_000_000,
    files=("blackbox/1.trace.dat", "blackbox/1.trace.dat.json"),
    answers=(AnswerNote(name="flame", file="answers/flame.txt"),),
)
LOAD: Final = Picture(
    "profile",
    "samples",
    {
        (Frame("dd"), Frame("main"), Frame(visible(f"{MARKUP} write"))): 30,
        (Frame("dd"), Frame("main"), Frame("read")): 12,
        (Frame("sh"), Frame("fork")): 8,
    },
)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_incidents_are_shown(page: Page, scheme: str) -> None:
    """Each opens at a click with its summary, its files and the flame graph; it stays open."""
    page.call(
        "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}]
    )
    drawn = "".join(draw(LOAD)).encode()
    older = msgspec.structs.replace(NOTE, id="20260102T020405Z-oom", reason=MARKUP, answers=())
    text_of = f"incident  {NOTE.id}\n{MARKUP}\n".encode()
    stored = Stored(older, NOTE, summary_txt=text_of, flame_svg=drawn)
    with Served(balances.status(), stored).running() as served:
        shown(page, served.url)
        assert page.value("document.querySelectorAll('#incidents details').length") == 2
        assert "tasks waited for io" in text(page, "#incidents details")
        assert not any("incidents/" in url for url in page.requests)
        page.value("document.querySelector('#incidents summary').click()")
        _until(page, "document.querySelector('#incidents img')?.naturalWidth > 0")
        _until(page, "document.querySelector('#incidents pre').innerText.includes('<img')")
        assert page.value("document.images.length") == 1
        assert "blackbox/1.trace.dat" in text(page, "#incidents details p")
        again = int(page.value("document.body.dataset.drawn")) + 1
        _until(page, f"document.body.dataset.drawn > {again}")
        assert page.value("document.querySelector('#incidents details').open") is True
        assert page.value("document.documentElement.scrollWidth <= innerWidth") is True
        page.value("document.querySelector('#stored').scrollIntoView()")
        picture(page, f"incidents-{scheme}")


@pytest.mark.parametrize(("who", "seen"), [("none", False), ("local", True), ("all", True)])
def test_who_sees_incidents(who: str, seen: bool) -> None:
    """By default clients of this host; nobody, or everybody, if the configuration says so."""

    async def answers() -> list[object]:
        stored = Stored(NOTE, summary_txt=b"x")
        with Served(balances.status(), stored, who).running() as served:
            async with aiohttp.ClientSession(served.url) as client:
                figures = await (await client.get("/overview.json")).json()
                summary = await client.get(f"/incidents/{NOTE.id}/summary")
                for other in ("summary", "incident.json", "flame.svg", "..%2Fsummary"):
                    absent = await client.get(f"/incidents/20260102T030405Z-other/{other}")
                    assert absent.status == 404
                policy = summary.headers["Content-Security-Policy"]
                assert "sandbox" in policy
                assert "default-src 'none'" in policy
                assert figures["kept_incidents"] == 1
                return [figures["incidents"] is not None, summary.status == 200]

    assert asyncio.run(answers()) == [seen, seen]


class Asked(NamedTuple):
    """Where a request comes from, and where it has arrived."""

    peer: str
    own: str

    def get_extra_info(self, name: str) -> tuple[str, int]:
        """Tell it as a connection does."""
        return {"peername": (self.peer, 1), "sockname": (self.own, 2)}[name]


@pytest.mark.parametrize(
    ("asked", "local"),
    [
        (Asked("127.0.0.1", "127.0.0.1"), True),
        (Asked("127.0.0.5", "127.0.0.1"), True),
        (Asked("::1", "::1"), True),
        (Asked("192.0.2.7", "192.0.2.7"), True),  # it has come from the address that it went to
        (Asked("192.0.2.8", "192.0.2.7"), False),
        (Asked("2001:db8::1", "2001:db8::2"), False),
    ],
)
def test_clients_of_this_host(asked: Asked, local: bool) -> None:
    """Those that come from an address of its own."""
    assert is_local(asked) is local


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
