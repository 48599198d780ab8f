# SPDX-License-Identifier: Apache-2.0
"""Run the tests of the kernel lane that failed in a run once more: `python -m tests.again CACHE`.

The kernel lane meets everything else that its machine does, and now and then a test of a thousand
sees a state that its author did not foresee. That is not to be hidden, nor to end a run of twenty
minutes: such a test runs a second time, by itself. It must pass then, and the last lines name it
as unsteady, to be mended. What failed in another lane, or more than three tests, is no accident
and is not run again.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

MOST: Final = 3
LANE: Final = "tests/kernel/"


def unsteady(failed: list[str]) -> bool:
    """Return whether the failed tests, named as pytest names them, may be run again."""
    return 0 < len(failed) <= MOST and all(test.startswith(LANE) for test in failed)


def say(line: str) -> None:
    """Print a line now, in front of what a child prints next."""
    sys.stdout.write(f"{line}\n")
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
    say(f"\nonce more, by themselves: {len(failed)} tests that failed")
    command = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *failed)
    status = subprocess.run(command, check=False).returncode
    if status == 0:
        say("\n  ".join(["unsteady tests, which failed once and passed alone:", *failed]))
    return status


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
