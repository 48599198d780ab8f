# SPDX-License-Identifier: Apache-2.0
"""Stacks to be drawn or written, with a title, and others that they are compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from collectord.reader.symbols.frame import Frame


class Picture(NamedTuple):
    """Stacks for a viewer.

    Attributes:
        title: of them.
        unit: of the counts.
        stacks: from the outermost frame on.
        before: what they are compared with; None: nothing.
    """

    title: str
    unit: str
    stacks: Mapping[tuple[Frame, ...], int]
    before: Mapping[tuple[Frame, ...], int] | None = None

    @property
    def total(self) -> int:
        """The sum of the counts."""
        return sum(self.stacks.values())

    @property
    def total_before(self) -> int:
        """The sum of the counts that they are compared with."""
        return sum((self.before or {}).values())

    def sorted(self) -> list[tuple[tuple[Frame, ...], int]]:
        """Return the stacks by their frames."""
        return sorted(self.stacks.items())


class Frames:
    """Different frames by number, in the order in which they were first asked for."""

    def __init__(self) -> None:
        self._numbers: dict[Frame, int] = {}

    def number(self, frame: Frame) -> int:
        """Return the number of a frame."""
        return self._numbers.setdefault(frame, len(self._numbers))

    def __iter__(self) -> Iterator[Frame]:
        """Yield them in their order."""
        return iter(self._numbers)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._numbers)
