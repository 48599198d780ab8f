# SPDX-License-Identifier: Apache-2.0
"""Open rings of ftrace: sub-buffers, and the kernel's counters of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from collectord.model import Basis, Produced, Transport
from collectord.source.ring import RingHandle

if TYPE_CHECKING:
    from collectord._native._core import (
        Core,
        PageMap,
        Ring,
        RingCounters,
        Stream,
    )
    from collectord.ledger.record_ledger import Bracket, RingBalance


@dataclass(frozen=True, slots=True, kw_only=True)
class FtraceRing(RingHandle):
    """One CPU's ftrace ring: sub-buffers that are taken whole, and the kernel's counters.

    Attributes:
        fd: `trace_pipe_raw`, non-blocking.
        stats_fd: `stats`.
        transport: how sub-buffers are taken out of it.
        subbuf_bytes: a sub-buffer with its header, which is what one read(2) must ask for.
        subbufs: sub-buffers of the ring, without the reader's own; for a flight recorder the most
            that it may grow to.
        page_map: its mapping, None unless the transport is `mmap`.
        joined: it joins a session that runs; it is drained once a segment has a place for it.
    """

    stats_fd: int
    transport: Transport
    subbuf_bytes: int
    subbufs: int
    page_map: PageMap | None = None
    joined: bool = False
    counts_on: bool = True

    def register(self, core: Core, shard: int, stream: Stream) -> Ring:
        """See `RingHandle`."""
        return core.add_page_ring(
            shard,
            stream,
            self.fd,
            subbuf_bytes=self.subbuf_bytes,
            subbufs=self.subbufs,
            transport=str(self.transport),
            page_map=self.page_map,
            held=self.held or self.joined,
        )

    def begin(self, ring: Ring) -> None:
        """See `RingHandle`."""
        if self.joined and not self.held:
            ring.hold(False)  # noqa: FBT003 - the binding's

    @property
    def is_unseen(self) -> bool:
        """See `RingHandle`."""
        return self.transport is Transport.SPLICE

    def handed_on(self, reading: Produced, counters: RingCounters) -> int | None:
        """See `RingHandle`: all that was handed out, without what the core has or gave up."""
        if not self.is_unseen:
            return None
        known = counters.in_flight + counters.lost_disk_full + counters.lost_dropped
        return max(0, (reading.read_events or 0) - known)

    def given(self, counters: RingCounters) -> int:
        """See `RingHandle`."""
        del counters
        return 0

    def balance(
        self, bracket: Bracket, basis: Basis, suppressed_by: tuple[int, ...] = ()
    ) -> RingBalance:
        """See `RingHandle`: the ring stays in the kernel, which counts its content."""
        ring, after = RingHandle.balance(self, bracket, basis, suppressed_by), bracket.after
        age_ns = after.oldest_unread_age_ns
        return replace(
            ring,
            capacity_bytes=after.capacity_bytes or ring.capacity_bytes,
            used_bytes=after.unread_bytes,
            in_flight=ring.in_flight + (after.unread if self.held else 0),
            transport=str(self.transport),
            oldest_unread_age_ns=age_ns,
            window_ns=age_ns if self.held else None,
            foreign_reads=self.foreign_reads(bracket),
            resets=self.resets(bracket),
        )

    def foreign_reads(self, bracket: Bracket) -> int:
        """See `RingHandle`: events handed out before the pass, and not to this program."""
        if bracket.walked is not None:
            return 0
        return max(0, (bracket.before.read_events or 0) - bracket.counters.samples)

    def resets(self, bracket: Bracket) -> int:
        """See `RingHandle`: the kernel's counters and the core may each miss a reset."""
        return max(bracket.after.resets, bracket.counters.resets)
