# SPDX-License-Identifier: Apache-2.0
"""The program that tells of DNS finds exactly the questions that were asked, and their answers."""

from __future__ import annotations

import os
import socket
import struct
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pytest

from tests.support.bpf_counts import program
from tests.support.bpf_load import check_found, events_of, mapped_address, own_comm, table_of
from tests.support.recording import check_balance, recording, segments_of

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.perf_tools import Perf
    from tests.support.recording import Start

    Run = Callable[..., subprocess.CompletedProcess[str]]
    Require = Callable[[str], None]

pytestmark = [pytest.mark.usefixtures("tracefs", "bcc", "btf"), pytest.mark.beside]

PORT: Final = 53
TIMES: Final = 20
NO_NAME: Final = 3
# A network of loopback's own that no server of this host listens on.
SERVERS: Final = {"v4": (socket.AF_INET, "127.0.0.77"), "v6": (socket.AF_INET6, "::1")}
HOSTILE: Final = b"\x1b[2J\nx"
HARMLESS: Final = r"\x1b[2J\nx.example.test"


def _message(number: int, parts: list[bytes], flags: int) -> bytes:
    name = b"".join(bytes([len(part)]) + part for part in parts) + b"\0"
    head = struct.pack("!HHHHHH", number, flags, 1, 0, 0, 0)
    return head + name + struct.pack("!HH", 1, 1) + b"what follows"


@contextmanager
def _ends(version: str) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Provide a server's socket and a client's."""
    family, address = SERVERS[version]
    with (
        socket.socket(family, socket.SOCK_DGRAM) as server,
        socket.socket(family, socket.SOCK_DGRAM) as client,
    ):
        server.bind((address, PORT))
        client.connect((address, PORT))
        yield server, client


def _ask(
    server: socket.socket, client: socket.socket, number: int, parts: list[bytes], code: int
) -> None:
    client.send(_message(number, parts, 0x0100))
    asked, who = server.recvfrom(512)
    assert asked[:2] == struct.pack("!H", number)
    server.sendto(_message(number, parts, 0x8180 | code), who)
    client.recv(512)


@pytest.mark.parametrize("version", SERVERS)
def test_questions_and_answers(
    start_cli: Start, run_cli: Run, tmp_path: Path, *, perf: Perf, require: Require, version: str
) -> None:
    """Each has its name, server, code, time, and who asked; a name does a terminal no harm."""
    if version == "v6":
        require("IPv6")
    long = [b"a" * 63, b"b" * 63, b"c" * 63]
    with _ends(version) as (server, client):
        with recording(start_cli, tmp_path, "--bpf", "dnssnoop") as running:
            for number in range(TIMES):
                code = NO_NAME if number % 2 else 0
                _ask(server, client, number, [b"host%d" % number, b"example", b"test"], code)
            _ask(server, client, 1000, [HOSTILE, b"example", b"test"], 0)
            _ask(server, client, 1001, long, 0)
            _ask(server, client, 1002, [], 0)
            client.send(b"x")  # is no message, and has no name
            server.recv(1)
        port = client.getsockname()[1]
    check_balance(running.session, (perf,))
    events = [e for e in events_of(run_cli, running.session) if e["local_port"] == port]
    names = {number: f"host{number}.example.test" for number in range(TIMES)}
    names |= {1000: f"{HOSTILE.decode()}.example.test"}
    names |= {1001: b".".join(long).decode()[:127], 1002: ""}
    caused = []
    for number, name in names.items():
        code = NO_NAME if number < TIMES and number % 2 else 0
        caused += [("query", number, 0, name), ("answer", number, code, name)]
    told = [(e["kind"], e["id"], e["code"], e["name"]) for e in events]
    check_found(running.session, [one for one in told if one[1] in names], caused)
    assert {(e["pid"], e["comm"]) for e in events} == {(os.getpid(), own_comm())}
    assert {e["server"] for e in events} == {mapped_address(SERVERS[version][1])}
    assert all((e["latency_ns"] > 0) == (e["kind"] == "answer") for e in events)
    for segment in segments_of(running.session):
        assert b"what follows" not in segment.read_bytes()
    table = table_of(run_cli, running.session)
    assert all(line.isprintable() for line in table.split("\n"))
    assert f"  {HARMLESS}\n" in table


def test_answers_that_fail(start_cli: Start, run_cli: Run, tmp_path: Path, perf: Perf) -> None:
    """With `failed` there are those only, and with another's pid there are none."""
    for pid, times in ((os.getpid(), TIMES), (os.getppid(), 0)):
        folder = tmp_path / str(pid)
        folder.mkdir()
        words = program("dnssnoop", failed="true", pid=pid)
        with _ends("v4") as (server, client), recording(start_cli, folder, *words) as running:
            for number in range(TIMES):
                _ask(server, client, number, [b"good"], 0)
                _ask(server, client, number, [b"bad"], NO_NAME)
        check_balance(running.session, (perf,))
        events = events_of(run_cli, running.session)
        caused = [("answer", number, NO_NAME, "bad") for number in range(times)]
        found = [(e["kind"], e["id"], e["code"], e["name"]) for e in events]
        check_found(running.session, found, caused)
