# SPDX-License-Identifier: Apache-2.0
"""The flame graph of `collectord flame` as a real browser shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

from collectord.cli import flame

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.browser import Page

COMM: Final = "</script><img src=x onerror=alert(1)>"
STACKS: Final = f"""\
shell;main;work;spin 60
shell;main;work;sort<int> 20
shell;main;idle 10
{COMM};"&<b>bold</b> 10
"""
MARKED: Final = (224, 96, 224)  # what a search has found
STEP: Final = 20  # pixels


class Shown(NamedTuple):
    """A frame in the page: from the left to the right in pixels, its middle, and its colour."""

    left: float
    right: float
    y: float
    colour: tuple[int, int, int]


@pytest.fixture
def page(browser: Page, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Page]:
    """The flame graph of the stacks; at the end too it has had no problem and fetched nothing."""
    stacks = tmp_path / "<img src=y onerror=alert(2)>.folded"
    stacks.write_text(STACKS)
    graph = tmp_path / "graph.html"
    assert flame.run([str(stacks), "-o", str(graph)]) == 0
    assert capsys.readouterr().err == ""
    browser.requests.clear()
    browser.open(graph)
    yield browser
    assert browser.problems == []
    assert browser.requests == [graph.as_uri()]


# The page's words on each place that the pointer comes to: {text, x, y, its colour}.
SCAN: Final = f"""(() => {{
  const canvas = document.querySelector("canvas"), place = canvas.getBoundingClientRect();
  const dots = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  const told = [];
  for (let y = 9; y < place.height; y += 18)
    for (let x = {STEP} / 2; x < place.width; x += {STEP}) {{
      const where = {{clientX: place.x + x, clientY: place.y + y, bubbles: true}};
      canvas.dispatchEvent(new MouseEvent("mousemove", where));
      const at = 4 * ((y - 7) * canvas.width + x);
      const text = document.querySelector("footer").textContent;
      told.push([text, where.clientX, where.clientY, [...dots.slice(at, at + 3)]]);
    }}
  return told;
}})()"""


def _shown(page: Page) -> dict[str, Shown]:
    """Return the frames that the pointer finds, by what the page says of them."""
    found: dict[str, Shown] = {}
    for told, x, y, colour in page.value(SCAN):
        if told:
            before = found.get(told, Shown(x, x, y, tuple(colour)))
            assert (before.y, before.colour) == (y, tuple(colour))
            found[told] = before._replace(right=x)
    return found


def test_all_frames_are_there_with_their_counts_and_shares(page: Page) -> None:
    """Each above the one that called it, as wide as its share; names with markup are text."""
    shown = _shown(page)
    assert {*shown} == {
        "all: 100 samples",
        "shell: 90 samples, 90.00%",
        "main: 90 samples, 90.00%",
        "work: 80 samples, 80.00%",
        "spin: 60 samples, 60.00%",
        "sort<int>: 20 samples, 20.00%",
        "idle: 10 samples, 10.00%",
        f"{COMM}: 10 samples, 10.00%",
        '"&<b>bold</b>: 10 samples, 10.00%',
    }
    whole, spin = shown["all: 100 samples"], shown["spin: 60 samples, 60.00%"]
    wide = (spin.right - spin.left) / (whole.right - whole.left)
    assert wide == pytest.approx(0.6, abs=0.05)
    rows = sorted({one.y for one in shown.values()}, reverse=True)
    assert [rows.index(shown[told].y) for told in shown if told.startswith(("main", "spin"))] == [
        4, 2]  # fmt: skip
    assert page.value("document.querySelectorAll('img, b, main script').length") == 0
    assert "<img src=y onerror=alert(2)>" in page.value("document.querySelector('h1').textContent")
    assert "<img src=y onerror=alert(2)>" in page.value("document.title")


def test_a_search_marks_what_it_finds_and_says_its_share(page: Page) -> None:
    """By a word or a pattern, in any case; Esc ends it."""
    before = _shown(page)
    page.click_on("input")
    page.type("SPIN|idle")
    assert page.value("document.querySelector('output').textContent") == "70.00% matches"
    marked = {told for told, one in _shown(page).items() if one.colour == MARKED}
    assert marked == {"spin: 60 samples, 60.00%", "idle: 10 samples, 10.00%"}
    page.press("Escape")
    assert page.value("document.querySelector('input').value") == ""
    assert _shown(page) == before
    page.click_on("input")
    page.type("main|work")  # of which one is a part of the other
    assert page.value("document.querySelector('output').textContent") == "90.00% matches"
    page.press("Escape")
    page.type("sort<(")  # no pattern, and so a text
    assert page.value("document.querySelector('output').textContent") == "0.00% matches"


def test_a_click_shows_a_frame_as_wide_as_the_page(page: Page) -> None:
    """With what it called above it and its callers below, and nothing beside it; and back."""
    before = _shown(page)
    work = before["work: 80 samples, 80.00%"]
    page.move(work.left, work.y)
    assert page.value("document.querySelector('footer').textContent") == "work: 80 samples, 80.00%"
    page.click(work.left, work.y)
    zoomed = _shown(page)
    whole = before["all: 100 samples"]
    for told in ("work: 80 samples, 80.00%", "main: 90 samples, 90.00%", "all: 100 samples"):
        assert (zoomed[told].left, zoomed[told].right) == (whole.left, whole.right)
    spin = zoomed["spin: 60 samples, 60.00%"]
    wide = (spin.right - spin.left) / (whole.right - whole.left)
    assert wide == pytest.approx(0.75, abs=0.05)
    assert "idle: 10 samples, 10.00%" not in zoomed
    page.click_on("button")
    assert _shown(page) == before
    page.click(work.left, work.y)
    assert _shown(page) == zoomed
    page.press("Escape")
    assert _shown(page) == before


def test_nothing_may_be_loaded(page: Page) -> None:
    """The page's own policy refuses it, whatever came to be in the page."""
    refused = page.value("""new Promise((done) => {
      document.addEventListener("securitypolicyviolation", (event) => done(event.blockedURI));
      document.body.append(Object.assign(new Image(), {src: "http://127.0.0.1:9/x.png"}));
    })""")
    assert refused == "http://127.0.0.1:9/x.png"
    assert page.value("1") == 1  # behind what the browser says of it
    assert "Content Security Policy" in page.problems.pop()
    page.requests[1:] = []
