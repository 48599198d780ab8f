# SPDX-License-Identifier: Apache-2.0
"""Open rings: a few frozen variants, each with its way into the core and into the ledger.

All that distinguishes a kind of ring is here: nothing past `open` asks for the kind.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Final

from collectord.ledger.record_ledger import balance_ring
from collectord.model import Basis, LossKey, Produced, Reason, RingRole, Stage, Transport

if TYPE_CHECKING:
    from collectord._native._core import (
        AuxMap,
        AuxRing,
        Core,
        PageMap,
        Ring,
        RingCounters,
        RingMap,
        RingNote,
        Stream,
    )
    from collectord.ledger.aux_ledger import AuxReading
    from collectord.ledger.record_ledger import Bracket, RingBalance
    from collectord.model import Geometry, RingLabel
    from collectord.plan.aux_areas import AuxPlan

_RING_FULL: Final[LossKey] = (Stage.KERNEL_RING, Reason.RING_FULL)
_PAUSED: Final[LossKey] = (Stage.KERNEL_RING, Reason.PAUSED)
_DROPPED: Final[LossKey] = (Stage.KERNEL_RING, Reason.DROPPED)
_OVERRUN: Final[LossKey] = (Stage.KERNEL_RING, Reason.OVERRUN)


@dataclass(frozen=True, slots=True)
class CounterFd:
    """The counter of one event, which feeds one ring.

    Attributes:
        fd: the event's descriptor.
        event_index: `EventPlan.index`.
        event_id: the id that its samples carry in files.
        read_format: figures of its read(2).
        tid: thread that it counts, -1 for every task.
        kernel_id: the id that its samples carry in the ring, if files know it by another one: it
            was opened anew. 0: the same.
    """

    fd: int
    event_index: int
    event_id: int
    read_format: int
    tid: int = -1
    kernel_id: int = 0


@dataclass(frozen=True, slots=True)
class AuxHandle:
    """The AUX area of a perf ring.

    Attributes:
        map: its mapping.
        plan: its plan; `data_bytes` is the effective size.
        label: the ring's label, with the role `aux`.
        index: its number among the session's areas, which perf calls idx.
        counters: counters of the events that write into it, one for each target.

    See `source.kept_ring.LastingArea` for one that another process holds.
    """

    map: AuxMap
    plan: AuxPlan
    label: RingLabel
    index: int
    counters: tuple[CounterFd, ...]

    def register(self, core: Core, ring: Ring) -> AuxRing:
        """Have the core drain it, and remove it, with the data ring that it belongs to."""
        return self._register(core, ring)

    def goes_on(self) -> bool:
        """Whether it lasts beyond its session, for the process that drains it next."""
        return False

    def own(self, reading: AuxReading) -> AuxReading:
        """Return a reading of the kernel's counters without what other processes have had."""
        return reading

    def note_truncated(self, count: int) -> None:
        """Note for a later process how many bytes were truncated, of this one's."""

    def _register(self, core: Core, ring: Ring, note: RingNote | None = None) -> AuxRing:
        plan, label = self.plan, self.label
        return core.add_aux_ring(
            ring,
            self.map,
            framing=str(plan.framing),
            whole_records=plan.whole_records,
            idx=self.index,
            cpu=label.cpu,
            tid=label.tid,
            reference_tsc=plan.stamped_by_tsc,
            enable_fds=() if plan.snapshot else [counter.fd for counter in self.counters],
            head_rule=str(plan.head_rule),
            note=note,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RingHandle(ABC):
    """A ring and the counters of what went into it.

    Attributes:
        fd: the descriptor that is mapped or read, and polled.
        basis: basis of its balance.
        geometry: effective sizes.
        label: its label in ledger and metrics.
        counters: one per event and target that writes into it; none where the ring itself counts.
        held: a flight recorder's ring, which is read for snapshots only.
        areas: its AUX area, if there is one.
        counts_on: its kernel counters rise though nothing of it is drained.
    """

    fd: int
    basis: Basis
    geometry: Geometry
    label: RingLabel
    counters: tuple[CounterFd, ...] = ()
    held: bool = False
    areas: tuple[AuxHandle, ...] = ()
    counts_on: bool = False

    # A snapshot copies it at once while it is paused; so it never has unread records.
    has_window: ClassVar[bool] = False
    # Its records are unknown: its counters count bytes.
    in_bytes: ClassVar[bool] = False

    @property
    def is_exact(self) -> bool:
        """Whether its counters count all that goes into it."""
        return self.basis is Basis.EXACT

    @abstractmethod
    def register(self, core: Core, shard: int, stream: Stream) -> Ring:
        """Have the core drain it into a stream of its source. Raises OSError."""

    def begin(self, ring: Ring) -> None:  # noqa: B027 - most have nothing to do
        """Prepare for being drained: a segment has its place, and its source is enabled."""

    def end(self, ring: Ring) -> None:  # noqa: B027 - most have nothing to do
        """Prepare for its end: its source writes no more, and the rest is still to be drained."""

    def goes_on(self) -> bool:
        """Whether it lasts beyond its session, for the process that drains it next."""
        return False

    def hung_up(self) -> str:
        """Return the meaning of its hang-up, "" where it is expected, as when a task ends."""
        return ""

    def own(self, reading: Produced) -> Produced:
        """Return a reading of the source without what other processes have had before."""
        return reading

    def note_overwritten(self, count: int) -> None:  # noqa: B027 - most leave nothing
        """Note for a later process how many of its records no snapshot had, of this one's."""

    def produced(self, reading: Produced, counters: RingCounters, gone: int) -> Produced:
        """Complete a reading of the kernel's counters by what the core finds in the ring.

        Args:
            reading: reading of the source, see `own`.
            counters: counters of the core, read before that.
            gone: known number of its records that were overwritten before a snapshot.
        """
        del counters, gone
        return reading

    def is_idle(self, counters: RingCounters, last: RingCounters) -> bool:
        """Whether the kernel cannot have counted anything since the last reading.

        That is so while nothing was drained, and nothing left for want of room. A ring in
        quarantine may get records that nobody looks at.
        """
        if self.counts_on or counters.quarantined:
            return False
        return (counters.records, counters.starved) == (last.records, last.starved)

    @property
    def is_unseen(self) -> bool:
        """Whether its events go to the file without passing through this program's memory."""
        return False

    def handed_on(self, reading: Produced, counters: RingCounters) -> int | None:
        """Return the events that passed unseen by now; None where the core sees all."""
        del reading, counters
        return None

    def given(self, counters: RingCounters) -> int:
        """Return the records that it has yielded; 0 where its stream counts them instead."""
        return counters.records

    def foreign_reads(self, bracket: Bracket) -> int:
        """Return how many events others took out of it, by a reading."""
        del bracket
        return 0

    def resets(self, bracket: Bracket) -> int:
        """Return how often others reset it, by a reading."""
        del bracket
        return 0

    def balance(
        self, bracket: Bracket, basis: Basis, suppressed_by: tuple[int, ...] = ()
    ) -> RingBalance:
        """Return its balance at a reading.

        Args:
            bracket: the reading.
            basis: the present basis.
            suppressed_by: ids of foreign BPF programs on its tracepoints.
        """
        return replace(
            balance_ring(self.label, basis, self.geometry.data_bytes, bracket, suppressed_by),
            held=self.held,
            beside_aux=bool(self.areas),
            in_bytes=self.in_bytes,
        )


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
            losses={_RING_FULL: 0, _PAUSED: refused, _DROPPED: counters.lost_samples},
            overwritten=gone if known else None,
        )

    def balance(
        self, bracket: Bracket, basis: Basis, suppressed_by: tuple[int, ...] = ()
    ) -> RingBalance:
        """See `RingHandle`."""
        ring = RingHandle.balance(self, bracket, basis, suppressed_by)
        return replace(ring, window_ns=bracket.counters.window_held_ns)


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
        return core.add_relay_ring(
            shard,
            stream,
            self.fd,
            capacity_bytes=self.geometry.data_bytes,
            longest_bytes=self.longest_bytes,
            blktrace=not self.in_bytes,
            held=True,
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


def _overrun(reading: Produced, lost: int) -> Produced:
    """Return a reading with what the kernel overwrote before it was read."""
    return replace(reading, lost=lost, losses={**reading.losses, _OVERRUN: lost})
