# SPDX-License-Identifier: Apache-2.0
"""Sockets that a service manager hands over, in a process of their own as in a service."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# The manager's part: the descriptors from 3 on, and its variables for this process or for another.
CHILD: Final = """
import fcntl, json, os, sys
from collectord.control import activation
from collectord.errors import ConfigError

count, names, pid, *fds = sys.argv[1:]
high = [fcntl.fcntl(int(fd), fcntl.F_DUPFD, 100) for fd in fds]
for number, fd in enumerate(high, 3):
    os.dup2(fd, number)
numbers = range(3, 3 + len(high))
os.environ.update(LISTEN_FDS=count, LISTEN_FDNAMES=names, LISTEN_PID=pid or str(os.getpid()))
told = {}
try:
    with activation.inherited() as handed:
        told["handed"] = {
            name: [one.getsockname() for one in sockets] for name, sockets in handed.items()
        }
        told["for children"] = [fd for fd in numbers if handed and os.get_inheritable(fd)]
except ConfigError as error:
    told["error"] = str(error)
told["variables"] = [name for name in os.environ if name.startswith("LISTEN_")]
told["open"] = [fd for fd in numbers if os.path.exists(f"/proc/self/fd/{fd}")]
print(json.dumps(told))
"""


@pytest.fixture
def sockets(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Provide sockets as units configure them, by kind, and a file."""
    with ExitStack() as stack:
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        unix = stack.enter_context(socket.socket(socket.AF_UNIX))
        unix.bind(str(tmp_path / "control.sock"))
        unix.listen()
        silent = stack.enter_context(socket.socket(socket.AF_INET))
        datagrams = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        file = stack.enter_context((tmp_path / "file").open("w"))
        yield {"tcp": tcp, "unix": unix, "silent": silent, "dgram": datagrams, "file": file}


def started(names: str, *handed: Any, pid: str = "", count: str = "") -> dict[str, Any]:  # noqa: ANN401 - with a descriptor
    """Return what a service finds that is started with these."""
    fds = [one.fileno() for one in handed]
    words = [count or str(len(fds)), names, pid, *map(str, fds)]
    done = subprocess.run(
        [sys.executable, "-c", CHILD, *words],
        pass_fds=fds,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return dict(json.loads(done.stdout))


def test_sockets_are_taken_by_their_names(sockets: dict[str, Any]) -> None:
    """They are not for children, as the variables are not, and are closed at the end."""
    found = started("control:metrics", sockets["unix"], sockets["tcp"])
    assert found == {
        "handed": {
            "control": [sockets["unix"].getsockname()],
            "metrics": [[*sockets["tcp"].getsockname()]],
        },
        "for children": [],
        "variables": [],
        "open": [],
    }


def test_one_name_may_have_several_sockets(sockets: dict[str, Any]) -> None:
    """For example one for each address of a host."""
    found = started("metrics:metrics", sockets["tcp"], sockets["tcp"])
    assert found["handed"] == {"metrics": [[*sockets["tcp"].getsockname()]] * 2}


@pytest.mark.parametrize(("pid", "count"), [("1", "1"), ("", "one"), ("", "-1")])
def test_sockets_for_another_process_are_left_alone(
    pid: str, count: str, sockets: dict[str, Any]
) -> None:
    """So is what no manager writes. The variables go nevertheless."""
    found = started("metrics", sockets["tcp"], pid=pid, count=count)
    assert found == {"handed": {}, "for children": [], "variables": [], "open": [3]}


@pytest.mark.parametrize(
    ("names", "kind", "error"),
    [
        ("metrics", "silent", "the metrics socket of the service manager accepts no connections"),
        ("control", "dgram", "the control socket of the service manager accepts no connections"),
        ("control", "file", "the control socket of the service manager accepts no connections"),
        ("http", "tcp", "the service manager hands over a socket of the unknown name 'http'"),
        ("", "tcp", "the service manager hands over a socket of the unknown name ''"),
    ],
)
def test_a_wrong_unit_is_refused(
    names: str, kind: str, error: str, sockets: dict[str, Any]
) -> None:
    """The error names the setting of the unit."""
    found = started(names, sockets[kind])
    assert found["error"].startswith(error)
    assert "unit" in found["error"]
