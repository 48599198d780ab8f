# SPDX-License-Identifier: Apache-2.0
"""The readings of a session's rings: kernel counters, the core's counters, foreign programs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from collectord.ledger import Bracket, balance_ring, losses_of
from collectord.losing import LossReading
from collectord.model import Basis, Reason, RingKind, RingRole, Stage, Transport
from collectord.suppression import Suppression

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from collectord._native._core import AuxRing, Ring, RingCounters
    from collectord.ledger import RingBalance
    from collectord.model import LossKey, Produced, RingLabel
    from collectord.plan.events import EventPlan
    from collectord.source.base import OpenSource, RingHandle


OVERRUN: Final = (Stage.KERNEL_RING, Reason.OVERRUN)


@dataclass(frozen=True, slots=True)
class Drained:
    """A ring as its source opened it, and as the core drains it; its AUX area where it has one."""

    handle: RingHandle
    ring: Ring
    aux: AuxRing | None = None


class Meter:
    """Reads the counters around full passes and keeps the last bracket of each ring.

    A kernel counter costs an interrupt of the CPU that runs the event: each is read once per
    call, as the end of one bracket and the beginning of the next, and not at all while its ring
    does nothing.
    """

    def __init__(
        self, source: OpenSource, rings: Iterable[Drained], events: Iterable[EventPlan]
    ) -> None:
        self._source = source
        self._rings = {drained.handle.label: drained for drained in rings}
        self.suppression = Suppression(source, events)
        self._told_lost: dict[int, int] = {}
        self._found: Counter[int] = Counter()
        self._removed: Counter[int] = Counter()
        self._brackets: dict[RingLabel, Bracket] = {}
        self._next: dict[RingLabel, Produced] = {}
        self._overwritten: Counter[RingLabel] = Counter()
        self._shared = self._shared_before = source.shared_losses()
        for label, drained in self._rings.items():
            counters = self._counters(drained)
            reading = self._read(drained, counters)
            self._brackets[label] = Bracket(reading, counters, reading)
            self._next[label] = reading

    def _counters(self, drained: Drained) -> RingCounters:
        """The core's counters; what it stored and somebody deleted is not stored any more."""
        counters, removed = drained.ring.counters(), self._removed[drained.ring.id]
        if not removed:
            return counters
        return counters._replace(
            stored=counters.stored - removed, lost_dropped=counters.lost_dropped + removed
        )

    @property
    def brackets(self) -> Mapping[RingLabel, Bracket]:
        """The last bracket of each ring."""
        return self._brackets

    @property
    def shared_losses(self) -> Mapping[LossKey, int]:
        """What was lost of all rings together, as of the last reading."""
        return self._shared

    @property
    def shared_bounds(self) -> tuple[int, int]:
        """The same as a number, of the reading before the last one and of that."""
        return sum(self._shared_before.values()), sum(self._shared.values())

    def _read(self, drained: Drained, counters: RingCounters) -> Produced:
        """A ring's kernel counters; those of a relay file the core finds where it reads.

        The core counts a number before the event that carries it, and gives the number last: so
        what it has walked is among the numbers of the same reading.
        """
        reading = self._source.read_produced(drained.handle)
        relay = drained.handle.relay
        if is_overwritable(drained.handle):
            # What was passed over in a ring is neither stored nor overwritten.
            known = reading.value is not None and not counters.faults
            overwritten = self._overwritten[drained.handle.label] if known else None
            return replace(reading, overwritten=overwritten)
        if drained.aux is not None and drained.handle.held:
            return replace(reading, overwritten=counters.overwritten)
        if relay is None:
            return reading
        overrun = counters.missing if relay.blktrace else counters.skipped_bytes
        return replace(
            reading,
            value=counters.numbered if relay.blktrace else None,
            lost=overrun,
            losses={**reading.losses, OVERRUN: overrun},
        )

    def _read_shared(self) -> None:
        self._shared_before, self._shared = self._shared, self._source.shared_losses()

    def measure(self, *, passed: bool = True) -> bool:
        """Take a reading.

        Args:
            passed: a full pass is done that began after the last reading of which this was true.

        Returns:
            whether anything is new: if not, all balances are as they were.
        """
        new = False
        for label, drained in self._rings.items():
            last = self._brackets[label]
            counters = self._counters(drained)
            idle = self._is_idle(drained, counters, last.counters)
            if idle and counters == last.counters:
                continue
            new = True
            before, after = last.before, last.after
            if not idle:
                after = self._read(drained, counters)
                if passed:
                    before, self._next[label] = self._next[label], after
            walked = _handed_on(drained, after, counters)
            self._brackets[label] = Bracket(before, counters, after, walked=walked)
        before_last = self._shared_before
        self._read_shared()
        new = new or self._shared != self._shared_before
        if not passed:
            self._shared_before = before_last
        return new

    def _is_idle(self, drained: Drained, counters: RingCounters, last: RingCounters) -> bool:
        """Whether nothing can have come: nothing was drained, and nothing left for want of room.

        Counters of an ftrace ring, and of BPF programs, rise without anything drained; those of a
        ring in quarantine do without anybody looking at it.
        """
        if drained.handle.pages is not None or self._source.bpf is not None:
            return False
        if counters.quarantined:
            return False
        return (counters.records, counters.starved) == (last.records, last.starved)

    def close(self) -> None:
        """Take the final reading: the events are disabled and all is drained and written."""
        self.suppression.end()
        self.count_overwritten()
        for label, drained in self._rings.items():
            counters = self._counters(drained)
            reading = self._read(drained, counters)
            walked = _handed_on(drained, reading, counters)
            self._brackets[label] = Bracket(reading, counters, reading, closed=True, walked=walked)
        self._read_shared()

    def before_windows(self) -> Mapping[RingLabel, Produced]:
        """Read the counters of overwritable rings, for `count_overwritten` thereafter."""
        return {
            label: self._source.read_produced(drained.handle)
            for label, drained in self._rings.items()
            if is_overwritable(drained.handle)
        }

    def count_overwritten(self, before: Mapping[RingLabel, Produced] | None = None) -> None:
        """See what is in no window: all that was written before these, and is in none yet.

        A ring's records are counted by the kernel as they are written, and by the core as a window
        is taken; of what is in the ring between two windows nobody counts records. So the first
        reading has to be made shortly before the windows are, or when nothing comes any more.

        Args:
            before: of `before_windows`; None: the events are disabled, and the last windows taken.
        """
        readings = before if before is not None else self.before_windows()
        for label, reading in readings.items():
            if reading.value is None:
                continue
            counters = self._rings[label].ring.counters()
            lost = reading.lost if reading.lost is not None else counters.lost_records
            gone = reading.value - lost - counters.window_taken
            self._overwritten[label] = max(gone, self._overwritten[label])

    def found(self, samples: Mapping[int, int]) -> None:
        """Count what the seal of a segment found, by the core's ring id."""
        self._found.update(samples)

    def removed(self, samples: Mapping[int, int]) -> None:
        """Count what was stored in a file that somebody deleted, by the core's ring id."""
        self._removed.update(samples)

    def settle(self, last: Mapping[int, int]) -> None:
        """All is in segments: what passed unseen is as much as was found in them.

        Args:
            last: what is in the last one, by the core's ring id, unless `found` has it already.
        """
        for label, drained in self._rings.items():
            if _is_unseen(drained):
                found = self._found[drained.ring.id] + last.get(drained.ring.id, 0)
                self._brackets[label] = replace(self._brackets[label], walked=found)

    def take_losses(self) -> dict[int, int]:
        """Losses by event id since the last call, from the kernel's exact counters."""
        taken = {}
        for bracket in self._brackets.values():
            for event_id, _, lost in bracket.after.per_event if bracket.after else ():
                if lost > self._told_lost.get(event_id, 0):
                    taken[event_id] = lost - self._told_lost.get(event_id, 0)
                    self._told_lost[event_id] = lost
        return taken

    def balances(self, since_ns: int | None = None) -> tuple[RingBalance, ...]:
        """The balance of each ring as of the last reading.

        Args:
            since_ns: the basis is that of the time from then on, 0 for all; None: of now.
        """
        return tuple(
            balance_ring(
                label,
                self._basis(drained.handle, since_ns),
                drained.handle.geometry.data_bytes,
                self._brackets[label],
                self._programs(drained.handle),
                transport=pages.transport if pages is not None else None,
                held=drained.handle.held,
                overwritable=is_overwritable(drained.handle),
                beside_aux=drained.handle.aux is not None,
                in_bytes=_is_channel(drained.handle),
            )
            for label, drained in self._rings.items()
            for pages in [drained.handle.pages]
        )

    def losses(self) -> LossReading:
        """What was lost by now, as of the last reading, with what tells why."""
        lost = Counter(self._shared)
        starved = records = size_bytes = 0
        for label, bracket in self._brackets.items():
            overwritable = is_overwritable(self._rings[label].handle)
            lost.update(losses_of(bracket.counters, bracket.after, overwritable=overwritable))
            starved += bracket.counters.starved
            records += bracket.counters.records
            size_bytes += bracket.counters.bytes
        unit = "bytes" if any(_is_channel(d.handle) for d in self._rings.values()) else "records"
        return LossReading(lost, starved, records, size_bytes, unit)

    def _basis(self, handle: RingHandle, since_ns: int | None) -> Basis:
        """What a program hid, a reset wiped out, or came while a ring grew, was never counted."""
        after = self._brackets[handle.label].after
        if after is not None and after.resets:
            return Basis.LOST_ONLY
        if self._source.ftrace is not None and self._source.ftrace.grew:
            return Basis.LOST_ONLY
        hidden = self.suppression.hid((c.event_index for c in handle.counters), since_ns)
        if hidden and handle.basis is Basis.EXACT:
            return Basis.LOST_ONLY
        return handle.basis

    def _programs(self, handle: RingHandle) -> tuple[int, ...]:
        if handle.label.role is not RingRole.DATA:
            return ()
        return self.suppression.programs(counter.event_index for counter in handle.counters)


def is_overwritable(handle: RingHandle) -> bool:
    """The kernel overwrites what nobody reads: it has a window, and nothing is unread."""
    return handle.kind is RingKind.OVERWRITABLE


def _is_channel(handle: RingHandle) -> bool:
    """It is a relay channel whose records nobody knows: what counts them counts bytes."""
    return handle.relay is not None and not handle.relay.blktrace


def _is_unseen(drained: Drained) -> bool:
    """Its events go to the file without passing through this program's memory."""
    pages = drained.handle.pages
    return pages is not None and pages.transport is Transport.SPLICE


def _handed_on(drained: Drained, reading: Produced | None, counters: RingCounters) -> int | None:
    """What passed unseen by now: all that was handed out, without what the core has or gave up."""
    if reading is None or reading.read_events is None or not _is_unseen(drained):
        return None
    known = counters.in_flight + counters.lost_disk_full + counters.lost_dropped
    return max(0, reading.read_events - known)
