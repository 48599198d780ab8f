# SPDX-License-Identifier: Apache-2.0
"""The open files of one CPU's ftrace ring."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from collectord.errors import KernelError
from collectord.kernel.values.ring_stats import read_stats

if TYPE_CHECKING:
    from collections.abc import Iterator

    from collectord.kernel.values.ring_stats import CpuStats


@dataclass(frozen=True, slots=True)
class RingFiles:
    """One CPU's `trace_pipe_raw`, non-blocking, and its counters."""

    cpu: int
    raw_fd: int
    stats_fd: int

    def stats(self) -> CpuStats:
        """Read the counters. Raises KernelError."""
        return read_stats(self.stats_fd)

    def pages(self, subbuf_bytes: int) -> Iterator[bytes]:
        """Take whole sub-buffers out of the ring, oldest first, until it is empty.

        Yielded sub-buffers are gone from the ring: one at a time, so that memory holds one.

        Raises:
            KernelError: the ring cannot be read.
        """
        while True:
            try:
                page = os.read(self.raw_fd, subbuf_bytes)
            except BlockingIOError:
                return
            except OSError as error:
                raise KernelError(
                    f"cannot read the ring of CPU {self.cpu}",
                    syscall="read",
                    errno=error.errno or 0,
                ) from error
            if not page:
                return
            yield page
