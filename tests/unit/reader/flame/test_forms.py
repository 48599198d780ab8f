# SPDX-License-Identifier: Apache-2.0
"""Stacks in the forms of viewers."""

from __future__ import annotations

import gzip
import json
import re
import xml.etree.ElementTree as ET
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import pytest

from collectord.errors import UsageError
from collectord.reader.flame import folded
from collectord.reader.flame.forms import FORMS, form_of
from collectord.reader.flame.picture import Picture
from collectord.reader.flame.tree import boxes, tree_of
from collectord.reader.symbols.frame import Frame
from collectord.text.foreign import visible

if TYPE_CHECKING:
    from collections.abc import Mapping

EVIL: Final = "</script><script>alert(1)</script>&\"'"
MAIN: Final = Frame("main", "/bin/a")
WORK: Final = Frame("work;er", "/bin/a")
READ: Final = Frame("vfs_read", "kernel", is_kernel=True)
COMM: Final = Frame(EVIL)
STACKS: Final[Mapping[tuple[Frame, ...], int]] = {
    (COMM, MAIN): 1,
    (COMM, MAIN, WORK): 5,
    (COMM, MAIN, WORK, READ): 4,
    (Frame("other"), Frame("[lib.so+0x10]", "/lib.so")): 10,
}
PICTURE: Final = Picture("title <b>", "samples", STACKS)


def _text(picture: Picture, suffix: str) -> str:
    return "".join(map(str, form_of(f"x{suffix}").encode(picture)))


def test_folded_stacks_are_read_as_they_were_written() -> None:
    """A semicolon in a name is none between frames, and the kernel's frames have their mark."""
    lines = [*folded.lines(PICTURE)]
    assert f"{EVIL.replace(';', ':')};main;work:er;vfs_read_[k] 4" in lines
    again = folded.parse("\n".join(lines), "x", visible)
    assert [*folded.lines(PICTURE._replace(stacks=again))] == lines
    assert sum(again.values()) == 20
    spaced = folded.parse("a b;c\x1b d 3\n\n", "x", visible)
    assert spaced == {(Frame("a b"), Frame("c\\x1b d")): 3}
    for wrong in ("a;b", "12", "a;b -3", "a " + "9" * 30):
        with pytest.raises(UsageError, match="line 1"):
            folded.parse(wrong, "x", visible)


def test_a_tree_has_a_frame_once_beneath_the_same_others() -> None:
    """Each at its place: above its caller, beside those before it."""
    found = [(box.frame.name, *box[1:4]) for box in boxes(tree_of(STACKS))]
    assert found == [
        (EVIL, 0, 0, 10),
        ("main", 1, 0, 10),
        ("work;er", 2, 0, 9),
        ("vfs_read", 3, 0, 4),
        ("other", 0, 10, 10),
        ("[lib.so+0x10]", 1, 10, 10),
    ]
    assert len([*boxes(tree_of(STACKS), least=9)]) == 5


def test_an_svg_is_sound_and_has_no_markup_of_others() -> None:
    """Widths are shares of the whole; titles tell everything."""
    root = ET.fromstring(_text(PICTURE, ".svg"))  # noqa: S314  # made here
    space = {"s": "http://www.w3.org/2000/svg"}
    groups = root.findall("s:g", space)
    told = {group.findtext("s:title", "", space): group for group in groups}
    work = told["work:er: 9 samples, 45.00% (/bin/a)"].find("s:rect", space)
    assert work is not None
    assert float(work.get("width", "")) == pytest.approx(1180 * 9 / 20, abs=0.1)
    assert any(title.startswith(EVIL.replace(";", ":")) for title in told)
    assert not root.findall(".//s:script", space)


def test_a_page_has_no_markup_of_others_and_loads_nothing() -> None:
    """Its data are JSON within a script that is none; its policy names its own script by hash."""
    page = _text(PICTURE, ".html")
    assert EVIL not in page
    assert page.count("</script>") == 2
    assert "<title>title &lt;b&gt;</title>" in page
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy
    assert policy[1].startswith("default-src &#x27;none&#x27;; script-src &#x27;sha256-")
    assert not re.search(r"(?:src|href)=|https?://", page)
    data = re.search(r'type="application/json">(.*?)</script>', page, re.DOTALL)
    assert data
    told = json.loads(data[1])
    shown = told["boxes"]
    found = [told["names"][frame] for frame in shown["frame"]]
    assert dict(zip(found, shown["value"], strict=True))["work:er"] == 9
    assert told["total"] == 20


