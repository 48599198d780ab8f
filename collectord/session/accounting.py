# SPDX-License-Identifier: Apache-2.0
"""The counters of a session: read around full passes, balanced, and cut for manifests."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import structlog

from collectord.errors import KernelError
from collectord.ledger.manifest_balance import manifest_balance
from collectord.ledger.record_ledger import balance_session
from collectord.model import Basis, sum_known
from collectord.session.aux_counter_reader import AuxCounterReader
from collectord.session.flush_clocks import FlushClocks
from collectord.session.late_rings import LateRings
from collectord.session.uncovered_times import UncoveredTimes
from collectord.sink.base import Closing, Opening
from collectord.sink.manifest import RingEntry
from collectord.sink.series import Balance, Series

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from collectord._native._core import SegmentClosed
    from collectord.ledger.record_ledger import SessionBalance
    from collectord.model import ClockReading, Geometry, RingLabel
    from collectord.plan.aux_areas import AuxPlan
    from collectord.session.counter_reader import Drained
    from collectord.session.session_parts import SessionParts
    from collectord.sink.base import GivenUp, SegmentInfo, Sink
    from collectord.sink.manifest import SnapshotNote
    from collectord.sink.state_dir import StateDir

_LOG: Final = structlog.get_logger()


class Accounting:
    """The counters and the balance of a session, and the part of them that each manifest gets.

    The counter reader has those of the rings; those of AUX areas and late rings are read here.
    """

    def __init__(self, parts: SessionParts) -> None:
        plan, source, rings = parts.plan, parts.source, parts.rings
        self._plan = plan
        self._tracing = source.abilities.tracing
        self._entries: dict[RingLabel, RingEntry] = {}  # with the id of each place's first ring
        self._later: dict[int, int] = {}  # by the id of a later ring of a place, that of its first
        self._enter(rings)
        self._counter_reader = parts.counter_reader
        left = (one for one in parts.source.abilities.lasting if one.in_bytes)
        self._aux = AuxCounterReader(parts.kernel, rings, left)
        self._late = LateRings(plan, source.abilities)
        self._kernel = parts.kernel
        self._health = parts.health
        self._covered = parts.covered
        self._lasting = parts.lasting
        self._log = _LOG.bind(session=plan.name)
        self._clocks = FlushClocks()
        self._since_ns = time.monotonic_ns()  # the end of the time that sealed segments cover
        self._closed = False
        self._stream = parts.stream
        # When readings began that a pass must follow.
        self._read_at = parts.stream.issued_generation()
        self._uncovered = UncoveredTimes()
        self._series = Series()
        self._lost = 0  # as of the last flush

    def add(self, drained: Drained) -> None:
        """Count a ring that joins the session, before its events are enabled.

        Raises:
            KernelError: its counters cannot be read.
        """
        self._counter_reader.add(drained)
        self._aux.add(drained)
        self._enter([drained])
        self._late.leave_out(drained.handle.label)

    def retire(self, drained: Drained) -> None:
        """Count a ring for the last time: see `CounterReader.retire`."""
        self._counter_reader.retire(drained)
        self._aux.retire(drained)

    def _enter(self, rings: Sequence[Drained]) -> None:
        for one in rings:
            self._enter_as(one.ring.id, one.handle.label, one.handle.geometry)
        for area in [area for one in rings for area in one.areas]:
            self._enter_as(area.ring.id, area.handle.label, area.handle.plan)

    def _enter_as(self, number: int, label: RingLabel, sizes: Geometry | AuxPlan) -> None:
        before = self._entries.get(label)
        if before is not None:
            self._later[number] = before.ring
        first = number if before is None else before.ring
        self._entries[label] = _entry(first, label, sizes)

    def by_place(self, closed: SegmentClosed) -> SegmentClosed:
        """Return the counts of a closed segment by place: with the id of each place's first ring.

        So a manifest has one entry for a place, however many rings it has had.
        """
        if not self._later:
            return closed
        return closed._replace(rings=self._sums(closed.rings), aux=self._sums(closed.aux))

    def _sums(self, rings: tuple[tuple[int, int, int], ...]) -> tuple[tuple[int, int, int], ...]:
        sums: dict[int, tuple[int, int]] = {}
        for number, one, other in rings:
            place = self._later.get(number, number)
            before = sums.get(place, (0, 0))
            sums[place] = (before[0] + one, before[1] + other)
        return tuple((place, one, other) for place, (one, other) in sums.items())

    def measure(self, *, last: bool = False) -> bool:
        """Take a reading; if it fails, keep the last one, and report the failure.

        If no full pass has ended since the last reading, the new counts of produced and lost
        records are compared with what was counted before the last pass that has ended.

        Args:
            last: the events are disabled, and all records are drained and written.

        Returns:
            whether the balance of a ring may have changed.
        """
        if self._closed and not last:
            return False  # a seal that began before the end comes late: the last reading is final
        new = True
        try:
            if last:
                self._closed = True
                self._counter_reader.close()
                self._aux.close()
            else:
                new = self._measure()
            self._late.measure(last=last)
        except KernelError as error:
            if self._health.note("counters", f"counters not read: {error}"):
                self._log.error("counters_not_read", error=str(error))
        else:
            self._health.note("counters", "")
            if new and not last:
                self._add_row()
        return new

    def lacks_cpus(self, trouble: str) -> None:
        """Note what the session lacks on CPUs from now on, in words; "" for nothing."""
        self._uncovered.note(trouble)

    def _add_row(self) -> None:
        """Keep the balance as of the last reading for the manifest of the running segment."""
        reader, now_ns = self._counter_reader, time.monotonic_ns()
        lost, self._lost = self._lost, reader.lost
        if self._series.is_due(now_ns, quiet=reader.is_quiet and lost == reader.lost):
            self._series.add(self._row(now_ns))

    def _row(self, now_ns: int) -> Balance:
        """Return the balance as of the last reading, with the basis since the row before."""
        balance = self.balance(self._series.last_ns or self._since_ns)
        rings = [b for label, b in self._counter_reader.brackets.items() if label.has_data]
        produced = sum_known(bracket.after.value for bracket in rings)
        _, shared = self._counter_reader.shared_bounds
        return Balance(
            at_ns=now_ns,
            exact=balance.basis is Basis.EXACT,
            produced=None if produced is None else produced + shared,
            stored=balance.stored,
            in_flight=balance.in_flight,
            overwritten=balance.overwritten,
            unaccounted=balance.unaccounted,
            lost=balance.lost,
        )

    def _measure(self) -> bool:
        passed = self._stream.drained_generation() > self._read_at
        try:
            new = self._counter_reader.measure(passed=passed)
            self._aux.measure(passed=passed)
        finally:
            if passed:
                self._read_at = self._stream.issued_generation()
        return new

    def read_clocks(self, read: Callable[[], ClockReading]) -> None:
        """Note the clocks for the next segment that is sealed, if it is this flush's turn."""
        self._clocks.flushed(read)

    def are_even(self) -> bool:
        """Whether no record and no byte is unaccounted as of the last reading."""
        missing = [ring.unaccounted for ring in self._counter_reader.balances()]
        missing += [area.unaccounted_bytes for area in self._aux.balances()]
        return not any(missing)

    def balance(self, since_ns: int | None = None) -> SessionBalance:
        """Return the balance as of the last reading; reads neither rings nor kernel counters.

        Args:
            since_ns: the basis holds for the time from then on. None: for now, and for all the
                time once the session is closed.
        """
        if since_ns is None and self._closed:
            since_ns = 0
        return balance_session(
            self._plan.name,
            self._plan.source,
            self._plan.scope.describe(),
            (*self._counter_reader.balances(since_ns), *self._late.balances()),
            suppressed=self._counter_reader.suppression.to_json(since_ns or 0),
            pauses=self._counter_reader.pauses.to_json(since_ns or 0),
            shared=self._counter_reader.shared_losses,
            overwritten=sum(account.overwritten for account in self._lasting),
            aux=self._aux.balances(),
        )

    def opening(self) -> Opening:
        """Return what a new segment is told about the clocks and the rings."""
        if not self._series.last_ns:
            # The first balance, before any event is enabled.
            self._series.add(self._row(time.monotonic_ns()))
        gap = self._covered.gap
        rings = tuple(self._entries.values())
        return Opening(clock=self._kernel.clocks(), rings=rings, gap=gap)

    def closing(self, *, recount: bool, snapshot: SnapshotNote | None) -> Closing:
        """Return what a sealed segment is told: the balance, and the changes since the last one.

        Args:
            recount: it is the last segment and no other waits to be sealed, so the events found in
                it complete the count.
            snapshot: the snapshot that the segment belongs to.
        """
        # The next poll may find a program that was attached right after this one: the claim ends
        # before this poll.
        until_ns = time.monotonic_ns()
        self._health.look_for_suppression()
        return Closing(
            clock=self._kernel.clocks(),
            rings=tuple(self._entries.values()),
            ledger=self._cut(until_ns),
            flushes=self._clocks.take(),
            lost_samples=self._counter_reader.take_losses(),
            ring_stats=self._ring_stats(),
            recut=self._recut if recount else None,
            snapshot=snapshot,
            balances=self._series.take(self._row(until_ns)),
        )

    def found(self, info: SegmentInfo) -> None:
        """Count the events that were found in a segment as it was sealed."""
        self._since_ns = max(self._since_ns, info.manifest.ledger.get("until_ns", 0))
        self._counter_reader.found({entry.ring: entry.samples for entry in info.manifest.rings})
        for account in self._lasting:
            account.told(info.manifest)

    def given_up(self, end: GivenUp) -> None:
        """Count the events of a segment that was closed without a seal."""
        self._counter_reader.found(end.events)
        self._counter_reader.removed(end.lost_events)
        self._aux.removed(end.lost_aux_bytes)

    def settle(self) -> None:
        """Count as passed what was found in the segments, now that all are sealed."""
        self._counter_reader.settle({})
        for account in self._lasting:
            account.end()

    def take_late(self, sink: Sink, state_dir: StateDir) -> SegmentInfo | None:
        """Store the contents of rings that nobody drained; see `LateRings.take`. For a worker."""
        return self._late.take(self._kernel, sink, state_dir, self._cut)

    def _recut(self, found: Mapping[int, int]) -> Mapping[str, Any]:
        """Return the final balance, with the events of the last segment. The seal calls it."""
        self._counter_reader.settle(found)
        return self._cut()

    def _cut(self, until_ns: int | None = None) -> dict[str, Any]:
        """Return a manifest's ledger for the time until `until_ns`; None: until now."""
        if until_ns is None:
            until_ns = time.monotonic_ns()
        bounds = zip(self._counter_reader.shared_bounds, self._late.bounds, strict=True)
        before, after = map(sum, bounds)
        whole = manifest_balance(
            self.balance(self._since_ns),
            self._counter_reader.brackets,
            (before, after),
            since_ns=self._since_ns,
            until_ns=until_ns,
            uncovered=self._uncovered.to_json(self._since_ns),
        )
        return whole.to_json()

    def _ring_stats(self) -> Mapping[int, str]:
        try:
            return {cpu: text for one in self._tracing for cpu, text in one.ring_stats().items()}
        except KernelError as error:
            self._log.error("counters_not_read", error=str(error))
            return {}


def _entry(number: int, label: RingLabel, sizes: Geometry | AuxPlan) -> RingEntry:
    return RingEntry(
        ring=number,
        role=str(label.role),
        cpu=label.cpu,
        tid=label.tid,
        data_bytes=sizes.data_bytes,
        watermark_bytes=sizes.watermark_bytes,
    )
