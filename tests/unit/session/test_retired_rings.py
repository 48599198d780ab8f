# SPDX-License-Identifier: Apache-2.0
"""Counters of a place go on when its ring is closed, and when a new one takes its place."""

from __future__ import annotations

import gc
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from collectord._native._core import AuxCounters, SegmentClosed
from collectord.errors import KernelError
from collectord.ledger.record_ledger import NO_COUNTERS
from collectord.model import Basis, Geometry, Produced, RingLabel, RingRole
from collectord.session.accounting import Accounting
from collectord.session.aux_counter_reader import AuxCounterReader
from collectord.session.counter_reader import CounterReader, Drained
from collectord.source.base import Abilities
from collectord.source.perf_ring import OverwritableRing, PerfRing
from collectord.source.ring import AuxHandle, RingHandle
from tests.support import balances
from tests.support.sessions import parts_of

if TYPE_CHECKING:
    from collectord._native._core import RingCounters

LABEL = RingLabel("s", "perf", RingRole.DATA, 1)
MAP: Any = None
HANDLE = PerfRing(
    map=MAP,
    fd=-1,
    basis=Basis.EXACT,
    geometry=Geometry(4096, 1024, 4096),
    label=LABEL,
    time_offset=0,
    time_trailer=0,
)
WINDOW = OverwritableRing(
    map=MAP,
    fd=-1,
    basis=Basis.EXACT,
    geometry=Geometry(4096, 0, 4096),
    label=LABEL,
    held=True,
    time_offset=0,
    time_trailer=0,
)


class OneRing:
    """A ring of the core, whose counters of the core and of the kernel the test sets."""

    def __init__(self, number: int, handle: PerfRing = HANDLE) -> None:
        self.reading = Produced(value=0, lost=0)
        self.core: RingCounters = NO_COUNTERS
        ring: Any = SimpleNamespace(id=number, counters=lambda: self.core)
        self.drained = Drained(replace(handle, fd=number), ring)

    def take(self, samples: int, *, stored: int) -> None:
        """Let the core take so many records more, and have stored so many in all."""
        taken = self.core.samples + samples
        self.core = self.core._replace(
            samples=taken, records=taken, stored=stored, in_flight=taken - stored
        )


class Host:
    """A source of rings, which answers with the readings that they have."""

    def __init__(self) -> None:
        self.abilities = Abilities()
        self.rings: dict[int, OneRing] = {}
        self.readable = True

    def ring(self, handle: PerfRing = HANDLE) -> OneRing:
        """Return a new ring of the place."""
        number = len(self.rings) + 1
        self.rings[number] = OneRing(number, handle)
        return self.rings[number]

    def read_produced(self, ring: RingHandle) -> Produced:
        """Return the reading that the test has set."""
        if not self.readable:
            raise KernelError("the event has no counter any more")
        return self.rings[ring.fd].reading


def reader(host: Host, *rings: OneRing) -> CounterReader:
    """Return the reader of these rings."""
    source: Any = host
    return CounterReader(source, [ring.drained for ring in rings], ())


def test_a_place_goes_on_with_a_new_ring() -> None:
    """Its figures are those of both rings, and its fill is that of the present one."""
    host = Host()
    first, second = host.ring(), host.ring()
    read = reader(host, first)
    first.take(10, stored=10)
    first.core = first.core._replace(used_bytes=100, high_watermark_bytes=200, quarantined=1)
    first.reading = Produced(value=12, lost=2)
    read.retire(first.drained)
    for _ in range(3):
        (ring,) = read.balances()
        assert (ring.produced, ring.stored, ring.unaccounted) == (12, 10, 0)
        assert ring.lost["kernel_ring/ring_full"] == 2
        assert (ring.used_bytes, ring.quarantined, ring.peak_fill) == (0, None, 200 / 4096)
        read.measure()
    read.add(second.drained)
    second.take(5, stored=4)
    second.core = second.core._replace(used_bytes=50, high_watermark_bytes=60)
    second.reading = Produced(value=8, lost=3)
    read.measure()
    (ring,) = read.balances()
    assert (ring.produced, ring.stored, ring.in_flight, ring.unaccounted) == (20, 14, 1, 0)
    assert ring.lost["kernel_ring/ring_full"] == 5
    assert (ring.used_bytes, ring.peak_fill) == (50, 200 / 4096)
    assert [read.brackets[LABEL].closed, read.brackets[LABEL].after.value] == [False, 20]


def test_what_a_ring_that_is_gone_has_in_flight_is_stored_later() -> None:
    """It is removed from the core at once, and its chunks are written when they are."""
    host = Host()
    ring = host.ring()
    read = reader(host, ring)
    ring.take(10, stored=4)
    ring.reading = Produced(value=10, lost=0)
    read.retire(ring.drained)
    (before,) = read.balances()
    assert (before.stored, before.in_flight, before.unaccounted) == (4, 6, 0)
    ring.take(0, stored=10)
    assert read.measure()
    assert not read.measure()
    (after,) = read.balances()
    assert (after.stored, after.in_flight, after.unaccounted) == (10, 0, 0)
    read.close()
    assert read.balances() == (after,)