def test_a_comparison_has_both_counts() -> None:
    """Shares are compared: a frame is red if it has more of the whole than before."""
    before = {(COMM, MAIN): 1, (COMM, MAIN, WORK): 9, (Frame("gone"),): 10}
    picture = PICTURE._replace(before=before)
    assert "gone 10 0" in [*folded.lines(picture)]
    svg = _text(picture, ".svg")
    assert "work:er: 9 samples, 45.00%, before 45.00%" in svg
    assert re.search(r"other: 10 samples, 50.00%, before 0.00%.*?fill=\"hsl\(5,80%,55%\)", svg)
    assert re.search(r"work:er: 9.*?fill=\"hsl\(0,0%,88%\)", svg)
    page = _text(picture, ".html")
    assert '"before":20' in page


def test_speedscope_has_each_frame_once() -> None:
    """Samples name frames by number, the outermost first."""
    told = json.loads(_text(PICTURE, ".speedscope.json"))
    frames, (profile,) = told["shared"]["frames"], told["profiles"]
    stacks = {
        tuple(frames[at]["name"] for at in sample): weight
        for sample, weight in zip(profile["samples"], profile["weights"], strict=True)
    }
    assert stacks == {tuple(one.text for one in stack): n for stack, n in STACKS.items()}
    assert (profile["endValue"], profile["type"]) == (20, "sampled")
    assert len(frames) == 6


def _message(data: bytes) -> dict[int, list[Any]]:
    """Decode a message of protocol buffers: numbers, and bytes of what has a length."""
    found: dict[int, list[Any]] = {}
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            value |= (data[at] & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if not data[at - 1] & 0x80:
                return value

    while at < len(data):
        key = number()
        value: Any = number()
        if key & 7 == 2:
            at += value
            value = data[at - value : at]
        found.setdefault(key >> 3, []).append(value)
    return found


def _numbers(data: bytes) -> list[int]:
    found, value, shift = [], 0, 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            found.append(value)
            value = shift = 0
    return found


def test_pprof_has_the_stacks_from_the_innermost_on() -> None:
    """Decoded by its proto: locations of functions, with the files as mappings."""
    (data,) = form_of("x.pprof").encode(PICTURE._replace(stacks={**STACKS, (MAIN,): 300}))
    assert isinstance(data, bytes)
    profile = _message(gzip.decompress(data))
    strings = [one.decode() for one in profile[6]]
    assert strings[0] == ""
    functions = {one[1][0]: strings[one[2][0]] for one in map(_message, profile[5])}
    files = {one[1][0]: strings[one.get(5, [0])[0]] for one in map(_message, profile[3])}
    places = {}
    for one in map(_message, profile[4]):
        line = _message(one[4][0])
        places[one[1][0]] = functions[line[1][0]], files[one[2][0]]
    found: Counter[tuple[str, ...]] = Counter()
    for one in map(_message, profile[2]):
        stack = tuple(places[at][0] for at in reversed(_numbers(one[1][0])))
        found[stack] += _numbers(one[2][0])[0]
    told = {tuple(one.text for one in stack): n for stack, n in STACKS.items()}
    assert found == {**told, ("main",): 300}
    assert ("vfs_read_[k]", "kernel") in places.values()
    kind = _message(profile[1][0])
    assert [strings[kind[at][0]] for at in (1, 2)] == ["samples", "count"]


def test_the_firefox_profiler_has_a_thread_for_each_outermost_frame() -> None:
    """Its tables name each other by number, and all columns of a table are as long."""
    told = json.loads(_text(PICTURE, ".firefox.json"))
    found = {}
    for thread in told["threads"]:
        for table in [one for one in thread.values() if isinstance(one, dict)]:
            columns = [column for column in table.values() if isinstance(column, list)]
            assert {len(column) for column in columns} <= {table["length"]}
        stacks, frames = thread["stackTable"], thread["frameTable"]
        functions, strings = thread["funcTable"], thread["stringArray"]
        samples = thread["samples"]
        for innermost, weight in zip(samples["stack"], samples["weight"], strict=True):
            names: list[str] = []
            at = innermost
            while at is not None:
                function = frames["func"][stacks["frame"][at]]
                names.insert(0, strings[functions["name"][function]])
                at = stacks["prefix"][at]
            found[thread["name"], *names] = weight
    assert found == {
        (stack[0].text, *(one.name for one in stack[1:])): n for stack, n in STACKS.items()
    }


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.suffix)
def test_no_stacks_are_a_sound_file(form: Any) -> None:  # noqa: ANN401  # of any form
    """A window may have none."""
    pieces = [*form.encode(Picture("nothing", "samples", {}))]
    assert all(isinstance(piece, str | bytes) for piece in pieces)


def test_a_name_must_say_the_form() -> None:
    """All are named."""
    with pytest.raises(UsageError, match=r"\.svg"):
        form_of("x.png")
