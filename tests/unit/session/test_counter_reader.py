# SPDX-License-Identifier: Apache-2.0
"""The counters that are read, and compared, when rings are not drained in time."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from collectord._native._core import RingCounters
from collectord.model import Basis, Geometry, Produced, Reason, RingLabel, RingRole, Stage
from collectord.session.counter_reader import CounterReader, Drained
from collectord.source.base import Abilities
from collectord.source.perf_ring import PerfRing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from collectord.ledger.record_ledger import RingBalance
    from collectord.model import LossKey
    from collectord.source.ring import RingHandle

LABEL = RingLabel("s", "perf", RingRole.DATA, 0)
MAP: Any = None
HANDLE = PerfRing(
    map=MAP,
    fd=-1,
    basis=Basis.EXACT,
    geometry=Geometry(4096, 1024, 8192),
    label=LABEL,
    time_offset=0,
    time_trailer=0,
)


class Source:
    """A kernel whose counts the test sets."""

    def __init__(self) -> None:
        self.abilities = Abilities(shared=(self,))
        self.value = self.lost = self.reads = 0
        self.shared: dict[LossKey, int] = {}

    def read_produced(self, ring: RingHandle) -> Produced:
        """Count one interrupt."""
        del ring
        self.reads += 1
        return Produced(value=self.value, lost=self.lost)

    def shared_losses(self) -> Mapping[LossKey, int]:
        """Return the losses that the test sets."""
        return self.shared


class Rig:
    """One ring, whose counters of the core and of the kernel the test sets."""

    def __init__(self) -> None:
        self.source = Source()
        zeros: Any = (0 for _ in RingCounters._fields)
        self.counters = RingCounters(*zeros)._replace(fill_buckets=())
        ring: Any = SimpleNamespace(id=0, counters=lambda: self.counters)
        one: Any = self.source
        self.counter_reader = CounterReader(one, [Drained(replace(HANDLE), ring)], ())

    def drain(self, samples: int) -> None:
        """Let the core take the records and store them."""
        taken = self.counters.samples + samples
        self.counters = self.counters._replace(samples=taken, records=taken, stored=taken)

    def balance(self) -> RingBalance:
        """Return the balance of the last reading."""
        return self.counter_reader.balances()[0]


def test_the_counters_of_an_idle_ring_are_left_alone() -> None:
    """Each costs an interrupt of its CPU."""
    rig = Rig()
    reads = rig.source.reads
    rig.counter_reader.measure()
    assert rig.source.reads == reads


def test_a_ring_that_is_not_drained_for_want_of_room_is_no_idle_one() -> None:
    """The kernel's counts are reported meanwhile, though the core counts nothing."""
    rig = Rig()
    rig.source.value, rig.source.lost = 1000, 900
    rig.counters = rig.counters._replace(starved=1)
    rig.counter_reader.measure(passed=False)
    assert rig.balance().produced == 1000
    assert rig.balance().lost["kernel_ring/ring_full"] == 900


def test_a_ring_in_quarantine_is_no_idle_one() -> None:
    """It fills up, and the kernel counts what it refuses."""
    rig = Rig()
    rig.counters = rig.counters._replace(quarantined=1, quarantine_reason=1)
    rig.counter_reader.measure()
    rig.source.value, rig.source.lost = 1000, 1000
    rig.counter_reader.measure()
    assert rig.balance().produced == 1000
    assert rig.balance().lost["kernel_ring/ring_full"] == 1000


def test_what_is_still_in_a_ring_is_not_missed() -> None:
    """Only what was counted before a pass that is done has to be somewhere."""
    rig = Rig()
    for produced, drained in ((100, 10), (200, 20), (300, 30)):
        rig.source.value = produced
        rig.drain(drained)
        rig.counter_reader.measure(passed=False)
        assert (rig.balance().produced, rig.balance().unaccounted) == (produced, 0)


def test_what_a_pass_has_not_brought_is_missed() -> None:
    """The pass that is done began after the first reading, however many were made meanwhile."""
    rig = Rig()
    rig.source.value = 100
    rig.drain(1)
    rig.counter_reader.measure()
    rig.source.value = 150
    rig.drain(1)
    rig.counter_reader.measure(passed=False)
    assert rig.balance().unaccounted == 0
    rig.drain(1)
    rig.counter_reader.measure()
    assert rig.balance().unaccounted == 100 - 3 - 4  # as many as may be on their way


def test_a_surplus_is_seen_though_no_pass_is_done() -> None:
    """More was taken than the kernel has counted by now."""
    rig = Rig()
    rig.source.value = 10
    rig.drain(12)
    rig.counter_reader.measure(passed=False)
    assert rig.balance().unaccounted == 2


