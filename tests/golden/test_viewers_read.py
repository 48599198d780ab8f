# SPDX-License-Identifier: Apache-2.0
"""Profiles that `flame` wrote, read by the importers of speedscope and of the Firefox Profiler."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final

import pytest

from collectord.cli import flame
from collectord.reader.flame import folded
from collectord.reader.flame.forms import form_of
from collectord.reader.flame.picture import Picture
from collectord.reader.symbols.frame import Frame
from collectord.text.foreign import visible
from tests.support.viewers import firefox_profiler, shown_by_speedscope

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.browser import Page

pytestmark = pytest.mark.slow

EVIL: Final = "</script><script>alert(1)</script>&\"'"
FUNCTIONS: Final = (
    Frame("main", "/bin/a"),
    Frame("main", "/lib/b.so"),  # of the same name elsewhere
    Frame("std::vector<int>::push(;)", "/bin/a"),
    Frame("größe \N{SNOWMAN}", "/opt/ä b/c"),
    Frame(EVIL, f"/{EVIL}"),
    Frame("vfs_read", "kernel", is_kernel=True),
    Frame("[b.so+0x10]", "/lib/b.so"),
    Frame("nowhere"),
)
THREADS: Final = tuple(Frame(name) for name in ("bash", "kworker/0:1", EVIL, "[unknown]"))


def made_up(unit: str, most: int) -> Picture:
    """Return a picture of some hundred stacks, with functions that call themselves."""
    chosen = random.Random(7)  # noqa: S311  # no secret
    stacks: Counter[tuple[Frame, ...]] = Counter()
    for _ in range(400):
        depth = chosen.choice((0, 1, 2, 3, 5, 30))
        stack = (chosen.choice(THREADS), *(chosen.choice(FUNCTIONS) for _ in range(depth)))
        stacks[stack] += chosen.randint(1, most)
    return Picture("made <b>up", unit, stacks)


PICTURES: Final = (made_up("samples", 9), made_up("ns", 40_000_000))
by_unit = pytest.mark.parametrize("picture", PICTURES, ids=lambda one: one.unit)


def written(picture: Picture, directory: Path, suffix: str) -> Path:
    """Write a picture as `flame -o` does, and return the file."""
    file = directory / f"profile{suffix}"
    file.write_text("".join(map(str, form_of(file.name).encode(picture))))
    return file


@by_unit
def test_speedscope_has_our_stacks(picture: Picture, browser: Page, tmp_path: Path) -> None:
    """Each stack with its functions, files and weight, and nothing else."""
    shown = shown_by_speedscope(browser, written(picture, tmp_path, ".speedscope.json"), tmp_path)
    assert browser.problems == []
    assert shown.unit == {"samples": "none", "ns": "nanoseconds"}[picture.unit]
    assert shown.stacks == {
        tuple((one.text, one.module) for one in stack): count
        for stack, count in picture.stacks.items()
    }


def test_speedscope_shows_our_totals(browser: Page, tmp_path: Path) -> None:
    """Each function has its own weight, and that with what it calls, once for each stack."""
    stacks = {  # of functions whose names tell them apart
        stack: count
        for stack, count in PICTURES[0].stacks.items()
        if stack[0].name != EVIL and not any(frame.name == "main" for frame in stack)
    }
    total: Counter[str] = Counter()
    own: Counter[str] = Counter()
    for stack, count in stacks.items():
        total.update(dict.fromkeys({one.text for one in stack}, count))
        own[stack[-1].text] += count
    picture = PICTURES[0]._replace(stacks=stacks)
    file = written(picture, tmp_path, ".speedscope.json")
    rows = shown_by_speedscope(browser, file, tmp_path).rows
    assert browser.problems == []
    assert {name: tuple(int(one.split()[0]) for one in told) for name, told in rows.items()} == {
        name: (total[name], own[name]) for name in total
    }


@by_unit
def test_the_firefox_profiler_has_our_stacks(picture: Picture, tmp_path: Path) -> None:
    """Its call trees have each function with its file, and its own weight, of times in ms."""
    scale = {"samples": 1.0, "ns": 1e-6}[picture.unit]
    expected: dict[str, dict[tuple[str, ...], object]] = defaultdict(dict)
    for (thread, *others), count in picture.stacks.items():
        functions = others or [thread]  # it has no stack without one
        names = (f"{one.module}!{one.name}" if one.module else one.name for one in functions)
        expected[thread.text][tuple(names)] = pytest.approx(count * scale)
    with firefox_profiler(written(picture, tmp_path, ".firefox.json"), tmp_path) as profiler:
        assert profiler.stacks() == expected


def test_folded_stacks_go_to_both_by_the_command(
    browser: Page, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`flame FILE.folded -o` writes what the viewers show as those same stacks."""
    lines = "shell;main;work 60\nshell;main;work;sort<int> 20\nidle;wait 10\n"
    stacks = tmp_path / "x.folded"
    stacks.write_text(lines)
    expected = {
        tuple(one.text for one in stack): count
        for stack, count in folded.parse(lines, "x", visible).items()
    }
    for suffix in (".speedscope.json", ".firefox.json"):
        assert flame.run([str(stacks), "-o", str(tmp_path / f"x{suffix}")]) == 0
    assert capsys.readouterr().err == ""
    shown = shown_by_speedscope(browser, tmp_path / "x.speedscope.json", tmp_path)
    assert {
        tuple(name for name, _ in stack): count for stack, count in shown.stacks.items()
    } == expected
    with firefox_profiler(tmp_path / "x.firefox.json", tmp_path) as profiler:
        assert {
            (thread, *functions): count
            for thread, found in profiler.stacks().items()
            for functions, count in found.items()
        } == expected
