# SPDX-License-Identifier: Apache-2.0
"""Rings of perf that the opener holds: they, and what is in them, outlive this process."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from mmap import mmap
from typing import TYPE_CHECKING, Final

import structlog

from collectord._native._core import RingNote
from collectord.codec.perf_attr import SampleType, id_trailer_from, sample_time_offset
from collectord.errors import KernelError, MissingPrivilege
from collectord.kernel.mappings import map_ring
from collectord.kernel.values.kept_rings import NOTE_BYTES, STATE_BYTES, Prior
from collectord.model import Geometry, RingLabel
from collectord.plan.kept import digest
from collectord.source.perf_opening import Opened
from collectord.source.ring import CounterFd, LastingRing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import ExitStack

    from collectord.kernel.port import Kernel
    from collectord.kernel.values.kept_rings import KeptRings
    from collectord.plan.session_plan import SessionPlan

_LOG: Final = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Kept:
    """A session's rings that an opener holds.

    Attributes:
        opened: the rings, with the descriptors.
        prior: see `source.base.Lasting`.
        resumed: likewise.
        memory: holds the text for the next process.
    """

    opened: Opened
    prior: Prior
    resumed: bool
    memory: int

    def note(self, state: str) -> None:
        """See `source.base.Lasting`."""
        try:
            os.pwrite(self.memory, state.encode().ljust(STATE_BYTES, b"\0"), 0)
        except OSError as error:
            raise KernelError(
                "cannot note what was counted", syscall="pwrite", errno=error.errno or 0
            ) from error


def ask_opener(kernel: Kernel, plan: SessionPlan) -> KeptRings | KernelError:
    """Return a session's rings; or the reason why the opener does not give them."""
    try:
        return kernel.kept_rings(plan.opener, plan.name, digest(plan))
    except KernelError as error:
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


def kept_session(kernel: Kernel, plan: SessionPlan, given: KeptRings, stack: ExitStack) -> Kept:
    """Map a session's rings that the opener gave, and own them. Raises KernelError."""
    for fd in reversed(given.descriptors):
        stack.callback(kernel.close, fd)
    memory = stack.enter_context(mmap(given.memory, 0))
    # It is written before anything is drained: without it the rings are new.
    state = memory[:STATE_BYTES].rstrip(b"\0").decode()
    rings = []
    for kept, fds in given.rings:
        note = RingNote(memory, STATE_BYTES + NOTE_BYTES * kept.number)
        stack.callback(note.close)
        ring_map = map_ring(fds[0], kept.data_bytes, kernel.limits)
        stack.callback(ring_map.close)
        counters = tuple(
            CounterFd(fd, event.index, event.id, event.read_format)
            for event, fd in zip(kept.events, fds, strict=True)
        )
        planned = plan.rings[kept.number]
        attr = planned.events[0].attr
        ring = LastingRing(
            map=ring_map,
            fd=fds[0],
            basis=planned.basis,
            geometry=Geometry(kept.data_bytes, kept.watermark_bytes, planned.requested_bytes),
            label=RingLabel(plan.name, planned.source, planned.role, planned.cpu),
            counters=counters,
            time_offset=sample_time_offset(attr),
            time_trailer=id_trailer_from(attr, SampleType.TIME),
            cpu_trailer=id_trailer_from(attr, SampleType.CPU),
            note=note,
            connection=given.connection,
            taken_before=note.taken,
            lost_before=_lost(kernel, counters) if state else {},
        )
        rings.append(ring)
    prior = given.prior
    if state:
        data = [ring for ring in rings if ring.label.has_data]
        lost = sum(sum(ring.lost_before.values()) for ring in data)
        prior = Prior(state, taken=sum(ring.taken_before for ring in data), lost=lost)
    opened = Opened(tuple(rings), target_fds=(), pids=None, resumers={}, closers={})
    return Kept(opened, prior, bool(state), given.memory)


def _lost(kernel: Kernel, counters: tuple[CounterFd, ...]) -> Mapping[int, int]:
    readings = ((one, kernel.read_counter(one.fd, one.read_format)) for one in counters)
    return {one.event_id: reading.lost or 0 for one, reading in readings}
