# SPDX-License-Identifier: Apache-2.0
"""A limit of pressure: the kernel wakes the daemon once it is passed, else the daemon looks.

Facts: a descriptor of /proc/pressure reports POLLPRI, at most once in a window, and a poll takes
the report with it. The event loop asks for readability only, so an epoll instance of its own is
between the two: it is readable once the descriptor has something to report.
"""

from __future__ import annotations

import asyncio
import os
import select
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from collectord.daemon.incidents.trigger_watches import TriggerWatch
from collectord.errors import KernelError, MissingFeature
from collectord.text.units import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from collectord.config.pressure_limit import PressureLimit
    from collectord.kernel.port import Kernel

_REPORTS: Final = select.EPOLLPRI | select.EPOLLERR
_WHO: Final = {"some": "tasks", "full": "all tasks that could run"}


class StallWatch(TriggerWatch):
    """Watches a limit of pressure.

    Args:
        limit: the limit.
        kernel: watches it, or tells the time that tasks have waited.
        fired: called with the reason when the kernel says that it was passed.
        opener: socket of the opener, which may have more privileges; "" for none.
    """

    def __init__(
        self,
        limit: PressureLimit,
        kernel: Kernel,
        fired: Callable[[str], None],
        opener: str = "",
    ) -> None:
        self._limit = limit
        self._kernel = kernel
        self._fired = fired
        self._fd = -1
        self._epoll: select.epoll | None = None
        self._readings: deque[tuple[int, int]] = deque()  # monotonic, stalled
        try:
            self._arm(opener)
        except KernelError as error:
            self.trouble = f"looked at once per flush interval: {error}"

    def _arm(self, opener: str) -> None:
        """Have the kernel watch it, by the opener if it must. Raises KernelError."""
        try:
            self._fd = self._kernel.open_pressure(self._limit)
        except MissingFeature:
            raise
        except KernelError:
            if not opener:
                raise
            self._fd = self._kernel.kept_pressure(opener, self._limit)
        self._epoll = select.epoll()
        self._epoll.register(self._fd, _REPORTS)
        asyncio.get_running_loop().add_reader(self._epoll.fileno(), self._on_report)

    def _on_report(self) -> None:
        if self._epoll is None:
            return
        if any(events & select.EPOLLERR for _, events in self._epoll.poll(0)):
            self.close()
            self.trouble = "looked at once per flush interval: the kernel has stopped to watch it"
            return
        limit = self._limit
        self._fired(
            f"{_WHO[limit.share]} waited for {limit.resource} more than "
            f"{_seconds(limit.stall_ns)} of {_seconds(limit.window_ns)}"
        )

    def poll(self) -> str:
        """See `TriggerWatch`."""
        if self._epoll is not None:
            return ""
        limit, now_ns = self._limit, time.monotonic_ns()
        try:
            stalled_ns = self._kernel.stalled_ns(limit)
        except KernelError as error:
            self.trouble = str(error)
            return ""
        found = self._readings
        found.append((now_ns, stalled_ns))
        # One that is as old as the window stays, so that the time between covers it.
        while len(found) > 1 and found[1][0] <= now_ns - limit.window_ns:
            found.popleft()
        elapsed_ns = now_ns - found[0][0]
        waited_ns = stalled_ns - found[0][1]
        if elapsed_ns == 0 or waited_ns * limit.window_ns < limit.stall_ns * max(
            elapsed_ns, limit.window_ns
        ):
            return ""
        found.clear()
        return (
            f"{_WHO[limit.share]} waited for {limit.resource} {_seconds(waited_ns)} "
            f"of {_seconds(elapsed_ns)}"
        )

    def close(self) -> None:
        """See `TriggerWatch`."""
        if self._epoll is not None:
            asyncio.get_running_loop().remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._epoll = None
            os.close(self._fd)


def _seconds(duration_ns: int) -> str:
    return f"{duration_ns / NS_PER_SECOND:.3g} s"
