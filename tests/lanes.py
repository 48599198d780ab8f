# SPDX-License-Identifier: Apache-2.0
"""Run the lanes of `make test`, and say what time each took: `python -m tests.lanes [TARGET ...]`.

The kernel lane mostly waits. Those of its tests that share the machine run beside it, as important
as it is. The other lanes need nothing but a processor: they run behind both, one after the other,
at the lowest priority. So do targets of the Makefile, beside those lanes: many of them have a
single process. What all of these print comes when all have ended; they have mounts of their own.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests import again

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROOT: Final = Path(__file__).resolve().parent.parent
LOGS: Final = ROOT / "build" / "lanes"
_CACHES: Final = ROOT / "build" / "cache"
# Caches of the lanes of which a few failed tests run once more (tests/again.py).
CACHES: Final = {
    "kernel": _CACHES / "kernel",
    "kernel, beside": _CACHES / "beside",
    "unit, property, golden": _CACHES / "free",
}
_PYTEST: Final = (sys.executable, "-m", "pytest")
# Each begins with half of the tests in their order: one sets up what those of a module share.
_TWO_PROCESSES: Final = ("-n", "2", "--dist", "worksteal")
_LOWEST_PRIORITY: Final = ("nice", "-n", "19")
_OWN_MOUNTS: Final = ("unshare", "--mount", "--propagation", "private")


@dataclass(frozen=True, slots=True)
class Lane:
    """A lane, or several that one pytest runs.

    Attributes:
        name: what it is called in the table.
        words: the command.
    """

    name: str
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a lane.

    Attributes:
        name: name of the lane.
        status: exit status.
        seconds: duration.
        cpu_seconds: processor time of what ran, as far as somebody in it waited for its end.
    """

    name: str
    status: int
    seconds: float
    cpu_seconds: float = 0.0


KERNEL: Final = Lane(
    "kernel",
    (
        *(*_PYTEST, "--lanes=kernel", "-m", "not beside", "tests/kernel"),
        *("-o", f"cache_dir={CACHES['kernel']}", "--durations=15"),
    ),
)
BESIDE: Final = Lane(
    "kernel, beside",
    (
        *(*_PYTEST, "--lanes=kernel", "-m", "beside", "tests/kernel"),
        *("-o", f"cache_dir={CACHES['kernel, beside']}", "--durations=15"),
    ),
)
# The last one has two processes: so no processor idles while it alone still runs. Give the target
# that has two last, too.
BEHIND: Final = (
    Lane("native", (*_PYTEST, "--lanes=native", "tests/native", "-p", "no:cacheprovider")),
    Lane(
        "unit, property, golden",
        (
            *(*_PYTEST, *_TWO_PROCESSES, "--lanes=top,unit,property,golden"),
            *("-o", f"cache_dir={CACHES['unit, property, golden']}"),
            *("--cov", "--cov-report=", "tests", "--ignore=tests/kernel"),
            *("--ignore=tests/native", "--ignore=tests/vm", "--ignore=tests/engines"),
            "--durations=15",
        ),
    ),
)


def _cpu_seconds(usage: resource.struct_rusage) -> float:
    return usage.ru_utime + usage.ru_stime


def _end_of(lane: Lane, process: subprocess.Popen[bytes], began: float) -> Ended:
    """Wait for the end of a lane's process, which began at this time of the monotonic clock."""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return Ended(lane.name, process.returncode, time.monotonic() - began, _cpu_seconds(usage))


