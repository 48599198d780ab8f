# SPDX-License-Identifier: Apache-2.0
"""The rings of a session's BPF programs: shared perf rings, ring buffers, or slots.

Programs submit into perf rings, one on each CPU for all, or into ring buffers: a BPF ring buffer
(BPF_MAP_TYPE_RINGBUF) belongs to one program and takes its submissions on any CPU. One that is a
flight recorder keeps its records in slots.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from collectord.config.schema_session import BpfSourceConfig
from collectord.model import RingRole
from collectord.plan import ring_sizes
from collectord.plan.program_plan import PERF, RINGBUF
from collectord.plan.ring_plan import RingPlan
from collectord.plan.ring_set import RingSet, numbered, rounded, sideband
from collectord.text.units import NS_PER_SECOND, show_bytes, show_ns

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from collectord.facts.kernel_facts import KernelFacts
    from collectord.model import Scope
    from collectord.plan.event_attrs import EventPlan
    from collectord.plan.program_plan import ProgramPlan

# The size of a slot, and how many of them a CPU has at most: struct slot of the core.
_SLOT_BYTES: Final = 24
_SLOTS_MAX: Final = 1 << 20
# The most that a ring buffer has whose size is not configured; otherwise it has as much as perf
# rings on all CPUs would. Its memory is allocated at once.
_BUFFER_MAX_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class SlotSet(RingSet):
    """The slots of a program that is a flight recorder: a region of them for each CPU.

    They are a map, which does not count against what may be pinned: it has no CPUs here.

    Attributes:
        regions: the CPUs that are recorded. The map has a region for each that is possible.
    """

    regions: tuple[int, ...] = ()

    def rings(self, data_bytes: int, aux_bytes: int = 0) -> Iterator[RingPlan]:
        """Yield the plan of each region; see `RingSet`."""
        del aux_bytes
        for cpu in self.regions:
            yield RingPlan(
                source=self.source,
                role=self.role,
                cpu=cpu,
                requested_bytes=self.requested_bytes,
                data_bytes=data_bytes,
                watermark_bytes=0,
                events=self.events,
                slots=data_bytes // _SLOT_BYTES,
            )


@dataclass(frozen=True, slots=True)
class BufferSet(RingSet):
    """One BPF ring buffer for all CPUs.

    It is a map and not a perf ring: it does not count against what may be pinned, and so it has no
    CPUs here.
    """

    def rings(self, data_bytes: int, aux_bytes: int = 0) -> Iterator[RingPlan]:
        """Yield the plan of the buffer; see `RingSet`. Its size is the requested one."""
        everywhere = replace(self, cpus=(-1,))
        yield from super(BufferSet, everywhere).rings(data_bytes, aux_bytes)


def slot_sets(
    chosen: Sequence[tuple[BpfSourceConfig, ProgramPlan]],
    events: Sequence[EventPlan],
    cpus: tuple[int, ...],
    scope: Scope,
    facts: KernelFacts,
) -> tuple[RingSet, ...]:
    """Return the slots of each flight recorder, and sideband rings; see `ring_sets`."""
    sets: list[RingSet] = []
    possible = len(facts.cpus_possible)
    limit = ring_sizes.recorder_limit(possible).of(facts.memory_bytes)
    for source, program in chosen:
        size = source.ring.in_bytes(facts.page_size, limit // possible)
        slots = min(max(size, facts.page_size) // _SLOT_BYTES, _SLOTS_MAX)
        sets.append(
            SlotSet(
                numbered(BpfSourceConfig.kind, len(sets) + 1),
                RingRole.DATA,
                (1 << slots.bit_length() - 1) * _SLOT_BYTES,
                source.watermark,
                tuple(events[kept.event_index] for kept in program.kept),
                (),
                overwrite=True,
                regions=cpus,
            )
        )
    wanted = max(source.sideband_ring.in_bytes(facts.page_size, 0) for source, _ in chosen)
    return *sets, sideband(sets, scope, facts, wanted)


def keep_ns(sources: Iterable[BpfSourceConfig]) -> int:
    """Return the time that flight recorders of these sources are to reach back, 0 of none."""
    times = (ring_sizes.KEEP_NS if source.keep is None else source.keep for source in sources)
    return max(times, default=0)


def window_notes(sets: Iterable[RingSet], keep_ns: int) -> Iterator[str]:
    """Yield in words up to which rate slots hold a time: they are not made larger later."""
    for one in sets:
        if isinstance(one, SlotSet):
            slots = one.requested_bytes // _SLOT_BYTES
            rate = slots * NS_PER_SECOND / keep_ns
            shown = f"{int(rate):,}" if rate >= 1 else f"{rate:.2g}"
            yield f"{slots:,} slots a CPU hold {show_ns(keep_ns)} up to {shown} slots a second"


def size_notes(
    chosen: Iterable[BpfSourceConfig], sets: Iterable[RingSet], page_size: int
) -> Iterator[str]:
    """Yield in words what slots have of the sizes that are asked for, if they have others."""
    slot_sets = (one for one in sets if isinstance(one, SlotSet))
    for source, one in zip(chosen, slot_sets, strict=False):
        asked = source.ring.in_bytes(page_size, 0)
        most = _SLOTS_MAX * _SLOT_BYTES
        if asked > most:
            yield f"slots of {source.program}: {show_bytes(most)} a CPU is the most"
        elif asked and one.requested_bytes > asked:
            least = show_bytes(one.requested_bytes)
            yield f"slots of {source.program}: {least} a CPU is the least"


def ring_sets(
    chosen: Sequence[tuple[BpfSourceConfig, ProgramPlan]],
    events: Sequence[EventPlan],
    cpus: tuple[int, ...],
    scope: Scope,
    facts: KernelFacts,
) -> tuple[RingSet, ...]:
    """Return the data rings of all programs that submit events, and their sideband rings.

    All programs share one perf ring on each CPU, as large as the largest requested one.

    Args:
        chosen: such programs.
        events: events of all of them, by index.
        cpus: CPUs on which they submit.
        scope: scope of the session.
        facts: facts of the host.

    Raises:
        PlanError: a ring that is too large.
    """
    by_buffer = {
        output.event_index: source
        for source, program in chosen
        for output in program.outputs
        if output.transport == RINGBUF
    }
    sets: list[RingSet] = []
    shared = tuple(event for event in events if event.index not in by_buffer)
    kind = BpfSourceConfig.kind
    if shared:
        users = [s for s, p in chosen if any(o.transport == PERF for o in p.outputs)]
        sizes = [s.ring.in_bytes(facts.page_size, ring_sizes.EVENT_RING_BYTES) for s in users]
        size = rounded(max(sizes), facts)
        sets.append(RingSet(kind, RingRole.DATA, size, users[0].watermark, shared, cpus))
    default = min(ring_sizes.EVENT_RING_BYTES * len(cpus), _BUFFER_MAX_BYTES)
    for index, source in by_buffer.items():
        size = rounded(source.ring.in_bytes(facts.page_size, default), facts)
        name = numbered(kind, len(sets) + 1)
        event = (events[index],)
        sets.append(BufferSet(name, RingRole.DATA, size, source.watermark, event, ()))
    wanted = max(source.sideband_ring.in_bytes(facts.page_size, 0) for source, _ in chosen)
    return *sets, sideband(sets, scope, facts, wanted)
