# SPDX-License-Identifier: Apache-2.0
"""Functions of the kernel as events: through perf, through ftrace, and through BPF programs."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.kernel.test_ftrace_record import check_ftrace_balance, check_reported, final_session
from tests.support import bpf_pairs, daemons
from tests.support.recording import (
    check_balance,
    check_listed,
    daemon_config,
    recording,
    result_of,
    segments_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.generator import Generator
    from tests.support.perf_tools import Perf
    from tests.support.recording import Start
    from tests.support.trace_cmds import TraceCmd

    Run = Callable[..., subprocess.CompletedProcess[str]]
    Perfs = tuple[Perf, ...]
    TraceCmds = tuple[TraceCmd, ...]

pytestmark = pytest.mark.usefixtures("tracefs")

GETPPID: Final = 110
FUNCTION: Final = "__x64_sys_getppid"
COUNT: Final = 5_000
STATUS_CONFIG: Final = 6
THREADS: Final = 3  # each calls `make_calls` once
EVENT: Final = "made_by_hand:asked"
# A program on a kprobe is not told of the runs that the kernel left out.
PROGRAM: Final = f"""
struct event {{ u32 tgid; u32 tid; }};
#define COLLECTORD_EVENT struct event
#include "collectord.h"

int kprobe__{FUNCTION}(struct pt_regs *ctx)
{{
    struct event event = {{}};
    u64 id = bpf_get_current_pid_tgid();

    event.tgid = id >> 32;
    event.tid = id;
    collectord_submit(ctx, &event);
    return 0;
}}
"""
MANIFEST: Final = """
summary = "who asks for its parent"
license = "GPL-2.0"

