# SPDX-License-Identifier: Apache-2.0
"""Notifications to the service manager: sd_notify(3). Outside of a service none are sent."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sdnotify import SystemdNotifier

if TYPE_CHECKING:
    from collections.abc import Iterator


class Service:
    """The service manager's notification socket, or none."""

    def __init__(self, notifier: SystemdNotifier | None) -> None:
        self._notifier = notifier

    def ready(self, status: str) -> None:
        """Report that all planned rings are open. `systemctl status` shows `status`."""
        self._send(f"READY=1\nSTATUS={status}")

    def stopping(self, status: str) -> None:
        """Report that the final flush begins."""
        self._send(f"STOPPING=1\nSTATUS={status}")

    def _send(self, state: str) -> None:
        if self._notifier is not None:
            self._notifier.notify(state)  # type: ignore[no-untyped-call]  # no annotations


@contextmanager
def connect() -> Iterator[Service]:
    """Connect to the socket that NOTIFY_SOCKET names; it is closed at the end."""
    if not os.environ.get("NOTIFY_SOCKET"):
        yield Service(None)
        return
    notifier = SystemdNotifier()  # type: ignore[no-untyped-call]  # no annotations
    try:
        yield Service(notifier)
    finally:
        if notifier.socket is not None:
            notifier.socket.close()
