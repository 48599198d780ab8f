# SPDX-License-Identifier: Apache-2.0
"""Relay on whatever this host's kernel lets through: everything says what is missing, and goes.

debugfs is mounted in a mount namespace of the test's own, so that nothing of the host changes.
Under lockdown a trace can be set up and its files cannot be read; without it a recording works.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Final

import pytest

from tests.conftest import cli_environment
from tests.kernel.test_bad_input import opened_up
from tests.support.block_traces import disk
from tests.support.daemons import running
from tests.support.recording import result_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    TempPaths = pytest.TempPathFactory
    Run = Callable[..., subprocess.CompletedProcess[str]]

EXIT_FAILURE: Final = 1
EXIT_PRIVILEGE: Final = 4
EXIT_FEATURE: Final = 5
EXIT_RECORD: Final = 125  # of a recording with a COMMAND
# Opens a trace whatever was probed before.
OPEN: Final = """
import sys
from collectord.codec.blktrace import Setup
from collectord.errors import KernelError
from collectord.kernel.linux import LinuxKernel
from collectord.kernel.values.relay_files import Keep
kernel = LinuxKernel()
try:
    opened = kernel.open_blktrace(sys.argv[1], Setup(0, 4096, 2), Keep("test"))
    kernel.close_blktrace(opened.id)
    print("opened")
except KernelError as error:
    print(type(error).__name__)
"""
# A command with debugfs at its place, and one without it anywhere, and without securityfs, which
# would tell that lockdown closes debugfs anyway.
WITH: Final = (
    "unshare",
    "--mount",
    "sh",
    "-c",
    # Mounted twice at one place it is refused.
    'umount -l /sys/kernel/debug 2>/dev/null; mount -t debugfs d /sys/kernel/debug && exec "$@"',
    "-",
)
UNMOUNT: Final = """
umount -A -t debugfs -l /sys/kernel/debug 2>/dev/null
umount -l /sys/kernel/security 2>/dev/null
"""
WITHOUT: Final = (*("unshare", "--mount", "sh", "-c"), UNMOUNT + 'exec "$@"', "-")


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Path]:
    """Provide an idle block device, of which no trace is left at the end."""
    with disk(tmp_path) as found:
        yield found
        shown = subprocess.run(
            [*WITH, "ls", f"/sys/kernel/debug/block/{found.name}"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert "trace0" not in shown.stdout.split()
        assert "dropped" not in shown.stdout.split()


@pytest.fixture
def locked(run_cli: Run) -> str:
    """Why relay files cannot be opened here, "" if they can."""
    facts = json.loads(run_cli("doctor", "--json", prefix=WITH).stdout)["relay"]
    return str(facts["problem"])


def python(code: str, device: Path, status: int = 0) -> str:
    """Run it in a process that has debugfs; returns the last line that it printed."""
    done = subprocess.run(
        [*WITH, sys.executable, "-c", code, device],
        capture_output=True,
        text=True,
        check=False,
        env=cli_environment(),
    )
    assert done.returncode == status, done.stderr
    return done.stdout.strip().rpartition("\n")[2]


def test_recording(run_cli: Run, device: Path, locked: str) -> None:
    """It is exact, or ends with the code and the reason, and leaves no trace behind."""
    load = ("dd", "if=/dev/zero", f"of={device}", "bs=4096", "count=50", "oflag=direct")
    done = run_cli("record", "--relay", device, "-o", "out", "--json", "--", *load, prefix=WITH)
    if locked:
        assert done.returncode == EXIT_RECORD
        assert "kernel lockdown closes relay files" in done.stderr
        alone = run_cli("record", "--relay", device, "--duration", "1", prefix=WITH)
        assert alone.returncode == EXIT_PRIVILEGE
        assert alone.stderr == done.stderr
        return
    assert done.returncode == 0, done.stderr
    session = result_of(done.stdout)
    assert session["unaccounted"] == 0
    assert session["produced"] == session["stored"] + sum(session["lost"].values())


def test_a_refused_file_undoes_the_trace(device: Path, locked: str) -> None:
    """The setup before the refusal is torn down, or the second try would be busy."""
    for _ in range(2):
        assert python(OPEN, device) == ("MissingPrivilege" if locked else "opened")


# A trace that is set up, and that nobody ends.
SET_UP: Final = """
import os, sys
from collectord._native import _syscalls
from collectord.codec.blktrace import Setup
fd = os.open(sys.argv[1], os.O_RDONLY | os.O_NONBLOCK)
_syscalls.blktrace_setup(fd, Setup(0, 4096, 2).encode())
"""
# A process that is killed as soon as its trace is set up.
KILLED: Final = """
import os, signal, sys
from collectord._native import _syscalls
from collectord.codec.blktrace import Setup
from collectord.kernel.linux import LinuxKernel
from collectord.kernel.values.relay_files import Keep
set_up = _syscalls.blktrace_setup
def killed(*arguments):
    set_up(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)
