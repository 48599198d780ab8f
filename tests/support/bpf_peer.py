# SPDX-License-Identifier: Apache-2.0
"""A BCC program whose events `perf record` stores: PROGRAM PERF RECORD WORDS... -- COMMAND.

Runs under an interpreter that has bcc. The program's `events` are the rings that perf has opened
first, one for each CPU. They are there before COMMAND runs, and perf ends after it.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

from bcc import BPF

_PIDFD_GETFD = 438


def _rings(pid: int) -> list[int]:
    """Return duplicates of a process's perf events, in the order of their opening."""
    files = Path(f"/proc/{pid}/fd").iterdir()
    numbers = sorted(int(file.name) for file in files if "perf_event" in str(file.readlink()))
    process = os.pidfd_open(pid)
    libc = ctypes.CDLL(None, use_errno=True)
    found = [libc.syscall(_PIDFD_GETFD, process, number, 0) for number in numbers]
    if min(found) < 0:
        raise OSError(ctypes.get_errno(), "pidfd_getfd")
    return found


def main(program: str, perf: list[str], command: list[str]) -> int:
    """Have perf record the program's events for as long as the command runs."""
    bpf = BPF(text=Path(program).read_text())
    gate = ("sh", "-c", "echo && read -r _")
    with subprocess.Popen(
        [*perf, "--", *gate], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as recorder:
        assert recorder.stdout is not None
        recorder.stdout.readline()
        for cpu, ring in zip(sorted(os.sched_getaffinity(0)), _rings(recorder.pid), strict=False):
            bpf["events"][ctypes.c_int(cpu)] = ctypes.c_int(ring)
        status = subprocess.run(command, check=False).returncode
        recorder.communicate(b"\n")
    return status or recorder.returncode


if __name__ == "__main__":
    END = sys.argv.index("--")
    sys.exit(main(sys.argv[1], sys.argv[2:END], sys.argv[END + 1 :]))