class Runner:
    """Runs commands, of which `stop` ends those that still run."""

    def __init__(self) -> None:
        self._behind: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._stopped = False

    def front(self, lane: Lane) -> Ended:
        """Run a lane in this terminal, to its end; Ctrl-C reaches it by itself."""
        began = time.monotonic()
        with subprocess.Popen(lane.words, cwd=ROOT, stdin=subprocess.DEVNULL) as process:
            return _end_of(lane, process, began)

    def behind(self, lane: Lane) -> Ended:
        """Run a lane at the lowest priority, otherwise as `beside`."""
        return self.beside(lane, _LOWEST_PRIORITY)

    def beside(self, lane: Lane, priority: tuple[str, ...] = ()) -> Ended:
        """Run a lane in the background, to its end. It prints to `log_of`."""
        began = time.monotonic()
        prefix = (*priority, *(_OWN_MOUNTS if os.geteuid() == 0 else ()))
        with log_of(lane).open("wb") as log:
            with self._lock:
                if self._stopped:
                    return Ended(lane.name, -signal.SIGTERM, 0.0)
                process = subprocess.Popen(
                    (*prefix, *lane.words),
                    cwd=ROOT,
                    env={**os.environ, "COLLECTORD_BESIDE": "1"},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # which `stop` ends as a whole
                )
                self._behind.add(process)
            ended = _end_of(lane, process, began)
        with self._lock:
            self._behind.discard(process)
        return ended

    def stop(self) -> None:
        """End background lanes, and start nothing more."""
        with self._lock:
            self._stopped = True
            for process in self._behind:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGTERM)


def log_of(lane: Lane) -> Path:
    """Return the path of the output of a lane that runs in the background."""
    return LOGS / f"{'-'.join(lane.name.replace(',', '').split())}.log"


def table(ended: Sequence[Ended], total_s: float) -> str:
    """Return each lane with its times and result, and the total, as lanes overlap."""
    rows = [
        f"  {one.name:<24} {one.seconds:6.0f} s {one.cpu_seconds:6.0f} s of CPU"
        f"  {'ok' if one.status == 0 else 'FAILED'}"
        for one in ended
    ]
    cpu_seconds = sum(one.cpu_seconds for one in ended)
    total = f"  {'all':<24} {total_s:6.0f} s {cpu_seconds:6.0f} s of CPU"
    return "\n".join(["lanes:", *rows, total])


def run(front: Lane, beside: Sequence[Lane], *queues: Sequence[Lane]) -> list[Ended]:
    """Run all lanes; returns how each ended, in this order.

    Args:
        front: has the terminal.
        beside: run at once, as important as the front.
        queues: of lanes that run behind: one after the other in each.
    """
    LOGS.mkdir(parents=True, exist_ok=True)
    runner = Runner()
    ended: dict[str, Ended] = {}

    def run_all(start: Callable[[Lane], Ended], lanes: Sequence[Lane]) -> None:
        for lane in lanes:
            ended[lane.name] = start(lane)

    threads = [
        *(threading.Thread(target=run_all, args=(runner.beside, [lane])) for lane in beside),
        *(threading.Thread(target=run_all, args=(runner.behind, queue)) for queue in queues),
    ]
    for thread in threads:
        thread.start()
    try:
        first = runner.front(front)
        for thread in threads:
            thread.join()
    finally:
        runner.stop()
        for thread in threads:
            thread.join()
    return [first, *(ended[lane.name] for lanes in (beside, *queues) for lane in lanes)]


def _second_run(ended: Ended) -> Ended:
    """Run failed tests of a lane once more, if possible."""
    if ended.status != 1 or ended.name not in CACHES:
        return ended
    began = time.monotonic()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    status = again.main(CACHES[ended.name])
    cpu_seconds = _cpu_seconds(resource.getrusage(resource.RUSAGE_CHILDREN)) - _cpu_seconds(used)
    return Ended(
        ended.name,
        status,
        ended.seconds + time.monotonic() - began,
        ended.cpu_seconds + cpu_seconds,
    )


def main(targets: Sequence[str]) -> int:
    """Run all lanes, and make these targets behind them.

    Returns:
        0 if all passed, else the status of the first that did not.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    began = time.monotonic()
    made = [Lane(f"make {target}", ("make", target)) for target in targets]
    first_runs = run(KERNEL, [BESIDE], BEHIND, made)
    failed = {one.name for one in first_runs if one.status}
    # The failed ones come last, where somebody looks who gets the end of the output alone.
    for lane in sorted((BESIDE, *BEHIND, *made), key=lambda lane: lane.name in failed):
        sys.stdout.write(log_of(lane).read_text(errors="replace"))
    ended = [_second_run(one) for one in first_runs]
    again.say(f"\n{table(ended, time.monotonic() - began)}\n")
    return next((abs(one.status) for one in ended if one.status), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