_syscalls.blktrace_setup = killed
LinuxKernel().open_blktrace(sys.argv[1], Setup(0, 4096, 2), Keep("killed"))
"""
# A note of a process that was killed before it could say which trace it had set up.
NOTE: Final = """
import os, sys, time
from collectord.kernel.relay.block_trace import CLOCK_REALTIME_COARSE
from collectord.kernel.relay.block_trace_note import LockedNote, TraceNote
since_ns = time.clock_gettime_ns(CLOCK_REALTIME_COARSE)
note = LockedNote(os.stat(sys.argv[1]).st_rdev)
note.write(TraceNote(device=sys.argv[1], session="killed", since_ns=since_ns))
"""
# It ends such a trace at last, whoever set it up.
END: Final = """
import os, sys
from collectord._native import _syscalls
fd = os.open(sys.argv[1], os.O_RDONLY | os.O_NONBLOCK)
_syscalls.blktrace_teardown(fd)
"""


def test_a_killed_set_up_is_known(device: Path, locked: str) -> None:
    """A note that names no trace yet stands for the one that was made after it, and no other."""
    python(KILLED, device, -signal.SIGKILL)
    assert python(OPEN, device) == ("MissingPrivilege" if locked else "opened")
    python(SET_UP, device)
    try:
        python(NOTE, device)
        assert python(OPEN, device) == "KernelError"  # somebody else traces it already
    finally:
        python(END, device)
    assert python(OPEN, device) == ("MissingPrivilege" if locked else "opened")


def test_without_root(run_cli: Run, device: Path, tmp_path_factory: TempPaths) -> None:
    """The code for a missing privilege, wherever debugfs is mounted."""
    stage = tmp_path_factory.mktemp("stage")
    stage.chmod(0o755)
    for mount in (
        "mount -t debugfs d /sys/kernel/debug; umount -l /sys/kernel/security 2>/dev/null",
        UNMOUNT,
    ):
        script = "\n".join((mount, *opened_up(stage), "cd /", 'exec "$@"'))
        done = run_cli(
            *("record", "--relay", device, "--duration", "1"),
            prefix=(
                *("unshare", "--mount", "sh", "-c", script, "-"),
                *("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"),
            ),
        )
        assert done.returncode == EXIT_PRIVILEGE, done.stderr
        assert "root" in done.stderr


def test_without_debugfs(run_cli: Run, device: Path) -> None:
    """The code for a missing feature, and how to get it."""
    done = run_cli("record", "--relay", device, "--duration", "1", prefix=WITHOUT)
    assert done.returncode == EXIT_FEATURE
    assert "debugfs is not mounted" in done.stderr
    assert "mount -t debugfs" in done.stderr


def test_no_such_device(run_cli: Run, locked: str) -> None:
    """The user's mistake, and named, unless nothing could be traced anyway."""
    done = run_cli("record", "--relay", "/dev/nothing", "--duration", "1", prefix=WITH)
    assert done.returncode == (EXIT_PRIVILEGE if locked else EXIT_FAILURE)
    assert (locked or "no block device /dev/nothing") in done.stderr


def test_doctor_and_list_agree(run_cli: Run, device: Path, locked: str) -> None:
    """The rows of both say whether it is available, and why not."""
    table = run_cli("doctor", prefix=WITH).stdout.splitlines()
    (row,) = (line for line in table if line.startswith("relay "))
    assert row.split()[1] == ("missing" if locked else "ok")
    assert locked in row
    listed = json.loads(run_cli("list", "--json", "blktrace", prefix=WITH).stdout)["events"]
    (found,) = (one for one in listed if one["name"] == str(device))
    assert found["available"] is not bool(locked)
    assert found["reason"] == locked


def test_present_sessions_come_up(
    tmp_path: Path, start_cli: Callable[..., subprocess.Popen[str]], device: Path
) -> None:
    """One without its device is degraded and says why, beside one that runs."""
    path = tmp_path / "collectord.toml"
    path.write_text(
        f"""
[daemon]
state_dir = "{tmp_path / "state"}"
[metrics]
listen = "127.0.0.1:0"
[control]
socket = "{tmp_path / "control.sock"}"
[[session]]
name = "disk"
[[session.source]]
kind = "relay"
device = "{device}"
when = "present"
[[session]]
name = "clock"
[[session.source]]
kind = "perf"
events = ["cpu-clock"]
frequency = 19
"""
    )
    with running(start_cli, path, prefix=WITHOUT) as daemon:
        states = {one["name"]: one for one in daemon.status()["sessions"]}
        assert states["disk"]["state"] == "degraded"
        assert any("debugfs is not mounted" in why for why in states["disk"]["degraded"])
        assert states["clock"]["state"] == "running"
        ended = daemon.stop()
    assert ended.status == 0, ended.log
