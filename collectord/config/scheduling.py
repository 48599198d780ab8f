# SPDX-License-Identifier: Apache-2.0
"""Scheduling and CPUs of drain threads, as the configuration spells them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Self

from collectord.errors import UsageError
from collectord.text import cpu_list

AUTO: Final = "auto"
NORMAL: Final = "normal"
NICE: Final = "nice"
FIFO: Final = "fifo"
NICE_RANGE: Final = (-20, 19)
FIFO_RANGE: Final = (1, 99)
# The number that the core has room for (`SHARDS_MAX` in stream.h).
SHARDS_MAX: Final = 64

_LEVEL: Final = re.compile(r"(nice|fifo):(-?\d{1,2})", re.ASCII)
_RANGES: Final = {NICE: NICE_RANGE, FIFO: FIFO_RANGE}
_PRIORITY_HINT: Final = '"auto", "normal", "nice:-20" to "nice:19", or "fifo:1" to "fifo:99"'
_CPUS_HINT: Final = '"auto", or CPUs as in "2-3,5"'


@dataclass(frozen=True, slots=True, repr=False)
class DrainPriority:
    """A policy of the scheduler, and its level where it has one.

    Attributes:
        policy: AUTO, NORMAL (as the process), NICE or FIFO.
        level: the nice value or the real-time priority; 0 for the others.
    """

    policy: str = AUTO
    level: int = 0

    def __repr__(self) -> str:
        return f"DrainPriority({self})"

    def __str__(self) -> str:
        return f"{self.policy}:{self.level}" if self.policy in _RANGES else self.policy

    @classmethod
    def parse(cls, text: object) -> Self:
        """Parse "auto", "normal", "nice:-10" or "fifo:10". Raises UsageError."""
        word = text.strip() if isinstance(text, str) else ""
        if word in (AUTO, NORMAL):
            return cls(word)
        match = _LEVEL.fullmatch(word)
        if match is None:
            raise UsageError(f"{text!r} is not a priority", hint=_PRIORITY_HINT)
        low, high = _RANGES[match[1]]
        level = int(match[2])
        if not low <= level <= high:
            raise UsageError(f"{text!r} is out of range", hint=_PRIORITY_HINT)
        return cls(match[1], level)


@dataclass(frozen=True, slots=True, repr=False)
class DrainCpus:
    """CPUs that drain threads are confined to; none lets the plan choose."""

    cpus: tuple[int, ...] = ()

    def __repr__(self) -> str:
        return f"DrainCpus({cpu_list.render(self.cpus) or AUTO})"

    @classmethod
    def parse(cls, text: object) -> Self:
        """Parse "auto" or "2-3,5". Raises UsageError."""
        word = text.strip() if isinstance(text, str) else ""
        if word == AUTO:
            return cls()
        try:
            cpus = cpu_list.parse(word)
        except UsageError as error:
            raise UsageError(error.message, hint=_CPUS_HINT) from error
        if not cpus:
            raise UsageError(f"{text!r} is not a list of CPUs", hint=_CPUS_HINT)
        return cls(cpus)
