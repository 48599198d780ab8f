# SPDX-License-Identifier: Apache-2.0
"""Counters of a BPF session, with a kernel and programs that a test controls."""

from __future__ import annotations

import os
import socket
import struct
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, Final

import pytest

from collectord.errors import KernelError
from collectord.kernel.values.bpf_objects import MapInfo
from collectord.kernel.values.kept_rings import STATE_BYTES, KeptRings, Prior
from collectord.model import Basis, Geometry, Produced, Reason, RingLabel, RingRole, Stage
from collectord.plan.program_plan import OutputPlan
from collectord.source.bpf_kept import KeptBpf
from collectord.source.bpf_reopening import BpfReopening
from collectord.source.kept_memory import KeptMemory, memory_bytes
from collectord.source.kept_ring import Hold, LastingRing
from collectord.source.open_bpf import OpenBpf
from collectord.source.open_program import Counts, OpenProgram
from collectord.source.perf_ring import PerfRing

GATE: Final = 5
COUNTS: Final = 6
CPUS: Final = (0, 1)
FULL: Final = (Stage.KERNEL_RING, Reason.RING_FULL)
RECURSION: Final = (Stage.PROGRAM, Reason.RECURSION)
DROPPED: Final = (Stage.PROGRAM, Reason.DROPPED)


@dataclass
class FakeKernel:
    """Per-CPU counters, left out runs, and what was written to the gate."""

    counts: dict[int, Counts] = field(default_factory=dict)
    misses: int | None = 0
    gate: list[int] = field(default_factory=list)
    lookups: int = 0

    def possible_cpus(self) -> tuple[int, ...]:
        """See `Kernel` and `OpenPerf`."""
        return CPUS

    def map_lookup(self, fd: int, _key: bytes, *, info: MapInfo) -> bytes:
        """See `Kernel` and `OpenPerf`."""
        assert (fd, info) == (COUNTS, INFO)
        self.lookups += 1
        return b"".join(struct.pack("=5Q", *self.counts.get(cpu, Counts())) for cpu in CPUS)

    def map_update(self, fd: int, _key: bytes, value: list[bytes], *, info: MapInfo) -> None:
        """See `Kernel` and `OpenPerf`."""
        assert (fd, info) == (GATE, INFO)
        self.gate = [struct.unpack("=Q", one)[0] for one in value]

    def program_info(self, _fd: int) -> Any:  # noqa: ANN401  # of one field
        """See `Kernel`."""
        return SimpleNamespace(recursion_misses=self.misses)


INFO: Final = MapInfo(1, 6, "counts", 4, 40, 1, len(CPUS))


class FakePerf:
    """Rings on both CPUs, and the kernel's own count of what did not fit."""

    def __init__(self, basis: Basis, lost: int | None) -> None:
        ring_map: Any = None
        self.rings: tuple[PerfRing, ...] = tuple(
            PerfRing(
                map=ring_map,
                fd=-1,
                basis=basis,
                geometry=Geometry(4096, 1, 4096),
                label=RingLabel("s", "bpf", RingRole.DATA, cpu),
                time_offset=0,
                time_trailer=0,
            )
            for cpu in CPUS
        )
        self.event_ids: dict[int, tuple[int, ...]] = {}
        self.target_fds = ()
        self.hotplug = ()
        self.lost = lost
        self.done: list[str] = []

    def read_produced(self, _ring: object) -> Produced:
        """See `Kernel` and `OpenPerf`."""
        return Produced(value=0, lost=self.lost)

    def enable(self) -> None:
        """See `Kernel` and `OpenPerf`."""
        self.done.append("enable")

    def disable_sideband(self) -> None:
        """See `Kernel` and `OpenPerf`."""
        self.done.append("disable sideband")


def program_of(*, exact: bool, counted: bool = True) -> Any:  # noqa: ANN401  # of a few fields
    """Return a program with a gate and counters."""
    plan: Any = SimpleNamespace(
        name="p", outputs=(OutputPlan("collectord_ring", 0, exact),), kept=()
    )
    return OpenProgram(
        plan=plan,
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
    )


def opened(
    kernel: FakeKernel,
    *,
    basis: Basis = Basis.EXACT,
    lost: int | None = 0,
    counted: bool = True,
) -> OpenBpf:
    """Return a session of one program on CPU 0."""
    plan: Any = SimpleNamespace(cpus=(0,))
    rings: Any = FakePerf(basis, lost)
    fake: Any = kernel
    return OpenBpf(fake, plan, (program_of(exact=basis is Basis.EXACT, counted=counted),), rings)


