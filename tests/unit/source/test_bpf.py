# SPDX-License-Identifier: Apache-2.0
"""Counters of a BPF session, with a kernel and programs that a test controls."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final

import pytest

from collectord.kernel.values.bpf_objects import MapInfo
from collectord.model import Basis, Geometry, Produced, Reason, RingLabel, RingRole, Stage
from collectord.plan.bpf_plan import OutputPlan
from collectord.source.bpf import Counts, OpenBpf
from collectord.source.ring import PerfRing

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
        self.rings = tuple(
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


def opened(kernel: FakeKernel, *, basis: Basis = Basis.EXACT, lost: int | None = 0) -> OpenBpf:
    """Return a session of one program on CPU 0."""
    exact = basis is Basis.EXACT
    program: Any = SimpleNamespace(
        plan=SimpleNamespace(name="p", outputs=(OutputPlan("collectord_ring", 0, exact),)),
        loaded=SimpleNamespace(
            programs=(SimpleNamespace(fd=7),),
            tables={
                "collectord_gate": SimpleNamespace(fd=GATE),
                "collectord_counts": SimpleNamespace(fd=COUNTS),
            },
        ),
        maps={"collectord_gate": INFO, "collectord_counts": INFO},
        buffers=(),
    )
    plan: Any = SimpleNamespace(cpus=(0,))
    rings: Any = FakePerf(basis, lost)
    fake: Any = kernel
    return OpenBpf(fake, plan, (program,), rings)


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
