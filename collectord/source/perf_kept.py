# SPDX-License-Identifier: Apache-2.0
"""Rings of perf that the opener holds: they, and what is in them, outlive this process."""

from __future__ import annotations

import errno
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from typing import TYPE_CHECKING, Final

import structlog

from collectord.codec.perf_attr import SampleType, id_trailer_from, sample_time_offset
from collectord.errors import KernelError, MissingPrivilege
from collectord.kernel.mappings import map_aux, map_ring
from collectord.ledger.aux_ledger import AuxReading
from collectord.model import RING_FULL, RING_PAUSED, Geometry, RingLabel
from collectord.plan.held_resources import digest
from collectord.source.bpf_texts import program_texts
from collectord.source.kept_ring import (
    Before,
    Hold,
    LastingArea,
    LastingRing,
    LastingWindow,
    Use,
)
from collectord.source.perf_new_ring import aux_areas
from collectord.source.perf_opening import Opened
from collectord.source.ring import CounterFd
from collectord.text.units import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator

    from collectord._native._core import RingMap, RingNote
    from collectord.kernel.port import Kernel
    from collectord.kernel.values.kept_rings import GivenRing, KeptRing, KeptRings
    from collectord.model import LossKey
    from collectord.plan.session_plan import SessionPlan
    from collectord.source.kept_memory import KeptMemory
    from collectord.source.ring import AuxHandle

_LOG: Final = structlog.get_logger()
# The opener may look at the host, and then open thousands of events; it compiles programs too.
_WAIT_S: Final = 60.0


def digest_of(kernel: Kernel, plan: SessionPlan) -> str:
    """Return the digest by which an opener and a daemon know that they have planned the same."""
    return digest(plan, program_texts(kernel, plan))


def ask_opener(kernel: Kernel, plan: SessionPlan, *, abort: int = -1) -> KeptRings | KernelError:
    """Return all that an opener holds for a session; or the reason why it does not give it.

    Args:
        kernel: asks.
        plan: of the session.
        abort: see `source.base.Source`.

    Raises:
        KernelError: nobody needs them any more.
    """
    compiling_s = len(plan.payload.programs_run) * plan.payload.compile_limit_ns / NS_PER_SECOND
    try:
        return kernel.kept_rings(
            plan.opener,
            plan.name,
            digest_of(kernel, plan),
            wait_s=_WAIT_S + compiling_s,
            abort=abort,
        )
    except KernelError as error:
        if error.errno == errno.ECANCELED:
            raise
        _LOG.warning("rings_not_held", session=plan.name, error=str(error))
        return error


@contextmanager
def without_opener(refusal: KernelError | None) -> Iterator[None]:
    """Open rings that the opener has refused, if it was asked for them.

    Raises:
        KernelError: it is due to the refusal that a privilege is missing. A service is started
            again after it, and the opener may answer then; after a MissingPrivilege it is not.
    """
    try:
        yield
    except MissingPrivilege as error:
        if refusal is None:
            raise
        raise KernelError(
            f"{refusal.message}; this process may not open them: {error.message}, "
            f"which needs {error.need}",
            hint=refusal.hint,
        ) from error


def own_given(kernel: Kernel, given: KeptRings, stack: ExitStack) -> None:
    """Let a stack close what an opener gave beside the rings, the connection last."""
    for fd in reversed(given.descriptors):
        stack.callback(kernel.close, fd)


def kept_session(
    kernel: Kernel, plan: SessionPlan, given: KeptRings, memory: KeptMemory, stack: ExitStack
) -> tuple[RingMaker, Opened]:
    """Map the perf rings of a session that an opener gave, and own them.

    They come with what maps later ones. Raises KernelError.

    Args:
        kernel: reads their counters.
        plan: of the session.
        given: by the opener; other descriptors than the rings' are the caller's.
        memory: has the rings' notes.
        stack: closes the rings.
    """
    maker = RingMaker(kernel, plan, memory, given.connection)
    closers: dict[int, ExitStack] = {}
    for kept, fds in given.rings:
        cpu = plan.rings[kept.number].cpu
        if cpu not in closers:
            closers[cpu] = stack.enter_context(ExitStack())
        for fd in fds:
            closers[cpu].callback(kernel.close, fd)
    rings = tuple(maker.map(one, closers[plan.rings[one[0].number].cpu]) for one in given.rings)
    return maker, Opened(rings, target_fds=(), pids=None, resumers={}, closers=closers)


