# SPDX-License-Identifier: Apache-2.0
"""Programs that tell of attempts of TCP find exactly those that were made, and sent again."""

from __future__ import annotations

import errno
import os
import socket
import struct
from typing import TYPE_CHECKING, Final

import pytest

from tests.support import bpf_load, cpus
from tests.support.bpf_counts import program
from tests.support.bpf_load import check_found, events_of, mapped_address, own_comm, table_of
from tests.support.daemons import wait_for
from tests.support.recording import check_balance, recording

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.perf_tools import Perf
    from tests.support.recording import Start

    Run = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = [pytest.mark.usefixtures("tracefs", "bcc", "btf"), pytest.mark.beside]

TIMES: Final = 20
AGAIN: Final = 2
SYN_SENT: Final = 2
TOTAL_RETRANS_AT: Final = 100  # of struct tcp_info
LOOPBACK: Final = "127.0.0.1"


def _refused(port: int) -> None:
    with socket.socket() as refused, pytest.raises(ConnectionRefusedError):
        refused.connect((LOOPBACK, port))


@pytest.mark.parametrize("failed", [False, True])
def test_attempts_to_connect(
    start_cli: Start, run_cli: Run, tmp_path: Path, *, perf: Perf, failed: bool
) -> None:
    """Each has its ends, its owner, its time, and its error; `failed` leaves out the others."""
    with bpf_load.listening(socket.AF_INET, LOOPBACK) as listener, socket.socket() as nobody:
        nobody.bind((LOOPBACK, 0))  # and does not listen
        port, refuses = listener.getsockname()[1], nobody.getsockname()[1]
        words = program("tcpconnect", failed=str(failed).lower())
        with recording(start_cli, tmp_path, *words) as running:
            client, ports = bpf_load.connect(listener, TIMES)
            for _ in range(TIMES):
                _refused(refuses)
    check_balance(running.session, (perf,))
    events = [
        event
        for event in events_of(run_cli, running.session)
        if event["remote_port"] in {port, refuses}
    ]
    names = ("remote_port", "pid", "comm", "established", "result")
    caused = [(refuses, os.getpid(), own_comm(), 0, -errno.ECONNREFUSED)] * TIMES
    if not failed:
        caused += [(port, client, "tcp-client", 1, 0)] * TIMES
        local = [e["local_port"] for e in events if e["remote_port"] == port]
        check_found(running.session, local, ports)
    check_found(running.session, [tuple(event[n] for n in names) for event in events], caused)
    ends = {(event["local_address"], event["remote_address"]) for event in events}
    assert ends == {(mapped_address(LOOPBACK), mapped_address(LOOPBACK))}
    assert all(event["latency_ns"] > 0 for event in events)
    assert "ECONNREFUSED" in table_of(run_cli, running.session)


def test_attempts_of_a_port(start_cli: Start, run_cli: Run, tmp_path: Path, perf: Perf) -> None:
    """The filters of port and process leave all others out."""
    with socket.socket() as one, socket.socket() as two:
        one.bind((LOOPBACK, 0))
        two.bind((LOOPBACK, 0))
        wanted, other = one.getsockname()[1], two.getsockname()[1]
        words = program("tcpconnect", remote_port=wanted, pid=os.getpid())
        with recording(start_cli, tmp_path, *words) as running:
            for _ in range(TIMES):
                _refused(wanted)
                _refused(other)
    check_balance(running.session, (perf,))
    found = [event["remote_port"] for event in events_of(run_cli, running.session)]
    check_found(running.session, found, [wanted] * TIMES)


def _sent_again(connection: socket.socket) -> int:
    """Return how many segments the kernel says that it has sent again."""
    told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    number: int = struct.unpack_from("<I", told, TOTAL_RETRANS_AT)[0]
    return number


@pytest.mark.parametrize("filtered", [False, True])
def test_segments_that_are_sent_again(
    start_cli: Start, run_cli: Run, tmp_path: Path, *, perf: Perf, filtered: bool
) -> None:
    """Where nobody answers there are as many as the kernel counts; ports leave others out."""
    with socket.create_server((LOOPBACK, 0), backlog=0) as full:
        port = full.getsockname()[1]
        given = {"remote_port": port} if filtered else {}
        with (
            socket.create_connection((LOOPBACK, port)),  # fills the only place
            cpus.never_idle(),  # while a timer has a segment sent again
            recording(start_cli, tmp_path, *program("tcpretrans", **given)) as running,
            socket.socket() as waits,
        ):
            waits.settimeout(0)
            assert waits.connect_ex((LOOPBACK, port)) == errno.EINPROGRESS
            local = waits.getsockname()[1]
            wait_for(lambda: _sent_again(waits) >= AGAIN, "segments that are sent again")
            # It stays open until the recording has ended, but waits: the next comes later.
            times = _sent_again(waits)
    check_balance(running.session, (perf,))
    events = events_of(run_cli, running.session)
    assert not filtered or {event["remote_port"] for event in events} == {port}
    names = ("local_port", "local_address", "remote_address", "state")
    found = [tuple(e[n] for n in names) for e in events if e["remote_port"] == port]
    caused = (local, mapped_address(LOOPBACK), mapped_address(LOOPBACK), SYN_SENT)
    check_found(running.session, found, [caused] * times)
    assert "SYN_SENT" in table_of(run_cli, running.session)
