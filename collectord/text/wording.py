# SPDX-License-Identifier: Apache-2.0
"""Numbers and lists of names in messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection


def counted(count: int, noun: str) -> str:
    """Return "1 host", "2,000 hosts" and so on: a number with its noun."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def were(count: int) -> str:
    """Return "was" of 1, "were" of other numbers."""
    return "was" if count == 1 else "were"


def some_of(names: Collection[str], most: int) -> str:
    """Return the first names, and of many how many more there are."""
    first = [*names][:most]
    more = len(names) - len(first)
    return ", ".join(first) + (f" and {more:,} more" if more else "")
