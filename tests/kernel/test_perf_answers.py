# SPDX-License-Identifier: Apache-2.0
"""perf gives the same results for our files as for perf record's, of the same load."""

from __future__ import annotations

import re
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

import pytest

from tests.support.daemons import FILTER, NUMBER
from tests.support.neighbours import Neighbour
from tests.support.recording import SYS_ENTER, recording, segments_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.support.generator import Generator
    from tests.support.perf_tools import Perf
    from tests.support.recording import Start

    Perfs = tuple[Perf, ...]

pytestmark = [pytest.mark.usefixtures("tracefs"), pytest.mark.beside]

SAMPLES: Final = 40
# The kernel's four, and those from _start on.
FRAMES_MIN: Final = 8
# Processes that write to one file, which only one may at a time. Their parent stays until its
# input ends: perf ends its command when the last task that it watches is gone.
_RIVALS: Final = """
import os, sys
sys.stdin.readline()
file = os.memfd_create("shared")
children = []
for _ in range(4):
    if not (pid := os.fork()):
        for _ in range(100):
            os.pwrite(file, bytes(1 << 20), 0)
        os._exit(0)
    children.append(pid)
for pid in children:
    os.waitpid(pid, 0)
print("done", flush=True)
sys.stdin.readline()
"""


@contextmanager
def _beside(perfs: Perfs, directory: Path, pid: int, words: Sequence[str]) -> Iterator[list[Path]]:
    """Have each perf record what a process does and what it forks, beside the block; its file."""
    files = []
    with ExitStack() as stack:
        for perf in perfs:
            out = directory / f"perf-{perf.version}.data"
            what = ("-m", "4M", "-p", str(pid), "-c", "1", *words)
            line: list[str | Path] = [perf.path, "record", *what, "-o", out, "--"]
            theirs = Neighbour(perf.version, tuple(line), out)
            stack.enter_context(theirs.running(directory))
            files.append(out)
        yield files


def _table(perf: Perf, file: Path, *words: str) -> list[list[str]]:
    """The rows that a report prints, without its head; perf lock 6.1 prints on standard error."""
    done = perf.run(*words, "-i", file)
    assert done.returncode == 0, f"perf {perf.version} {words}: {done.stderr}"
    rows = [line.split() for line in (done.stdout + done.stderr).splitlines()]
    return [row for row in rows if row and any(part.isdigit() for part in row)]


def _chains(perf: Perf, file: Path) -> list[list[str]]:
    """Return the frames of each sample, without their addresses."""
    done = perf.run("script", "-F", "ip,sym,dso", "--force", "-i", file)
    assert done.returncode == 0, done.stderr
    blocks = re.split(r"\n\s*\n", done.stdout.strip())
    return [[line.split(maxsplit=1)[1] for line in block.splitlines()] for block in blocks]


def test_dwarf_stacks_are_unwound_as_deeply(
    start_cli: Start, tmp_path: Path, generator: Generator, perfs: Perfs
) -> None:
    """Each stack has all frames that it has in perf's file.

    Unwinding needs the first mapping of a file, which holds no code.
    """
    events = ("-e", SYS_ENTER, "--filter", FILTER)
    with generator.start("count", count=SAMPLES, nr=NUMBER, hold=True) as running:
        words = (*events, "--call-graph", "dwarf")
        with (
            _beside(perfs, tmp_path, running.pid, words) as theirs,
            recording(start_cli, tmp_path, "-p", str(running.pid), *words) as ours,
        ):
            running.run()
    (file,) = segments_of(ours.session)
    for perf, their in zip(perfs, theirs, strict=True):
        found = _chains(perf, file)
        assert found == _chains(perf, their), f"perf {perf.version}"
        assert len(found) == SAMPLES
        assert min(map(len, found)) >= FRAMES_MIN, found


def test_locks_have_their_callers(start_cli: Start, tmp_path: Path, perfs: Perfs) -> None:
    """`perf lock` names who waited for which lock how often, as it does from perf's own file.

    It finds the kernel's symbols by the kernel's map, which must be an MMAP.
    """
    words = ("-g", "-e", "lock:contention_begin", "-e", "lock:contention_end")
    with subprocess.Popen(
        [sys.executable, "-c", _RIVALS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=tmp_path,
    ) as rivals:
        assert rivals.stdin is not None
        assert rivals.stdout is not None
        with (
            _beside(perfs, tmp_path, rivals.pid, words) as theirs,
            recording(start_cli, tmp_path, "-p", str(rivals.pid), *words) as ours,
        ):
            rivals.stdin.write(b"\n")
            rivals.stdin.flush()
            assert rivals.stdout.readline() == b"done\n"
    (file,) = segments_of(ours.session)
    for perf, their in zip(perfs, theirs, strict=True):
        locks, waits = (
            [_table(perf, path, "lock", verb) for path in (file, their)]
            for verb in ("report", "contention")
        )
        # Each recorder has its own times, and interrupts that no other saw: what is compared is
        # who waited for the file, and how often.
        most, other = (rows[0][:-8] for rows in locks)
        assert most == other
        ours_, theirs_ = (
            [[row[0], *row[-2:]] for row in rows if row[-2].startswith("rwsem")] for rows in waits
        )
        assert ours_ == theirs_
        assert ours_
        assert all("+0x" in row[-1] for row in ours_), ours_