def test_what_one_ring_lacks_another_does_not_make_up_for() -> None:
    """The ledger of a place tells of both."""
    host = Host()
    rings = [host.ring() for _ in range(3)]
    read = reader(host, rings[0])
    for ring, taken in zip(rings, (7, 13, 9), strict=True):
        if ring is not rings[0]:
            read.add(ring.drained)
        ring.take(taken, stored=taken)
        ring.reading = Produced(value=10, lost=0)
        if ring is not rings[2]:
            read.retire(ring.drained)
        read.measure()
        read.measure()
        if ring is rings[1]:
            (place,) = read.balances()
            assert (place.produced, place.stored, place.unaccounted) == (20, 20, 3 + 3)
    read.close()
    (place,) = read.balances()
    assert (place.produced, place.stored, place.unaccounted) == (30, 29, 3 + 3 + 1)


def test_losses_are_told_once_by_event() -> None:
    """A new event has the id of the one before it, and counts from 0."""
    host = Host()
    first, second = host.ring(), host.ring()
    read = reader(host, first)
    first.reading = Produced(value=9, lost=4, per_event=((5, 9, 4),))
    read.retire(first.drained)
    assert read.take_losses() == {5: 4}
    read.add(second.drained)
    second.take(1, stored=1)
    second.reading = Produced(value=3, lost=2, per_event=((5, 3, 2),))
    read.measure()
    assert read.take_losses() == {5: 2}
    assert read.take_losses() == {}


def test_nothing_is_claimed_where_the_last_counters_cannot_be_read() -> None:
    """The count since the last reading is unknown, now and later."""
    host = Host()
    first, second = host.ring(), host.ring()
    read = reader(host, first)
    host.readable = False
    read.retire(first.drained)
    host.readable = True
    read.add(second.drained)
    read.measure()
    (ring,) = read.balances()
    assert (ring.basis, ring.produced, ring.unaccounted) == (Basis.LOST_ONLY, None, None)


def test_a_file_of_a_ring_that_is_gone_may_be_deleted() -> None:
    """Its records then are lost, and looked for."""
    host = Host()
    ring = host.ring()
    read = reader(host, ring)
    ring.take(10, stored=10)
    ring.reading = Produced(value=10, lost=0)
    read.retire(ring.drained)
    read.measure()
    lost = read.lost
    read.removed({1: 3, 77: 5})
    (place,) = read.balances()
    assert (place.stored, place.lost["sink/dropped"], place.unaccounted) == (7, 3, 0)
    assert read.lost == lost + 3


def test_a_file_of_several_rings_of_a_place_may_be_deleted() -> None:
    """It tells of all of them by the number of the first one."""
    host = Host()
    rings = [host.ring() for _ in range(3)]
    read = reader(host, rings[0])
    for ring in rings[1:]:
        read.add(ring.drained)
    for ring in rings:
        ring.take(10, stored=10)
        ring.reading = Produced(value=10, lost=0)
    for ring in rings[:2]:
        read.retire(ring.drained)
    read.measure()
    lost = read.lost
    read.removed({1: 15})
    (place,) = read.balances()
    assert (place.stored, place.lost["sink/dropped"], place.unaccounted) == (15, 15, 0)
    assert read.lost == lost + 15


def test_what_no_window_took_of_a_ring_that_is_gone_was_overwritten() -> None:
    """Its mapping is closed: no snapshot will have it."""
    host = Host()
    ring = host.ring(WINDOW)
    read = reader(host, ring)
    ring.take(4, stored=4)
    ring.core = ring.core._replace(window_taken=4)
    ring.reading = Produced(value=10, lost=1)
    before = read.before_windows()
    read.retire(ring.drained)
    read.count_overwritten(before)
    assert read.before_windows() == {}
    (place,) = read.balances()
    assert (place.produced, place.stored, place.overwritten, place.unaccounted) == (10, 4, 5, 0)


class Area:
    """An AUX area whose kernel counters the test sets, and from which all was taken."""

    def __init__(self, number: int) -> None:
        self.head = self.traced = self.unstored = 0
        self.late: list[int] = []  # of the next looks, the bytes that are stored behind it
        zeros = {**dict.fromkeys(AuxCounters._fields, 0), "fill_buckets": ()}

        def taken() -> AuxCounters:
            stored = self.head - self.unstored - (self.late.pop(0) if self.late else 0)
            counted = {"taken_bytes": self.head, "stored_bytes": stored}
            return AuxCounters(**{**zeros, **counted})  # type: ignore[arg-type]  # of any type

        counter: Any = SimpleNamespace(fd=self, read_format=0)
        own_map: Any = self
        label = replace(LABEL, role=RingRole.AUX)
        handle = AuxHandle(own_map, balances.AREA_PLAN, label, 0, (counter,))
        area = SimpleNamespace(handle=handle, ring=SimpleNamespace(counters=taken, id=number))
        self.drained: Any = SimpleNamespace(areas=(area,))