[event]
columns = [{ field = "tgid", title = "PID" }]
"""


@pytest.fixture
def probe(tracefs: Path) -> Iterator[str]:
    """Provide a kprobe event that somebody made with tracefs, as `perf probe` and trace-cmd do."""
    name = EVENT.replace(":", "/")
    # O_TRUNC would remove all there are; Python's "a" seeks, which this file refuses
    fd = os.open(tracefs / "kprobe_events", os.O_WRONLY | os.O_APPEND)
    try:
        os.write(fd, f"p:{name} {FUNCTION}\n".encode())
        yield EVENT
        os.write(fd, f"-:{name}\n".encode())
    finally:
        os.close(fd)


def test_through_perf(
    run_cli: Run, tmp_path: Path, *, generator: Generator, perfs: Perfs, probe: str
) -> None:
    """Each call of the function is in the balance, and perf lists it."""
    command = generator.command("count", nr=GETPPID, count=COUNT, threads=2)
    where = ("--output-dir", tmp_path / "out", "--json")
    done = run_cli("record", "-e", probe, *where, "--", *command)
    assert done.returncode == 0, done.stderr
    check_balance(result_of(done.stdout), perfs, generated=2 * COUNT)


@pytest.mark.parametrize("transport", ["read", "mmap", "splice"])
def test_through_ftrace(
    run_cli: Run,
    tmp_path: Path,
    *,
    generator: Generator,
    trace_cmds: TraceCmds,
    probe: str,
    transport: str,
) -> None:
    """The rings of an instance record them too, by every transport."""
    command = generator.command("count", nr=GETPPID, count=COUNT)
    where = ("--output-dir", tmp_path / "out", "--json")
    words = ("--via", "ftrace", "--transport", transport, "-m", "4MiB")
    done = run_cli("record", "-e", probe, *words, *where, "--", *command)
    assert done.returncode == 0, done.stderr
    session = result_of(done.stdout)
    assert {ring["transport"] for ring in session["rings"]} == {transport}
    check_ftrace_balance(session, generated=COUNT)
    check_reported(session, trace_cmds)


def test_probes_of_a_session(  # noqa: PLR0917  # fixtures
    tmp_path: Path,
    tracefs: Path,
    start_cli: Start,
    run_cli: Run,
    generator: Generator,
    trace_cmds: TraceCmds,
) -> None:
    """Every kind of probe that a configuration may ask for counts, and goes with its session."""
    places = {
        "kprobe": FUNCTION,
        "kretprobe": FUNCTION,
        "uprobe": f"{generator.program}:{_offset(generator.program, 'make_calls'):#x}",
        "uretprobe": f"{generator.program}:{_offset(generator.program, 'make_calls'):#x}",
        "eprobe": "raw_syscalls.sys_enter",
    }
    arguments = {"kretprobe": "parent=$retval:s32", "eprobe": "nr=$id:s64"}
    filters = {"kretprobe": "parent > 0", "eprobe": f"id == {GETPPID}"}
    probes = ", ".join(
        f'{{ kind = "{kind}", name = "{kind}_here", place = "{place}", '
        f'arguments = "{arguments.get(kind, "")}", filter = "{filters.get(kind, "")}" }}'
        for kind, place in places.items()
    )
    with generator.start("count", nr=GETPPID, count=COUNT, threads=THREADS) as running:
        config = daemon_config(
            tmp_path,
            log_level="info",
            kind="tracefs",
            target=f'scope = "process"\npids = [{running.pid}]',
            events="[]",
            source=f"probes = [{probes}]",
        )
        with daemons.running(start_cli, config) as daemon:
            running.run()
            ended = daemon.stop()
    assert ended.status == 0, ended.log
    for name in ("kprobe_events", "uprobe_events", "dynamic_events"):
        assert "_here" not in (tracefs / name).read_text()
    session = final_session(tmp_path / "state")
    assert (session["basis"], session["unaccounted"]) == ("exact", 0)
    assert session["produced"] == session["stored"]
    done = run_cli("events", "--count", "--json", *session["segments"])
    counts = {
        row["event"].partition(":")[2]: row["count"] for row in json.loads(done.stdout)["events"]
    }
    for kind in ("kprobe", "kretprobe", "eprobe"):
        assert counts[f"{kind}_here"] == THREADS * COUNT
    assert counts["uprobe_here"] == counts["uretprobe_here"] == THREADS
    check_reported(session, trace_cmds)


def test_a_filter_that_an_event_probe_cannot_have(tmp_path: Path, run_cli: Run) -> None:
    """The kernel refuses it without a reason; it is not taken for a kernel without eprobes."""
    probe = '{ kind = "eprobe", name = "x", place = "raw_syscalls.sys_enter", filter = "nr == 1" }'
    config = daemon_config(tmp_path, kind="tracefs", events="[]", source=f"probes = [{probe}]")
    done = run_cli("run", "--config", config)
    assert done.returncode == STATUS_CONFIG
    assert "'nr == 1' must use the fields of raw_syscalls.sys_enter" in done.stderr


def _offset(program: Path, symbol: str) -> int:
    """Return a function's offset in the file of a program whose text is mapped unmodified."""
    table = subprocess.check_output(["nm", program], text=True)
    (address,) = (line.split()[0] for line in table.splitlines() if line.split()[-1] == symbol)
    return int(address, 16)


@pytest.mark.usefixtures("bcc")
def test_a_program_on_a_function(
    start_cli: Start, run_cli: Run, tmp_path: Path, *, generator: Generator, perfs: Perfs
) -> None:
    """Its events are stored and decoded, none is lost, and the basis says what that rests on."""
    own = Path("/etc/collectord/bpf")
    before = own.exists()
    bpf_pairs.write(own, PROGRAM, MANIFEST, name="askers")
    try:
        with (
            recording(start_cli, tmp_path, "--bpf", "askers", "-m", "4M") as record,
            generator.start("count", nr=GETPPID, count=COUNT, threads=2) as running,
        ):
            pid = running.pid
            running.run()
    finally:
        for suffix in (".bpf.c", ".toml"):
            (own / f"askers{suffix}").unlink()
        if not before:
            own.rmdir()
    session = record.session
    assert session["ledger_basis"] == "lost_only"
    assert (session["produced"], session["unaccounted"]) == (None, None)
    assert not any(session["lost"].values())
    check_listed(session, perfs)
    found = run_cli("events", "--json", "--filter", f"tgid == {pid}", *segments_of(session))
    assert len(found.stdout.splitlines()) == 2 * COUNT, found.stderr
