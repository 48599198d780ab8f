# SPDX-License-Identifier: Apache-2.0
"""Numbers for what a file names often and writes once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")


class Numbering(Generic[T]):
    """Different values by number, in the order in which they were first asked for.

    Args:
        first: values that come before all others.
    """

    def __init__(self, *first: T) -> None:
        self._numbers = {value: at for at, value in enumerate(first)}

    def number(self, value: T) -> int:
        """Return the number of a value."""
        return self._numbers.setdefault(value, len(self._numbers))

    def __iter__(self) -> Iterator[T]:
        """Yield them in their order."""
        return iter(self._numbers)
