# SPDX-License-Identifier: Apache-2.0
"""Stacks to be drawn or written, with a title, and others that they are compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

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
