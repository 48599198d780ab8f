# SPDX-License-Identifier: Apache-2.0
"""A program on one CPU whose context switches are known: it reads what the kernel counts.

It prints, in JSON, its thread and two moments, each with the switches away from it up to then. It
needs nothing of the project.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

_STATUS = Path("/proc/thread-self/status")


def _switches() -> int:
    """Return how often this thread was switched away from."""
    lines = (line.partition(":") for line in _STATUS.read_text().splitlines())
    return sum(int(value) for name, _, value in lines if name.endswith("ctxt_switches"))


def _moment() -> tuple[int, int]:
    """Return a time, CLOCK_MONOTONIC, and the switches up to it."""
    while True:
        before, now_ns = _switches(), time.monotonic_ns()
        if _switches() == before:
            return now_ns, before


def main() -> None:
    """Sleep so often, on a CPU."""
    cpu, sleeps = map(int, sys.argv[1:])
    os.sched_setaffinity(0, {cpu})
    begin = _moment()
    for _ in range(sleeps):
        time.sleep(0)
        time.sleep(1e-6)
    sys.stdout.write(json.dumps([os.getpid(), *begin, *_moment()]))


if __name__ == "__main__":
    main()
