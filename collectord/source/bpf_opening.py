# SPDX-License-Identifier: Apache-2.0
"""The `bpf` source: programs that BCC compiles, with the rings into which they submit.

A worker process compiles, loads and attaches each program and hands over its descriptors. An
opener may have done so earlier: then all is taken over from it, and nothing is compiled.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from collectord.errors import BpfError
from collectord.kernel.values.kept_rings import KeptRings
from collectord.plan.bpf_plan import BpfPlan
from collectord.source import bcc_client, bpf_buffer, bpf_slots, perf
from collectord.source.bpf_kept import KeptBpf
from collectord.source.bpf_texts import buffers, requests, slots
from collectord.source.kept_memory import KeptMemory
from collectord.source.kept_ring import Hold
from collectord.source.open_bpf import OpenBpf
from collectord.source.open_program import opened_program, output_table
from collectord.source.perf_kept import ask_opener, kept_session, own_given, without_opener
from collectord.text.units import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from collectord._native._core import RingNote
    from collectord.kernel.port import Kernel
    from collectord.plan.program_plan import ProgramPlan
    from collectord.plan.session_plan import SessionPlan
    from collectord.source.bpf_buffer import BufferRing
    from collectord.source.loaded_program import Loaded
    from collectord.source.open_program import OpenProgram


def open_session(
    kernel: Kernel,
    plan: SessionPlan,
    stack: ExitStack,
    *,
    exclude_tids: tuple[int, ...] = (),
    abort: int = -1,
) -> OpenBpf:
    """Load a session's programs, and give them rings. See `source.base.Source`.

    Raises:
        BpfError: a program does not compile, load or attach, or its event cannot be described.
    """
    with ExitStack() as own:
        asked = ask_opener(kernel, plan, abort=abort) if plan.opener else None
        if isinstance(asked, KeptRings):
            opened: OpenBpf = _kept(kernel, plan, asked, own, exclude_tids)
        else:
            with without_opener(asked):
                opened = _loaded(kernel, plan, own, exclude_tids, abort)
        stack.push(own.pop_all())
    return opened


def _perf_part(plan: SessionPlan) -> SessionPlan:
    """Return a session with its perf rings alone."""
    return replace(plan, rings=tuple(one for one in plan.rings if one.cpu >= 0 and not one.slots))


def _loaded(
    kernel: Kernel,
    plan: SessionPlan,
    stack: ExitStack,
    exclude_tids: tuple[int, ...],
    abort: int,
) -> OpenBpf:
    payload = plan.payload_of(BpfPlan)
    batch = kernel.begin_loading()
    stack.callback(kernel.forget_programs, batch)  # after their descriptors are closed
    try:
        programs = tuple(_programs(kernel, plan, batch, stack, abort=abort))
    finally:
        kernel.end_loading(batch)
    rings = perf.open_own(kernel, _perf_part(plan), stack, exclude_tids)
    opened = OpenBpf(kernel, payload, programs, rings)
    opened.connect()
    return opened


def _programs(
    kernel: Kernel, session: SessionPlan, batch: int, stack: ExitStack, *, abort: int
) -> Iterator[OpenProgram]:
    plan = session.payload_of(BpfPlan)
    headers = kernel.bpf_headers(plan.headers, plan.cache)
    for one, request in requests(kernel, session, headers=headers):
        loaded = bcc_client.load(
            request,
            python=plan.python,
            stack=stack,
            timeout_s=plan.compile_ns / NS_PER_SECOND,
            memory_bytes=plan.compile_bytes,
            abort=abort,
        )
        _own(kernel, batch, loaded, stack)
        found = _buffers(session, one, loaded, stack)
        kept = bpf_slots.open_rings(session.name, one, slots(session, one), loaded, stack)
        yield opened_program(kernel, one, loaded, tuple(found.values()), kept)


def _own(kernel: Kernel, batch: int, loaded: Loaded, stack: ExitStack) -> None:
    """Note a program as our own, until the stack is closed."""
    numbers = {one.id: one.fd for one in loaded.programs}
    stack.callback(kernel.disown_programs, tuple(numbers))  # before their descriptors close
    kernel.own_programs(batch, numbers)


def _buffers(
    session: SessionPlan, program: ProgramPlan, loaded: Loaded, stack: ExitStack
) -> dict[int, BufferRing]:
    """Map a program's ring buffers; returns them by their places in the plan."""
    writers = len(session.payload_of(BpfPlan).cpus)
    return {
        number: bpf_buffer.open_ring(
            session.name, ring, output_table(program, loaded, name), writers=writers, stack=stack
        )
        for name, (number, ring) in buffers(session, program).items()
    }


def _kept(
    kernel: Kernel,
    plan: SessionPlan,
    given: KeptRings,
    stack: ExitStack,
    exclude_tids: tuple[int, ...],
) -> KeptBpf:
    """Take a session's programs and rings over from the opener.

    Raises:
        BpfError: it has given others than planned.
    """
    payload = plan.payload_of(BpfPlan)
    own_given(kernel, given, stack)
    memory = KeptMemory(given.memory, len(plan.rings), stack)
    if len(given.programs) != len(payload.programs):
        raise BpfError(
            "the opener has other programs than planned", program=plan.name, step="load"
        )
    batch = kernel.begin_loading()
    stack.callback(kernel.forget_programs, batch)
    programs = []
    notes: dict[int, RingNote] = {}
    try:
        for one, kept in zip(payload.programs, given.programs, strict=True):
            loaded = bcc_client.handed_on(one.name, kept.described, kept.fds)
            _own(kernel, batch, loaded, stack)
            found = _buffers(plan, one, loaded, stack)
            notes |= {number: memory.ring(number, stack) for number in found}
            lasting = _lasting(found, notes, given.connection)
            programs.append(opened_program(kernel, one, loaded, lasting))
    finally:
        kernel.end_loading(batch)
    made = kept_session(kernel, plan, given, memory, stack)
    of_perf = perf.open_kept(kernel, _perf_part(plan), made, stack, exclude_tids)
    return KeptBpf(kernel, payload, tuple(programs), of_perf, memory=memory, given=given)


def _lasting(
    found: Mapping[int, BufferRing], notes: Mapping[int, RingNote], connection: int
) -> tuple[BufferRing, ...]:
    return tuple(
        bpf_buffer.kept(ring, Hold(notes[number], connection)) for number, ring in found.items()
    )
