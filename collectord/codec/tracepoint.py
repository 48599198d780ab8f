# SPDX-License-Identifier: Apache-2.0
"""A tracepoint's name in its two parts, and patterns of such names."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import NamedTuple


class Tracepoint(NamedTuple):
    """A tracepoint `system:name`, either with shell wildcards where it is a pattern."""

    system: str
    name: str

    @classmethod
    def parse(cls, text: str) -> Tracepoint:
        """Read `system:name`; what has no colon is all system."""
        system, _, name = text.partition(":")
        return cls(system, name)

    def __str__(self) -> str:
        return f"{self.system}:{self.name}"

    @property
    def is_glob(self) -> bool:
        """Whether it may stand for several tracepoints."""
        return any(c in "*?[" for c in self.system + self.name)

    def matches(self, other: Tracepoint) -> bool:
        """Whether it is another tracepoint, or a pattern of it."""
        return fnmatchcase(other.system, self.system) and fnmatchcase(other.name, self.name)
