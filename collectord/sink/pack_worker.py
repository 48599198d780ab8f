# SPDX-License-Identifier: Apache-2.0
"""The process that compresses segments, with the lowest priority.

The daemon starts it as

    python -I -m collectord.sink.pack_worker PARENT SHARE DESCRIPTOR PATH NAME..

for segments of one folder, which it gets open. SHARE is the part of a CPU that it may take. It
prints one line of JSON for each segment and may be killed at any instant.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from collectord.folders.folder import Folder
from collectord.folders.trust import Trust
from collectord.sink.pack import attempt
from collectord.sink.segment import SegmentPaths

if TYPE_CHECKING:
    from collections.abc import Callable

_NICE: Final = 19


def main(arguments: list[str]) -> None:
    """Compress the segments, one after the other."""
    parent, share, fd, path, *names = arguments
    _retire()
    pace = _pace(int(parent), float(share))
    with Folder(int(fd), Path(path), Trust.WRITE).checked() as folder:
        for name in names:
            made = attempt(folder, SegmentPaths(folder.path, name), pace)
            told = {"name": name, **made._asdict()}
            print(json.dumps(told), flush=True)  # noqa: T201 - its answer


def _retire() -> None:
    """Leave no core file, and let everything else run first."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(_NICE)  # and not SCHED_IDLE: a host that is always busy needs the space, too


def _pace(parent: int, share: float) -> Callable[[], None]:
    """Return a function that sleeps while the process has had more than its share of a CPU.

    It ends the process when the parent is gone.
    """
    begun = time.monotonic()

    def pace() -> None:
        if os.getppid() != parent:
            sys.exit(1)
        ahead_s = time.process_time() / share - (time.monotonic() - begun)
        if ahead_s > 0:
            time.sleep(ahead_s)

    return pace


if __name__ == "__main__":
    main(sys.argv[1:])
