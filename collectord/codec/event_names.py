# SPDX-License-Identifier: Apache-2.0
"""Events that perf knows by name on every machine: hardware, hw-cache and software."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from collectord.codec.perf_attr import (
    CacheId,
    CacheOp,
    CacheResult,
    EventType,
    HardwareId,
    SoftwareId,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class NamedEvent:
    """`perf_event_attr.type` and `config` of a name; aliases give the same pair.

    `description` says in a few words what is counted.
    """

    name: str
    type: EventType
    config: int
    description: str

    @property
    def counts(self) -> bool:
        """Whether it is a software event that counts one per record, not time or nothing."""
        return self.type is EventType.SOFTWARE and self.config not in _NOT_COUNTING


_NOT_COUNTING: Final = frozenset(
    {SoftwareId.CPU_CLOCK, SoftwareId.TASK_CLOCK, SoftwareId.DUMMY, SoftwareId.BPF_OUTPUT}
)

_HARDWARE: Final = {
    "cycles": HardwareId.CPU_CYCLES,
    "cpu-cycles": HardwareId.CPU_CYCLES,
    "instructions": HardwareId.INSTRUCTIONS,
    "cache-references": HardwareId.CACHE_REFERENCES,
    "cache-misses": HardwareId.CACHE_MISSES,
    "branches": HardwareId.BRANCH_INSTRUCTIONS,
    "branch-instructions": HardwareId.BRANCH_INSTRUCTIONS,
    "branch-misses": HardwareId.BRANCH_MISSES,
    "bus-cycles": HardwareId.BUS_CYCLES,
    "stalled-cycles-frontend": HardwareId.STALLED_CYCLES_FRONTEND,
    "idle-cycles-frontend": HardwareId.STALLED_CYCLES_FRONTEND,
    "stalled-cycles-backend": HardwareId.STALLED_CYCLES_BACKEND,
    "idle-cycles-backend": HardwareId.STALLED_CYCLES_BACKEND,
    "ref-cycles": HardwareId.REF_CPU_CYCLES,
}

_SOFTWARE: Final = {
    "cpu-clock": SoftwareId.CPU_CLOCK,
    "task-clock": SoftwareId.TASK_CLOCK,
    "page-faults": SoftwareId.PAGE_FAULTS,
    "faults": SoftwareId.PAGE_FAULTS,
    "context-switches": SoftwareId.CONTEXT_SWITCHES,
    "cs": SoftwareId.CONTEXT_SWITCHES,
    "cpu-migrations": SoftwareId.CPU_MIGRATIONS,
    "migrations": SoftwareId.CPU_MIGRATIONS,
    "minor-faults": SoftwareId.PAGE_FAULTS_MIN,
    "major-faults": SoftwareId.PAGE_FAULTS_MAJ,
    "alignment-faults": SoftwareId.ALIGNMENT_FAULTS,
    "emulation-faults": SoftwareId.EMULATION_FAULTS,
    "dummy": SoftwareId.DUMMY,
    "bpf-output": SoftwareId.BPF_OUTPUT,
    "cgroup-switches": SoftwareId.CGROUP_SWITCHES,
}

# Texts of what an event counts; see perf_event_open(2).
_HARDWARE_TEXTS: Final = {
    HardwareId.CPU_CYCLES: "cycles of the CPU's clock, whose frequency changes",
    HardwareId.INSTRUCTIONS: "instructions that the CPU completed",
    HardwareId.CACHE_REFERENCES: "accesses of a cache, mostly of the last level",
    HardwareId.CACHE_MISSES: "accesses that the cache, mostly the last level, did not have",
    HardwareId.BRANCH_INSTRUCTIONS: "branches that the CPU completed",
    HardwareId.BRANCH_MISSES: "branches that the CPU predicted wrongly",
    HardwareId.BUS_CYCLES: "cycles of the bus",
    HardwareId.STALLED_CYCLES_FRONTEND: "cycles in which no instruction was ready to be issued",
    HardwareId.STALLED_CYCLES_BACKEND: "cycles in which instructions waited for data or units",
    HardwareId.REF_CPU_CYCLES: "cycles of a clock of constant frequency",
}
_SOFTWARE_TEXTS: Final = {
    SoftwareId.CPU_CLOCK: "time of the CPU, by a timer; samples any CPU without counters",
    SoftwareId.TASK_CLOCK: "time that a task runs, by a timer",
    SoftwareId.PAGE_FAULTS: "page faults of both kinds",
    SoftwareId.CONTEXT_SWITCHES: "switches from a task to another one",
    SoftwareId.CPU_MIGRATIONS: "moves of a task to another CPU",
    SoftwareId.PAGE_FAULTS_MIN: "page faults that needed no disk",
    SoftwareId.PAGE_FAULTS_MAJ: "page faults that read from a disk",
    SoftwareId.ALIGNMENT_FAULTS: "accesses that the kernel had to align; never on x86",
    SoftwareId.EMULATION_FAULTS: "instructions that the kernel had to emulate",
    SoftwareId.DUMMY: "nothing; it carries records about tasks and mappings",
    SoftwareId.BPF_OUTPUT: "records that a BPF program submits",
    SoftwareId.CGROUP_SWITCHES: "switches to a task of another cgroup",
}

# Operations of each cache: instruction caches and predictors are never written.
_ALL_OPS: Final = (CacheOp.READ, CacheOp.WRITE, CacheOp.PREFETCH)
_CACHES: Final = (
    ("L1-dcache", CacheId.L1D, _ALL_OPS),
    ("L1-icache", CacheId.L1I, (CacheOp.READ, CacheOp.PREFETCH)),
    ("LLC", CacheId.LL, _ALL_OPS),
    ("dTLB", CacheId.DTLB, _ALL_OPS),
    ("iTLB", CacheId.ITLB, (CacheOp.READ,)),
    ("branch", CacheId.BPU, (CacheOp.READ,)),
    ("node", CacheId.NODE, _ALL_OPS),
)
_OP_NAMES: Final = {
    CacheOp.READ: ("loads", "load-misses"),
    CacheOp.WRITE: ("stores", "store-misses"),
    CacheOp.PREFETCH: ("prefetches", "prefetch-misses"),
}
_OP_TEXTS: Final = {CacheOp.READ: "reads", CacheOp.WRITE: "writes", CacheOp.PREFETCH: "prefetches"}
_RESULT_TEXTS: Final = {CacheResult.ACCESS: "", CacheResult.MISS: " that missed"}
_CACHE_TEXTS: Final = {
    CacheId.L1D: "the first cache of data",
    CacheId.L1I: "the first cache of instructions",
    CacheId.LL: "the last cache before memory",
    CacheId.DTLB: "the TLB of data",
    CacheId.ITLB: "the TLB of instructions",
    CacheId.BPU: "the branch predictor",
    CacheId.NODE: "the memory of this NUMA node",
}


def _caches() -> Iterator[NamedEvent]:
    for prefix, cache, ops in _CACHES:
        for op in ops:
            for name, result in zip(_OP_NAMES[op], CacheResult, strict=True):
                config = cache | op << 8 | result << 16
                text = f"{_OP_TEXTS[op]} of {_CACHE_TEXTS[cache]}{_RESULT_TEXTS[result]}"
                yield NamedEvent(f"{prefix}-{name}", EventType.HW_CACHE, config, text)


NAMED_EVENTS: Final[tuple[NamedEvent, ...]] = (
    *(NamedEvent(n, EventType.HARDWARE, i, _HARDWARE_TEXTS[i]) for n, i in _HARDWARE.items()),
    *(NamedEvent(n, EventType.SOFTWARE, i, _SOFTWARE_TEXTS[i]) for n, i in _SOFTWARE.items()),
    *_caches(),
)
_BY_NAME: Final = {event.name.lower(): event for event in NAMED_EVENTS}


def find_named(name: str) -> NamedEvent | None:
    """Return the event of this name in any case (perf's lexer ignores it)."""
    return _BY_NAME.get(name.lower())
