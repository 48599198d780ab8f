# SPDX-License-Identifier: Apache-2.0
"""A ring of perf that is being opened: its mapping, as large as memory allows, and its handle."""

from __future__ import annotations

import errno
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from collectord.codec.perf_attr import SampleType, id_trailer_from, sample_time_offset
from collectord.errors import KernelError
from collectord.kernel.mappings import map_aux, map_ring
from collectord.model import Geometry, RingRole
from collectord.source.perf_ring import OverwritableRing, PairedRing, PerfRing
from collectord.source.ring import AuxHandle

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from collectord._native._core import AuxMap, RingMap
    from collectord.codec.perf_attr import PerfEventAttr
    from collectord.kernel.port import Kernel
    from collectord.model import RingLabel
    from collectord.plan.ring_plan import RingPlan
    from collectord.source.ring import CounterFd


@dataclass(slots=True)
class NewRing:
    """A ring that is mapped, and whose events are still being opened.

    Attributes:
        plan: its plan.
        owner_fd: the event that is mapped and polled.
        ring_map: its mapping.
        geometry: its effective sizes.
        aux_map: the mapping of its AUX area, None without one.
        counters: of the events that write into it so far.
    """

    plan: RingPlan
    owner_fd: int
    ring_map: RingMap
    geometry: Geometry
    aux_map: AuxMap | None = None
    counters: list[CounterFd] = field(default_factory=list)

    def handle(self, label: RingLabel, number: int) -> PerfRing:
        """Return the ring as it is opened, `number` being that of its AUX area."""
        plan, attr = self.plan, self.plan.events[0].attr
        areas = aux_areas(plan, self.aux_map, label, number, self.counters)
        kind: type[PerfRing] = OverwritableRing if plan.overwrite else PerfRing
        if any(area.plan.snapshot for area in areas):
            kind = PairedRing
        return kind(
            map=self.ring_map,
            fd=self.owner_fd,
            basis=plan.basis,
            geometry=self.geometry,
            label=label,
            counters=tuple(self.counters),
            time_offset=sample_time_offset(attr),
            time_trailer=id_trailer_from(attr, SampleType.TIME),
            held=kind is not PerfRing,
            cpu_trailer=id_trailer_from(attr, SampleType.CPU),
            areas=areas,
        )


def map_new_ring(
    kernel: Kernel,
    plan: RingPlan,
    attr: PerfEventAttr,
    open_owner: Callable[[PerfEventAttr], int],
    stack: ExitStack,
) -> NewRing:
    """Open a ring's owner, and map it as large as memory allows.

    The size of the ring and of its AUX area is the planned one, or half of it and so on while
    the budget refuses. The kernel takes the watermarks from the event at mmap, so that each
    size is tried with an event whose watermarks keep their proportion.

    Args:
        kernel: closes what does not fit.
        plan: of the ring.
        attr: of its owner.
        open_owner: opens an event with these attributes and a watermark.
        stack: closes the ring.

    Raises:
        KernelError: it fits at no size, or its owner cannot be opened.
    """
    refused: KernelError | None = None
    size = plan.data_bytes
    area = plan.aux.data_bytes if plan.aux is not None else 0
    while size >= kernel.page_bytes:
        watermark = max(1, plan.watermark_bytes * size // plan.data_bytes)
        if plan.overwrite:
            watermark = size  # as late as possible: nobody waits for it
        sized = replace(attr, watermark=True, wakeup=watermark)
        aux_map: AuxMap | None = None
        with ExitStack() as attempt:
            if plan.aux is not None:
                aux_watermark = attr.aux_watermark * area // plan.aux.data_bytes
                sized = replace(sized, aux_watermark=aux_watermark)
            fd = open_owner(sized)
            attempt.callback(kernel.close, fd)
            try:
                ring_map = map_ring(fd, size, kernel.limits, overwrite=plan.overwrite)
            except KernelError as error:
                if error.errno not in (errno.EPERM, errno.ENOMEM):
                    raise
                refused = refused or error
                size //= 2
                continue
            attempt.callback(ring_map.close)
            if plan.aux is not None:
                try:
                    aux_map = map_aux(
                        fd, ring_map, area, kernel.limits, snapshot=plan.aux.snapshot
                    )
                except KernelError as error:
                    smaller = area // 2 >= kernel.page_bytes
                    if error.errno not in (errno.EPERM, errno.ENOMEM) or not smaller:
                        raise
                    area //= 2
                    continue
                attempt.callback(aux_map.close)
            stack.push(attempt.pop_all())
        geometry = Geometry(size, watermark, plan.requested_bytes)
        return NewRing(plan, fd, ring_map, geometry, aux_map)
    raise refused or KernelError(f"a ring of {plan.data_bytes} bytes is smaller than a page")


def aux_areas(
    plan: RingPlan,
    aux_map: AuxMap | None,
    label: RingLabel,
    number: int,
    counters: Sequence[CounterFd],
) -> tuple[AuxHandle, ...]:
    """Return the AUX area of a ring; nothing without one.

    Args:
        plan: of the ring.
        aux_map: the area's mapping.
        label: of the ring.
        number: of the area among the session's.
        counters: of the ring.
    """
    if plan.aux is None or aux_map is None:
        return ()
    tracing = {event.index for event in plan.events if event.aux}
    area = AuxHandle(
        map=aux_map,
        plan=replace(plan.aux, data_bytes=aux_map.data_bytes),
        label=replace(label, role=RingRole.AUX),
        index=number,
        counters=tuple(c for c in counters if c.event_index in tracing),
    )
    return (area,)
