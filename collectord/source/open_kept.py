# SPDX-License-Identifier: Apache-2.0
"""The open rings of a perf session that an opener holds."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from collectord.model import FLIGHT_RECORDER
from collectord.source.event_counts import OwnCounts
from collectord.source.kept_ring import holds
from collectord.source.open_perf import OpenPerf

if TYPE_CHECKING:
    from collectord.kernel.port import Kernel
    from collectord.kernel.values.counter_reading import CounterReading
    from collectord.plan.session_plan import SessionPlan
    from collectord.source.base import Abilities
    from collectord.source.kept_ring import Legacy
    from collectord.source.perf_kept import RingMaker
    from collectord.source.perf_opening import Opened
    from collectord.source.ring import CounterFd

_TICK_S: Final = 0.001  # in which the time of an enabled event goes on, whatever its clock


class OpenKept(OpenPerf):
    """Open rings of a perf session that outlive this process, unless their opener ends."""

    def __init__(
        self,
        kernel: Kernel,
        opened: Opened,
        plan: SessionPlan,
        *,
        maker: RingMaker,
        legacy: tuple[Legacy, ...],
    ) -> None:
        super().__init__(kernel, opened, plan, OwnCounts(kernel))
        self._connection = maker.connection
        self._use = maker.use
        # A stream's rings go on in any case; those of a recorder hold the window of its end.
        self._recorder = plan.mode == FLIGHT_RECORDER
        self._outlives = False
        self._armed: set[int] = set()  # events that an earlier process has armed
        # Answers that were not asked for yet: a poll asks for each event once.
        self._told: dict[int, tuple[int, ...] | None] = {}
        self._legacy = legacy

    @property
    def abilities(self) -> Abilities:
        """See `source.base.OpenSource`."""
        return replace(
            super().abilities,
            pausable=(),
            lasting=self._legacy,
            shared=tuple(one for one in self._legacy if not one.in_bytes),
            outliving=(self,) if self._recorder else (),
        )

    def outlive(self) -> bool:
        """See `source.base.Outliving`."""
        self._outlives = holds(self._connection)
        return self._outlives

    def enable(self) -> None:
        """Start counting where an earlier process has not.

        An event that freezes its ring is armed once, and off as soon as that has frozen: one that
        did so, and was not armed again, is left to be found.
        """
        before = {fd: self._reading(fd) for fd in self._freezers}
        if before:
            time.sleep(_TICK_S)
        for fd, reading in before.items():
            if self._reading(fd).time_enabled_ns > reading.time_enabled_ns:
                self._happened[fd] = reading.value
                self._armed.add(fd)
            elif reading.value:
                self._armed.add(fd)
        super().enable()

    def _reading(self, fd: int) -> CounterReading:
        return self._kernel.read_counter(fd, self._freezers[fd].read_format)

    def _enable(self, counter: CounterFd) -> None:
        if counter.fd in self._armed:
            self._armed.remove(counter.fd)
        else:
            super()._enable(counter)

    def disable(self) -> None:
        """Stop counting in rings that end now; the others count on for the next process."""
        self._use.ended = self._recorder and not self._outlives
        self.disable_rings([ring for ring in self.rings if not ring.goes_on()])
        if self._use.ended and holds(self._connection):
            self._kernel.end_kept(self._connection)

    def suppressed_by(self, event_index: int) -> tuple[int, ...] | None:
        """See `OpenPerf`. The opener looks, as long as it lives: it takes a privilege."""
        if not holds(self._connection):
            return super().suppressed_by(event_index)
        if event_index not in self._told:
            self._told = dict(self._kernel.hiding_programs(self._connection))
        return self._told.pop(event_index, ())
