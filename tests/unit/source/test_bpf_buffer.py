# SPDX-License-Identifier: Apache-2.0
"""The balance of BPF ring buffers, with a kernel and programs that say what a test wants."""

from __future__ import annotations

import os
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import pytest

from collectord._native import _core
from collectord.config.schema import Config
from collectord.config.schema_session import BpfSourceConfig, SessionConfig
from collectord.errors import KernelError
from collectord.facts.kernel_facts import BpfFacts
from collectord.ledger.record_ledger import NESTING, Bracket
from collectord.model import Basis, Produced, Reason, RingRole, Stage
from collectord.plan.build import build
from collectord.plan.program_plan import RINGBUF, OutputPlan
from collectord.source import bpf_buffer
from collectord.source.loaded_program import LoadedTable
from collectord.source.open_bpf import OpenBpf
from collectord.source.open_program import Counts, OpenProgram
from tests.support.bpf_pairs import SOURCE, program
from tests.support.hosts import host
from tests.unit.source.test_open_bpf import COUNTS, GATE, INFO, FakeKernel, FakePerf

if TYPE_CHECKING:
    from contextlib import ExitStack

    from collectord.plan.ring_plan import RingPlan
    from collectord.source.bpf_buffer import BufferRing
    from collectord.source.ring import RingHandle

PAGE: Final = os.sysconf("SC_PAGESIZE")
FULL: Final = (Stage.KERNEL_RING, Reason.RING_FULL)
RECURSION: Final = (Stage.PROGRAM, Reason.RECURSION)
DROPPED: Final = (Stage.PROGRAM, Reason.DROPPED)
RINGBUF_MAP: Final = 27


def planned() -> RingPlan:
    """Return the ring of a program's ring buffer."""
    known = host(bpf=BpfFacts(python="/python", programs={"p": program(SOURCE, name="p")}))
    source = BpfSourceConfig(program="p", transport="ringbuf")
    made = SessionConfig(name="s", source=(source,))
    (session,) = build(Config(session=(made,)), known).sessions
    return next(ring for ring in session.rings if ring.role is RingRole.DATA)


def table(stack: ExitStack, size: int = PAGE) -> LoadedTable:
    """Return a file that is laid out as a ring buffer of a page, said to be of this size."""
    fd = os.memfd_create("ring")
    stack.callback(os.close, fd)
    os.ftruncate(fd, 4 * PAGE)
    return LoadedTable("collectord_ring", fd, 1, RINGBUF_MAP, 0, 0, size, None, None)


def buffer(stack: ExitStack) -> BufferRing:
    """Return the ring buffer of a program, mapped."""
    return bpf_buffer.open_ring("s", planned(), table(stack), writers=2, stack=stack)


def opened(
    kernel: FakeKernel, stack: ExitStack, *, lost: int | None = 0, counted: bool = True
) -> OpenBpf:
    """Return a session of one program that has a ring buffer, beside rings of perf of nobody's."""
    submits: Any = SimpleNamespace(
        name="p",
        outputs=(OutputPlan("collectord_ring", 0, counts=True, transport=RINGBUF),),
        kept=(),
    )
    own = OpenProgram(
        plan=submits,
        loaded=SimpleNamespace(  # type: ignore[arg-type]
            counts_submissions=counted,
            programs=(SimpleNamespace(fd=7),),
            tables={
                "collectord_gate": SimpleNamespace(fd=GATE),
                "collectord_counts": SimpleNamespace(fd=COUNTS),
            },
        ),
        layout=None,
        maps={"collectord_gate": INFO, "collectord_counts": INFO},
        buffers=(buffer(stack),),
    )
    plan: Any = SimpleNamespace(cpus=(0, 1))
    rings: Any = FakePerf(Basis.EXACT, lost)
    fake: Any = kernel
    return OpenBpf(fake, plan, (own,), rings)


