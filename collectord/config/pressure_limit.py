# SPDX-License-Identifier: Apache-2.0
"""A limit of pressure stall information, as the kernel takes it: so long in so long a window."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from collectord.errors import UsageError
from collectord.text.units import TIME_UNITS_NS, Nanoseconds, show_ns

RESOURCES: Final = ("cpu", "io", "memory", "irq")
_SPELLING: Final = re.compile(r"(\w+)\s+(some|full)\s+([\w.]+)\s*/\s*([\w.]+)", re.ASCII)
_HINT: Final = 'a resource, "some" or "full", and TIME/WINDOW, e.g. "io some 1s/2s"'
# The limits of kernel/sched/psi.c: WINDOW_MIN_US, WINDOW_MAX_US.
_WINDOW_MIN_NS: Final = 500 * TIME_UNITS_NS["ms"]
_WINDOW_MAX_NS: Final = 10 * TIME_UNITS_NS["s"]
# The kernel counts these for the whole host: a CPU that runs a task is never stalled in full.
_ONLY: Final = {"cpu": "some", "irq": "full"}


@dataclass(frozen=True, slots=True)
class PressureLimit:
    """The stall of tasks for a resource that is too much.

    Attributes:
        resource: one of RESOURCES.
        share: "some": at least one task waited; "full": all that could run did.
        stall_ns: the time that they waited, within
        window_ns: so long a time.
    """

    resource: str
    share: str
    stall_ns: int
    window_ns: int

    @classmethod
    def parse(cls, text: str) -> PressureLimit:
        """Parse "io some 1s/2s". Raises UsageError."""
        match = _SPELLING.fullmatch(text.strip())
        if match is None or match[1] not in RESOURCES:
            raise UsageError(f"{text!r} is not a limit of pressure", hint=_HINT)
        resource, share = match[1], match[2]
        only = _ONLY.get(resource, share)
        if share != only:
            hint = f"{resource} {only} {match[3]}/{match[4]}"
            raise UsageError(f"the kernel does not count {resource} {share}", hint=hint)
        stall_ns, window_ns = (Nanoseconds.parse(match[number]) for number in (3, 4))
        if not _WINDOW_MIN_NS <= window_ns <= _WINDOW_MAX_NS:
            raise UsageError(f"the window of {text!r} is not between 500ms and 10s", hint=_HINT)
        if not 0 < stall_ns <= window_ns:
            raise UsageError(f"the time of {text!r} is 0, or longer than its window", hint=_HINT)
        return cls(resource, share, stall_ns, window_ns)

    def __str__(self) -> str:
        """Return the limit as it is spelt."""
        return f"{self.resource} {self.share} {show_ns(self.stall_ns)}/{show_ns(self.window_ns)}"
