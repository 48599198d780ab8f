# SPDX-License-Identifier: Apache-2.0
"""Events of many systems, and a load that has them: what is compared with peers value by value.

COLLECTORD_EQUAL_SECONDS sets how long it is recorded (1 by default).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

SECONDS: Final = int(os.environ.get("COLLECTORD_EQUAL_SECONDS", "1"))
EVENTS: Final = tuple(
    f"{system}:*" for system in ("sched", "block", "irq", "timer", "raw_syscalls", "kmem", "net")
)
# Programs, writes to the disk, and packets to this host itself, ten times a second.
_LOAD: Final = """
for ((n = 0; n < 10 * $1; n++)); do
    dd if=/dev/zero of="$2" bs=4k count=1 conv=fsync status=none
    echo >/dev/udp/127.0.0.1/9
    sleep 0.1
done
"""


def load(folder: Path) -> tuple[str | Path, ...]:
    """Return the command that makes the load, which writes into a folder of a disk."""
    return ("bash", "-c", _LOAD, "load", str(SECONDS), folder / "written")
