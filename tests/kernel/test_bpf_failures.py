# SPDX-License-Identifier: Apache-2.0
"""Failures of BPF programs: each has one clear message, and affects no one else."""

from __future__ import annotations

import os
import re
import signal
import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from collectord.reader.verify import list_segments
from collectord.source.bcc_client import STARTS_MAX
from tests.support import daemons
from tests.support.daemons import EVENT, FILTER, NUMBER

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    from tests.support.generator import Generator

    Run = Callable[..., subprocess.CompletedProcess[str]]
    Start = Callable[..., subprocess.Popen[str]]

pytestmark = [pytest.mark.usefixtures("tracefs", "bcc"), pytest.mark.beside]

BURST: Final = 500
WORKER: Final = "bcc_worker"
MANIFEST: Final = 'summary = "a test"\nlicense = "Dual BSD/GPL"\n'
GOOD: Final = """#include <uapi/linux/ptrace.h>
struct event { u64 nr; };
#define COLLECTORD_EVENT struct event
#include "collectord.h"

RAW_TRACEPOINT_PROBE(sys_enter)
{
    struct event event = { .nr = ctx->args[1] };
    collectord_submit(ctx, &event);
    return 0;
}
"""
BROKEN: Final = {
    "syntax": (GOOD.replace("return 0;", "return 0"), 10, r"broken\.bpf\.c:10:\d+: error"),
    "verifier": (
        GOOD.replace("return 0;", "return *(int *)(event.nr);"),
        0,
        r"verifier|not allowed|invalid|inval",
    ),
    "member": (GOOD.replace(".nr =", ".number ="), 8, r"broken\.bpf\.c:8:\d+: error"),
    "undescribed": (GOOD.replace("u64 nr;", "u64 nr : 5;"), 0, r"describe"),
}


def _program(directory: Path, source: str, manifest: str = MANIFEST) -> Path:
    """Return a pair of files as a user adds them."""
    folder = directory / "programs"
    folder.mkdir(mode=0o755, exist_ok=True)
    (folder / "broken.bpf.c").write_text(source)
    (folder / "broken.toml").write_text(manifest)
    return folder


def _config(directory: Path, folder: Path, *, bpf: str = "", program: str = "broken") -> Path:
    """Return a session of a BPF program, and one that has nothing to do with it."""
    path = directory / "collectord.toml"
    path.write_text(
        f"""
[daemon]
state_dir = "{directory}/state"
flush_interval = "100ms"
[metrics]
listen = "127.0.0.1:0"
[control]
socket = "{directory}/control.sock"
[bpf]
programs = "{folder}"
{bpf}
[[session]]
name = "bpf"
[[session.source]]
kind = "bpf"
program = "{program}"
[[session]]
name = "calls"
[[session.source]]
kind = "perf"
events = ["{EVENT}"]
filter = "{FILTER}"
"""
    )
    return path


def _check_others(daemon: daemons.Daemon, generator: Generator) -> None:
    """The other session records, and the failed one says why."""
    with generator.start("count", count=BURST, nr=NUMBER) as running:
        assert running.run()["events"] == BURST
    daemon.await_stored(BURST)
    assert daemon.session()["state"] == "running"


@pytest.mark.parametrize("kind", BROKEN)
def test_a_program_that_is_wrong(
    tmp_path: Path, start_cli: Start, run_cli: Run, generator: Generator, kind: str
) -> None:
    """`check` shows the compiler's or the verifier's words; the daemon runs without it."""
    source, _, said = BROKEN[kind]
    folder = _program(tmp_path, source)
    checked = run_cli("bpf", "check", "broken", "--program-dir", folder)
    assert checked.returncode == 1, checked.stdout
    assert re.search(said, checked.stderr), checked.stderr
    assert "Traceback" not in checked.stderr
    with daemons.running(start_cli, _config(tmp_path, folder)) as daemon:
        failed = daemon.session("bpf")
        assert failed["state"] == "failed"
        (reason,) = failed["degraded"]
        assert reason.startswith("broken")
        _check_others(daemon, generator)
        ended = daemon.stop()
    assert ended.status == 0
    (told,) = ended.named("session_failed")
    assert told["session"] == "bpf"


def test_a_compiler_that_stands_still(
    tmp_path: Path, start_cli: Start, generator: Generator
) -> None:
    """Other rings are open before anything is compiled; the daemon is ready when all are."""
    config = _config(tmp_path, _program(tmp_path, GOOD))
    started = []

    def start(*words: object, **options: object) -> subprocess.Popen[str]:
        started.append(start_cli(*words, **options))
        return started[0]

    def workers() -> list[int]:
        found: list[int] = []
        for process in started:
            for task in Path(f"/proc/{process.pid}/task").glob("*/children"):
                with suppress(FileNotFoundError):  # ended since it was listed
                    found.extend(
                        int(child)
                        for child in task.read_text().split()
                        if WORKER in Path(f"/proc/{child}/cmdline").read_text()
                    )
        return found

    def is_stored() -> bool:
        state = tmp_path / "state"
        return state.exists() and sum(row.samples or 0 for row in list_segments([state])) == BURST

    def look() -> bool:
        daemons.wait_for(workers, "a compiler")
        (worker,) = workers()
        os.kill(worker, signal.SIGSTOP)
        try:
            with generator.start("count", count=BURST, nr=NUMBER) as running:
                assert running.run()["events"] == BURST
            daemons.wait_for(is_stored, "what was made meanwhile")
            return worker in workers()
        finally:
            os.kill(worker, signal.SIGKILL)

    with ThreadPoolExecutor(1) as other:
        looked = other.submit(look)
        with daemons.running(start, config) as daemon:
            assert looked.result()
            # It was killed in the end, and another one has compiled.
            assert daemon.session("bpf")["state"] == "running"
            daemon.await_stored(BURST)
            assert daemon.stop().status == 0


