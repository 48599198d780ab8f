# SPDX-License-Identifier: Apache-2.0
"""Stock tools in two versions: the distribution's, and a newer one that a script fetches."""

from __future__ import annotations

import subprocess
from pathlib import Path


def with_newer(system: Path, fetch: Path) -> tuple[Path, ...]:
    """Return the distribution's program, and the one whose path `fetch` prints if it is another.

    Args:
        system: the distribution's program.
        fetch: a script that has the newer one in place when it ends.
    """
    done = subprocess.run([fetch], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr.strip()
    return tuple(dict.fromkeys((system, Path(done.stdout.strip()))))
