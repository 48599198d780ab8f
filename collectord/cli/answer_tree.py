# SPDX-License-Identifier: Apache-2.0
"""Stacks as a tree of text, the outermost frames first.

Frames that are always together are one line. What has a small share is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from collectord.cli.query_rows import shortened
from collectord.reader.flame.tree import tree_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from collectord.reader.flame.tree import Node
    from collectord.reader.symbols.frame import Frame

# Shares in percent: the first that leaves few enough lines is the least that is shown.
_LEAST: Final = (1, 2, 5, 10, 20, 50)
_LINES_MAX: Final = 60
_INDENT_MAX: Final = 16
_SHARE: Final = "share"
_SHARE_COLUMNS: Final = 6
_STACK: Final = "stack"
_GAP: Final = "  "
_JOINED: Final = ";"


def tree_lines(stacks: Mapping[tuple[Frame, ...], int], title: str, columns: int) -> list[str]:
    """Return the lines of a tree; without stacks there are none.

    Args:
        stacks: from the outermost frame on, each with its value.
        title: of the values.
        columns: that a line may have.
    """
    root = tree_of(stacks)
    if root.value <= 0:
        return []
    width = max(len(title), len(f"{root.value:,}"))
    room = columns - width - _SHARE_COLUMNS - 2 * len(_GAP)
    lines: list[str] = []
    for least in _LEAST:
        lines = [*_lines(root, root.value * least / 100, width, room)]
        if len(lines) <= _LINES_MAX:
            break
    cut = len(lines) - _LINES_MAX
    head = f"{title:>{width}}{_GAP}{_SHARE:>{_SHARE_COLUMNS}}{_GAP}{_STACK}"
    note = f"below {least}% and not shown" if cut <= 0 else f"{cut:,} lines are not shown"
    shown = [head, *lines[:_LINES_MAX]]
    is_whole = cut <= 0 and not _hides(root, root.value * least / 100)
    return (
        shown if is_whole else [*shown, f"{'...':>{width}}{_GAP}{'':{_SHARE_COLUMNS}}{_GAP}{note}"]
    )


def _lines(root: Node, least: float, width: int, room: int) -> Iterator[str]:
    """Yield the lines of all nodes of at least this value, siblings by their values."""
    waiting = [(frame, node, 0) for frame, node in reversed(_shown(root, least))]
    while waiting:
        frame, node, indent = waiting.pop()
        names = [frame.text]
        below = _shown(node, least)
        value = node.value
        while len(below) == 1 and node.value - below[0][1].value < least:
            frame, node = below[0]
            names.append(frame.text)
            below = _shown(node, least)
        first, *others = _wrapped(names, room - indent)
        share = f"{value / root.value:.1%}"
        yield f"{value:>{width},}{_GAP}{share:>{_SHARE_COLUMNS}}{_GAP}{'':{indent}}{first}"
        before = " " * (width + _SHARE_COLUMNS + 2 * len(_GAP) + indent)
        for line in others:
            yield f"{before}{line}"
        inner = min(indent + 1, _INDENT_MAX)
        waiting += [(frame, node, inner) for frame, node in reversed(below)]


def _shown(node: Node, least: float) -> list[tuple[Frame, Node]]:
    found = [(frame, child) for frame, child in node.children.items() if child.value >= least]
    return sorted(found, key=lambda one: (-one[1].value, one[0]))


def _hides(root: Node, least: float) -> bool:
    """Whether a node is too small to be shown."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if any(child.value < least for child in node.children.values()):
            return True
        waiting += node.children.values()
    return False


def _wrapped(names: list[str], room: int) -> Iterator[str]:
    """Yield names joined as in folded stacks, in lines that fit."""
    line = ""
    for number, name in enumerate(names, start=1):
        piece = shortened(name, room - 1) + (_JOINED if number < len(names) else "")
        if line and len(line) + len(piece) > room:
            yield line
            line = ""
        line += piece
    yield line
