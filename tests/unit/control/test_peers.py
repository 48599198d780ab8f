# SPDX-License-Identifier: Apache-2.0
"""Peers of the control socket: who they are, what they may change, and what is logged of it."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import TYPE_CHECKING, Final

import aiohttp
import pytest
from structlog.testing import capture_logs

from collectord.control.api import control_app
from collectord.control.peers import Admins, Peer
from collectord.errors import KernelError, UsageError
from tests.support import balances
from tests.support.commands import CHANGES, Commands, serve_unix

if TYPE_CHECKING:
    from pathlib import Path

    from collectord.errors import CollectordError

GROUP: Final = 54_321
STRANGER: Final = os.geteuid() + 54_321


def ask(folder: Path, place: str, commands: Commands, *, method: str = "POST") -> int:
    """Return the HTTP status of a request to a server of its own, from this process."""
    path = folder / "control.sock"

    async def scenario() -> int:
        async with (
            serve_unix(control_app(balances.status, commands), path),
            aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as client,
            client.request(method, f"http://x{place}", json=CHANGES.get(place)) as response,
        ):
            return response.status

    return asyncio.run(scenario())


def test_the_kernel_tells_the_peer() -> None:
    """The ids are those of the process that connected, with all its groups."""
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        peer = Peer.of(ours)
    assert (peer.pid, peer.uid) == (os.getpid(), os.geteuid())
    assert peer.groups == {os.getegid(), *os.getgroups()}
    assert peer.trusted


@pytest.mark.parametrize(
    ("group", "uid", "groups", "may"),
    [
        (GROUP, STRANGER, {GROUP}, True),
        (GROUP, STRANGER, {1, GROUP, 2}, True),
        (GROUP, STRANGER, {1, 2}, False),
        (None, STRANGER, {GROUP}, False),
        (None, 0, {1}, True),
        (GROUP, os.geteuid(), {1}, True),
    ],
)
def test_who_may_change(group: int | None, uid: int, groups: set[int], *, may: bool) -> None:
    """Root, this process's user and members of the group may; nobody else may."""
    assert Admins(group).include(Peer(1, uid, frozenset(groups))) is may


def test_each_route_that_changes_something_is_named() -> None:
    """Each has a request in `CHANGES`, with which its rights and its log line are tested."""
    app = control_app(balances.status, Commands())
    routes = {(one.method, one.resource.canonical) for one in app.router.routes() if one.resource}
    changing = {
        place.format(name="exec") for method, place in routes if method not in {"GET", "HEAD"}
    }
    assert changing == set(CHANGES)


@pytest.mark.parametrize("place", CHANGES)
@pytest.mark.parametrize(
    ("error", "result"),
    [
        (None, "done"),
        (UsageError("no session exec"), "refused"),
        (KernelError("a ring is full"), "failed"),
    ],
)
def test_each_change_is_logged(
    place: str, error: CollectordError | None, result: str, tmp_path: Path
) -> None:
    """One line has who asked for what, of which sessions, and what became of it."""
    commands = Commands(error=error)
    with capture_logs() as logged:
        status = ask(tmp_path, place, commands)
    assert (status == 200) is (error is None)
    assert len(commands.asked) == 1
    assert logged == [
        {
            "event": "control_request",
            "log_level": "info",
            "uid": os.geteuid(),
            "pid": os.getpid(),
            "path": place,
            "sessions": [] if place in {"/v1/reload", "/v1/incident"} else ["exec"],
            "result": result,
        }
    ]


def test_reading_is_not_logged(tmp_path: Path) -> None:
    """A scraper of the status does not fill the log."""
    with capture_logs() as logged:
        assert ask(tmp_path, "/v1/status", Commands(), method="GET") == 200
    assert logged == []
