# SPDX-License-Identifier: Apache-2.0
"""The figures of a session: read around full passes, balanced, and cut for manifests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from collectord.aux_meter import AuxMeter
from collectord.errors import KernelError
from collectord.ledger import balance_session
from collectord.ledger_json import cut
from collectord.sink.base import Closing, Opening
from collectord.sink.manifest import RingEntry

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from collectord.health import Health
    from collectord.kernel.port import Kernel
    from collectord.ledger import SessionBalance
    from collectord.meter import Drained, Meter
    from collectord.model import ClockReading, Geometry, RingLabel
    from collectord.plan.aux import AuxPlan
    from collectord.plan.session import SessionPlan
    from collectord.sink.base import SegmentInfo
    from collectord.sink.manifest import SnapshotNote
    from collectord.source.base import Ftrace

_LOG: Final = structlog.get_logger()


class Accounts:
    """What a session's counters say, and what of it its segments are told.

    Args:
        plan: of the session.
        ftrace: tells the kernel's counters as text; None of a source of another kind.
        rings: all of them.
        meter: reads their counters; AUX areas are read here.
        kernel: reads the clocks.
        health: told while counters cannot be read.
    """

    def __init__(
        self,
        plan: SessionPlan,
        *,
        ftrace: Ftrace | None,
        rings: Sequence[Drained],
        meter: Meter,
        kernel: Kernel,
        health: Health,
    ) -> None:
        self._plan = plan
        self._ftrace = ftrace
        self._rings = rings
        self._meter = meter
        self._aux = AuxMeter(kernel, rings)
        self._kernel = kernel
        self._health = health
        self._log = _LOG.bind(session=plan.name)
        self._clocks: list[ClockReading] = []

    def measure(self, *, last: bool = False) -> None:
        """Take a reading after a full pass; where it fails the last one stands, and that is said.

        Args:
            last: the events are disabled, and all is drained and written.
        """
        try:
            if last:
                self._meter.close()
                self._aux.close()
            else:
                self._meter.measure()
                self._aux.measure()
        except KernelError as error:
            if self._health.note("counters", f"counters not read: {error}"):
                self._log.error("counters_not_read", error=str(error))
        else:
            self._health.note("counters", "")

    def read_clocks(self) -> None:
        """Note the clocks for the next segment that is sealed."""
        self._clocks.append(self._kernel.clocks())

    def are_even(self) -> bool:
        """Whether nothing is unaccounted, in records or in bytes, as of the last reading."""
        missing = [ring.unaccounted for ring in self._meter.balances()]
        missing += [area.unaccounted for area in self._aux.balances()]
        return not any(missing)

    def balance(self) -> SessionBalance:
        """The balance as of the last reading; touches neither rings nor kernel counters."""
        return balance_session(
            self._plan.name,
            self._plan.source,
            self._plan.scope.describe(),
            self._meter.balances(),
            state="running",
            directory=self._plan.sink.directory,
            shared=self._meter.shared_losses,
            aux=self._aux.balances(),
        )

    def opening(self) -> Opening:
        """What a segment is told as it is created."""
        return Opening(clock=self._kernel.clocks(), rings=self._entries())

    def closing(self, *, recount: bool, snapshot: SnapshotNote | None) -> Closing:
        """What a segment is told as it is sealed: the balance, and what came since the last one.

        Args:
            recount: it is the last one, and no other waits to be sealed: what it is found to hold
                completes the count.
            snapshot: that it belongs to.
        """
        closing = Closing(
            clock=self._kernel.clocks(),
            rings=self._entries(),
            ledger=self._cut(),
            flushes=tuple(self._clocks),
            lost_samples=self._meter.take_losses(),
            ring_stats=self._ring_stats(),
            recut=self._recut if recount else None,
            snapshot=snapshot,
        )
        self._clocks.clear()
        return closing

    def found(self, info: SegmentInfo) -> None:
        """Count what a segment was found to hold as it was sealed."""
        self._meter.found({entry.ring: entry.samples for entry in info.manifest.rings})

    def settle(self) -> None:
        """All segments are sealed: what passed unseen is what was found in them."""
        self._meter.settle({})

    def _recut(self, found: Mapping[int, int]) -> Mapping[str, Any]:
        """The final balance, from what the last segment holds too. Called by the seal."""
        self._meter.settle(found)
        return self._cut()

    def _cut(self) -> dict[str, Any]:
        return cut(self.balance(), self._meter.brackets, self._meter.shared_bounds)

    def _ring_stats(self) -> Mapping[int, str]:
        if self._ftrace is None:
            return {}
        try:
            return self._ftrace.ring_stats()
        except KernelError as error:
            self._log.error("counters_not_read", error=str(error))
            return {}

    def _entries(self) -> tuple[RingEntry, ...]:
        rings = [_entry(d.ring.id, d.handle.label, d.handle.geometry) for d in self._rings]
        areas = [
            _entry(drained.aux.id, drained.handle.aux.label, drained.handle.aux.plan)
            for drained in self._rings
            if drained.aux is not None and drained.handle.aux is not None
        ]
        return (*rings, *areas)


def _entry(number: int, label: RingLabel, sizes: Geometry | AuxPlan) -> RingEntry:
    return RingEntry(
        ring=number,
        role=str(label.role),
        cpu=label.cpu,
        tid=label.tid,
        data_bytes=sizes.data_bytes,
        watermark_bytes=sizes.watermark_bytes,
    )