def test_an_area_goes_on_as_its_ring_does() -> None:
    """Its head and its counter begin anew, and its balance does not."""
    kernel: Any = SimpleNamespace(
        read_counter=lambda fd, _: SimpleNamespace(value=fd.traced, lost=0)
    )
    first, second = Area(1), Area(2)
    read = AuxCounterReader(kernel, [first.drained])
    first.head, first.traced = 5_000, 6_000
    read.measure()
    read.retire(first.drained)
    del first.traced  # it is closed
    read.add(second.drained)
    second.head, second.traced = 700, 800
    read.measure()
    read.close()
    (area,) = read.balances()
    assert (area.produced_bytes, area.counters.stored_bytes) == (6_800, 5_700)
    assert (area.lost_bytes["kernel_ring/truncated"], area.unaccounted_bytes) == (1_100, 0)


def test_areas_that_are_gone_are_kept_as_a_sum() -> None:
    """A CPU may come and go for years; bytes of a file that somebody deletes are found in it."""
    kernel: Any = SimpleNamespace(
        read_counter=lambda fd, _: SimpleNamespace(value=fd.traced, lost=0)
    )
    alive: WeakSet[Area] = WeakSet()
    read = AuxCounterReader(kernel, [])
    for number in range(1, 21):
        area = Area(number)
        alive.add(area)
        read.add(area.drained)
        area.head = area.traced = 1_000
        read.measure()
        read.retire(area.drained)
    gc.collect()
    assert [one is area for one in alive] == [True]
    read.removed({1: 300})
    (place,) = read.balances()
    assert (place.produced_bytes, place.counters.stored_bytes) == (20_000, 19_700)
    assert (place.lost_bytes["sink/dropped"], place.unaccounted_bytes) == (300, 0)


def test_what_one_area_lacks_another_does_not_make_up_for() -> None:
    """Bytes that the first area's counters do not explain stay unaccounted."""
    kernel: Any = SimpleNamespace(
        read_counter=lambda fd, _: SimpleNamespace(value=fd.traced, lost=0)
    )
    first, second = Area(1), Area(2)
    read = AuxCounterReader(kernel, [first.drained])
    first.head, first.traced, first.unstored = 5_000, 5_000, 300
    read.retire(first.drained)
    read.add(second.drained)
    second.head, second.traced, second.unstored = 5_000, 5_000, -300
    read.close()
    (area,) = read.balances()
    assert (area.counters.stored_bytes, area.unaccounted_bytes) == (10_000, 600)


def test_a_manifest_has_one_entry_for_a_place() -> None:
    """Its id is that of the first ring; what the next ones stored is added to it."""
    host = Host()
    first, second, other = (
        host.ring(),
        host.ring(),
        host.ring(replace(HANDLE, label=replace(LABEL, cpu=2))),
    )
    no_times: Any = SimpleNamespace(to_json=lambda _: [])
    one: Any = SimpleNamespace(
        issued_generation=lambda: 0,
        clocks=lambda: None,
        add=lambda _: None,
        retire=lambda _: None,
        balances=lambda _: (),
        brackets={},
        suppression=no_times,
        pauses=no_times,
        shared_losses={},
        shared_bounds=(0, 0),
    )
    scope: Any = SimpleNamespace(describe=lambda: "system")
    sink = SimpleNamespace(single_file=None)
    plan: Any = SimpleNamespace(name="s", source="perf", scope=scope, sink=sink)
    accounting = Accounting(parts_of(plan, one, rings=(first.drained, other.drained)))
    closed = SegmentClosed(
        1, 1, 0, (), 0, 0, 0, 0, 0, 0, rings=((1, 5, 50), (3, 7, 70), (2, 1, 10))
    )
    assert accounting.by_place(closed) is closed
    accounting.retire(first.drained)
    accounting.add(second.drained)
    assert [(e.ring, e.cpu) for e in accounting.opening().rings] == [(1, 1), (3, 2)]
    assert accounting.by_place(closed).rings == ((1, 6, 60), (3, 7, 70))


def test_what_was_stored_meanwhile_is_in_the_last_reading_of_an_area() -> None:
    """A sum of stored bytes may have been read before the last of them were added."""
    kernel: Any = SimpleNamespace(
        read_counter=lambda fd, _: SimpleNamespace(value=fd.traced, lost=0)
    )
    area = Area(1)
    read = AuxCounterReader(kernel, [area.drained])
    area.head = area.traced = 1_000
    area.late = [400]
    read.retire(area.drained)
    (place,) = read.balances()
    assert (place.counters.stored_bytes, place.unaccounted_bytes) == (1_000, 0)
