# SPDX-License-Identifier: Apache-2.0
"""The sub-buffers of rings that a crash left, each event once.

Two kinds of events are still there: those that nobody took, and those of the sub-buffer that was
taken last. Only the files tell whether the latter were stored: `pages` is given the last
sub-buffer of the ring that they contain, and how many events of the ring they ever contained. A
ring is stored in its order, so events that were handed out beyond those are at the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from collectord.codec.ftrace_page import last_events, unstored

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from collectord.kernel.values.left_instance import LeftInstance


def pages(
    left: LeftInstance, cpu: int, stored: bytes = b"", stored_events: int = 0
) -> Iterator[bytes]:
    """Take whole sub-buffers out of a ring, oldest first, until it is empty.

    Yielded sub-buffers are gone from the ring: one at a time, so that memory holds one.

    Args:
        left: the ring's instance.
        cpu: the ring's CPU, one of `left.rings`.
        stored: the last sub-buffer of this ring in the files, b"" if there is none.
        stored_events: number of this ring's events in all files that there ever were.

    Raises:
        KernelError: the ring cannot be read.
    """
    ring = left.rings[cpu]
    if ring.handed is not None:
        rest = unstored(ring.handed, stored)
        new_events = ring.stats.read_events - stored_events
        piece = last_events(rest, new_events) if rest is not None else None
        if piece is not None:
            yield piece
    yield from ring.files.pages(left.subbuf_bytes)


def pages_by_cpu(
    left: LeftInstance, stored: Mapping[int, bytes], stored_events: Mapping[int, int]
) -> dict[int, Iterator[bytes]]:
    """Return `pages` of every ring, by CPU.

    Args:
        left: the rings' instance.
        stored: by CPU; a missing CPU has no sub-buffer in the files.
        stored_events: by CPU; a missing CPU never had any.
    """
    return {
        cpu: pages(left, cpu, stored.get(cpu, b""), stored_events.get(cpu, 0))
        for cpu in left.rings
    }
