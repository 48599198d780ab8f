# SPDX-License-Identifier: Apache-2.0
"""Rings that nobody drains: the kernel made them for CPUs that came online during a session.

Their counters tell what was written to them. While the session runs, that is in flight. At the end
those of ftrace go into a last segment, as a killed process's do; what cannot be taken is lost, as
`kernel_ring/uncovered`.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from collectord.errors import KernelError, SinkError
from collectord.ledger.record_ledger import RingBalance
from collectord.model import RING_UNCOVERED, Basis, RingRole, loss_name
from collectord.recovery.page_segment import salvage
from collectord.sink.base import Closing, Opening
from collectord.sink.manifest import RingEntry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Any

    from collectord.kernel.port import Kernel
    from collectord.model import RingLabel
    from collectord.plan.session_plan import SessionPlan
    from collectord.sink.base import SegmentInfo, Sink
    from collectord.sink.state_dir import StateDir
    from collectord.source.base import Abilities, LateRing, Tracing

_LOG: Final = structlog.get_logger()
_UNCOVERED: Final = loss_name(RING_UNCOVERED)


class LateRings:
    """The rings of one session that the kernel made after the session was opened.

    Args:
        plan: the session's plan.
        abilities: of the session's source, which lists these rings at each reading.
    """

    def __init__(self, plan: SessionPlan, abilities: Abilities) -> None:
        self._plan = plan
        self._sources, self._tracing = abilities.late, abilities.tracing
        self._rings: tuple[LateRing, ...] = ()
        self._before: tuple[LateRing, ...] = ()  # as of the reading before
        self._stored: Mapping[int, int] = {}  # events taken at the end, by CPU
        self._given_up = False

    def measure(self, *, last: bool) -> None:
        """Take a reading. See `LateSource.late_rings`. Raises KernelError."""
        self._before = self._rings
        self._rings = tuple(r for source in self._sources for r in source.late_rings(last=last))
        if last:
            self._before = self._rings
            # The single file has no room for CPUs other than those it was made for.
            self._given_up = self._plan.sink.single_file is not None

    @property
    def bounds(self) -> tuple[int, int]:
        """The events produced as of the last two readings, the older first; equal at the end."""
        return _produced(self._before), _produced(self._rings)

    def leave_out(self, label: RingLabel) -> None:
        """Leave a ring to the session, which drains it from now on."""
        self._rings = tuple(ring for ring in self._rings if ring.label != label)
        self._before = tuple(ring for ring in self._before if ring.label != label)

    def balances(self) -> tuple[RingBalance, ...]:
        """Return the balance of each ring as of the last reading."""
        return tuple(map(self._balance, self._rings))

    def _balance(self, ring: LateRing) -> RingBalance:
        kernel = ring.produced
        stored = self._stored.get(ring.label.cpu, 0)
        lost = {loss_name(key): count for key, count in kernel.losses.items()}
        left = kernel.unread - stored
        if self._given_up:
            lost[_UNCOVERED] += left
            left = 0
        told = stored + sum(lost.values()) + (kernel.overwritten or 0) + left
        return RingBalance(
            label=ring.label,
            basis=Basis.EXACT,
            capacity_bytes=ring.capacity_bytes,
            produced=kernel.value,
            stored=stored,
            lost=lost,
            overwritten=kernel.overwritten,
            in_flight=left,
            unaccounted=abs((kernel.value or 0) - told),
            used_bytes=kernel.unread_bytes,
            oldest_unread_age_ns=kernel.oldest_unread_age_ns,
        )

    def take(
        self,
        kernel: Kernel,
        sink: Sink,
        state_dir: StateDir,
        ledger: Callable[[], Mapping[str, Any]],
    ) -> SegmentInfo | None:
        """Store what they hold, once the session's own segments are sealed; the rest is lost.

        Args:
            kernel: reads the clocks.
            sink: the session's, whose segments this one follows.
            state_dir: makes room when the disk is full.
            ledger: returns the balance for the manifest, once the rings are empty.

        Returns:
            None if there was nothing to take, or no place for it.
        """
        info = None
        for instance in self._tracing:  # other rings were counted as they were read
            if not self._rings or self._given_up:
                break
            self._given_up = True
            try:
                info = self._salvage(instance, kernel, sink, state_dir, ledger)
            except (KernelError, SinkError) as error:
                self._stored = {}
                _LOG.error("late_rings_lost", session=self._plan.name, error=str(error))
        return info

    def _salvage(
        self,
        instance: Tracing,
        kernel: Kernel,
        sink: Sink,
        state_dir: StateDir,
        ledger: Callable[[], Mapping[str, Any]],
    ) -> SegmentInfo | None:
        rings = tuple(self._entries())
        stats = instance.ring_stats()
        before = sink.so_far

        def closing(stored: Mapping[int, int]) -> Closing:
            self._stored = stored
            return Closing(clock=kernel.clocks(), rings=rings, ledger=ledger(), ring_stats=stats)

        with ExitStack() as stack:
            return salvage(
                Path(self._plan.sink.directory),
                before.identity,
                instance.metadata(),
                instance.late_pages((entry.cpu for entry in rings), stack),
                opening=Opening(
                    kernel.clocks(), rings, run=before.run, stored_before=before.stored
                ),
                closing=closing,
                comms=instance.comms,
                make_room=state_dir.room_for(Path(self._plan.sink.directory)),
            )

    def _entries(self) -> Iterator[RingEntry]:
        for ring in self._rings:
            yield RingEntry(
                ring=ring.label.cpu,
                role=str(RingRole.DATA),
                cpu=ring.label.cpu,
                data_bytes=ring.capacity_bytes,
                watermark_bytes=0,
            )


def _produced(rings: Iterable[LateRing]) -> int:
    return sum(ring.produced.value or 0 for ring in rings)
