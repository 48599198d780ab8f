# SPDX-License-Identifier: Apache-2.0
"""An open ring, with its way into the core and into the ledger; its kinds are frozen variants.

All that distinguishes a kind of ring is in its variant: nothing past `open` asks for the kind.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from collectord.ledger.record_ledger import balance_ring
from collectord.model import Basis, Produced

if TYPE_CHECKING:
    from collectord._native._core import (
        AuxMap,
        AuxRing,
        Core,
        Ring,
        RingCounters,
        RingNote,
        Stream,
    )
    from collectord.ledger.aux_ledger import AuxReading
    from collectord.ledger.record_ledger import Bracket, RingBalance
    from collectord.model import Geometry, RingLabel
    from collectord.plan.aux_areas import AuxPlan


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
        """Whether the kernel counts every record that goes into the ring."""
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
        return balance_ring(
            self.label,
            basis,
            self.geometry.data_bytes,
            bracket,
            suppressed_by,
            held=self.held,
            beside_aux=bool(self.areas),
            in_bytes=self.in_bytes,
        )
