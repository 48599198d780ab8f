# SPDX-License-Identifier: Apache-2.0
"""The balance of relay rings: what the core finds in them, and what no CPU is told of."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from collectord._native import _core
from collectord.ledger.ledger_json import to_json
from collectord.ledger.manifest_balance import manifest_balance
from collectord.ledger.record_ledger import balance_session
from collectord.metrics.prometheus import registry
from collectord.model import (
    Basis,
    Geometry,
    Produced,
    Reason,
    RingLabel,
    RingRole,
    Stage,
)
from collectord.session.counter_reader import CounterReader, Drained
from collectord.source.base import Abilities
from collectord.source.channel_ring import BlktraceRing, ChannelRing
from tests.support import balances
from tests.support.relay_records import note, record

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from collectord.model import LossKey
    from collectord.source.ring import RingHandle

DROPPED = (Stage.KERNEL_RING, Reason.DROPPED)


class Trace:
    """A source whose count of dropped records is what the test says."""

    def __init__(self) -> None:
        self.dropped = 0
        self.read = 0
        self.abilities = Abilities(shared=(self,))

    def read_produced(self, ring: RingHandle) -> Produced:
        """Return no count of its own."""
        del ring
        self.read += 1
        return Produced(value=None, lost=0, losses={DROPPED: 0})

    def shared_losses(self) -> Mapping[LossKey, int]:
        """Return the losses of all CPUs."""
        return {DROPPED: self.dropped}


class Rig:
    """A core that reads one pipe as a relay file, without a thread of its own."""

    def __init__(self, stack: ExitStack, *, blktrace: bool) -> None:
        source, self.sink = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        stack.callback(os.close, source)
        stack.callback(os.close, self.sink)
        self.core = _core.Core(chunk_bytes=128 << 10, chunks=4)
        self.core.start()
        stack.callback(self.core.stop)
        stream = self.core.add_relay_stream()
        ring = self.core.add_relay_ring(
            0, stream, source, capacity_bytes=1 << 20, blktrace=blktrace
        )
        kind = BlktraceRing if blktrace else ChannelRing
        handle = kind(
            fd=source,
            basis=Basis.EXACT if blktrace else Basis.NONE,
            geometry=Geometry(1 << 20, 1 << 18, 1 << 20),
            label=RingLabel("s", "relay", RingRole.DATA, 0),
        )
        self.trace = Trace()
        self.counter_reader = CounterReader(self.trace, [Drained(handle, ring)], ())  # type: ignore[arg-type]

    def close(self) -> None:
        """Let go of the core, whoever still has this."""
        del self.core, self.counter_reader

    def give(self, data: bytes) -> None:
        """Have the core read this."""
        os.write(self.sink, data)
        generation = self.core.request_flush()
        while self.core.drained_generation() < generation:
            os.sched_yield()


@pytest.fixture
def rig() -> Iterator[Rig]:
    """Return a rig with records of blktrace."""
    with ExitStack() as stack:
        made = Rig(stack, blktrace=True)
        yield made
    made.close()


def test_produced_is_what_the_kernel_numbered(rig: Rig) -> None:
    """A number without its record is an overrun; notes are in no count."""
    rig.give(note("x") + record(1) + record(2) + record(5))
    rig.counter_reader.measure()
    (ring,) = rig.counter_reader.balances()
    assert (ring.produced, ring.in_flight, ring.unaccounted) == (5, 3, 0)
    assert ring.lost["kernel_ring/overrun"] == 2
    assert (ring.counters.records, ring.in_bytes) == (4, False)


def test_a_fault_is_counted_and_the_ring_goes_on(rig: Rig) -> None:
    """Invalid data are skipped; after eight faults the rest is not trusted either."""
    other = bytes([record(2)[0] ^ 1]) + record(2)[1:]
    rig.give(record(1))
    rig.give(other)
    rig.give(record(3))
    rig.counter_reader.measure()
    (ring,) = rig.counter_reader.balances()
    assert (ring.in_flight, ring.counters.faults, ring.quarantined) == (2, 1, None)
    assert (ring.lost["staging/quarantined"], ring.faulty_bytes) == (1, len(other))
    (told,) = (event for event in rig.core.events() if isinstance(event, _core.RingFault))
    reason = _core.QUARANTINE_REASONS[told.reason]
    assert not told.quarantined
    for _ in range(7):
        rig.give(other)
    rig.counter_reader.measure()
    (ring,) = rig.counter_reader.balances()
    assert (ring.counters.faults, ring.quarantined) == (8, reason)
    (told,) = (event for event in rig.core.events() if isinstance(event, _core.RingFault))
    assert told.quarantined


def test_a_ring_that_nobody_wrote_is_not_read_again(rig: Rig) -> None:
    """Its balance is as it was, and nothing is said to be new."""
    rig.give(record(1))
    assert rig.counter_reader.measure()
    before, read = rig.counter_reader.balances(), rig.trace.read
    assert not rig.counter_reader.measure()
    assert (rig.counter_reader.balances(), rig.trace.read) == (before, read)
    rig.trace.dropped = 7
    assert rig.counter_reader.measure()  # what all rings share is news of its own
    rig.give(record(2))
    assert rig.counter_reader.measure()
    assert rig.trace.read > read


def test_dropped_records_are_the_sessions(rig: Rig) -> None:
    """They are produced and lost, on no CPU, and the same in the manifest."""
    rig.give(record(1))
    rig.trace.dropped = 7
    rig.counter_reader.close()
    session = balance_session(
        "s",
        "relay",
        "system",
        rig.counter_reader.balances(),
        shared=rig.counter_reader.shared_losses,
    )
    assert (session.produced, session.lost["kernel_ring/dropped"]) == (8, 7)
    assert sum(ring.produced or 0 for ring in session.rings) == 1
    reader = rig.counter_reader
    manifest = manifest_balance(session, reader.brackets, reader.shared_bounds)
    assert (manifest.produced_before, manifest.produced_after) == (1, 8)
    assert manifest.produced == 8


@pytest.mark.parametrize("per_cpu", [False, True])
def test_metrics_add_up(rig: Rig, *, per_cpu: bool) -> None:
    """With a label for the CPU, what has none is of CPU -1."""
    rig.give(record(1))
    rig.trace.dropped = 7
    rig.counter_reader.close()
    session = balance_session(
        "s",
        "relay",
        "system",
        rig.counter_reader.balances(),
        shared=rig.counter_reader.shared_losses,
    )
    made = registry(
        lambda: balances.status(session, session), kernel_release="6.12", per_cpu=per_cpu
    )
    labels = {"session": "s", "source": "relay"} | ({"cpu": "-1"} if per_cpu else {})
    lost = made.get_sample_value(
        "collectord_lost_records_total",
        labels | {"stage": "kernel_ring", "reason": "dropped"},
    )
    assert lost == 14  # two devices of one session
    state = {"session": "s", "source": "relay", "state": "running"}
    assert made.get_sample_value("collectord_session_state", state) == 1


def test_bytes_of_a_channel_have_no_balance() -> None:
    """Nobody counts what was produced; what came is counted in bytes."""
    with ExitStack() as stack:
        rig = Rig(stack, blktrace=False)
        rig.give(bytes(1000))
        rig.counter_reader.measure()
        (ring,) = rig.counter_reader.balances()
    assert (ring.produced, ring.unaccounted, ring.in_flight) == (None, None, 1000)
    assert (ring.basis, ring.in_bytes) == (Basis.NONE, True)
    session = balance_session("s", "relay", "system", (ring,))
    assert to_json(session)["unit"] == "bytes"
