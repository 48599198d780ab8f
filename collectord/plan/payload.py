# SPDX-License-Identifier: Apache-2.0
"""The parts of a plan that a kind of source has beside rings and events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterable

    from collectord.codec.tracepoint import Tracepoint
    from collectord.plan.program_plan import ProgramPlan


@dataclass(frozen=True, slots=True)
class Payload:
    """Parts of a plan beside rings and events that a kind of source has; perf has none."""

    # It has an ftrace instance, whose rings count against no limit and outlive this program.
    has_instance: ClassVar[bool] = False
    # It runs programs that are compiled: a missing feature may be the program's own fault.
    has_programs: ClassVar[bool] = False
    # Any failure at its opening affects it alone.
    fails_alone: ClassVar[bool] = False
    # In a task scope its events are opened for each thread.
    follows_threads: ClassVar[bool] = True
    # The kernel takes its parts on a CPU away with the CPU, and does not bring them back.
    leaves_with_cpu: ClassVar[bool] = True

    @property
    def names(self) -> tuple[str, ...]:
        """Names of what it records beside the events of perf rings."""
        return ()

    @property
    def is_exclusive(self) -> bool:
        """Whether nothing else can have what it opens, not even for a moment."""
        return False

    @property
    def watches_cpus(self) -> bool:
        """Whether it has to follow each CPU."""
        return True

    @property
    def is_blktrace(self) -> bool:
        """Whether its records are the kernel's own, of the requests of a block device."""
        return False

    @property
    def window_ns(self) -> int:
        """The time that its rings are to reach back, 0 without such a promise."""
        return 0

    @property
    def grown_bytes(self) -> int:
        """The most that its rings may grow to together, 0 if they do not grow."""
        return 0

    @property
    def programs_run(self) -> tuple[ProgramPlan, ...]:
        """BPF programs, which run with or without rings."""
        return ()

    @property
    def compile_limit_ns(self) -> int:
        """The time that the compiler of each may take."""
        return 0

    @property
    def program_cpus(self) -> tuple[int, ...]:
        """CPUs on which those programs count and submit events."""
        return ()

    @property
    def counts_costs(self) -> bool:
        """Whether the kernel is to count what they cost."""
        return False

    @property
    def piece_bytes(self) -> int:
        """The largest piece that a ring gives, 0 where any chunk holds it."""
        return 0

    @property
    def is_filtered(self) -> bool:
        """Whether the kernel filters events that the plan's `events` do not show."""
        return False

    @property
    def tracepoint_filters(self) -> tuple[tuple[Tracepoint, str], ...]:
        """The filter of each tracepoint that has one, beside those of `events`."""
        return ()

    def describe(self) -> Iterable[str]:
        """Yield the lines that `check` prints."""
        return ()

    def to_dict(self) -> dict[str, Any]:
        """Return the payload for `check --json`, under its name there."""
        return {}
