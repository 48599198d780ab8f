# SPDX-License-Identifier: Apache-2.0
"""Programs that tell of connections, block requests and the OOM killer find exactly those."""

from __future__ import annotations

import os
import signal
import socket
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.support import bpf_load
from tests.support.bpf_load import (
    SECTOR_BYTES,
    check_found,
    events_of,
    mapped_address,
    own_comm,
    table_of,
)
from tests.support.recording import check_balance, recording

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.perf_tools import Perf
    from tests.support.recording import Start

    Run = Callable[..., subprocess.CompletedProcess[str]]
    Require = Callable[[str], None]
    Fields = dict[str, Any]

pytestmark = [pytest.mark.usefixtures("tracefs", "bcc"), pytest.mark.beside]

TIMES: Final = 20
MIB: Final = 1 << 20
BLOCK: Final = 4096
# Where nobody looks for a filesystem's or a partition table's mark.
QUIET_AT: Final = 3 * MIB
DISK_BYTES: Final = 8 * MIB
MEMORY_BYTES: Final = 64 * MIB
# enum tcp_state of the kernel.
SYN_SENT, FIN_WAIT2, LAST_ACK = 2, 5, 9
LOOPBACK: Final = {
    "v4": (socket.AF_INET, "127.0.0.1"),
    "v6": (socket.AF_INET6, "::1"),
}


@pytest.mark.parametrize("version", LOOPBACK)
def test_connections(
    start_cli: Start, run_cli: Run, tmp_path: Path, *, perf: Perf, require: Require, version: str
) -> None:
    """Both ends of each connection are reported: ports, owners, and how it ended."""
    if version == "v6":
        require("IPv6")
    family, address = LOOPBACK[version]
    with bpf_load.listening(family, address) as listener:
        port = listener.getsockname()[1]
        with recording(start_cli, tmp_path, "--bpf", "tcplife") as running:
            client, ports = bpf_load.connect(listener, TIMES)
    check_balance(running.session, (perf,))
    found = [
        event
        for event in events_of(run_cli, running.session)
        if port in {event["local_port"], event["remote_port"]}
    ]
    names = ("local_port", "remote_port", "direction", "pid", "comm", "pid_from", "last_state")
    caused: list[tuple[int | str, ...]] = []
    for one in ports:
        caused += [
            (one, port, "out", client, "tcp-client", "connect", FIN_WAIT2),
            (port, one, "in", os.getpid(), own_comm(), "close", LAST_ACK),
        ]
    check_found(running.session, [tuple(event[n] for n in names) for event in found], caused)
    ends = {(event["local_address"], event["remote_address"], event["family"]) for event in found}
    assert ends == {(mapped_address(address), mapped_address(address), family)}
    if not running.session["lost"]["program/recursion"]:
        assert all(event["duration_ns"] > 0 for event in found)
        assert all((event["connect_ns"] > 0) == (event["direction"] == "out") for event in found)
    rows = [line.split() for line in table_of(run_cli, running.session).splitlines()]
    shown = [(row[4], row[6]) for row in rows if row[1:4:2] == [str(client), "out"]]
    check_found(running.session, shown, [(address, address)] * TIMES)


def test_connections_that_fail(start_cli: Start, run_cli: Run, tmp_path: Path, perf: Perf) -> None:
    """With `failed`, refused ones too; `remote_port` leaves out all others."""
    with bpf_load.listening(*LOOPBACK["v4"]) as other, socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        refuses = nobody.getsockname()[1]
        words = ("--bpf-arg", "failed=true", "--bpf-arg", f"remote_port={refuses}")
        with recording(start_cli, tmp_path, "--bpf", "tcplife", *words) as running:
            for _ in range(TIMES):
                with socket.socket() as refused, pytest.raises(ConnectionRefusedError):
                    refused.connect(("127.0.0.1", refuses))
            bpf_load.connect(other, TIMES)
    check_balance(running.session, (perf,))
    names = ("remote_port", "pid", "comm", "last_state", "duration_ns")
    events = events_of(run_cli, running.session)
    caused = [(refuses, os.getpid(), own_comm(), SYN_SENT, 0)] * TIMES
    check_found(running.session, [tuple(event[n] for n in names) for event in events], caused)


