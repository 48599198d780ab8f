# SPDX-License-Identifier: Apache-2.0
"""The plan of one BPF program: its values, its outputs and the records that it keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collectord.programs.bpf_program import BpfProgram
    from collectord.programs.program_manifest import RecordConfig

# Transports of submissions to the daemon: perf rings, one on each CPU, or a BPF ring buffer.
PERF: Final = "perf"
RINGBUF: Final = "ringbuf"


@dataclass(frozen=True, slots=True)
class OutputPlan:
    """One output of a program.

    Attributes:
        table: its name in the program.
        event_index: `EventPlan.index` of the event whose samples its records are.
        counts: the program counts its submissions there: the balance can be exact.
        transport: PERF or RINGBUF.
    """

    table: str
    event_index: int
    counts: bool
    transport: str = PERF


@dataclass(frozen=True, slots=True)
class KeptPlan:
    """One kind of record that a program keeps, as a flight recorder.

    Attributes:
        record: as its manifest has it.
        event_index: `EventPlan.index` of the event whose samples its records become.
    """

    record: RecordConfig
    event_index: int


@dataclass(frozen=True, slots=True)
class ProgramPlan:
    """One program to compile.

    Attributes:
        program: its text and manifest.
        values: values of all its parameters, as `programs.parameter.values_of` gives them.
        outputs: tables to which it submits events; none if it fills maps only.
        gated: it counts only where its gate is open (collectord.h).
        kept: kinds of records that it keeps, for snapshots; none if it is no flight recorder.
    """

    program: BpfProgram
    values: dict[str, int | str]
    outputs: tuple[OutputPlan, ...]
    gated: bool
    kept: tuple[KeptPlan, ...] = ()

    @property
    def name(self) -> str:
        """The program's name."""
        return self.program.name
