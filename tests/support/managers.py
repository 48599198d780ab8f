# SPDX-License-Identifier: Apache-2.0
"""A service manager's notification socket, and what a service has sent to it."""

from __future__ import annotations

import os
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING
from unittest import mock

from collectord.control import service

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_MESSAGE_BYTES = 4096


class Manager:
    """The manager's end.

    Args:
        bound: its socket.
    """

    def __init__(self, bound: socket.socket) -> None:
        self._bound = bound

    def told(self) -> list[str]:
        """Return the messages since the last call; a message is there once it is sent."""
        messages = []
        while True:
            try:
                messages.append(self._bound.recv(_MESSAGE_BYTES, socket.MSG_DONTWAIT).decode())
            except BlockingIOError:
                return messages


@contextmanager
def managed(folder: Path, **variables: str) -> Iterator[tuple[service.Service, Manager]]:
    """Yield a service and its manager.

    Args:
        folder: gets the manager's socket.
        variables: more of the manager's environment.
    """
    path = folder / "notify"
    with (
        mock.patch.dict(os.environ, {"NOTIFY_SOCKET": str(path), **variables}),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound,
    ):
        bound.bind(str(path))
        with service.connect() as told:
            yield told, Manager(bound)
