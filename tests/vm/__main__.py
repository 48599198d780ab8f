# SPDX-License-Identifier: Apache-2.0
"""`make test-vm`: the tests marked `vm`, in a guest with a kernel and a systemd of its own."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.vm import guest, report
from tests.vm.layers import ROOT, BuildFailed, Layers, Snapshot

if TYPE_CHECKING:
    from collections.abc import Sequence

RUNS: Final = ROOT / "build" / "vm"
RUNS_KEPT: Final = 10
_LOG_LINES_SHOWN: Final = 40


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.vm",
        description=__doc__,
        epilog="What follows -- goes to pytest: -- tests/vm/test_guest.py -k hotplug",
    )
    parser.add_argument("--run", metavar="COMMAND", help="run a shell command instead of tests")
    parser.add_argument("--build", action="store_true", help="build what is missing, boot nothing")
    parser.add_argument("--limit", type=float, default=1200, metavar="SECONDS", help="of the run")
    parser.add_argument("--silence", type=float, default=300, metavar="SECONDS", help="of a hang")
    parser.add_argument("pytest", nargs="*", help="arguments of pytest")
    return parser.parse_args(arguments)


def _show(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _tell(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _new_run() -> guest.Run:
    """A folder for a run; those of earlier ones are deleted but the last few."""
    RUNS.mkdir(parents=True, exist_ok=True)
    for old in sorted(RUNS.glob("run-*"))[: -RUNS_KEPT + 1]:
        report.remove_run(old)
    prefix = time.strftime("run-%Y%m%d-%H%M%S-", time.gmtime())
    return guest.Run(Path(tempfile.mkdtemp(prefix=prefix, dir=RUNS)))


def main(arguments: Sequence[str]) -> int:
    """Build, boot, judge.

    Returns:
        0 if every test marked `vm` passed in the guest (with --run: the command's status), 1 if
        not, 2 if the guest could not be built, crashed or hung.
    """
    args = _parse(arguments)
    if os.geteuid() != 0:
        _tell("vm: needs root, to build the guest: sudo make test-vm")
        return 2
    with ExitStack() as held:
        source = held.enter_context(tempfile.TemporaryDirectory(prefix="collectord-vm-"))
        snapshot = Snapshot.take(Path(source))
        try:
            disks = Layers(snapshot, held, _tell).disks()
        except BuildFailed as error:
            lines = error.log.read_text(errors="replace").splitlines()
            _tell("\n".join((*lines[-_LOG_LINES_SHOWN:], f"vm: {error}")))
            return 2
        if args.build:
            return 0
        selection = _selection(args.pytest)
        wanted = None if args.run else report.collect(selection)
        files = _new_run()
        limits = guest.Limits(args.limit, args.silence)
        try:
            status = guest.run(args.run or _pytest(selection), disks, files, limits, _show)
        except guest.GuestFailed as error:
            _tell(f"{error.console_end()}\nvm: {error}")
            return 2
    if wanted is None:
        return status
    return report.judge(wanted, files, status, _tell)


def _selection(words: Sequence[str]) -> tuple[str, ...]:
    """Arguments of pytest; the two lanes if they name no file."""
    named = any((ROOT / word.partition("::")[0]).exists() for word in words)
    return (*words, *(() if named else ("tests/kernel", "tests/vm")))


def _pytest(words: Sequence[str]) -> str:
    command = (".venv/bin/pytest", "-m", "vm", "--verbose", "--color=no", "--durations=15")
    return shlex.join((*command, *words)) + ' --junitxml="$JOB_RESULTS/report.xml"'


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
