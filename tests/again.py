# SPDX-License-Identifier: Apache-2.0
"""A second run of tests that failed, by themselves: `python -m tests.again CACHE`.

The kernel lane meets everything else that its machine does, the guests share its processors, and
the lanes behind have what is left of them. Now and then a test of a thousand sees a state that its
author did not foresee. That is not to be hidden, nor to end a run of twenty minutes: such a test
runs a second time, by itself. It must pass then, and the last lines name it as unsteady, to be
mended. More than three tests are no accident and are not run again. Nor is a property that an
example contradicted: a second run would have other examples; nor a test of the native lane, whose
programs depend on nothing but their input.

This module does it for the lanes of `make test`, and `tests.vm` for the guests.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

MOST: Final = 3
STEADY: Final = ("tests/property/", "tests/native/")


def are_few(failed: list[str]) -> bool:
    """Return whether so few tests failed that they may be run again."""
    return 0 < len(failed) <= MOST


def unsteady(failed: list[str]) -> bool:
    """Return whether the failed tests, named as pytest names them, may be run again."""
    return are_few(failed) and not any(test.startswith(STEADY) for test in failed)


def announcement(failed: list[str]) -> str:
    """Return the line in front of a second run."""
    return f"\nonce more, by themselves: {len(failed)} tests that failed\n"


def verdict(failed: list[str]) -> str:
    """Return the last lines, if they passed in it."""
    return "\n  ".join(["unsteady tests, which failed once and passed alone:", *failed]) + "\n"


def say(text: str) -> None:
    """Print a text now, in front of what a child prints next."""
    sys.stdout.write(text)
    sys.stdout.flush()


def main(cache: Path) -> int:
    """Return the status of the second run, or 1 where there is none.

    `cache` is the folder that pytest kept its cache in (`-o cache_dir=`), new in that run.
    """
    try:
        failed = sorted(json.loads((cache / "v/cache/lastfailed").read_bytes()))
    except FileNotFoundError:  # it ended before its first failure
        failed = []
    if not unsteady(failed):
        return 1
    say(announcement(failed))
    command = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *failed)
    status = subprocess.run(command, check=False).returncode
    if status == 0:
        say(verdict(failed))
    return status


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
