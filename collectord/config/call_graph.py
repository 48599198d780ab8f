# SPDX-License-Identifier: Apache-2.0
"""Recording of a sample's call chain: `fp`, `dwarf[,SIZE]` or `lbr`, as in perf."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from collectord.codec.perf_attr import BranchSampleType, EventType, SampleType
from collectord.errors import MissingFeature, PlanError, UsageError

if TYPE_CHECKING:
    from collectord.codec.perf_attr import PerfEventAttr

FP: Final = "fp"
DWARF: Final = "dwarf"
LBR: Final = "lbr"

DEFAULT_STACK_BYTES: Final = 8192
# perf_event_open refuses more, as a record's size has 16 bits; and sizes off a multiple of 8.
MAX_STACK_BYTES: Final = 65528

# Registers that an unwinder gets, by `uname -m`. x86_64: all of asm/perf_regs.h but the segment
# registers DS, ES, FS, GS, which user mode samples refuse. arm64: X0-X30, SP and PC.
USER_REGS: Final = {"x86_64": 0xFF0FFF, "aarch64": (1 << 33) - 1}

_LBR_BRANCHES: Final = (
    BranchSampleType.USER
    | BranchSampleType.CALL_STACK
    | BranchSampleType.NO_CYCLES
    | BranchSampleType.NO_FLAGS
    | BranchSampleType.HW_INDEX
)


@dataclass(frozen=True, slots=True)
class CallGraph:
    """A way to record call chains: FP, DWARF or LBR; DWARF copies `stack_bytes` of user stack."""

    mode: str
    stack_bytes: int = 0

    def __str__(self) -> str:
        return f"{self.mode},{self.stack_bytes}" if self.mode == DWARF else self.mode

    def apply(
        self, attr: PerfEventAttr, name: str, *, arch: str, hardware_pmu: bool
    ) -> PerfEventAttr:
        """Return an event's attributes with those that this call graph needs.

        Raises:
            MissingFeature: the machine cannot record it.
            PlanError: the event cannot carry it.
        """
        sample_type = attr.sample_type | SampleType.CALLCHAIN
        if self.mode == DWARF:
            registers = USER_REGS.get(arch)
            if registers is None:
                raise MissingFeature(
                    f"dwarf call graphs do not work on {arch}", feature="dwarf", hint="use fp"
                )
            return replace(
                attr,
                sample_type=sample_type | SampleType.REGS_USER | SampleType.STACK_USER,
                sample_regs_user=registers,
                sample_stack_user=self.stack_bytes,
                # The user part comes from the copied stack; the kernel's chain stays.
                exclude_callchain_user=True,
            )
        if self.mode == LBR:
            if attr.type in (EventType.SOFTWARE, EventType.TRACEPOINT, EventType.BREAKPOINT):
                raise PlanError(
                    f"{name}: lbr call graphs work only with hardware events",
                    what=name,
                    hint="use fp or dwarf",
                )
            if not hardware_pmu or arch != "x86_64":
                raise MissingFeature(
                    "this host has no last branch records", feature="lbr", hint="use fp or dwarf"
                )
            # LBR holds user branches only: perf too records frame pointers then.
            if not attr.exclude_user:
                return replace(
                    attr,
                    sample_type=sample_type | SampleType.BRANCH_STACK,
                    branch_sample_type=_LBR_BRANCHES,
                )
        return replace(attr, sample_type=sample_type)


def parse(text: str) -> CallGraph:
    """Parse `fp`, `dwarf`, `dwarf,SIZE` (bytes) or `lbr`.

    Raises:
        UsageError: another mode, or a size that the kernel refuses.
    """
    mode, comma, size = text.strip().partition(",")
    if mode not in (FP, DWARF, LBR) or (comma and mode != DWARF):
        raise UsageError(f"unknown call graph {text!r}", hint="fp, dwarf, dwarf,SIZE or lbr")
    if mode != DWARF:
        return CallGraph(mode)
    if comma and not (size.strip().isascii() and size.strip().isdigit()):
        raise UsageError(f"not a stack size: {size!r}", hint="bytes, e.g. dwarf,16384")
    stack_bytes = int(size) if comma else DEFAULT_STACK_BYTES
    # perf rounds up too.
    stack_bytes = (stack_bytes + 7) & ~7
    if not 0 < stack_bytes <= MAX_STACK_BYTES:
        raise UsageError(f"stack size {stack_bytes}", hint=f"8 to {MAX_STACK_BYTES} bytes")
    return CallGraph(DWARF, stack_bytes)
