# SPDX-License-Identifier: Apache-2.0
"""`make test-vm`: the tests marked `vm`, in a guest with a kernel and a systemd of its own."""

from __future__ import annotations

import argparse
import functools
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from tests import again
from tests.vm import guest, report
from tests.vm.layers import (
    ROOT,
    SUITES,
    BuildFailed,
    Layers,
    Snapshot,
    place_for_a_guest,
)

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

RUNS: Final = ROOT / "build" / "vm"
RUNS_KEPT: Final = 10
LANES: Final = ("tests/kernel", "tests/vm")
# The older release has only those tests that its package needs.
_OF_SUITES: Final = {SUITES[0]: LANES, SUITES[1]: ("tests/vm/test_package.py",)}
# In the guest of the first lane, so that both guests take about as long.
_ASIDE: Final = frozenset(
    f"tests/vm/test_{name}.py"
    for name in (
        *("aux_decode", "fsslower", "lasting_relay", "mutation", "opener_aux", "package", "relay"),
        "ship_unit",
    )
)
STATUS_FAILED: Final = 1
STATUS_NO_GUEST: Final = 2
_LOG_LINES_SHOWN: Final = 40


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.vm",
        description=__doc__,
        epilog="Arguments after -- are passed to pytest: -- tests/vm/test_hotplug.py -k leaves",
    )
    parser.add_argument("--run", metavar="COMMAND", help="run a shell command instead of tests")
    parser.add_argument(
        "--build", action="store_true", help="build missing parts, and do not boot"
    )
    parser.add_argument(
        "--suite", choices=SUITES, default=SUITES[0], help="Debian's release of the guest"
    )
    parser.add_argument(
        "--limit",
        type=float,
        default=2300,
        metavar="SECONDS",
        help="limit of the guest's run time (2300)",
    )
    parser.add_argument(
        "--silence",
        type=float,
        default=600,
        metavar="SECONDS",
        help="time without output that is taken for a hang (600)",
    )
    parser.add_argument("pytest", nargs="*", help="arguments of pytest")
    return parser.parse_args(arguments)


