# SPDX-License-Identifier: Apache-2.0
"""A flame graph as one SVG file without script: names appear where the pointer is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from xml.sax.saxutils import escape

from collectord.reader.flame import colour
from collectord.reader.flame.tree import boxes, tree_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from collectord.reader.flame.picture import Picture
    from collectord.reader.flame.tree import Box

_WIDTH: Final = 1200
_SIDE: Final = 10
_ROW: Final = 16
_HEAD: Final = 34
_FOOT: Final = 22
_LETTER: Final = 7.0
_LEAST_PIXELS: Final = 0.1
_STYLE: Final = (
    "text{font:12px monospace;fill:#000}.t{font:bold 15px sans-serif;text-anchor:middle}"
    "g:hover>rect{stroke:#000;stroke-width:.7}"
)


def draw(picture: Picture) -> Iterator[str]:
    """Yield the file, piece by piece."""
    total = picture.total
    scale = (_WIDTH - 2 * _SIDE) / max(total, 1)
    root = tree_of(picture.stacks, picture.before)
    shown = [*boxes(root, _LEAST_PIXELS / scale)]
    rows = max((box.depth for box in shown), default=-1) + 2
    height = _HEAD + rows * _ROW + _FOOT
    yield (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}">\n<style>{_STYLE}</style>\n'
        f'<rect width="100%" height="100%" fill="#fff"/>\n'
        f'<text class="t" x="{_WIDTH / 2:g}" y="22">{escape(picture.title)}</text>\n'
    )
    bottom = height - _FOOT - _ROW
    whole = f"all: {total:,} {picture.unit}"
    yield (
        f'<g><title>{escape(whole)}</title><rect x="{_SIDE}" y="{bottom}" '
        f'width="{_WIDTH - 2 * _SIDE}" height="{_ROW - 1}" fill="#ddd"/>'
        f'<text x="{_SIDE + 3}" y="{bottom + 12}">{escape(whole)}</text></g>\n'
    )
    for box in shown:
        yield _drawn(box, picture, scale, bottom - _ROW * (box.depth + 1))
    note = f"frames narrower than {_LEAST_PIXELS:g} pixels are left out"
    yield f'<text x="{_SIDE}" y="{height - 7}">{note}</text>\n</svg>\n'


def _drawn(box: Box, picture: Picture, scale: float, top: int) -> str:
    share = box.value / max(picture.total, 1)
    told = f"{box.frame.text}: {box.value:,} {picture.unit}, {share:.2%}"
    fill = colour.of_frame(box.frame)
    if picture.before is not None:
        before = box.before / max(picture.total_before, 1)
        told += f", before {before:.2%}"
        fill = colour.of_difference(share, before)
    if box.frame.module:
        told += f" ({box.frame.module})"
    left, width = _SIDE + box.start * scale, box.value * scale
    letters = int((width - 4) / _LETTER)
    name = (
        box.frame.name if len(box.frame.name) <= letters else box.frame.name[: letters - 2] + ".."
    )
    text = f'<text x="{left + 2:.1f}" y="{top + 12}">{escape(name)}</text>' if letters > 2 else ""  # noqa: PLR2004
    return (
        f'<g><title>{escape(told)}</title><rect x="{left:.1f}" y="{top}" width="{width:.1f}" '
        f'height="{_ROW - 1}" fill="{fill}"/>{text}</g>\n'
    )
