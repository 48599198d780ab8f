# SPDX-License-Identifier: Apache-2.0
"""Users of the control socket: who may connect, read and change; a flood delays nobody."""

from __future__ import annotations

import json
import os
import resource
import socket
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, Final

import pytest

from collectord.control import client
from collectord.control.listener import CONNECTIONS_MAX, PER_ADDRESS_MAX, PER_USER_MAX
from collectord.errors import MissingPrivilege, NotAllowed
from tests.support import daemons
from tests.support.commands import CHANGES
from tests.support.daemons import EVENT, FILTER, NUMBER
from tests.support.somebody import SOMEBODY, somebody

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.support.generator import Generator
    from tests.support.recording import Start

pytestmark = [pytest.mark.usefixtures("tracefs"), pytest.mark.beside]

READERS: Final = 54_321  # the group of the socket
ADMINS: Final = 54_322
COUNT: Final = 20_000
SILENT: Final = 1_000
SESSIONS: Final = f"""
[[session]]
name = "calls"

[[session.source]]
kind = "perf"
events = ["{EVENT}"]
filter = "{FILTER}"
ring = "4MiB"

[[session]]
name = "recorder"
mode = "flight-recorder"

[[session.source]]
kind = "perf"
events = ["{EVENT}"]
filter = "{FILTER}"
"""
# The daemon starts so: the group of its socket is that of the process.
AS_READERS: Final = ("setpriv", f"--regid={READERS}", "--clear-groups")


def configure(stage: Path, *, admins: int | None) -> Path:
    """Return the configuration of a daemon that these may change."""
    config = daemons.write_sessions(stage, SESSIONS)
    if admins is not None:
        text = config.read_text()
        config.write_text(text.replace("[control]\n", f'[control]\nadmin_group = "{admins}"\n'))
    return config


def snapshot(stage: Path, groups: Sequence[int]) -> dict[str, Any]:
    """Ask for a snapshot as somebody in these groups."""
    with somebody(*groups):
        return client.post(stage / "control.sock", "/v1/snapshot", {})


def test_who_may_do_what(stage: Path, start_cli: Start) -> None:
    """The socket lets its group in, of which only the admins change something; both are logged.

    Others read the metrics, and nothing else.
    """
    config = configure(stage, admins=ADMINS)
    path = stage / "control.sock"
    with daemons.running(start_cli, config, prefix=AS_READERS) as daemon:
        with somebody(ADMINS):
            assert "collectord_build_info" in daemon.metrics()
            with pytest.raises(MissingPrivilege, match="may not use the control"):
                client.get(path, "/v1/status")
            with pytest.raises(PermissionError):
                list((stage / "state" / "calls").iterdir())
        with somebody(READERS):
            assert client.get(path, "/v1/status")["pid"] == daemon.pid
        for change, body in CHANGES.items():
            with somebody(READERS), pytest.raises(NotAllowed, match=f"of group {ADMINS} may"):
                client.post(path, change, body)
        assert [one["session"] for one in snapshot(stage, (READERS, ADMINS))["snapshots"]] == [
            "recorder"
        ]
        ended = daemon.stop()
    refused = ended.named("control_refused")
    (done,) = ended.named("control_request")
    assert refused[0]["path"] in CHANGES  # further lines of one user are limited
    assert {(line["uid"], line["pid"]) for line in refused} == {(SOMEBODY, os.getpid())}
    assert (done["uid"], done["pid"], done["result"]) == (SOMEBODY, os.getpid(), "done")


def test_by_default_the_group_of_the_socket_changes(stage: Path, start_cli: Start) -> None:
    """Without the key whoever the group lets in may change, unless its groups are too many."""
    config = configure(stage, admins=None)
    with daemons.running(start_cli, config, prefix=AS_READERS) as daemon:
        assert snapshot(stage, (READERS,))["snapshots"]
        with pytest.raises(NotAllowed):
            snapshot(stage, (READERS, *range(60_000, 60_300)))
        assert daemon.stop().status == 0


def test_the_opener_answers_nobody_but_the_daemon(stage: Path, start_cli: Start) -> None:
    """Not even those of its group, whom the socket lets in: it goes by the user."""
    place, config = stage / "opener.sock", configure(stage, admins=None)
    config.write_text(config.read_text().replace("[daemon]", f'[daemon]\nopener = "{place}"'))

    def answer() -> bytes:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
            one.connect(str(place))
            with suppress(BrokenPipeError):  # it may have closed its end
                one.send(b'{"type": "facts"}')
            return one.recv(1 << 20)

    with start_cli("opener", "--config", config, prefix=AS_READERS) as opener:
        daemons.wait_for(place.exists, "the opener's socket")
        assert b"refused" not in answer()
        with somebody(ADMINS), pytest.raises(PermissionError):
            answer()
        with somebody(READERS), suppress(ConnectionResetError):
            assert answer() == b""
        opener.terminate()
        _, log = opener.communicate()
    refused = [line for line in map(json.loads, log.splitlines()) if "refused" in line["event"]]
    assert [(line["uid"], line["pid"]) for line in refused] == [(SOMEBODY, os.getpid())]


def test_silent_connections_delay_nothing(
    stage: Path, start_cli: Start, generator: Generator
) -> None:
    """A thousand silent ones of a user hold few places, as do as many of an address.

    All others have theirs, and a scrape of that address is answered.
    """
    path = stage / "control.sock"
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    config = configure(stage, admins=None)
    with daemons.running(start_cli, config, prefix=AS_READERS) as daemon, ExitStack() as stack:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        own = stack.enter_context(socket.socket(socket.AF_UNIX))
        own.connect(str(path))
        with generator.start("count", count=COUNT, nr=NUMBER) as running:
            running.go()
            with somebody(READERS):
                for _ in range(SILENT):
                    for place in (str(path), daemon.metrics_address):
                        kind = socket.AF_UNIX if isinstance(place, str) else socket.AF_INET
                        one = stack.enter_context(socket.socket(kind))
                        one.connect(place)
                assert client.get(path, "/v1/sessions/calls")["sessions"]
            assert running.result()["events"] == COUNT
        own.sendall(b"GET /v1/sessions HTTP/1.1\r\nHost: x\r\n\r\n")
        assert own.recv(64).startswith(b"HTTP/1.1 200 ")
        sockets = [target for target in daemon.fds() if target.startswith("socket:")]
        # Besides these the daemon has its listening ones, and one for uevents.
        assert len(sockets) < CONNECTIONS_MAX + PER_USER_MAX + PER_ADDRESS_MAX
        assert daemon.metric('collectord_starved_passes_total{session="calls",source="perf"}') == 0
        daemon.await_stored(COUNT)
        calls = daemon.session()
        assert (calls["produced"], calls["unaccounted"]) == (COUNT, 0)
        assert sum(calls["lost"].values()) == 0
        assert daemon.stop().status == 0
