# SPDX-License-Identifier: Apache-2.0
"""CPU lists as the kernel and the command line write them: "0-3,5"."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from collectord.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

# CONFIG_NR_CPUS of the largest distribution kernels; a typo must not make a list of millions.
MAX_CPU: Final = 8191

_RANGE: Final = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?", re.ASCII)


def parse(text: str) -> tuple[int, ...]:
    """Parse a list such as "0-3,5" (cpulist_parse, without strides). "" is the empty list.

    Returns:
        the CPUs, ascending, each once.

    Raises:
        UsageError: not a list, a range that runs backwards, or a CPU above MAX_CPU.
    """
    cpus: set[int] = set()
    for part in text.strip().split(",") if text.strip() else ():
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise UsageError(f"not a CPU list: {text!r}", hint='numbers and ranges, e.g. "0-3,5"')
        first = int(match[1])
        last = int(match[2] or first)
        if last < first:
            raise UsageError(f"CPU range {part.strip()!r} runs backwards")
        if last > MAX_CPU:
            raise UsageError(f"no CPU {last}", hint=f"the highest is {MAX_CPU}")
        cpus.update(range(first, last + 1))
    return tuple(sorted(cpus))


def render(cpus: Iterable[int]) -> str:
    """Return the shortest list of these CPUs, e.g. "0-3,5"."""
    runs: list[tuple[int, int]] = []
    for cpu in sorted(set(cpus)):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], cpu)
        else:
            runs.append((cpu, cpu))
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
