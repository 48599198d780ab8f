# SPDX-License-Identifier: Apache-2.0
"""What the guest's report must say for the run to have passed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from tests.vm.layers import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tests.vm.guest import Run


def remove_run(folder: Path) -> None:
    """Delete what an earlier run left."""
    shutil.rmtree(folder, ignore_errors=True)


def collect(words: Sequence[str]) -> frozenset[str]:
    """The node ids of the tests marked `vm` that `words` select, as this checkout has them."""
    done = subprocess.run(
        (sys.executable, "-m", "pytest", "--collect-only", "-q", "-q", "-m", "vm", *words),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return frozenset(line for line in done.stdout.splitlines() if "::" in line)


def judge(wanted: frozenset[str], files: Run, status: int, tell: Callable[[str], None]) -> int:
    """0 if all of `wanted` passed and nothing failed or was skipped, else 1."""
    report = files.results / "report.xml"
    if not report.exists():
        tell(f"vm: pytest ended with status {status} and no report")
        return 1
    ET.parse(report)
    tell(f"vm: status {status}")
    return 1 if status else 0