def kept(kernel: FakeKernel, memory: int, connection: int, stack: ExitStack, lost: int) -> KeptBpf:
    """Return the same session as a daemon gets it from the opener."""
    notes = KeptMemory(memory, len(CPUS), stack)
    perf = FakePerf(Basis.EXACT, lost)
    fields = ("map", "fd", "basis", "geometry", "label", "time_offset", "time_trailer")
    perf.rings = tuple(
        LastingRing(
            **{name: getattr(ring, name) for name in fields},
            hold=Hold(notes.ring(cpu, stack), connection),
        )
        for cpu, ring in enumerate(perf.rings[:1])
    )
    given = KeptRings(connection, memory, Prior(left=5), ())
    plan: Any = SimpleNamespace(cpus=(0,))
    rings: Any = perf
    fake: Any = kernel
    programs = (program_of(exact=True),)
    return KeptBpf(fake, plan, programs, rings, memory=notes, given=given)


def test_a_successor_counts_what_its_predecessors_did_not() -> None:
    """Their account has what they took and lost; gates stay open as long as the opener lives."""
    kernel = FakeKernel(misses=7)
    with ExitStack() as stack:
        memory = os.memfd_create("notes")
        stack.callback(os.close, memory)
        os.ftruncate(memory, memory_bytes(len(CPUS), 1))
        ours, theirs = socket.socketpair()
        stack.enter_context(ours)
        stack.enter_context(theirs)

        first = kept(kernel, memory, ours.fileno(), stack, 0)
        (legacy,) = first.abilities.lasting
        assert (legacy.resumed, legacy.prior) == (False, Prior(left=5))
        first.enable()
        legacy.note("{}")
        first.disable()
        assert kernel.gate == [1, 0]

        kernel.misses = 10
        kernel.counts[0] = Counts(attempts=100, no_space=4)
        os.pwrite(memory, struct.pack("<3Q", 0, 0, 60), STATE_BYTES)
        second = kept(kernel, memory, ours.fileno(), stack, 4)
        (legacy,) = second.abilities.lasting
        lost = {"program/recursion": 3, "program/dropped": 0, "kernel_ring/ring_full": 4}
        assert (legacy.resumed, legacy.prior) == (True, Prior("{}", 60, lost))
        second.enable()
        ring = second.rings[0]
        counters: Any = None
        found = ring.produced(ring.own(second.read_produced(ring)), counters, 0)
        assert (found.value, found.lost) == (100 - 60 - 4, 0)

        kernel.misses = 11
        kernel.counts[0] = Counts(attempts=130, no_space=4)
        found = ring.produced(ring.own(second.read_produced(ring)), counters, 0)
        assert found.value == 130 - 60 - 4 + 1
        assert found.losses == {RECURSION: 1, DROPPED: 0, FULL: 0}
        theirs.close()
        second.disable()
        assert kernel.gate == [0, 0]


def test_gates_open_where_there_are_rings() -> None:
    """Once the rings are on, and on the session's CPUs only; they close first."""
    kernel = FakeKernel()
    source = opened(kernel)
    source.enable()
    assert kernel.gate == [1, 0]
    source.disable()
    assert kernel.gate == [0, 0]


def test_each_failure_has_its_place() -> None:
    """Attempts are what was produced, and failures are lost by what the kernel answered."""
    counts = Counts(attempts=100, no_space=7, busy=3, no_ring=2, refused=1)
    source = opened(FakeKernel({0: counts}), lost=7)
    source.enable()
    found = source.read_produced(source.rings[0])
    assert found.value == 100
    assert found.losses == {RECURSION: 3, DROPPED: 3, FULL: 7}
    assert found.lost == 13
    assert source.read_produced(source.rings[1]).value == 0


def test_runs_that_were_left_out_count_from_the_start_to_the_end() -> None:
    """Not those before the gates opened, nor those after they closed; on the first ring."""
    kernel = FakeKernel(misses=7)
    source = opened(kernel)
    first, second = source.rings
    assert source.read_produced(first).losses[RECURSION] == 0
    source.enable()
    kernel.misses = 12
    assert source.read_produced(first).losses[RECURSION] == 5
    assert source.read_produced(first).value == 5
    assert source.read_produced(second).losses[RECURSION] == 0
    source.disable()
    kernel.misses = 99
    assert source.read_produced(first).losses[RECURSION] == 5


def test_a_cpu_with_new_rings_goes_on_where_it_was() -> None:
    """Earlier counts belong to its earlier rings, those of skipped runs included."""
    kernel = FakeKernel({0: Counts(attempts=100, busy=3)}, misses=7)
    source = opened(kernel)
    source.enable()
    kernel.misses = 12
    first, second = source.rings
    assert source.read_produced(first).value == 105
    source.shut(0)
    assert kernel.gate == [0, 0]
    source.renew(0)
    kernel.counts = {0: Counts(attempts=130, busy=4), 1: Counts(attempts=9)}
    kernel.misses = 14
    source.admit([0])
    assert kernel.gate == [1, 0]
    found = source.read_produced(first)
    assert (found.value, found.losses[RECURSION]) == (32, 3)
    assert source.read_produced(second).value == 9


