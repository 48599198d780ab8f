# SPDX-License-Identifier: Apache-2.0
"""A process that has imported the program, and forks for each start of it.

A start of an interpreter imports for a third of a second, and tests start the program a thousand
times. What is forked runs the entry of `python -m collectord` with streams, words, directory and
environment of its own. Only /proc/PID/cmdline, the modules that are loaded, and the seed of hashes
tell it from a start of an interpreter.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import resource
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from collectord import __main__ as entry
from collectord import cli
from collectord.errors import CollectordError
from collectord.reader.embedded_db import load_duckdb

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Variables whose names begin so are read when an interpreter starts.
OF_INTERPRETERS: Final = ("PYTHON", "LANG", "LC_", "TZ")
_REQUEST_BYTES: Final = 128 << 10
_STREAMS: Final = 3
_READY: Final = b"ready"
_FORKED: Final = b"forked"
_LIMITS: Final = tuple(
    getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")
)


class Request(NamedTuple):
    """A start: the words, the working directory and the environment of the program."""

    words: Sequence[str]
    cwd: str
    env: Mapping[str, str]


class ForkServer:
    """A server that ends with a block.

    This process must adopt orphans (`leaks.adopt_orphans`): so it is the parent of what is forked.

    Args:
        env: the environment of an interpreter that finds the program.
        prefix: words that start the server: what it forks is as if they had started it.
    """

    def __init__(self, env: Mapping[str, str], prefix: Sequence[str] = ()) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [*prefix, sys.executable, "-m", __name__],
                env=env,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
            )
        assert self._socket.recv(_REQUEST_BYTES) == _READY, "the server has ended"

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the server."""
        self._socket.close()
        self._process.wait()

    def fork(self, request: Request, streams: Sequence[int]) -> int:
        """Fork a process with these standard descriptors; returns its id."""
        same = _inherited(0) == _inherited(self._process.pid)
        assert same, "CPUs or limits of the tests have changed: it needs an interpreter of its own"
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(request).encode()], streams)
            pid = self._socket.recv(_REQUEST_BYTES)
            assert self._socket.recv(_REQUEST_BYTES) == _FORKED, "the server has ended"
        return int(pid)


class Forked(subprocess.Popen[str]):
    """A start of the program by a server. What it prints is piped, and it is given no input.

    Args:
        server: forks it.
        command: the words of a start of an interpreter.
        request: what of these the program has, and more.
    """

    def __init__(self, server: ForkServer, command: Sequence[str], request: Request) -> None:
        self._server = server
        self._request = request
        pipe = subprocess.PIPE
        super().__init__(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True)

    def _execute_child(self, *given: Any) -> None:  # noqa: ANN401  # of many kinds
        """Do as the base does with fork and exec. It has made the pipes, a pair for a stream."""
        streams = (given[10], given[13], given[15])
        try:
            self.pid = self._server.fork(self._request, streams)
            self._child_created = True
        finally:
            self._closed_child_pipe_fds = True
            for fd in streams:
                os.close(fd)


def _inherited(pid: int) -> tuple[object, ...]:
    """Return the properties of a process that a start inherits, and that tests change."""
    return os.sched_getaffinity(pid), *(resource.prlimit(pid, limit) for limit in _LIMITS)


def _import_all() -> None:
    """Import what any verb imports when it starts; the log first, which keeps some modules out.

    DuckDB is imported too where it can be: verbs import it later, for ten times as long as a fork.
    """
    importlib.import_module("collectord.cli.log")
    for module in pkgutil.iter_modules(cli.__path__, "collectord.cli."):
        importlib.import_module(module.name)
    importlib.import_module("collectord.kernel.linux")
    with suppress(CollectordError):
        load_duckdb()


def _next_fork(requests: socket.socket) -> tuple[Request, Sequence[int]] | None:
    """Serve requests; returns in each process that is forked, and None in the server at its end.

    There is a process between, which ends at once and so leaves its child to who adopts orphans.
    """
    while True:
        message, streams, _, _ = socket.recv_fds(requests, _REQUEST_BYTES, _STREAMS)
        if not message:
            return None
        between = os.fork()
        if not between:
            pid = os.fork()
            if not pid:
                return Request(*json.loads(message)), streams
            requests.send(str(pid).encode())
            os._exit(0)
        os.waitpid(between, 0)
        requests.send(_FORKED)
        for fd in streams:
            os.close(fd)


def main() -> None:
    """Serve requests on stdin until its other end is closed; in a forked process be the program.

    Ctrl-C reaches the server too, and is not for it; what is forked has it as from an interpreter.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    gc.disable()
    _import_all()
    gc.freeze()
    requests = socket.socket(fileno=sys.stdin.fileno())
    requests.send(_READY)
    forked = _next_fork(requests)
    requests.detach()
    if forked is None:
        return
    request, streams = forked
    for number, fd in enumerate(streams):
        os.dup2(fd, number)
        os.close(fd)
    os.chdir(request.cwd)
    os.environ.clear()
    os.environ.update(request.env)
    sys.argv = [str(entry.__file__), *request.words]
    gc.enable()
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    entry.main()


if __name__ == "__main__":
    main()
