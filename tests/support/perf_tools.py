# SPDX-License-Identifier: Apache-2.0
"""Stock perf, as a reader of the program's files."""

from __future__ import annotations

import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from tests.support.newer_tools import with_newer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")

_FETCH_6_12: Final = Path(__file__).with_name("perf612.sh")
_LOST: Final = re.compile(
    r"Warning:\s+Processed \d+ events and lost \d+ chunks!\s+Check IO/CPU overload!"
)


@dataclass(frozen=True, slots=True)
class Perf:
    """One installed version of perf."""

    version: str
    path: Path

    def run(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        """Run it with its pager, configuration and debug-information downloads off."""
        return subprocess.run(
            [self.path, *words],
            env={
                "PATH": "/usr/bin:/bin",
                "PERF_PAGER": "cat",
                "PERF_CONFIG": "/dev/null",
                "HOME": "/nonexistent",
                "LC_ALL": "C",
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )

    def script(self, segment: Path, *words: str, losses: bool = False) -> list[str]:
        """Return the lines of `perf script`, one for each sample.

        A status other than 0, and any word on standard error, is a failure: that is where perf
        tells of unknown types, records out of order, and truncated files. Where a segment says
        that there were losses, perf may warn of them.
        """
        fields = words or ("-F", "comm,tid,time,event")
        done = self.run("script", "--force", "-i", segment, *fields)
        if done.returncode or complaints(done.stderr, losses=losses):
            message = f"perf {self.version} script {segment}: {done.returncode}: {done.stderr}"
            raise AssertionError(message)
        return [line for line in done.stdout.splitlines() if line.strip()]

    def samples(self, segments: Sequence[Path]) -> int:
        """Return how many samples `perf script` lists in all of `segments`."""
        return sum(len(self.script(segment)) for segment in segments)


def in_each(
    perfs: Sequence[Perf], segments: Sequence[Path], read: Callable[[Perf, Path], T]
) -> dict[tuple[Perf, Path], T]:
    """Return what `read` gives for each segment in each perf, which has one CPU for each reading.

    Raises:
        AssertionError: of the first reading that fails.
    """
    pairs = [*product(perfs, segments)]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return dict(zip(pairs, pool.map(lambda pair: read(*pair), pairs), strict=True))


def complaints(stderr: str, *, losses: bool) -> str:
    """Return what perf complains of, apart from its warning of losses if there were some."""
    return (_LOST.sub("", stderr) if losses else stderr).strip()


def perf_version(path: Path) -> str:
    """Return major and minor version, as "6.12"."""
    text = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.match(r"perf version (\d+\.\d+)", text)
    assert found, f"{path} --version says {text!r}"
    return found[1]


def all_perfs(system: Path) -> tuple[Perf, ...]:
    """Return the distribution's perf and perf 6.12, which is fetched where the former is older."""
    return tuple(Perf(perf_version(path), path) for path in with_newer(system, _FETCH_6_12))
