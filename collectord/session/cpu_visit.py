# SPDX-License-Identifier: Apache-2.0
"""A thread that runs on one CPU after the other, and is renamed there.

Renaming makes a COMM record in the rings of the CPU where the thread runs, whatever the old name
was (perf_event_comm() in kernel/events/core.c), and no sample.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

_NAME: Final = Path("/proc/thread-self/comm")


def visit(cpus: Iterable[int]) -> Generator[int, None, None]:
    """Yield each of these CPUs once the calling thread runs there.

    CPUs that are offline or outside of the process's cpuset are left out. Afterwards the thread
    runs where it ran before.
    """
    before = os.sched_getaffinity(0)
    try:
        for cpu in cpus:
            try:
                os.sched_setaffinity(0, {cpu})
            except OSError:
                continue
            yield cpu
    finally:
        with suppress(OSError):  # its CPUs may have gone offline meanwhile
            os.sched_setaffinity(0, before)


def rename(name: str) -> None:
    """Give the calling thread a name, of which the kernel takes 15 bytes. Raises OSError."""
    _NAME.write_text(name)