def _show(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _tell(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _new_run() -> guest.Run:
    """Return a folder for a run; those of earlier ones are deleted but the last few."""
    RUNS.mkdir(parents=True, exist_ok=True)
    for old in sorted(RUNS.glob("run-*"))[: -RUNS_KEPT + 1]:
        shutil.rmtree(old, ignore_errors=True)
    prefix = time.strftime("run-%Y%m%d-%H%M%S-", time.gmtime())
    return guest.Run(Path(tempfile.mkdtemp(prefix=prefix, dir=RUNS)))


def _chosen(
    words: Sequence[str], lanes: Sequence[str]
) -> tuple[frozenset[str], list[tuple[str, ...]]]:
    """Return the tests that pytest's arguments select, and the arguments for each guest.

    If they name no file, two guests share the tests. Raises `report.CollectionFailed`.
    """
    if any((ROOT / word.partition("::")[0]).exists() for word in words):
        return report.collect(words), [tuple(words)]
    wanted = report.collect((*words, *lanes))
    return wanted, [(*words, *files) for files in _shares(wanted)]


def _shares(wanted: frozenset[str]) -> list[tuple[str, ...]]:
    """Return the files that have these tests, for each guest that gets some.

    The other files of the lanes are left out: an emulated processor takes long to import them.
    """
    files = sorted({test.partition("::")[0] for test in wanted})
    first = tuple(file for file in files if file.startswith(LANES[0]) or file in _ASIDE)
    second = tuple(file for file in files if file not in first)
    return [share for share in (first, second) if share]


def _pytest(words: Sequence[str]) -> str:
    command = (".venv/bin/pytest", "-m", "vm", "--verbose", "--color=no", "--durations=15")
    # "xunit1" as tests record properties; the times are a hang's
    options = ("-o", "junit_family=xunit1", "-o", "faulthandler_timeout=0", "-o", "timeout=500")
    return shlex.join((*command, *options, *words)) + ' --junitxml="$JOB_RESULTS/report.xml"'


def _in_a_guest(machine: guest.Machine, limits: guest.Limits, job: str) -> tuple[guest.Run, int]:
    """Run a job; returns its files and its status. Raises as `guest.run`."""
    with place_for_a_guest(_tell):
        files = _new_run()
        return files, guest.run(job, machine, files, limits, _show)


def run_tests(
    wanted: frozenset[str],
    groups: Sequence[tuple[str, ...]],
    run_job: Callable[[str], tuple[guest.Run, int]],
    stop: threading.Event,
) -> int:
    """Run each group of tests in a guest of its own, side by side, and judge them together.

    A few that failed run once more, see `tests.again`: by themselves, in a guest that is new.

    Args:
        wanted: node ids of the tests that must pass.
        groups: arguments of pytest that select them, for each guest.
        run_job: runs a shell script in a guest; gives its files and its status, or raises
            `guest.GuestFailed`.
        stop: is set to end what still runs.

    Returns:
        Exit status, as of `main`.
    """
    first = _judged(wanted, groups, run_job, stop)
    failed = sorted(test for test in wanted if report.report_name(test) in first.verdict.failed)
    if not (first.has_only_failed and again.are_few(failed)):
        return first.status
    _show(again.announcement(failed))
    second = _judged(frozenset(failed), [tuple(failed)], run_job, stop)
    if second.status == 0:
        _show(again.verdict(failed))
    return second.status


class _Judged(NamedTuple):
    """The result of some groups of tests: a status as of `main`, and what became of each test.

    `unexplained` guests had an end that no failed test explains.
    """

    status: int
    verdict: report.Verdict
    unexplained: int

    @property
    def has_only_failed(self) -> bool:
        """Whether nothing is wrong but that tests failed."""
        return self.verdict.only_failed and not self.unexplained


def _judged(
    wanted: frozenset[str],
    groups: Sequence[tuple[str, ...]],
    run_job: Callable[[str], tuple[guest.Run, int]],
    stop: threading.Event,
) -> _Judged:
    """Run groups of tests, see `run_tests`, and show what became of them."""
    status = unexplained = 0
    reports = []
    with ThreadPoolExecutor(len(groups)) as pool:
        running = [pool.submit(run_job, _pytest(words)) for words in groups]
        try:
            for future in as_completed(running):
                try:
                    files, ended = future.result()
                except guest.GuestFailed as error:
                    _tell(f"{error.console_end()}\nvm: {error}")
                    status = STATUS_NO_GUEST
                    unexplained += 1
                    continue
                path = files.results / "report.xml"
                if ended:
                    _tell(f"vm: pytest ended with status {ended}; see {files.folder}")
                    status = status or STATUS_FAILED
                text = path.read_text() if path.exists() else ""
                if text:
                    reports.append(text)
                unexplained += ended not in {0, 1} or (ended == 1 and "<failure" not in text)
        except BaseException:
            stop.set()  # somebody ends this process
            raise
    try:
        verdict = report.judge(wanted, reports)
    except ValueError as error:
        _tell(f"vm: {error}")
        return _Judged(status or STATUS_FAILED, report.Verdict(), unexplained)
    _show(f"{verdict.text()}\n")
    return _Judged(status or (0 if verdict.is_good else STATUS_FAILED), verdict, unexplained)


def _has_packages() -> bool:
    """Return whether this machine can build a guest, after trying to install what it lacks."""
    words = ("make", "--silent", "packages-vm")
    done = subprocess.run(words, cwd=ROOT, stdout=sys.stderr.fileno(), check=False)
    return done.returncode == 0


def _run(args: argparse.Namespace, held: ExitStack) -> int:
    if not _has_packages():
        _tell("vm: the system packages that build the guest could not be installed")
        return STATUS_NO_GUEST
    source = held.enter_context(tempfile.TemporaryDirectory(prefix="collectord-vm-"))
    disks = Layers(Snapshot.take(Path(source)), args.suite, held, _tell).disks()
    limits = guest.Limits(args.limit, args.silence)
    if args.build:
        return 0
    in_a_guest = functools.partial(_in_a_guest, guest.Machine(guest.find_qemu(), disks), limits)
    if args.run:
        return in_a_guest(args.run)[1]
    wanted, groups = _chosen(args.pytest, _OF_SUITES[args.suite])
    return run_tests(wanted, groups, in_a_guest, limits.stop)


def main(arguments: Sequence[str]) -> int:
    """Build and boot the guests, and judge the results.

    Returns:
        0 if every test marked `vm` passed in the guest (with --run: the command's status), 1 if
        not, 2 if the guest could not be built, crashed or hung.
    """
    args = _parse(arguments)
    if os.geteuid() != 0:
        _tell("vm: needs root, to build the guest: sudo make test-vm")
        return STATUS_NO_GUEST
    # so that a termination ends guests and builds too
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with ExitStack() as held:
        try:
            return _run(args, held)
        except BuildFailed as error:
            text = error.log.read_text(errors="replace").splitlines()[-_LOG_LINES_SHOWN:]
            _tell("\n".join((*text, f"vm: {error}")))
        except guest.GuestFailed as error:
            _tell(f"{error.console_end()}\nvm: {error}")
        except report.CollectionFailed as error:
            _tell(f"{error}\nvm: pytest collected no tests on this machine")
    return STATUS_NO_GUEST


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