def own_ring(source: OpenBpf) -> RingHandle:
    """Return its ring buffer."""
    (ring,) = (ring for ring in source.rings if ring.label.cpu < 0)
    return ring


def test_a_ring_buffer_is_counted_by_its_program(stack: ExitStack) -> None:
    """Attempts of all CPUs are produced; what the kernel had no space for the program knows."""
    cpus = {0: Counts(100, 7, 3, 2, 1), 1: Counts(10, 1)}
    source = opened(FakeKernel(cpus), stack)
    source.enable()
    ring = own_ring(source)
    found = source.read_produced(ring)
    assert found.value == 110
    assert found.losses == {RECURSION: 3, DROPPED: 3, FULL: 8}
    assert found.lost == 14
    ((event_id, attempts, lost),) = found.per_event
    assert (attempts, lost) == (110, 8)
    assert source.event_ids == {0: (event_id,)}
    # Rings of perf are other programs'.
    assert source.read_produced(source.rings[0]).value == 0


def test_a_program_that_submits_past_its_counts(stack: ExitStack) -> None:
    """Its attempts are not all: losses are known, and nothing is said to be produced."""
    source = opened(FakeKernel({0: Counts(100, 7), 1: Counts()}), stack, counted=False)
    source.enable()
    ring = own_ring(source)
    assert ring.basis is Basis.LOST_ONLY
    found = source.read_produced(ring)
    assert (found.value, found.lost) == (None, 7)


def test_runs_that_were_left_out_are_the_programs_own(stack: ExitStack) -> None:
    """They are on its ring, from the start to the end."""
    kernel = FakeKernel(misses=7)
    source = opened(kernel, stack)
    ring = own_ring(source)
    assert source.read_produced(ring).losses[RECURSION] == 0
    source.enable()
    kernel.misses = 12
    assert source.read_produced(ring).losses[RECURSION] == 5
    assert source.read_produced(ring).value == 5
    assert source.read_produced(source.rings[0]).value == 0
    source.disable()
    kernel.misses = 99
    assert source.read_produced(ring).losses[RECURSION] == 5


def test_each_reading_is_of_its_moment(stack: ExitStack) -> None:
    """Counts after the reading of one ring belong to the next reading of another."""
    kernel = FakeKernel()
    source = opened(kernel, stack)
    source.read_produced(source.rings[0])
    kernel.counts = {1: Counts(4)}
    assert source.read_produced(own_ring(source)).value == 4


def test_each_cpu_may_have_some_on_their_way(stack: ExitStack) -> None:
    """While it runs as many as all CPUs nest may be counted and not there; at the end none."""
    ring = buffer(stack)
    counters = _counters(stack, ring)
    on_the_way = 2 * NESTING
    for produced, closed, missing in (
        (on_the_way, False, 0),
        (on_the_way + 1, False, 1),
        (1, True, 1),
    ):
        reading = Produced(produced, 0)
        bracket = Bracket(reading, counters, reading, closed=closed)
        assert ring.balance(bracket, Basis.EXACT).unaccounted == missing
    surplus = Bracket(Produced(-1, 0), counters, Produced(-1, 0))
    assert ring.balance(surplus, Basis.EXACT).unaccounted == 1


def _counters(stack: ExitStack, ring: BufferRing) -> _core.RingCounters:
    """Return the counters of a ring that the core has taken nothing out of."""
    core = _core.Core(chunks=4)
    stack.callback(core.stop)
    awake = os.eventfd(0)
    stack.callback(os.close, awake)
    added = replace(ring, fd=awake).register(core, 0, core.add_stream())
    stack.callback(core.remove_ring, added)
    return added.counters()


def test_what_cannot_be_mapped(stack: ExitStack) -> None:
    """The message names the actual error."""
    with pytest.raises(KernelError, match="a BPF ring buffer of 100B cannot be mapped"):
        bpf_buffer.open_ring("s", planned(), table(stack, 100), writers=1, stack=stack)
