# SPDX-License-Identifier: Apache-2.0
"""Interpreters that answer like the bcc worker, or do what no worker should."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

# An interpreter is called with options, the worker's file, a socket and a pid.
_PRELUDE: Final = """\
import json, os, signal, socket, subprocess, sys, time

sock = socket.socket(fileno=int(sys.argv[-2]))
stream = sock.makefile("rb")


def request():
    return json.loads(stream.read(int.from_bytes(stream.read(8), "little")))


def raw(data, size=None):
    sock.sendall((len(data) if size is None else size).to_bytes(8, "little") + data)


def answer(**facts):
    raw(json.dumps(facts).encode())


def fail(step, message, **facts):
    answer(failure={"step": step, "message": message, **facts})


def send(fds):
    socket.send_fds(sock, [b"f"], fds)


def say(text):
    print(text, file=sys.stderr, flush=True)


"""


def interpreter(folder: Path, body: str) -> str:
    """Return a program that does `body` instead of running the worker."""
    path = folder / "python"
    path.write_text(f"#!{sys.executable} -I\n{_PRELUDE}{body}\n")
    path.chmod(0o755)
    return str(path)
