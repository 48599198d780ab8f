# SPDX-License-Identifier: Apache-2.0
"""Windows of time, such as pauses, that a session remembers for its manifests."""

from __future__ import annotations

from collections import deque
from typing import Final, Generic, Protocol, TypeVar

_WINDOWS_MAX: Final = 1000


class Window(Protocol):
    """A time that ends with `until_ns` of CLOCK_MONOTONIC, None while it lasts."""

    until_ns: int | None


W = TypeVar("W", bound=Window)


class RecentWindows(Generic[W]):
    """Windows in the order in which they began; beyond a thousand the oldest are forgotten."""

    def __init__(self) -> None:
        self._windows: deque[W] = deque(maxlen=_WINDOWS_MAX)

    def add(self, window: W) -> None:
        """Remember a window."""
        self._windows.append(window)

    @property
    def last(self) -> W | None:
        """The one that began last; None without any."""
        return self._windows[-1] if self._windows else None

    def since(self, since_ns: int) -> list[W]:
        """Return the windows that did not end before a time."""
        return [w for w in self._windows if w.until_ns is None or w.until_ns > since_ns]
