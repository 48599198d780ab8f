# SPDX-License-Identifier: Apache-2.0
"""Whether a PMU has an AUX area. sysfs does not tell: an event is opened and mapped to see."""

from __future__ import annotations

import errno
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from collectord.codec.perf_attr import PerfEventAttr
from collectord.errors import KernelError
from collectord.kernel.port import Purpose

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from collectord.kernel.port import Kernel
    from collectord.plan.facts import PmuFacts

_EVERY_TASK: Final = -1
_PURPOSE: Final = Purpose("a test event")


def with_aux(
    kernel: Kernel, pmus: Mapping[str, PmuFacts], wanted: Collection[str]
) -> dict[str, PmuFacts]:
    """The PMUs, each of those that are `wanted` with what a trial told of its AUX area."""
    cpu = kernel.online_cpus()[0]
    return {
        name: replace(pmu, aux=True)
        if name in wanted and not pmu.aux and has_aux(kernel, pmu, cpu)
        else pmu
        for name, pmu in pmus.items()
    }


def has_aux(kernel: Kernel, pmu: PmuFacts, cpu: int) -> bool:
    """Whether the PMU gives an event an AUX area; no, where its event cannot be opened."""
    attr = PerfEventAttr(type=pmu.type, sample_period=1, disabled=True)
    where = pmu.cpus[0] if pmu.cpus else cpu
    with ExitStack() as stack:
        try:
            fd = kernel.perf_event_open(attr, pid=_EVERY_TASK, cpu=where, purpose=_PURPOSE)
            stack.callback(kernel.close, fd)
            ring = kernel.map_ring(fd, kernel.page_bytes)
            stack.callback(ring.close)
        except KernelError:
            return False
        try:
            stack.callback(kernel.map_aux(fd, ring, kernel.page_bytes, snapshot=False).close)
        except KernelError as error:
            # Any other refusal (a size, memory) is one of a PMU that has an area.
            return error.errno != errno.EOPNOTSUPP
        return True
