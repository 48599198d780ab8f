# SPDX-License-Identifier: Apache-2.0
"""The programs of a session as they are compiled: text, parameters, and ring buffers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from collectord.plan.bpf_plan import BpfPlan
from collectord.plan.program_plan import RINGBUF
from collectord.source import bcc_client, bpf_buffer, bpf_slots

if TYPE_CHECKING:
    from collections.abc import Iterator

    from collectord.kernel.port import Kernel
    from collectord.plan.program_plan import ProgramPlan
    from collectord.plan.ring_plan import RingPlan
    from collectord.plan.session_plan import SessionPlan
    from collectord.source.bcc_client import Request


def requests(
    kernel: Kernel, session: SessionPlan, *, headers: str
) -> Iterator[tuple[ProgramPlan, Request]]:
    """Yield the session's programs, each with what is compiled.

    Args:
        kernel: has the library that programs include.
        session: its programs.
        headers: tree of kernel headers.
    """
    plan = session.payload_of(BpfPlan)
    for one in plan.programs:
        library = kernel.bpf_library(one.program.manifest.members)
        request = bcc_client.request(one.program, one.values, headers=headers, library=library)
        for _, ring in buffers(session, one).values():
            more = bpf_buffer.defines(ring, page_bytes=kernel.page_bytes, writers=len(plan.cpus))
            request = replace(request, source=more + request.source)
        for ring in slots(session, one)[:1]:
            more = bpf_slots.defines(ring, max(kernel.possible_cpus()) + 1)
            request = replace(request, source=more + request.source)
        yield one, request


def buffers(session: SessionPlan, program: ProgramPlan) -> dict[str, tuple[int, RingPlan]]:
    """Return a program's ring buffers by its tables, with their places in the plan."""
    return {
        output.table: (number, ring)
        for output in program.outputs
        for number, ring in enumerate(session.rings)
        if output.transport == RINGBUF and output.event_index in {e.index for e in ring.events}
    }


def slots(session: SessionPlan, program: ProgramPlan) -> tuple[RingPlan, ...]:
    """Return the slots that a program keeps its records in, of each CPU."""
    own = {kept.event_index for kept in program.kept}
    return tuple(
        ring
        for ring in session.rings
        if ring.slots and own & {event.index for event in ring.events}
    )


def program_texts(kernel: Kernel, session: SessionPlan) -> list[object]:
    """Return the values by which the session's programs differ from others."""
    if not session.payload.programs_run:
        return []
    plan = session.payload_of(BpfPlan)
    texts = [
        [request.name, request.source, request.license, *map(str, request.attach)]
        for _, request in requests(kernel, session, headers="")
    ]
    return [plan.headers, list(plan.cpus), texts]
