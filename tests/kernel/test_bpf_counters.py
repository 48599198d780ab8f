# SPDX-License-Identifier: Apache-2.0
"""Programs that count wake-ups, round trips and pages find as many as were caused."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from typing import TYPE_CHECKING, Final

import pytest

from tests.support.bpf_counts import child, counting, program, total

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.bpf_counts import Start

pytestmark = [pytest.mark.usefixtures("tracefs", "bcc"), pytest.mark.beside]

TIMES: Final = 300
SLEEP_US: Final = 1000
# Some hosts switch now and then to a task or from it without telling tracepoints.
UNSEEN_PERCENT: Final = 5
ROUNDS: Final = 100
SEGS_IN_AT: Final = 140  # of struct tcp_info
LOOPBACK: Final = "127.0.0.1"
PAGE: Final = os.sysconf("SC_PAGE_SIZE")
PAGES: Final = 64
# Waits for a line, then reads the file in pieces of a page, or writes it so.
_WORKER: Final = """
import os, sys
path, how, pages, page = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
fd = os.open(path, os.O_RDWR)
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
print("ready", flush=True)
sys.stdin.readline()
for number in range(pages):
    if how == "read":
        os.pread(fd, page, number * page)
    else:
        os.pwrite(fd, b"x" * page, number * page)
"""


@pytest.mark.parametrize("chosen", ["pid", "tid", "comm"])
def test_wake_ups(start_cli: Start, tmp_path: Path, chosen: str) -> None:
    """Each time that a task blocks it is woken, after the time that it slept."""
    with child(comm=b"woken-up") as sleeper:
        given: dict[str, int | str] = {chosen: sleeper.pid if chosen != "comm" else "woken*"}
        words = program("wakeuptime", **given)
        with counting(start_cli, tmp_path, *words, "--json") as counted:
            before = sleeper.switches()
            sleeper.do("sleep", TIMES)
            switches = sleeper.switches().since(before)
    folded, table = counted.answers("wakeuptime")
    (counts,) = table["rows"]
    least = switches.voluntary * (100 - UNSEEN_PERCENT) // 100
    # The order to begin wakes it too, after the wait for it.
    assert least <= counts["times"] <= switches.voluntary + 1
    assert counts["ns"] >= least * SLEEP_US * 1000 * 0.9
    assert (counts["untracked"], counts["unrecorded"]) == (0, 0)
    assert {stack["frames"][0] for stack in folded["stacks"]} == {"woken-up"}
    shown_us = sum(stack["value"] for stack in folded["stacks"])
    assert abs(shown_us * 1000 - counts["ns"]) <= counts["times"] * 500
    frames = {frame for stack in folded["stacks"] for frame in stack["frames"][2:]}
    assert any("hrtimer" in frame for frame in frames), frames


def _segments_in(connection: socket.socket) -> int:
    """Return how many segments the kernel says have come in."""
    told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    number: int = struct.unpack_from("<I", told, SEGS_IN_AT)[0]
    return number


def _exchange(one: socket.socket, other: socket.socket) -> None:
    for _ in range(ROUNDS):
        one.sendall(b"x")
        assert other.recv(1) == b"x"
        other.sendall(b"y")
        assert one.recv(1) == b"y"


@pytest.mark.parametrize("by_peer", ["true", "false"])
def test_round_trips(start_cli: Start, tmp_path: Path, by_peer: str) -> None:
    """There is a value for each segment that the kernel counts; other ports are left out."""
    with socket.create_server((LOOPBACK, 0)) as listener:
        port = listener.getsockname()[1]
        with (
            socket.create_connection((LOOPBACK, port)) as client,
            listener.accept()[0] as server,
            socket.create_connection((LOOPBACK, port)) as other,
            listener.accept()[0] as other_server,
        ):
            for connection in (client, server, other, other_server):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            chosen = client.getsockname()[1]
            words = program("tcprtt", local_port=port, remote_port=chosen, by_peer=by_peer)
            with counting(start_cli, tmp_path, *words, "--json") as counted:
                before = _segments_in(server)
                _exchange(client, server)
                _exchange(other, other_server)
                came = _segments_in(server) - before
    histogram, table = counted.answers("tcprtt")
    (row,) = table["rows"]
    assert came >= ROUNDS
    assert came <= row["segments"] <= came + 1  # an acknowledgement may come behind the last
    assert sum(map(total, histogram["sections"])) == row["segments"]
    assert row["us"] > 0
    (section,) = histogram["sections"]
    assert section["by"]["PEER"] == (LOOPBACK if by_peer == "true" else "::")


@pytest.mark.parametrize("how", ["read", "write"])
def test_pages(
    start_cli: Start, tmp_path: Path, *, require: Callable[[str], None], how: str
) -> None:
    """Pages that a process reads, brings into the cache, or makes dirty are counted exactly."""
    require("page cache tracepoints")
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.write(b"x" * (PAGES * PAGE))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    command = [sys.executable, "-c", _WORKER, str(path), how, str(PAGES), str(PAGE)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
        words = program("cachestat", tid=worker.pid)
        with counting(start_cli, tmp_path, *words, "--json") as counted:
            worker.communicate("\n")
        assert worker.returncode == 0
    (table,) = counted.answers("cachestat")
    (row,) = table["rows"]
    # Its interpreter may read a little of its own.
    if how == "read":
        assert PAGES <= row["reads"] <= row["asked"] <= PAGES + 16
        assert PAGES <= row["added"] <= PAGES + 16
    else:
        assert PAGES <= row["dirtied"] <= PAGES + 16
