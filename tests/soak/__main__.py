# SPDX-License-Identifier: Apache-2.0
"""`make soak`: run a daemon under load and disturbances for hours; what it holds must not grow."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.soak.soak import GROWTH_BYTES, RETAINED_BYTES, soak
from tests.support import generator, tracefs_mount

if TYPE_CHECKING:
    from collections.abc import Sequence

_ROWS_SHOWN = 20


def main(arguments: Sequence[str]) -> int:
    """Soak, and print what was seen; returns 1 if there is a problem."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument(
        "seconds",
        type=float,
        nargs="?",
        default=7200,
        help="length of the run (7200); the first minutes are warm-up",
    )
    parser.add_argument(
        "--retained-mib",
        type=int,
        default=RETAINED_BYTES >> 20,
        metavar="MIB",
        help="size of the segments that retention leaves (64); with more than all have, "
        "the totals at the end are those of all time",
    )
    parser.add_argument(
        "--growth-mib",
        type=int,
        default=GROWTH_BYTES >> 20,
        metavar="MIB",
        help="memory that may grow behind the warm-up (2)",
    )
    args = parser.parse_args(arguments)
    folder = tempfile.TemporaryDirectory(prefix="collectord-soak-")
    with tracefs_mount.mounted(), folder as name:
        directory = Path(name)
        program = generator.Generator(generator.build(directory))
        soaked = soak(directory, program, args.seconds, args.retained_mib << 20)
        problems = soaked.problems(args.growth_mib << 20)
    looks = soaked.looks
    sys.stdout.write("  second  RSS MiB   fds  maps  disk MiB    produced       lost\n")
    for one in looks[:: -(-len(looks) // _ROWS_SHOWN)]:
        sys.stdout.write(
            f"{one.second:8.0f} {one.rss_bytes / 2**20:8.2f} {one.fds:5} {one.mappings:5} "
            f"{one.disk_bytes / 2**20:9.1f} {one.produced:11} {one.lost:10}\n"
        )
    for total in soaked.totals:
        sys.stdout.write(f"{total}\n")
    sys.stdout.write(f"{len(looks)} cycles; {'; '.join(problems) or 'nothing grew'}\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
