# SPDX-License-Identifier: Apache-2.0
"""Open files of relay channels, and of block traces."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from collectord.model import RING_OVERRUN, Produced
from collectord.source.ring import RingHandle

if TYPE_CHECKING:
    from collectord._native._core import (
        Core,
        Ring,
        RingCounters,
        RingNote,
        Stream,
    )
    from collectord.source.kept_ring import Use


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelRing(RingHandle):
    """A file of a relay channel.

    Attributes:
        longest_bytes: length that a record may have, 0 where unknown.
    """

    longest_bytes: int = 0
    in_bytes: ClassVar[bool] = True

    def register(self, core: Core, shard: int, stream: Stream) -> Ring:
        """See `RingHandle`."""
        return self._register(core, shard, stream)

    def _register(
        self,
        core: Core,
        shard: int,
        stream: Stream,
        note: RingNote | None = None,
        slots_at: int = 0,
    ) -> Ring:
        return core.add_relay_ring(
            shard,
            stream,
            self.fd,
            capacity_bytes=self.geometry.data_bytes,
            longest_bytes=self.longest_bytes,
            blktrace=not self.in_bytes,
            held=True,
            note=note,
            slots_at=slots_at,
        )

    def begin(self, ring: Ring) -> None:
        """See `RingHandle`: nothing is read before."""
        ring.hold(False)  # noqa: FBT003 - the binding's

    def end(self, ring: Ring) -> None:
        """See `RingHandle`: partial sub-buffers are read too."""
        ring.read_all()

    def hung_up(self) -> str:
        """See `RingHandle`."""
        return "its channel was closed"

    def produced(self, reading: Produced, counters: RingCounters, gone: int) -> Produced:
        """See `RingHandle`."""
        del gone
        return _overrun(reading, counters.skipped_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlktraceRing(ChannelRing):
    """One CPU's file of a blktrace, whose records the core walks."""

    in_bytes: ClassVar[bool] = False

    def produced(self, reading: Produced, counters: RingCounters, gone: int) -> Produced:
        """See `RingHandle`.

        The core counts a number before the event that carries it, and reports the number last: so
        the records that it has walked are among the numbers of the same reading.
        """
        del gone
        return replace(_overrun(reading, counters.missing), value=counters.numbered)


@dataclass(frozen=True, slots=True, kw_only=True)
class LastingBlktraceRing(BlktraceRing):
    """One CPU's file of a blktrace that goes on after this process.

    Attributes:
        note: how far it was read.
        slots_at: see `Core.add_relay_ring`.
        use: tells whether the trace ends with its session.
    """

    note: RingNote
    slots_at: int
    use: Use

    def register(self, core: Core, shard: int, stream: Stream) -> Ring:
        """See `RingHandle`: it is read on from where the note says."""
        return self._register(core, shard, stream, self.note, self.slots_at)

    def end(self, ring: Ring) -> None:
        """See `RingHandle`: what comes from now on is left in it, if the trace goes on."""
        if self.use.ended:
            ring.read_all()
        else:
            ring.hold(True)  # noqa: FBT003 - the binding's

    def goes_on(self) -> bool:
        """See `RingHandle`."""
        return not self.use.ended


def _overrun(reading: Produced, lost: int) -> Produced:
    """Return a reading with what the kernel overwrote before it was read."""
    return replace(reading, lost=lost, losses={**reading.losses, RING_OVERRUN: lost})