class Rings:
    """The rings of single CPUs, and the programs that submit into them; notes what is asked."""

    def __init__(
        self, ring: PerfRing, slots: tuple[PerfRing, ...] = (), *, refuse: bool = False
    ) -> None:
        self.asked: list[str] = []
        self._ring = ring
        self._slots = slots
        self._refuse = refuse

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any method that only notes
        return lambda of: self.asked.append(f"{name} {of if isinstance(of, int) else list(of)}")

    def join(self, cpu: int) -> tuple[PerfRing, ...]:
        """Open one ring."""
        self.asked.append(f"join {cpu}")
        return (self._ring,)

    def enable(self, rings: tuple[PerfRing, ...]) -> None:
        """Note of which CPUs they are."""
        self.asked.append(f"enable {[ring.label.cpu for ring in rings]}")

    def slots_of(self, cpu: int) -> tuple[PerfRing, ...]:
        """Return those of the CPU."""
        self.asked.append(f"slots of {cpu}")
        return self._slots

    def shared(self, ring: PerfRing) -> PerfRing:
        """Return a ring whose counters rise though nothing is drained."""
        return replace(ring, counts_on=True)

    def has_slots(self, label: RingLabel) -> bool:
        """Return whether a ring is one of them."""
        return any(one.label == label for one in self._slots)

    def connect(self, cpu: int) -> None:
        """Give a program the ring, or not."""
        self.asked.append(f"connect {cpu}")
        if self._refuse:
            raise KernelError("cannot write a map")


def test_new_rings_are_given_to_the_programs_before_the_gates_open() -> None:
    """Gates close before the old rings do; the new ones are read though nothing is drained."""
    one: Any = Rings(FakePerf(Basis.EXACT, 0).rings[1])
    hotplug = BpfReopening(one, one)
    hotplug.stop(1)
    hotplug.leave(1)
    rings = hotplug.join(1)
    hotplug.enable(rings)
    left = ["shut 1", "stop 1", "renew 1", "leave 1"]
    assert one.asked == [*left, "join 1", "connect 1", "slots of 1", "enable [1]", "admit [1]"]
    assert all(ring.counts_on for ring in rings)


def test_slots_have_no_event_to_enable() -> None:
    """They are drained as the rings of perf are."""
    slots, ring = FakePerf(Basis.EXACT, 0).rings[:2]
    one: Any = Rings(ring, (slots,))
    hotplug = BpfReopening(one, one)
    rings = hotplug.join(1)
    assert [each.label for each in rings] == [slots.label, ring.label]
    hotplug.enable(rings)
    assert f"enable [{ring.label.cpu}]" in one.asked


def test_rings_that_no_program_can_have_are_closed() -> None:
    """The CPU may be tried again."""
    one: Any = Rings(FakePerf(Basis.EXACT, 0).rings[1], refuse=True)
    with pytest.raises(KernelError):
        BpfReopening(one, one).join(1)
    assert one.asked == ["join 1", "connect 1", "leave 1"]


@pytest.mark.parametrize("basis", [Basis.EXACT, Basis.LOST_ONLY])
def test_before_linux_6_0(basis: Basis) -> None:
    """Without FORMAT_LOST the programs' own count is as good; without it, what the ring told."""
    source = opened(FakeKernel({0: Counts(attempts=9, no_space=4)}), basis=basis, lost=None)
    found = source.read_produced(source.rings[0])
    exact = basis is Basis.EXACT
    assert found.losses.get(FULL) == (4 if exact else None)
    assert found.lost == (4 if exact else None)
    assert found.value == (9 if exact else None)


def test_all_cpus_are_read_at_once() -> None:
    """The counters are read once for each round over the rings."""
    kernel = FakeKernel()
    source = opened(kernel)
    for _ in range(3):
        for ring in source.rings:
            source.read_produced(ring)
    assert kernel.lookups == 3


def test_a_program_that_submits_past_its_counts() -> None:
    """No ring that it shares is exact, whatever was planned, nor one that is opened anew."""
    kernel = FakeKernel({0: Counts(5)})
    source = opened(kernel, counted=False)
    source.enable()
    ring = source.rings[0]
    assert {one.basis for one in source.rings} == {Basis.LOST_ONLY}
    assert ring.basis is Basis.LOST_ONLY
    assert source.read_produced(ring).value is None
    assert source.shared(replace(ring, basis=Basis.EXACT)).basis is Basis.LOST_ONLY
