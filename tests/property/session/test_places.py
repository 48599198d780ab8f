# SPDX-License-Identifier: Apache-2.0
"""The balance of a place, whatever becomes of its rings: its counters only grow, and add up."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from collectord.ledger.record_ledger import NO_COUNTERS
from collectord.model import Basis, Geometry, Produced, RingLabel, RingRole
from collectord.session.counter_reader import CounterReader, Drained
from collectord.source.base import Abilities
from collectord.source.perf_ring import PerfRing

if TYPE_CHECKING:
    from collectord._native._core import RingCounters
    from collectord.source.ring import RingHandle

MAP: Any = None
HANDLE = PerfRing(
    map=MAP,
    fd=0,
    basis=Basis.EXACT,
    geometry=Geometry(4096, 1024, 4096),
    label=RingLabel("s", "perf", RingRole.DATA, 0),
    time_offset=0,
    time_trailer=0,
)
PLACES = 3
STEPS = st.tuples(
    st.sampled_from(("produce", "lose", "drain", "store", "replace", "measure", "remove")),
    st.integers(0, PLACES - 1),
    st.integers(1, 50),
)


class Ring:
    """A ring of the core and its event in the kernel."""

    def __init__(self, number: int, cpu: int) -> None:
        self.value = self.lost = self.taken = self.written = 0
        ring: Any = SimpleNamespace(id=number, counters=self.counters)
        label = replace(HANDLE.label, cpu=cpu)
        self.drained = Drained(replace(HANDLE, fd=number, label=label), ring)

    def counters(self) -> RingCounters:
        """Return the core's counters."""
        return NO_COUNTERS._replace(
            samples=self.taken,
            records=self.taken,
            stored=self.written,
            in_flight=self.taken - self.written,
        )


class Machine:
    """Places with a ring each, which is replaced again and again."""

    def __init__(self) -> None:
        self.abilities = Abilities()
        self.rings: list[Ring] = []
        self.present = [self._ring(cpu) for cpu in range(PLACES)]
        source: Any = self
        self.reader = CounterReader(source, [ring.drained for ring in self.present], ())
        self.deleted: dict[int, int] = {}

    def _ring(self, cpu: int) -> Ring:
        self.rings.append(Ring(len(self.rings), cpu))
        return self.rings[-1]

    def read_produced(self, ring: RingHandle) -> Produced:
        """Return the counts of an event."""
        one = self.rings[ring.fd]
        return Produced(
            value=one.value, lost=one.lost, per_event=((ring.label.cpu, one.value, one.lost),)
        )

    def step(self, what: str, cpu: int, count: int) -> None:
        """Have something happen."""
        ring = self.present[cpu]
        match what:
            case "produce":
                ring.value += count
            case "lose":
                ring.value += count
                ring.lost += count
            case "drain":
                ring.taken = min(ring.taken + count, ring.value - ring.lost)
            case "store":
                for old in self.rings:
                    old.written = min(old.written + count, old.taken)
            case "replace":
                ring.taken = ring.value - ring.lost  # drained to its end
                self.reader.retire(ring.drained)
                self.present[cpu] = self._ring(cpu)
                self.reader.add(self.present[cpu].drained)
            case "measure":
                self.reader.measure()
            case "remove":
                self._remove()

    def _remove(self) -> None:
        """Have somebody delete all files, which tell of a place by its first ring."""
        for number, ring in enumerate(self.rings):
            left = ring.written - self.deleted.get(number, 0)
            if left > 0:
                self.deleted[number] = ring.written
                self.reader.removed({ring.drained.handle.label.cpu: left})


def figures(machine: Machine) -> list[tuple[int | None, int, int]]:
    """Return what only grows, of each place."""
    return [
        (one.produced, one.stored + one.lost["sink/dropped"], one.lost["kernel_ring/ring_full"])
        for one in machine.reader.balances()
    ]


@given(st.lists(STEPS, max_size=60))
def test_places_add_up(steps: list[tuple[str, int, int]]) -> None:
    """At the end all that was produced is stored or lost, and each loss was told once."""
    machine = Machine()
    told = 0
    before = figures(machine)
    for step in steps:
        machine.step(*step)
        now = figures(machine)
        assert len(now) == PLACES
        for old, new in zip(before, now, strict=True):
            assert all((b or 0) >= (a or 0) for a, b in zip(old, new, strict=True))
        before = now
        told += sum(machine.reader.take_losses().values())
    for ring in machine.rings:
        ring.taken = ring.written = ring.value - ring.lost
    machine.reader.measure()
    machine.reader.close()
    told += sum(machine.reader.take_losses().values())
    places = machine.reader.balances()
    assert [place.unaccounted for place in places] == [0] * PLACES
    assert sum(place.in_flight for place in places) == 0
    assert sum(place.produced or 0 for place in places) == sum(r.value for r in machine.rings)
    assert told == sum(ring.lost for ring in machine.rings)
    dropped = sum(place.lost["sink/dropped"] for place in places)
    assert dropped == sum(machine.deleted.values())