def test_events_are_the_kernels_or_else_what_was_drained_and_lost() -> None:
    """Losses cost as much as records; a ring that nobody drains is asked again."""
    rig = Rig()
    rig.source.value, rig.source.lost = 1000, 900
    rig.drain(100)
    rig.counter_reader.measure()
    assert rig.counter_reader.events() == 1000
    unknown: Any = None
    rig.source.value = unknown
    rig.drain(1)
    rig.counter_reader.measure()
    assert rig.counter_reader.events() == 101 + 900


class AtOnce(Source):
    """Reads the counts of two rings at once; at each look something more has happened in both."""

    def __init__(self) -> None:
        super().__init__()
        self.happened = 0
        self._told: set[RingLabel] = set()

    def counters(self) -> RingCounters:
        """The core's: all has been drained, and is stored."""
        self.happened += 1
        zeros: Any = (0 for _ in RingCounters._fields)
        counted = dict.fromkeys(("samples", "records", "stored"), self.happened)
        return RingCounters(*zeros)._replace(fill_buckets=(), **counted)

    def read_produced(self, ring: RingHandle) -> Produced:
        """A ring that is read again has those of both read anew."""
        if not self._told or ring.label in self._told:
            self.value, self._told = self.happened, set()
        self._told.add(ring.label)
        return super().read_produced(ring)


def test_counts_that_are_read_at_once_are_read_behind_the_cores() -> None:
    """No ring has stored more than was counted of it, in a reading or in the last one."""
    source: Any = AtOnce()
    labels = [replace(LABEL, cpu=cpu) for cpu in range(2)]
    rings: Any = [SimpleNamespace(id=cpu, counters=source.counters) for cpu in range(2)]
    handles = [replace(HANDLE, label=label) for label in labels]
    drained = [Drained(handle, ring) for handle, ring in zip(handles, rings, strict=True)]
    counter_reader = CounterReader(source, drained, ())
    for read in (counter_reader.measure, counter_reader.measure, counter_reader.close):
        read()
        brackets = counter_reader.brackets.values()
        assert all(b.counters.stored <= (b.after.value or 0) for b in brackets)


def test_a_ring_is_quiet_while_little_comes_to_it() -> None:
    """In bytes that are drained, or in records that the kernel counts, between two readings."""
    rig = Rig()
    for drained_bytes, value, quiet in (
        (0, 0, True),
        (1000, 10, True),
        (1000 + (32 << 10), 20, False),
        (2000 + (32 << 10), 20, True),
        (3000 + (32 << 10), 20 + 4096, False),
        (3000 + (32 << 10), 20 + 4096, True),
    ):
        rig.source.value = value
        if drained_bytes != rig.counters.bytes:
            rig.drain(1)
        rig.counters = rig.counters._replace(bytes=drained_bytes)
        rig.counter_reader.measure()
        assert rig.counter_reader.is_quiet is quiet


def test_a_reading_tells_whether_more_was_lost() -> None:
    """By a figure that rises with each loss of a ring or of all, and with nothing else."""
    rig = Rig()
    dropped = (Stage.KERNEL_RING, Reason.DROPPED)
    seen = [rig.counter_reader.lost]
    for lost, starved, disk_full, shared in (
        (0, 0, 0, 0), (5, 0, 0, 0), (5, 1, 0, 0), (5, 1, 3, 0), (5, 1, 3, 2), (5, 1, 3, 2),
    ):  # fmt: skip
        rig.drain(1)
        rig.source.lost, rig.source.shared = lost, {dropped: shared}
        rig.counters = rig.counters._replace(starved=starved, lost_disk_full=disk_full)
        rig.counter_reader.measure()
        seen.append(rig.counter_reader.lost)
    assert [b > a for a, b in pairwise(seen)] == [False, True, True, True, True, False]


def test_losses_are_summed_with_what_tells_why() -> None:
    """By stage and reason, those that no ring's counters have among them."""
    rig = Rig()
    dropped = (Stage.KERNEL_RING, Reason.DROPPED)
    rig.source.shared = {dropped: 2}
    rig.source.lost = 900
    rig.counters = rig.counters._replace(
        starved=3, records=10, bytes=1000, lost_samples=5, lost_disk_full=4
    )
    rig.counter_reader.measure()
    losses = rig.counter_reader.losses()
    assert (losses.starved, losses.records, losses.bytes, losses.unit) == (3, 10, 1000, "records")
    assert {key: lost for key, lost in losses.lost.items() if lost} == {
        (Stage.KERNEL_RING, Reason.RING_FULL): 900,
        (Stage.SINK, Reason.DISK_FULL): 4,
        dropped: 7,
    }
