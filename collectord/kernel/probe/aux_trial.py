# SPDX-License-Identifier: Apache-2.0
"""Trials of PMUs for an AUX area and for pausing it: sysfs does not tell, opening events does."""

from __future__ import annotations

import errno
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from collectord.codec.perf_attr import AuxAction, EventType, PerfEventAttr, SoftwareId
from collectord.errors import KernelError
from collectord.kernel.mappings import map_aux, map_ring
from collectord.kernel.values.limits import Purpose
from collectord.plan.known_aux import trial_attr

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from collectord.codec.aux_pmu import AuxPmuFacts
    from collectord.facts.kernel_facts import PmuFacts
    from collectord.kernel.port import Kernel

_EVERY_TASK: Final = -1
PURPOSE: Final = Purpose("a test event")


def with_aux(
    kernel: Kernel,
    pmus: Mapping[str, PmuFacts],
    wanted: Collection[str],
    known: Mapping[str, AuxPmuFacts],
) -> dict[str, PmuFacts]:
    """Return the PMUs, those `wanted` with the result of a trial for an AUX area.

    Args:
        kernel: opens the events.
        pmus: PMUs of this host.
        wanted: names of those to try.
        known: those of them whose trace perf can decode.
    """
    cpu = kernel.online_cpus()[0]
    found = dict(pmus)
    for name in wanted:
        pmu = pmus.get(name)
        if pmu is not None and (pmu.aux or has_aux(kernel, pmu, cpu, known=name in known)):
            pauses = can_pause(kernel, pmu, known.get(name), cpu)
            found[name] = replace(pmu, aux=True, aux_pause=pauses)
    return found


def can_pause(kernel: Kernel, pmu: PmuFacts, known: AuxPmuFacts | None, cpu: int) -> bool:
    """Whether an event in the group of the PMU's event may pause its AUX area.

    False where the PMU's event cannot be opened.
    """
    where = pmu.cpus[0] if pmu.cpus else cpu
    pausing = PerfEventAttr(
        type=EventType.SOFTWARE,
        config=SoftwareId.DUMMY,
        sample_period=1,
        aux_action=AuxAction.PAUSE,
    )
    with ExitStack() as stack:
        group_fd = -1
        for attr in (trial_attr(pmu, known), pausing):
            try:
                group_fd = kernel.perf_event_open(
                    attr, pid=_EVERY_TASK, cpu=where, group_fd=group_fd, purpose=PURPOSE
                )
            except KernelError:
                return False
            stack.callback(kernel.close, group_fd)
    return True


def has_aux(kernel: Kernel, pmu: PmuFacts, cpu: int, *, known: bool = False) -> bool:
    """Whether the PMU gives an event an AUX area; False where its event cannot be opened.

    Args:
        kernel: opens the event.
        pmu: the PMU.
        cpu: of the event, unless the PMU has CPUs of its own.
        known: it is one of those whose trace perf can decode. They take one event of a CPU at a
            time (PERF_PMU_CAP_EXCLUSIVE): while somebody traces, the trial fails with EBUSY.
    """
    attr = PerfEventAttr(type=pmu.type, sample_period=1, disabled=True)
    where = pmu.cpus[0] if pmu.cpus else cpu
    with ExitStack() as stack:
        try:
            fd = kernel.perf_event_open(attr, pid=_EVERY_TASK, cpu=where, purpose=PURPOSE)
            stack.callback(kernel.close, fd)
            ring = map_ring(fd, kernel.page_bytes, kernel.limits)
            stack.callback(ring.close)
        except KernelError as error:
            return known and error.errno == errno.EBUSY
        try:
            area = map_aux(fd, ring, kernel.page_bytes, kernel.limits, snapshot=False)
            stack.callback(area.close)
        except KernelError as error:
            # Any other refusal (a size, memory) comes from a PMU that has an area.
            return error.errno != errno.EOPNOTSUPP
        return True
