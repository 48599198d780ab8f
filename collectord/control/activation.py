# SPDX-License-Identifier: Apache-2.0
"""Sockets that the service manager listens on, and hands over at the start: sd_listen_fds(3).

Connections that come while the daemon starts or restarts wait in them.
"""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

from collectord.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_FIRST_FD: Final = 3
# The values of FileDescriptorName= in the socket units.
METRICS: Final = "metrics"
CONTROL: Final = "control"
_NAMES: Final = (METRICS, CONTROL)


@contextmanager
def inherited() -> Iterator[Mapping[str, tuple[socket.socket, ...]]]:
    """Yield the sockets that were handed over, by their names; they are closed at the end.

    The manager's variables are removed from the environment: they are not for children.

    Raises:
        ConfigError: one of them is no socket that accepts connections, or has another name.
    """
    pid, count, names = (
        os.environ.pop(name, "") for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")
    )
    if pid != str(os.getpid()) or not count.isdecimal():
        yield {}
        return
    found: dict[str, tuple[socket.socket, ...]] = {}
    with ExitStack() as stack:
        fds = range(_FIRST_FD, _FIRST_FD + int(count))
        for fd, name in zip(fds, _names(names, len(fds)), strict=True):
            one = stack.enter_context(_listening(fd, name))
            found[name] = (*found.get(name, ()), one)
        yield found


def _names(text: str, count: int) -> list[str]:
    """Return the names of so many sockets, "" for one without."""
    return [*text.split(":"), *[""] * count][:count]


def _listening(fd: int, name: str) -> socket.socket:
    if name not in _NAMES:
        raise ConfigError(
            f"the service manager hands over a socket of the unknown name {name!r}",
            hint=f"set FileDescriptorName= of its unit to one of {', '.join(_NAMES)}",
        )
    with ExitStack() as undo:
        try:
            made = undo.enter_context(socket.socket(fileno=fd))
            listens = made.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1
        except OSError:  # not even a socket
            listens = False
        if not listens:
            raise ConfigError(
                f"the {name} socket of the service manager accepts no connections",
                hint="its unit needs ListenStream= and Accept=no",
            )
        made.set_inheritable(False)
        undo.pop_all()
        return made
