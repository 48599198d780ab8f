# SPDX-License-Identifier: Apache-2.0
"""Processes that run cases with damaged files, each within limits of time and memory.

A case is told by a seed and a number: `python -m MODULE SEED NUMBER` runs it alone.
COLLECTORD_DAMAGED sets the number of cases, COLLECTORD_DAMAGE_SEED which ones: without it the
commit does, so that its run can be had again.
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

# No case needs more: it is a hang's limit, of processor time, and another one of the clock.
CASE_CPU_S: Final = 5
CASE_S: Final = 60
MEMORY_BYTES: Final = 512 << 20
ROOT: Final = Path(__file__).resolve().parents[2]
WORKERS: Final = min(len(os.sched_getaffinity(0)), 8)
TOLD_MAX: Final = 5


class Case(Protocol):
    """A directory with damage, and what is done with it."""

    told: list[str]

    def run(self) -> None:
        """Read the files. Raises the problems found."""


class Cases(Protocol):
    """Makes the case of a random sequence, out of templates, in a directory that it makes."""

    def __call__(self, templates: Path, work: Path, choice: random.Random) -> Case:
        """Return it."""


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    faulthandler.enable()
    faulthandler.register(signal.SIGPROF, chain=True)  # whose default is the process's end


def _run(make: Cases, templates: Path, seed: int, numbers: range, *, verbose: bool = False) -> int:
    """Run cases; returns how many failed, and tells of each in a line of JSON."""
    failed = 0
    room = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108  # made below, and unlinked
    with tempfile.TemporaryDirectory(dir=room) as scratch:
        for number in numbers:
            sys.stderr.write(f"case {number}\n")  # the last line if it dies
            signal.setitimer(signal.ITIMER_PROF, CASE_CPU_S)
            faulthandler.dump_traceback_later(CASE_S, exit=True)
            work = Path(scratch) / "case"
            told: list[str] = []
            try:
                case = make(templates, work, random.Random(f"{seed}/{number}"))  # noqa: S311  # cases, not secrets
                told = case.told
                case.run()
            except Exception:  # noqa: BLE001  # it is what is looked for
                failed += 1
                what = {"case": number, "told": told, "what": traceback.format_exc()}
                sys.stdout.write(json.dumps(what) + "\n")
            if verbose:
                sys.stderr.write("\n".join(told) + "\n")
            shutil.rmtree(work, ignore_errors=True)
    signal.setitimer(signal.ITIMER_PROF, 0)
    faulthandler.cancel_dump_traceback_later()
    sys.stderr.write(f"done {len(numbers)}\n")
    return failed


def main(make_templates: Callable[[Path], None], make: Cases) -> int:
    """Run what the command line says: one case, or those of `TEMPLATES SEED FIRST STEP PAST`."""
    words = sys.argv[1:]
    if len(words) == 2:
        with tempfile.TemporaryDirectory() as place:
            make_templates(Path(place))
            _limit()
            first = int(words[1])
            return _run(make, Path(place), int(words[0]), range(first, first + 1), verbose=True)
    templates, seed, *numbers = words
    _limit()
    return _run(make, Path(templates), int(seed), range(*_first_past_step(numbers)))


def _first_past_step(words: Iterable[str]) -> tuple[int, int, int]:
    first, step, past = map(int, words)
    return first, past, step


def _seed() -> int:
    words = ("git", "-c", "safe.directory=*", "rev-parse", "--short=7", "HEAD")
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    commit = int(done.stdout[:7], 16) if done.returncode == 0 else 1
    return int(os.environ.get("COLLECTORD_DAMAGE_SEED", commit))


def check_cases(module: str, templates: Path, directory: Path, count: int) -> None:
    """Run `count` cases of a module, or as many as the environment says, on all processors.

    Args:
        module: its main is `main` above.
        templates: what it damages copies of.
        directory: for what the processes say.
        count: the number of cases.
    """
    count = int(os.environ.get("COLLECTORD_DAMAGED", count))
    seed = _seed()
    print(f"COLLECTORD_DAMAGE_SEED={seed}")  # noqa: T201  # pytest shows it of a failure
    workers = []
    for first in range(WORKERS):
        words = [templates, seed, first, WORKERS, count]
        with (
            (directory / f"{first}.out").open("w") as out,
            (directory / f"{first}.err").open("w") as err,
        ):
            command = [sys.executable, "-m", module, *map(str, words)]
            workers.append(subprocess.Popen(command, stdout=out, stderr=err, cwd=ROOT))
    try:
        statuses = [worker.wait() for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    lines = [line for path in directory.glob("*.out") for line in path.read_text().splitlines()]
    failures = [json.loads(line) for line in lines]
    told = "\n".join(f"{one['case']}: {one['told']}\n{one['what']}" for one in failures[:TOLD_MAX])
    assert not failures, f"seed {seed}, {len(failures)} cases\n{told}"
    for number, status in enumerate(statuses):
        last = (directory / f"{number}.err").read_text(errors="replace").splitlines()[-60:]
        assert status == 0, f"seed {seed}, a worker died in its last case\n" + "\n".join(last)
        assert last[-1].startswith("done "), last
