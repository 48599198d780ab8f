# SPDX-License-Identifier: Apache-2.0
"""BPF programs that an opener holds: they run on while no daemon does, and so do their counts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from collectord.source.bpf_buffer import LastingBuffer
from collectord.source.kept_ring import Before, LastingRing, holds, legacies
from collectord.source.open_bpf import OpenBpf

if TYPE_CHECKING:
    from collectord.kernel.port import Kernel
    from collectord.kernel.values.kept_rings import KeptRings
    from collectord.plan.bpf_plan import BpfPlan
    from collectord.source.base import Abilities
    from collectord.source.kept_memory import KeptMemory
    from collectord.source.open_perf import OpenPerf
    from collectord.source.open_program import OpenProgram
    from collectord.source.ring import RingHandle


class KeptBpf(OpenBpf):
    """Running programs that outlive this process, unless their opener ends.

    The opener has given them their rings. Once a process has let them count, they do so until the
    opener unloads them: the successor's figures begin with what is unread in the rings.

    Args:
        kernel: reads their counts.
        plan: of the programs.
        programs: as they were handed over.
        rings: the perf rings.
        memory: has the notes of programs and rings.
        given: by the opener.
    """

    def __init__(
        self,
        kernel: Kernel,
        plan: BpfPlan,
        programs: tuple[OpenProgram, ...],
        rings: OpenPerf,
        *,
        memory: KeptMemory,
        given: KeptRings,
    ) -> None:
        super().__init__(kernel, plan, programs, rings)
        self._memory = memory
        self._connection = given.connection
        self.count_missed_from(noted_missed(programs, memory))
        if memory.text.state:
            self.rings = tuple(map(self._since_before, self.rings))
        self._legacy = legacies(memory, given, self.rings)

    def _since_before(self, ring: RingHandle) -> RingHandle:
        """Return a ring that knows what was taken out of it and lost by now."""
        if not isinstance(ring, LastingRing | LastingBuffer) or not ring.label.has_data:
            return ring
        found = self.read_produced(ring)
        by_event = {event_id: lost for event_id, _, lost in found.per_event}
        before = Before(ring.hold.note.taken, found.losses, by_event)
        return replace(ring, hold=replace(ring.hold, before=before))

    @property
    def abilities(self) -> Abilities:
        """See `source.base.OpenSource`."""
        return replace(super().abilities, lasting=self._legacy, shared=self._legacy)

    def _begin_missed(self) -> dict[str, int]:
        """Return the skipped runs before a process has first let the programs count."""
        before = super()._begin_missed() | noted_missed(self.programs, self._memory)
        for number, program in enumerate(self.programs):
            if self._memory.missed_before(number) is None:
                self._memory.note_missed(number, before.get(program.plan.name, 0))
        return before

    def disable(self) -> None:
        """Stop counting, unless it goes on for the next process."""
        if not holds(self._connection):
            super().disable()


def noted_missed(programs: tuple[OpenProgram, ...], memory: KeptMemory) -> dict[str, int]:
    """Return what is noted of the programs that were let to count, by their names."""
    noted = {one.plan.name: memory.missed_before(n) for n, one in enumerate(programs)}
    return {name: missed for name, missed in noted.items() if missed is not None}
