# SPDX-License-Identifier: Apache-2.0
"""The client of the control API: the requests of the verbs to a running daemon."""

from __future__ import annotations

import errno
import json
import socket
from http.client import HTTPConnection, HTTPException
from typing import TYPE_CHECKING, Any, Final

from collectord.errors import (
    CollectordError,
    ConfigError,
    KernelError,
    MissingPrivilege,
    NoDaemon,
    NotAllowed,
    UsageError,
)

if TYPE_CHECKING:
    from pathlib import Path

# Errors of the daemon that have an exit status of their own.
_KINDS: Final[dict[int, type[CollectordError]]] = {
    kind.exit_code: kind for kind in (UsageError, NotAllowed, ConfigError)
}

# There is no socket, or a killed daemon left it.
_ABSENT: Final = frozenset({errno.ENOENT, errno.ECONNREFUSED})


class _UnixConnection(HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(str(self._path))


def post(path: Path, place: str, body: dict[str, Any]) -> dict[str, Any]:
    """Send a request to the daemon behind a control socket, and return its answer.

    Args:
        path: the socket.
        place: the path in the API, such as "/v1/mark".
        body: the request, as JSON.

    Raises:
        UsageError: the daemon does not understand, or has no such session.
        NotAllowed: this user may only read.
        ConfigError: the request, or the daemon's configuration, has a wrong value.
        MissingPrivilege: this user may not use the socket.
        NoDaemon: no daemon runs.
        KernelError: the socket cannot be used.
        CollectordError: the daemon reported an error.
    """
    return _ask(path, "POST", place, json.dumps(body))


def get(path: Path, place: str) -> dict[str, Any]:
    """Read a path of the API, such as "/v1/status". Raises as `post`."""
    return _ask(path, "GET", place, None)


def _ask(path: Path, method: str, place: str, body: str | None) -> dict[str, Any]:
    connection = _UnixConnection(path)
    try:
        connection.request(method, place, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        data = response.read()
    except PermissionError as error:
        raise MissingPrivilege(
            f"this user may not use the control socket {path}",
            need="its owner and its group may use it",
            syscall="connect",
            errno=error.errno or 0,
        ) from error
    except OSError as error:
        kind = NoDaemon if error.errno in _ABSENT else KernelError
        raise kind(
            f"no daemon is listening at {path}",
            syscall="connect",
            errno=error.errno or 0,
            hint="`collectord run` starts one; --socket names another place",
        ) from error
    except HTTPException as error:
        raise CollectordError(f"no answer from the daemon at {path}: {error!r}") from error
    finally:
        connection.close()
    try:
        answer = json.loads(data)
    except ValueError as error:
        raise CollectordError(
            f"{path} is not the control socket of a daemon: it answered with status "
            f"{response.status}, and no JSON"
        ) from error
    if "error" in answer:
        raise _KINDS.get(answer.get("exit_code"), CollectordError)(answer["error"])
    return dict(answer)
