# SPDX-License-Identifier: Apache-2.0
"""Stacks as a tree: what is beneath the same frames is one node."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from collectord.reader.symbols.frame import Frame


class Node:
    """A frame beneath some others.

    Attributes:
        value: how often it was there.
        before: how often it was there in what is compared with.
        children: the frames that it called.
    """

    __slots__ = ("before", "children", "value")

    def __init__(self) -> None:
        self.value = 0
        self.before = 0
        self.children: dict[Frame, Node] = {}


class Box(NamedTuple):
    """A node at its place.

    Attributes:
        frame: of it.
        depth: 0 of an outermost frame.
        start: how much is on the left of it.
        value: of it.
        before: of it.
    """

    frame: Frame
    depth: int
    start: int
    value: int
    before: int


def tree_of(
    stacks: Mapping[tuple[Frame, ...], int], before: Mapping[tuple[Frame, ...], int] | None = None
) -> Node:
    """Return the root of a tree, whose children are the outermost frames."""
    root = Node()
    for frames, count in stacks.items():
        for node in _path(root, frames):
            node.value += count
    for frames, count in (before or {}).items():
        for node in _path(root, frames):
            node.before += count
    return root


def _path(root: Node, frames: tuple[Frame, ...]) -> Iterator[Node]:
    node = root
    yield node
    for frame in frames:
        found = node.children.get(frame)
        if found is None:
            found = node.children[frame] = Node()
        node = found
        yield node


def boxes(root: Node, least: float = 0) -> Iterator[Box]:
    """Yield all nodes but the root, each behind the one beneath it, siblings by their names.

    Args:
        root: of the tree.
        least: nodes of a smaller value are left out, with all that is above them.
    """
    waiting = [(frame, node, 0, start) for frame, node, start in _placed(root, 0)]
    waiting.reverse()
    while waiting:
        frame, node, depth, start = waiting.pop()
        if node.value < least or not node.value:
            continue
        yield Box(frame, depth, start, node.value, node.before)
        above = [(one, child, depth + 1, at) for one, child, at in _placed(node, start)]
        above.reverse()
        waiting += above


def _placed(node: Node, start: int) -> Iterator[tuple[Frame, Node, int]]:
    for frame, child in sorted(node.children.items(), key=lambda item: item[0]):
        yield frame, child, start
        start += child.value
