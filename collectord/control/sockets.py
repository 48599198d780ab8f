# SPDX-License-Identifier: Apache-2.0
"""The listening sockets of the servers, claimed before anything else is opened.

A socket that the service manager has handed over is taken as it is, if it is the configured one:
its place and its permissions are the manager's.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from collectord.config.listen_address import ListenAddress
from collectord.config.schema import ControlConfig
from collectord.errors import ConfigError, KernelError
from collectord.folders.trust import Trust
from collectord.folders.walk import open_folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from collectord.folders.folder import Folder

# The directory of the unit and of tmpfiles.d: the only one that is created if it is missing.
RUN_DIRECTORY: Final = Path(ControlConfig().socket).parent
# The owner and the socket's group may control the daemon.
SOCKET_UMASK: Final = 0o117


class Served(NamedTuple):
    """The service behind a socket: the kind of socket, its words, its table and its key."""

    kind: socket.SocketKind
    what: str
    table: str
    key: str


METRICS: Final = Served(socket.SOCK_STREAM, "serve metrics", "metrics", "listen")
ALERTS: Final = Served(socket.SOCK_STREAM, "take alerts", "alertmanager", "listen")
CONTROL_API: Final = Served(socket.SOCK_STREAM, "serve the control API", "control", "socket")
RINGS: Final = Served(socket.SOCK_SEQPACKET, "hand out rings", "daemon", "opener")


@contextmanager
def claim_tcp(
    address: ListenAddress, handed: Sequence[socket.socket] = (), *, served: Served = METRICS
) -> Iterator[tuple[socket.socket, ...]]:
    """Listen on an address, at each address that its host's name has.

    Connections wait until somebody accepts them.

    Args:
        address: the configured one.
        handed: sockets of the service manager that are used instead.
        served: what is behind it.

    Raises:
        ConfigError: the host's name does not resolve, or the manager listens elsewhere.
        KernelError: the address cannot be bound.
    """
    host = address.host
    try:
        found = socket.getaddrinfo(
            host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (socket.gaierror, UnicodeError) as error:
        raise ConfigError(
            f"{host} does not resolve: {error}", key=f"{served.table}.{served.key}"
        ) from error
    if handed:
        places = {place[:2] for _, _, _, _, place in found}
        for one in handed:
            if one.getsockname()[:2] not in places:
                raise _elsewhere(one, served, str(address))
        yield tuple(handed)
        return
    with ExitStack() as stack:
        try:
            bound = tuple(
                stack.enter_context(_listening(family, place))
                for family, _, _, _, place in dict.fromkeys(found)
            )
        except OSError as error:
            raise KernelError(
                f"cannot {served.what} on {address}",
                syscall="bind",
                errno=error.errno or 0,
                hint=f"set another [{served.table}] {served.key} address",
            ) from error
        yield bound


def _elsewhere(one: socket.socket, served: Served, configured: str) -> ConfigError:
    name = one.getsockname()
    place = ListenAddress(*name[:2]) if isinstance(name, tuple) else name
    return ConfigError(
        f"the service manager listens on {place}, and not on {configured}",
        key=f"{served.table}.{served.key}",
        hint=f"change ListenStream= of collectord-{served.table}.socket, or the key",
    )


def _listening(family: int, place: Any) -> socket.socket:  # noqa: ANN401  # as getaddrinfo has it
    with ExitStack() as undo:
        made = undo.enter_context(socket.socket(family, socket.SOCK_STREAM))
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(place)
        made.listen()
        undo.pop_all()
        return made


@contextmanager
def claim_unix(
    path: Path, handed: Sequence[socket.socket] = (), *, served: Served = CONTROL_API
) -> Iterator[tuple[socket.socket, ...]]:
    """Listen on a Unix socket that its owner and group may use; it is removed at the end.

    Connections wait until somebody accepts them.

    Args:
        path: the configured one.
        handed: sockets of the service manager that are used instead, and stay where they are.
        served: what is behind it.

    Raises:
        ConfigError: the manager listens elsewhere.
        KernelError: another daemon serves it, or it cannot be created.
    """
    for one in handed:
        if one.getsockname() != str(path):
            raise _elsewhere(one, served, str(path))
    if handed:
        yield tuple(handed)
        return
    with _unix_socket(path, served) as bound:
        yield (bound,)


@contextmanager
def _unix_socket(path: Path, served: Served) -> Iterator[socket.socket]:
    with ExitStack() as stack:
        try:
            make_mode = 0o755 if path.parent == RUN_DIRECTORY else None
            folder = open_folder(path.parent, Trust.WRITE, make_mode=make_mode)
            stack.enter_context(folder)
            bound = stack.enter_context(socket.socket(socket.AF_UNIX, served.kind))
            _remove_stale(folder, path.name, served.kind)
            before = os.umask(SOCKET_UMASK)
            try:
                bound.bind(str(folder.place / path.name))
            finally:
                os.umask(before)
            bound.listen()
        except OSError as error:
            missing = f"make its folder {path.parent}, or " if error.errno == errno.ENOENT else ""
            raise KernelError(
                f"cannot {served.what} on {path}",
                syscall="bind",
                errno=error.errno or errno.ENAMETOOLONG,
                hint=f"{missing}set another [{served.table}] {served.key}",
            ) from error
        stack.callback(folder.remove, path.name, missing_ok=True)
        yield bound


def _remove_stale(folder: Folder, name: str, kind: socket.SocketKind) -> None:
    """Remove a socket that a killed daemon left; leave one that answers."""
    status = folder.stat(name)
    if status is None:
        return
    if not stat.S_ISSOCK(status.st_mode):
        raise FileExistsError(errno.EEXIST, "not a socket")
    with socket.socket(socket.AF_UNIX, kind) as probe:
        try:
            probe.connect(str(folder.place / name))
        except ConnectionRefusedError:
            folder.remove(name, missing_ok=True)
            return
    raise OSError(errno.EADDRINUSE, "another daemon answers")
