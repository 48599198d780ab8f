# SPDX-License-Identifier: Apache-2.0
"""Notifications to the service manager: sd_notify(3). Outside of a service none are sent."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from sdnotify import SystemdNotifier

from collectord.text.units import NS_PER_US

if TYPE_CHECKING:
    from collections.abc import Iterator

_US_PER_SECOND: Final = 1_000_000
# For a manager whose queue is full. It needs READY; whatever else it misses comes again, or is not
# worth a wait of the event loop.
_READY_WAIT_S: Final = 10.0
_STOPPING_WAIT_S: Final = 1.0


class Service:
    """The service manager's notification socket, or none.

    Args:
        notifier: the socket.
        watchdog_s: the manager kills a service that gives no sign of life for so long; 0: never.
    """

    def __init__(
        self, notifier: SystemdNotifier | None = None, *, watchdog_s: float = 0.0
    ) -> None:
        self._notifier = notifier
        self._status = ""
        self.watchdog_s = watchdog_s

    def status(self, text: str) -> None:
        """Report the present state, if it has changed. `systemctl status` shows it."""
        if text != self._status:
            self._status = text
            self._send(f"STATUS={text}")

    def ready(self, status: str) -> None:
        """Report that all planned rings are open."""
        self._status = status
        self._send(f"READY=1\nSTATUS={status}", wait_s=_READY_WAIT_S)

    def reloading(self) -> None:
        """Report that a reload begins; `reloaded` follows."""
        now_us = time.monotonic_ns() // NS_PER_US
        self._send(f"RELOADING=1\nMONOTONIC_USEC={now_us}", wait_s=_STOPPING_WAIT_S)

    def reloaded(self) -> None:
        """Report to systemd that a reload is over, whatever its result."""
        self._send("READY=1", wait_s=_STOPPING_WAIT_S)

    def stopping(self, status: str) -> None:
        """Report that the final flush begins."""
        self._status = status
        self._send(f"STOPPING=1\nSTATUS={status}", wait_s=_STOPPING_WAIT_S)

    def alive(self) -> None:
        """Give the sign of life that the watchdog awaits."""
        self._send("WATCHDOG=1")

    def extend(self, seconds: float) -> None:
        """Ask for more time than the unit gives a start or a stop.

        Args:
            seconds: from now to the next request or notification of the kind.
        """
        self._send(f"EXTEND_TIMEOUT_USEC={int(seconds * _US_PER_SECOND)}")

    def _send(self, state: str, *, wait_s: float = 0.0) -> None:
        """Send a message, unless the manager does not read those before it in time."""
        if self._notifier is not None and self._notifier.socket is not None:
            self._notifier.socket.settimeout(wait_s)
            self._notifier.notify(state)  # type: ignore[no-untyped-call]  # no annotations


@contextmanager
def connect() -> Iterator[Service]:
    """Connect to the socket that NOTIFY_SOCKET names; it is closed at the end.

    The manager's variables are removed from the environment: children are not the service.
    """
    watchdog_s = _watchdog_s(
        os.environ.pop("WATCHDOG_USEC", ""), os.environ.pop("WATCHDOG_PID", "")
    )
    if not os.environ.get("NOTIFY_SOCKET"):
        yield Service()
        return
    notifier = SystemdNotifier()  # type: ignore[no-untyped-call]  # no annotations
    del os.environ["NOTIFY_SOCKET"]
    try:
        yield Service(notifier, watchdog_s=watchdog_s)
    finally:
        if notifier.socket is not None:
            notifier.socket.close()


def _watchdog_s(microseconds: str, pid: str) -> float:
    """Return the limit that the manager has set for this process, 0 for none."""
    if not microseconds.isdecimal() or pid not in {"", str(os.getpid())}:
        return 0.0
    return int(microseconds) / _US_PER_SECOND
