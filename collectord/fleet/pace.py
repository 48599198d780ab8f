# SPDX-License-Identifier: Apache-2.0
"""The pace of shipping: how much processor time and how many bytes it may take in a time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from collectord.text.units import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

# A share that was not used is kept for so long: a host that was idle for a day does not begin in
# haste.
_KEPT_S: Final = 10.0


class Pace:
    """Waits after each piece of work until the limits hold again.

    Args:
        cpu: the share of one processor, 0 for no limit.
        rate_bytes: bytes per second, 0 for no limit.
        wait: sleeps so many seconds, less if the work is to end.
        now_ns: reads CLOCK_MONOTONIC.
        used_ns: reads the processor time of this process.

    Attributes:
        waited_s: the time that it has waited.
    """

    def __init__(
        self,
        cpu: float,
        rate_bytes: int,
        wait: Callable[[float], object],
        now_ns: Callable[[], int] = time.monotonic_ns,
        used_ns: Callable[[], int] = time.process_time_ns,
    ) -> None:
        self._cpu = cpu
        self._rate_bytes = rate_bytes
        self._wait = wait
        self._now_ns = now_ns
        self._used_ns = used_ns
        self._at_ns = now_ns()
        self._at_used_ns = used_ns()
        # Seconds that the work so far takes at the limits, beyond those that have passed.
        self._behind_cpu_s = self._behind_bytes_s = 0.0
        self.waited_s = 0.0

    def keep(self, sent_bytes: int = 0) -> None:
        """Wait as long as the work since the last call has to last.

        Args:
            sent_bytes: what was sent since then.
        """
        now_ns, used_ns = self._now_ns(), self._used_ns()
        passed_s = (now_ns - self._at_ns) / NS_PER_SECOND
        used_s = (used_ns - self._at_used_ns) / NS_PER_SECOND
        self._at_ns, self._at_used_ns = now_ns, used_ns
        due_cpu_s = used_s / self._cpu if self._cpu else 0.0
        due_bytes_s = sent_bytes / self._rate_bytes if self._rate_bytes else 0.0
        self._behind_cpu_s = max(self._behind_cpu_s + due_cpu_s - passed_s, -_KEPT_S)
        self._behind_bytes_s = max(self._behind_bytes_s + due_bytes_s - passed_s, -_KEPT_S)
        wait_s = max(self._behind_cpu_s, self._behind_bytes_s)
        if wait_s > 0:
            self.waited_s += wait_s
            self._wait(wait_s)
