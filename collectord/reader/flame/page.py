# SPDX-License-Identifier: Apache-2.0
"""A flame graph as one HTML file: zoomed by a click, searched by a word or pattern.

Text of the traced system is data in it, never markup or script, and its policy lets nothing but
the script and the style that are part of it run or be loaded.
"""

from __future__ import annotations

import base64
import hashlib
import json
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from collectord.reader.flame import colour
from collectord.reader.flame.numbering import Numbering
from collectord.reader.flame.tree import boxes, tree_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from collectord.reader.flame.picture import Picture
    from collectord.reader.symbols.frame import Frame

_HERE: Final = Path(__file__).parent
# More than a browser draws well; the smallest are left out.
_BOXES_MAX: Final = 100_000


def draw(picture: Picture) -> Iterator[str]:
    """Yield the file, piece by piece."""
    script = (_HERE / "page.js").read_text()
    style = (_HERE / "page.css").read_text()
    policy = f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}"
    data = json.dumps(_data(picture), separators=(",", ":")).replace("<", "\\u003c")
    yield (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">\n'
        f"<title>{escape(picture.title)}</title>\n<style>{style}</style></head>\n<body>\n"
        f"<header><h1>{escape(picture.title)}</h1>\n"
        '<input id="search" type="search" placeholder="search: a word or pattern" '
        'aria-label="search"><button id="reset">whole</button><output id="found"></output>'
        '</header>\n<main id="scroll"><canvas id="graph"></canvas></main>\n'
        '<footer id="told"></footer>\n'
        f'<script id="data" type="application/json">{data}</script>\n'
        f"<script>{script}</script>\n</body></html>\n"
    )


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _data(picture: Picture) -> dict[str, Any]:
    shown = [*boxes(tree_of(picture.stacks, picture.before))]
    if len(shown) > _BOXES_MAX:
        least = sorted((box.value for box in shown), reverse=True)[_BOXES_MAX]
        shown = [box for box in shown if box.value > least]
    frames: Numbering[Frame] = Numbering()
    rows = [(frames.number(box.frame), *box[1:]) for box in shown]
    columns = [[*column] for column in zip(*rows, strict=True)] or [[], [], [], [], []]
    return {
        "unit": picture.unit,
        "total": picture.total,
        "before": None if picture.before is None else picture.total_before,
        "names": [frame.text for frame in frames],
        "modules": [frame.module for frame in frames],
        "colours": [colour.of_frame(frame) for frame in frames],
        "boxes": dict(zip(("frame", "depth", "start", "value", "before"), columns, strict=True)),
    }
