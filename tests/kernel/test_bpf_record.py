# SPDX-License-Identifier: Apache-2.0
"""`record --bpf`: every submission is counted, stored or lost, and perf lists what is stored."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Final

import pytest

from tests.support.daemons import NUMBER
from tests.support.recording import (
    AT_USUAL_PRIORITY,
    check_balance,
    result_of,
    script,
    segments_of,
)

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.generator import Generator
    from tests.support.perf_tools import Perf

    Run = Callable[..., subprocess.CompletedProcess[str]]
    Perfs = tuple[Perf, ...]

pytestmark = [pytest.mark.usefixtures("tracefs", "bcc"), pytest.mark.beside]

COUNT: Final = 60_000
FAST: Final = 1_000_000
PAGE: Final = os.sysconf("SC_PAGE_SIZE")
RING_FULL: Final = "kernel_ring/ring_full"
SERVED: Final = (AT_USUAL_PRIORITY,)  # several starts have this prefix


def test_every_submission_is_in_the_balance(
    run_cli: Run, tmp_path: Path, *, generator: Generator, perfs: Perfs
) -> None:
    """On one CPU the program's own count, the stored records, and those that perf lists agree."""
    command = generator.command("count", cpu=0, nr=NUMBER, count=COUNT)
    words = ("--bpf", "syscall_stream", "-C", "0", "-m", "16M")
    done = run_cli("record", *words, "--output-dir", tmp_path / "out", "--json", "--", *command)
    assert done.returncode == 0, done.stderr
    session = result_of(done.stdout)
    check_balance(session, perfs)
    assert not any(session["lost"].values())
    assert session["produced"] >= COUNT
    assert [ring["cpu"] for ring in session["rings"]] == [0]
    found = run_cli("events", "--json", "--filter", f"nr == {NUMBER}", *segments_of(session))
    assert found.returncode == 0, found.stderr
    lines = [json.loads(line) for line in found.stdout.splitlines()]
    assert len(lines) == COUNT
    assert {line["cpu"] for line in lines} == {0}


@pytest.mark.vm
def test_all_cpus(run_cli: Run, tmp_path: Path, *, generator: Generator, perfs: Perfs) -> None:
    """Without -C each online CPU has a ring, and what migrates is counted once."""
    command = generator.command("count", threads=4, nr=NUMBER, count=COUNT // 10)
    words = ("--bpf", "syscall_stream", "-m", "16M")
    done = run_cli("record", *words, "--output-dir", tmp_path / "out", "--json", "--", *command)
    assert done.returncode == 0, done.stderr
    session = result_of(done.stdout)
    check_balance(session, perfs)
    assert len(session["rings"]) == os.sysconf("SC_NPROCESSORS_ONLN")
    counted = run_cli(
        "events", "--count", "--json", "--filter", f"nr == {NUMBER}", *segments_of(session)
    )
    (row,) = json.loads(counted.stdout)["events"]
    assert (row["event"], row["count"]) == ("syscall_stream", 4 * (COUNT // 10))


def test_a_ring_of_one_page_counts_what_it_loses(
    run_cli: Run, tmp_path: Path, *, generator: Generator, perfs: Perfs
) -> None:
    """Under full load, program and kernel count the same number of lost records."""
    command = generator.command("count", cpu=0, nr=NUMBER, count=FAST)
    words = ("--bpf", "syscall_stream", "-C", "0", "-m", "1")
    out = ("--output-dir", tmp_path / "out", "--json")
    done = run_cli("record", *words, *out, "--", *command, prefix=AT_USUAL_PRIORITY)
    assert done.returncode == 0, done.stderr
    session = result_of(done.stdout)
    (ring,) = session["rings"]
    assert ring["capacity_bytes"] == PAGE
    assert session["lost"][RING_FULL] > 0
    check_balance(session, perfs)
    assert session["produced"] >= FAST
    (program,) = session["programs"]
    assert program["failures"]["ENOSPC"] == session["lost"][RING_FULL]


def test_two_programs_share_rings(
    run_cli: Run, tmp_path: Path, *, generator: Generator, perfs: Perfs
) -> None:
    """Each keeps its events apart in one file, and the balance is over both."""
    count = generator.command("count", cpu=0, nr=NUMBER, count=1000)
    # The shell opens /dev/null on the CPU that is recorded, so both programs have events.
    command = ("taskset", "-c", "0", "sh", "-c", 'exec "$@" </dev/null', "sh", *count)
    words = ("--bpf", "syscall_stream", "--bpf", "opensnoop", "-C", "0")
    done = run_cli("record", *words, "--output-dir", tmp_path / "out", "--json", "--", *command)
    assert done.returncode == 0, done.stderr
    session = result_of(done.stdout)
    check_balance(session, perfs)
    (segment,) = segments_of(session)
    names = {line.split()[-1].rstrip(":") for line in script(perfs[0], segment, "-F", "event")}
    assert names == {"syscall_stream", "opensnoop"}


def test_one_file(run_cli: Run, tmp_path: Path, *, generator: Generator, perf: Perf) -> None:
    """-o names the file, and perf shows the payload as bpf-output."""
    command = generator.command("count", cpu=0, nr=NUMBER, count=100)
    out = tmp_path / "one.data"
    done = run_cli("record", "--bpf", "syscall_stream", "-C", "0", "-o", out, "--", *command)
    assert done.returncode == 0, done.stderr
    assert f"wrote {out}" in done.stdout
    lines = script(perf, out)
    assert any("BPF output" in line for line in lines)