class RingMaker:
    """The way from rings as an opener gives them to those that are drained.

    Args:
        kernel: reads their counters.
        plan: of the session.
        memory: has the rings' notes.
        connection: to the opener.

    Attributes:
        use: what this process makes of the rings.
    """

    def __init__(
        self, kernel: Kernel, plan: SessionPlan, memory: KeptMemory, connection: int
    ) -> None:
        self._kernel = kernel
        self._plan = plan
        self._memory = memory
        self.connection = connection
        self.use = Use()

    def map(self, given: GivenRing, stack: ExitStack) -> LastingRing | LastingWindow:
        """Map a ring, whose descriptors the caller closes; the stack unmaps it.

        One that a process had paused as it was killed goes on.
        """
        kept, fds = given
        planned = self._plan.rings[kept.number]
        note = self._memory.ring(kept.number, stack)
        ring_map = map_ring(
            fds[0], kept.data_bytes, self._kernel.limits, overwrite=planned.overwrite
        )
        stack.callback(ring_map.close)
        if planned.overwrite:
            self._kernel.pause_output(fds[0], paused=False)
        counters = tuple(
            CounterFd(fd, event.index, event.id, event.read_format, kernel_id=event.kernel_id)
            for event, fd in zip(kept.events, fds[1:] if kept.keeper else fds, strict=True)
        )
        attr = planned.events[0].attr
        label = RingLabel(self._plan.name, planned.source, planned.role, planned.cpu)
        kind = LastingWindow if planned.overwrite else LastingRing
        return kind(
            map=ring_map,
            fd=fds[0],
            basis=planned.basis,
            geometry=Geometry(kept.data_bytes, kept.watermark_bytes, planned.requested_bytes),
            label=label,
            counters=counters,
            time_offset=sample_time_offset(attr),
            time_trailer=id_trailer_from(attr, SampleType.TIME),
            cpu_trailer=id_trailer_from(attr, SampleType.CPU),
            held=planned.overwrite,
            areas=self._areas(given, ring_map, label, counters, stack),
            hold=Hold(
                note,
                self.connection,
                # An overwritable ring refuses only while it is paused.
                self._before(
                    note, kept, counters, RING_PAUSED if planned.overwrite else RING_FULL
                ),
                self.use,
                note.counted,
            ),
        )

    def _areas(
        self,
        given: GivenRing,
        ring_map: RingMap,
        label: RingLabel,
        counters: tuple[CounterFd, ...],
        stack: ExitStack,
    ) -> tuple[LastingArea, ...]:
        """Map the AUX area of a ring; the stack unmaps it."""
        kept, (fd, *_) = given
        if not kept.aux_bytes:
            return ()
        note = self._memory.area(kept.number, stack)
        aux_map = map_aux(fd, ring_map, kept.aux_bytes, self._kernel.limits, snapshot=False)
        stack.callback(aux_map.close)
        planned = self._plan.rings[kept.number]
        hold = Hold(note, self.connection, use=self.use, counted=note.counted)
        return tuple(
            LastingArea(
                **{one.name: getattr(area, one.name) for one in fields(area)},
                hold=hold,
                before=self._before_in(area, note),
            )
            for area in aux_areas(planned, aux_map, label, kept.number, counters)
        )

    def _before_in(self, area: AuxHandle, note: RingNote) -> AuxReading:
        """Return what earlier processes have had of an AUX area; of a new one there is nothing."""
        readings = [self._kernel.read_counter(c.fd, c.read_format) for c in area.counters]
        return AuxReading(
            head=note.position,
            traced=note.position + note.counted,
            lost_records=sum(reading.lost or 0 for reading in readings),
        )

    def has(self, cpu: int) -> bool:
        """Whether the session has rings on a CPU, by its plan."""
        return any(ring.cpu == cpu for ring in self._plan.rings)

    def reopen(self, cpu: int, stack: ExitStack) -> tuple[LastingRing | LastingWindow, ...]:
        """Return new rings of a CPU; the stack closes them. Raises KernelError."""
        given = self._kernel.reopened_rings(self.connection, cpu)
        for _, fds in given:
            for fd in fds:
                stack.callback(self._kernel.close, fd)
        return tuple(self.map(one, stack) for one in given)

    def _before(
        self, note: RingNote, kept: KeptRing, counters: tuple[CounterFd, ...], loss: LossKey
    ) -> Before:
        """Return what earlier processes took out of a ring, and lost; zeros for a new ring.

        Args:
            note: of the ring.
            kept: the ring.
            counters: its events.
            loss: what the kernel counts as lost.
        """
        taken, overwritten = note.taken - kept.taken, note.counted - kept.overwritten
        if not self._memory.text.state:
            return Before(taken, overwritten=overwritten)
        readings = [(one, self._kernel.read_counter(one.fd, one.read_format)) for one in counters]
        by_event = {one.event_id: reading.lost or 0 for one, reading in readings}
        # A record that an event with AUX loses in the ring is no sample.
        tracing = {event.index for event in self._plan.rings[kept.number].events if event.aux}
        lost = sum(by_event[one.event_id] for one in counters if one.event_index not in tracing)
        return Before(taken, {loss: lost}, by_event, overwritten)
