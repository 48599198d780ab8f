# SPDX-License-Identifier: Apache-2.0
"""The rings that BPF programs submit into: perf rings, one on each CPU for all, or ring buffers.

A BPF ring buffer (BPF_MAP_TYPE_RINGBUF) belongs to one program and takes its submissions on any
CPU.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from collectord.config.schema import BpfSourceConfig
from collectord.errors import MissingFeature
from collectord.model import RingRole
from collectord.plan import budget
from collectord.plan.bpf_plan import PERF, RINGBUF
from collectord.plan.ring_set import RingSet, numbered, rounded, sideband
from collectord.programs.bpf_program import RING, numbers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from collectord.facts.kernel_facts import KernelFacts
    from collectord.model import Scope
    from collectord.plan.bpf_plan import ProgramPlan
    from collectord.plan.event_attrs import EventPlan
    from collectord.plan.session_plan import RingPlan

_SINCE: Final = (5, 8)
# The most that a ring buffer has whose size is not configured; otherwise it has as much as perf
# rings on all CPUs would. Its memory is allocated at once.
_BUFFER_MAX_BYTES: Final = 64 << 20


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


def transport_of(source: BpfSourceConfig, table: str) -> str:
    """Return the transport of a program's output; tables of its own are perf's."""
    return source.transport if table == RING else PERF


def require_buffers(source: BpfSourceConfig, facts: KernelFacts) -> None:
    """Check that the kernel has what a source asks for.

    Raises:
        MissingFeature: the kernel has no BPF ring buffers.
    """
    if source.transport == RINGBUF and numbers(facts.release) < _SINCE:
        since = ".".join(map(str, _SINCE))
        raise MissingFeature(
            f"{source.program}: no BPF ring buffers in this kernel: they take Linux {since}, and "
            f"this is {facts.release}",
            feature="BPF ring buffers",
            hint=f'transport = "{PERF}" works everywhere',
        )


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
        sizes = [s.ring.in_bytes(facts.page_size, budget.EVENT_RING_BYTES) for s in users]
        size = rounded(max(sizes), facts)
        sets.append(RingSet(kind, RingRole.DATA, size, users[0].watermark, shared, cpus))
    default = min(budget.EVENT_RING_BYTES * len(cpus), _BUFFER_MAX_BYTES)
    for index, source in by_buffer.items():
        size = rounded(source.ring.in_bytes(facts.page_size, default), facts)
        name = numbered(kind, len(sets) + 1)
        event = (events[index],)
        sets.append(BufferSet(name, RingRole.DATA, size, source.watermark, event, ()))
    wanted = max(source.sideband_ring.in_bytes(facts.page_size, 0) for source, _ in chosen)
    return *sets, sideband(sets, scope, facts, wanted)