def test_a_manifest_without_licence(tmp_path: Path, run_cli: Run) -> None:
    """The kernel gives tracing helpers to GPL-compatible programs only, so it is required."""
    folder = _program(tmp_path, GOOD, 'summary = "a test"\n')
    done = run_cli("bpf", "check", "broken", "--program-dir", folder)
    assert done.returncode == 6
    assert "license" in done.stderr
    assert "broken.toml" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_program_that_others_may_write(tmp_path: Path, run_cli: Run) -> None:
    """A user who can write it would choose what the kernel runs."""
    folder = _program(tmp_path, GOOD)
    path = folder / "broken.bpf.c"
    path.chmod(stat.S_IMODE(path.stat().st_mode) | stat.S_IWGRP)
    done = run_cli("bpf", "check", "broken", "--program-dir", folder)
    assert done.returncode == 6
    assert str(path) in done.stderr
    path.chmod(0o644)
    os.chown(path, 65534, -1)
    done = run_cli("bpf", "check", "broken", "--program-dir", folder)
    assert done.returncode == 6
    assert "root" in done.stderr


def test_headers_that_are_not_there(
    tmp_path: Path, start_cli: Start, generator: Generator
) -> None:
    """If the configured tree is not one, the session says so."""
    folder = _program(tmp_path, GOOD)
    config = _config(tmp_path, folder, bpf=f'headers = "{tmp_path}/nowhere"')
    with daemons.running(start_cli, config) as daemon:
        failed = daemon.session("bpf")
        assert failed["state"] == "failed"
        assert f"{tmp_path}/nowhere" in failed["degraded"][0]
        _check_others(daemon, generator)


def test_an_interpreter_without_bcc(
    tmp_path: Path, start_cli: Start, generator: Generator, run_cli: Run
) -> None:
    """BPF sources degrade with a reason and everything else works."""
    folder = _program(tmp_path, GOOD)
    config = _config(tmp_path, folder, bpf=f'python = "{sys.executable}"')
    with daemons.running(start_cli, config) as daemon:
        failed = daemon.session("bpf")
        assert failed["state"] == "failed"
        assert "bcc" in failed["degraded"][0]
        _check_others(daemon, generator)
    checked = run_cli("check", config)
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize("kills", ["once", "always"])
def test_a_killed_compiler(
    tmp_path: Path, start_cli: Start, generator: Generator, kills: str
) -> None:
    """Killed while it compiles it is started again; its session fails if that is of no use.

    The others run.
    """
    folder = _program(tmp_path, GOOD)
    worker, killed = tmp_path / "python", tmp_path / "killed"
    # The interpreter kills itself once it has begun to compile.
    worker.write_text(
        "#!/bin/sh\n"
        f'if [ "$2" != -c ] && [ "{kills}" = always -o ! -e "{killed}" ]; then\n'
        f"    echo >>{killed}\n"
        "    (until grep -q libbcc /proc/$$/maps; do :; done; kill -KILL $$) >/dev/null 2>&1 &\n"
        "fi\n"
        'exec /usr/bin/python3 "$@"\n'
    )
    worker.chmod(0o755)
    config = _config(tmp_path, folder, bpf=f'python = "{worker}"')
    with daemons.running(start_cli, config) as daemon:
        compiled = daemon.session("bpf")
        _check_others(daemon, generator)
        ended = daemon.stop()
    starts = len(killed.read_text())
    assert len(ended.named("bcc_worker_killed")) == (1 if kills == "once" else starts - 1)
    if kills == "once":
        assert (compiled["state"], starts) == ("running", 1)
        return
    assert (compiled["state"], starts) == ("failed", STARTS_MAX)
    assert "SIGKILL" in compiled["degraded"][0]


def test_a_compiler_out_of_time(tmp_path: Path, start_cli: Start) -> None:
    """It is killed with all that it started, and the message names the limit."""
    folder = _program(tmp_path, GOOD)
    config = _config(tmp_path, folder, bpf='compile_time = "1ms"')
    with daemons.running(start_cli, config) as daemon:
        failed = daemon.session("bpf")
        assert failed["state"] == "failed"
        assert "compile_time" in failed["degraded"][0]


def test_a_compiler_out_of_memory(tmp_path: Path, start_cli: Start) -> None:
    """The memory limit holds, and is named."""
    folder = _program(tmp_path, GOOD)
    config = _config(tmp_path, folder, bpf='compile_memory = "96MiB"')
    with daemons.running(start_cli, config) as daemon:
        failed = daemon.session("bpf")
        assert failed["state"] == "failed"
        assert "memory" in failed["degraded"][0]


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("--bpf", "nosuch"), 2, "nosuch"),
        (("--bpf", "execsnop"), 2, "execsnoop"),
        (("--bpf", "execsnoop", "--bpf-arg", "argz=1"), 2, "args"),
        (("--bpf", "execsnoop", "-e", "cycles"), 2, "--bpf"),
        (("--bpf", "execsnoop", "-p", "1"), 2, "parameters"),
        (("--bpf-arg", "a=1"), 2, "--bpf"),
    ],
)
def test_a_command_line_that_is_wrong(
    run_cli: Run, tmp_path: Path, words: tuple[str, ...], status: int, said: str
) -> None:
    """It gives one line, the right status, and no file."""
    done = run_cli("record", *words, "--duration", "1s")
    assert done.returncode == status, done.stderr
    assert said in done.stderr.splitlines()[0]
    assert not list(tmp_path.iterdir())
