# SPDX-License-Identifier: Apache-2.0
"""tracefs, mounted while something needs it."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

TRACEFS: Final = Path("/sys/kernel/tracing")


@contextmanager
def mounted() -> Iterator[Path]:
    """Mount tracefs for the length of a block, unless it is mounted."""
    if (TRACEFS / "events").is_dir():
        yield TRACEFS
        return
    subprocess.run(["mount", "-t", "tracefs", "nodev", TRACEFS], check=True)
    try:
        yield TRACEFS
    finally:
        subprocess.run(["umount", TRACEFS], check=True)
