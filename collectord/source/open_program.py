# SPDX-License-Identifier: Apache-2.0
"""A BPF program that runs: its tables, rings and slots, and its counts of what it submits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from collectord.errors import BpfError
from collectord.model import Basis
from collectord.programs.bpf_program import COUNTS
from collectord.source.bpf_slots import NOTHING_KEPT
from collectord.source.loaded_program import event_layout

if TYPE_CHECKING:
    from collections.abc import Mapping

    from collectord.codec.bpf_struct import Layout
    from collectord.kernel.port import Kernel
    from collectord.kernel.values.bpf_objects import MapInfo
    from collectord.plan.program_plan import ProgramPlan
    from collectord.source.bpf_buffer import BufferRing
    from collectord.source.bpf_slots import Kept, SlotRing
    from collectord.source.loaded_program import Loaded, LoadedTable

# A table of collectord.h.
GATE: Final = "collectord_gate"


class Counts(NamedTuple):
    """`struct collectord_counts` of one CPU: attempts to submit, and those that failed by errno.

    Attributes:
        attempts: number of attempts.
        no_space: ENOSPC, which the kernel counts as lost too.
        busy: EBUSY, submissions nested too deep.
        no_ring: ENOENT and EOPNOTSUPP, this CPU has no ring that is on.
        refused: any other errno.
    """

    attempts: int = 0
    no_space: int = 0
    busy: int = 0
    no_ring: int = 0
    refused: int = 0


@dataclass(frozen=True, slots=True)
class OpenProgram:
    """A program that is loaded and attached.

    Attributes:
        plan: plan that it was compiled from.
        loaded: its tables and functions; the ExitStack given to `open` closes their descriptors.
        layout: layout of its event, None if it does not describe one.
        maps: sizes of its gate and counters, by name; none if it does not count.
        buffers: the BPF ring buffers into which it submits, one or none.
        slots: those in which it keeps records, of each CPU; none if it is no flight recorder.
        records: layouts of these records, by their events.
    """

    plan: ProgramPlan
    loaded: Loaded
    layout: Layout | None
    maps: Mapping[str, MapInfo] = field(default_factory=dict)
    buffers: tuple[BufferRing, ...] = ()
    slots: tuple[SlotRing, ...] = ()
    records: Mapping[str, Layout] = field(default_factory=dict)

    @property
    def weakest(self) -> Basis:
        """The basis that its submissions leave a ring at best; the plan could only predict it."""
        submits = bool(self.plan.outputs)
        return Basis.LOST_ONLY if submits and not self.loaded.counts_submissions else Basis.EXACT


def opened_program(
    kernel: Kernel,
    plan: ProgramPlan,
    loaded: Loaded,
    buffers: tuple[BufferRing, ...],
    kept: Kept = NOTHING_KEPT,
) -> OpenProgram:
    """Return a program that is loaded, with its ring buffers and slots.

    Raises:
        BpfError: its event cannot be described.
    """
    maps: dict[str, MapInfo] = {
        name: kernel.map_info(loaded.tables[name].fd)
        for name in (GATE, COUNTS)
        if plan.gated and name in loaded.tables
    }
    layout = event_layout(plan.program, loaded.tables)
    return OpenProgram(plan, loaded, layout, maps, buffers, *kept)


def output_table(program: ProgramPlan, loaded: Loaded, name: str) -> LoadedTable:
    """Return a table to which a program submits. Raises BpfError."""
    try:
        return loaded.tables[name]
    except KeyError:
        raise BpfError(
            f"{program.name}: its output {name} is not among the compiled tables",
            program=program.name,
            step="describe",
            hint="declare it by BPF_PERF_OUTPUT, outside of #if",
        ) from None
