# SPDX-License-Identifier: Apache-2.0
"""Rings that a crash left in a tracefs instance: they are whole, only their reader is gone.

`Instance.adopt` has stopped the instance, so all counters are final. Two kinds of events are still
there: those that nobody took, and those of the sub-buffer that was taken last. Only the files tell
whether the latter were stored: `pages` is given the last sub-buffer of the ring that they contain,
and how many events of the ring they ever contained. A ring is stored in its order, so events that
were handed out beyond those are at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from collectord.codec.ftrace_tail import last_events, unstored
from collectord.kernel.tracefs.reader_page import handed_out
from collectord.kernel.values.instance_settings import OWNER_MARK
from collectord.kernel.values.ring_stats import stats_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from collectord.kernel.tracefs.instance import Instance
    from collectord.kernel.values.ring_files import RingFiles
    from collectord.kernel.values.ring_stats import CpuStats


@dataclass(frozen=True, slots=True)
class LeftRing:
    """The ring of one CPU that a crash left.

    Attributes:
        files: its files, open.
        stats: its counters, final; `entries` are the events that nobody took.
        handed: its reader's sub-buffer, as far as it was handed out; None if nothing was, or if
            this kernel cannot show it.
    """

    files: RingFiles
    stats: CpuStats
    handed: bytes | None


class Leftover:
    """An instance that a crash left, taken over.

    Args:
        instance: adopted; its stack removes it, unless it is unwound by an error.

    Attributes:
        name: name of the instance.
        session: session that it belonged to.
        instance: metadata, events, effective sizes.
        created_ns: REALTIME of its making, no later than that; its session's files are younger.
        buffer_bytes: size of each CPU's ring.
        subbuf_bytes: size of a sub-buffer with its header.
        rings: by CPU, those that were ever written to.

    Raises:
        KernelError: a ring cannot be opened, or its counters cannot be read.
    """

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.name = instance.name
        self.session = instance.session.partition(OWNER_MARK)[0]
        effective = instance.effective()
        self.buffer_bytes = effective.buffer_bytes
        self.subbuf_bytes = effective.subbuf_bytes
        # chmod(2) changes one of the two.
        status = instance.path.stat()
        self.created_ns = min(status.st_mtime_ns, status.st_ctime_ns)
        left = (_look_at(instance.open_ring(cpu)) for cpu in instance.cpus())
        self.rings: Mapping[int, LeftRing] = {r.files.cpu: r for r in left if _was_used(r)}

    def ring_stats(self) -> Mapping[int, str]:
        """Return the kernel's counters by CPU, as trace-cmd keeps them. Raises KernelError."""
        return {cpu: stats_text(cpu, ring.files.stats_fd) for cpu, ring in self.rings.items()}

    def pages(self, cpu: int, stored: bytes = b"", stored_events: int = 0) -> Iterator[bytes]:
        """Take whole sub-buffers out of a ring, oldest first, until it is empty.

        Yielded sub-buffers are gone from the ring: one at a time, so that memory holds one.

        Args:
            cpu: a key of `rings`.
            stored: the last sub-buffer of this ring in the files, b"" if there is none.
            stored_events: number of this ring's events in all files that there ever were.

        Raises:
            KernelError: the ring cannot be read.
        """
        ring = self.rings[cpu]
        if ring.handed is not None:
            rest = unstored(ring.handed, stored)
            new_events = ring.stats.read_events - stored_events
            piece = last_events(rest, new_events) if rest is not None else None
            if piece is not None:
                yield piece
        yield from ring.files.pages(self.subbuf_bytes)

    def pages_by_cpu(
        self, stored: Mapping[int, bytes], stored_events: Mapping[int, int]
    ) -> dict[int, Iterator[bytes]]:
        """Return `pages` of every ring, by CPU.

        Args:
            stored: by CPU; a missing CPU has no sub-buffer in the files.
            stored_events: by CPU; a missing CPU never had any.
        """
        return {
            cpu: self.pages(cpu, stored.get(cpu, b""), stored_events.get(cpu, 0))
            for cpu in self.rings
        }


def _look_at(files: RingFiles) -> LeftRing:
    return LeftRing(files, files.stats(), handed_out(files.raw_fd))


def _was_used(ring: LeftRing) -> bool:
    stats = ring.stats
    return bool(stats.written or stats.dropped or stats.commit_overrun)
