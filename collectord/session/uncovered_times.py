# SPDX-License-Identifier: Apache-2.0
"""The times in which a session lacked what it should have on a CPU, for manifests.

On a CPU that is offline nothing is produced; on one that is back nothing is recorded until it has
new rings. Which of both it was, and on which CPUs, is told in words.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Final

from collectord.text.foreign import plain

_TIMES_MAX: Final = 1000


@dataclass(slots=True)
class _Time:
    """A time, and what was lacking. Times are CLOCK_MONOTONIC, None is the end while it lasts."""

    lacks: str
    since_ns: int
    until_ns: int | None = None


class UncoveredTimes:
    """Notes the times in which one session lacks something; beyond a thousand the oldest go."""

    def __init__(self) -> None:
        self._times: deque[_Time] = deque(maxlen=_TIMES_MAX)

    def note(self, lacks: str) -> None:
        """Note what is lacking from now on, "" for nothing."""
        last = self._times[-1] if self._times else None
        if last is not None and last.until_ns is None:
            if last.lacks == lacks:
                return
            last.until_ns = time.monotonic_ns()
        if lacks:
            self._times.append(_Time(lacks, time.monotonic_ns()))

    def to_json(self, since_ns: int) -> list[dict[str, Any]]:
        """Return the times that did not end before then."""
        return [plain(t) for t in self._times if t.until_ns is None or t.until_ns > since_ns]
