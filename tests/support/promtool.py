# SPDX-License-Identifier: Apache-2.0
"""Stock promtool, as a reader of rules and of the dashboard's expressions, and its server."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_FETCH: Final = Path(__file__).with_name("promtool.sh")


@dataclass(frozen=True, slots=True)
class Promtool:
    """One promtool."""

    path: Path

    def run(self, *words: str | Path) -> str:
        """Return what it prints; a status other than 0 is a failure."""
        done = subprocess.run(
            [self.path, *words],
            env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    @property
    def server(self) -> Path:
        """The Prometheus of the same package."""
        unpacked = self.path.parent.parent / "usr/bin/prometheus"
        return unpacked if unpacked.exists() else self.path.with_name("prometheus")


def fetched() -> Promtool:
    """Return promtool 2.42, which is fetched where the system has another or none."""
    done = subprocess.run([_FETCH], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr.strip()
    return Promtool(Path(done.stdout.strip()))