def test_block_requests(
    start_cli: Start, run_cli: Run, tmp_path: Path, *, perf: Perf, require: Require
) -> None:
    """Each read and write past the page cache has sector, size, kind, owner, and duration."""
    require("loop devices")
    offsets = range(QUIET_AT, QUIET_AT + TIMES * 2 * BLOCK, 2 * BLOCK)
    with bpf_load.loop_device(tmp_path / "image", DISK_BYTES) as device:
        number = device.stat().st_rdev
        chosen = {"major": os.major(number), "minor": os.minor(number)}
        words = [word for key, value in chosen.items() for word in ("--bpf-arg", f"{key}={value}")]
        with recording(start_cli, tmp_path, "--bpf", "biosnoop", *words) as running:
            bpf_load.request(device, offsets, BLOCK, write=False)
            bpf_load.request(device, offsets, 2 * BLOCK, write=True)
        rows = table_of(run_cli, running.session).splitlines()[1:]
        assert {row.split()[1] for row in rows} == {device.name}
    check_balance(running.session, (perf,))
    events = events_of(run_cli, running.session)
    assert {event["dev"] for event in events} == {chosen["major"] << 20 | chosen["minor"]}
    first, end = offsets.start // SECTOR_BYTES, offsets.stop // SECTOR_BYTES
    found = [event for event in events if first <= event["sector"] < end]
    caused = [
        (kind, offset // SECTOR_BYTES, size, 0, os.getpid(), own_comm())
        for kind, size in (("R", BLOCK), ("W", 2 * BLOCK))
        for offset in offsets
    ]
    told = [
        (e["rwbs"][0], e["sector"], e["bytes"], e["error"], e["pid"], e["comm"]) for e in found
    ]
    check_found(running.session, told, caused)
    assert all(event["latency_ns"] > 0 for event in found if event["pid"])


def test_victims_of_the_oom_killer(
    start_cli: Start, run_cli: Run, tmp_path: Path, *, perf: Perf, require: Require
) -> None:
    """Each victim is reported, and the cause; a process that is killed otherwise is not."""
    require("memory cgroups")
    name = f"collectord-test-{os.getpid()}"
    caused = []
    with (
        bpf_load.memory_cgroup(name, MEMORY_BYTES) as cgroup,
        recording(start_cli, tmp_path, "--bpf", "oomkill") as running,
    ):
        for number in range(3):
            comm = f"victim-{number}"
            with bpf_load.eater(cgroup, comm, 2 * MEMORY_BYTES, score=1000) as victim:
                assert victim.wait() == -signal.SIGKILL
            caused.append((victim.pid, comm, victim.pid, os.getuid(), comm))
        with bpf_load.eater(cgroup, "sleeper", MEMORY_BYTES // 2, score=1000) as sleeper:
            assert sleeper.stdout is not None
            assert sleeper.stdout.readline() == "ate\n"
            with bpf_load.eater(cgroup, "greedy", MEMORY_BYTES * 5 // 8) as greedy:
                assert sleeper.wait() == -signal.SIGKILL
                assert greedy.communicate("\n")[0] == "ate\n"
            caused.append((sleeper.pid, "sleeper", greedy.pid, os.getuid(), "greedy"))
        with bpf_load.eater(cgroup, "killed", MEMORY_BYTES // 8) as killed:
            assert killed.stdout is not None
            assert killed.stdout.readline() == "ate\n"
            killed.kill()
            assert killed.wait() == -signal.SIGKILL
    check_balance(running.session, (perf,))
    ours = {*(pid for pid, *_ in caused), killed.pid}
    found = [e for e in events_of(run_cli, running.session) if e["pid"] in ours]
    names = ("pid", "comm", "trigger_pid", "trigger_uid", "trigger_comm")
    check_found(running.session, [tuple(event[n] for n in names) for event in found], caused)
