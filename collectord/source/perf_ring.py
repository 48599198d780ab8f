# SPDX-License-Identifier: Apache-2.0
"""Open rings of perf: streamed, of a flight recorder, and beside an AUX area."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from collectord.model import (
    RING_DROPPED,
    RING_FULL,
    RING_PAUSED,
    Basis,
    Produced,
    RingRole,
)
from collectord.source.ring import RingHandle

if TYPE_CHECKING:
    from collectord._native._core import (
        Core,
        Ring,
        RingCounters,
        RingMap,
        RingNote,
        Stream,
    )
    from collectord.ledger.record_ledger import Bracket, RingBalance


@dataclass(frozen=True, slots=True, kw_only=True)
class PerfRing(RingHandle):
    """A perf ring that waits for its reader.

    Attributes:
        map: its mapping.
        time_offset, time_trailer, cpu_trailer: see `Core.add_ring`.
    """

    map: RingMap
    time_offset: int
    time_trailer: int
    cpu_trailer: int = 0

    def register(self, core: Core, shard: int, stream: Stream) -> Ring:
        """See `RingHandle`."""
        return self._register(core, shard, stream, held=self.held)

    def _register(
        self, core: Core, shard: int, stream: Stream, *, held: bool, note: RingNote | None = None
    ) -> Ring:
        return core.add_ring(
            shard,
            stream,
            self.map,
            self.fd,
            sideband=self.label.role is RingRole.SIDEBAND,
            time_offset=self.time_offset,
            time_trailer=self.time_trailer,
            ids={
                counter.kernel_id or counter.event_id: counter.event_id
                for counter in self.counters
            },
            held=held,
            cpu_trailer=self.cpu_trailer,
            note=note,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedRing(PerfRing):
    """The data ring of a free-running AUX area: the core gives up its oldest records."""

    def produced(self, reading: Produced, counters: RingCounters, gone: int) -> Produced:
        """See `RingHandle`."""
        del gone
        return replace(reading, overwritten=counters.overwritten)


@dataclass(frozen=True, slots=True, kw_only=True)
class OverwritableRing(PerfRing):
    """A perf ring in which the kernel overwrites unread records."""

    has_window: ClassVar[bool] = True

    def produced(self, reading: Produced, counters: RingCounters, gone: int) -> Produced:
        """See `RingHandle`.

        It is never full, and refuses records only while it is paused for a snapshot. Records that
        a snapshot passed over are neither stored nor overwritten.
        """
        refused = reading.lost if reading.lost is not None else counters.lost_records
        known = reading.value is not None and not counters.faults
        return replace(
            reading,
            lost=refused,
            losses={RING_FULL: 0, RING_PAUSED: refused, RING_DROPPED: counters.lost_samples},
            overwritten=gone if known else None,
        )

    def balance(
        self, bracket: Bracket, basis: Basis, suppressed_by: tuple[int, ...] = ()
    ) -> RingBalance:
        """See `RingHandle`."""
        ring = RingHandle.balance(self, bracket, basis, suppressed_by)
        return replace(ring, window_ns=bracket.counters.window_held_ns)
