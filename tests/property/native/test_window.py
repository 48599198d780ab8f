# SPDX-License-Identifier: Apache-2.0
"""A producer that overwrites as the kernel does, windows at any moment, and a model of both."""

from __future__ import annotations

import mmap
import os
import select
import struct
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from collectord._native import _core
from tests.support.examples import examples

if TYPE_CHECKING:
    from collections.abc import Iterator

_PAGE: Final = os.sysconf("SC_PAGESIZE")
_CHUNK_BYTES: Final = 65536 + 4096  # the smallest
_WAIT_MS: Final = 10_000
_HEAD_AT: Final = 1024  # perf_event_mmap_page
_COMM, _SAMPLE = 3, 9
_FINISHED_ROUND, _FINISHED_INIT = 68, 82
_TIME_OFFSET: Final = 16  # of every record here: header, key, time
_NESTING: Final = 4


@dataclass(frozen=True, slots=True)
class Written:
    """A record, and how many bytes had been written before it."""

    before: int
    data: bytes

    @property
    def is_sample(self) -> bool:
        """The ledger counts it."""
        return self.data.startswith(struct.pack("=I", _SAMPLE))


@dataclass(slots=True)
class Producer:
    """The kernel's side of one ring, and all it has put there."""

    number: int
    data_bytes: int
    fd: int
    memory: mmap.mmap
    written: int = 0
    taken: int = 0  # bytes that had been written when a window was taken last
    records: list[Written] = field(default_factory=list)
    stored: list[bytes] = field(default_factory=list)
    repeated: int = 0
    overwritten_bytes: int = 0

    @staticmethod
    def new(number: int, pages: int) -> Producer:
        """Return a ring of so many data pages in a memfd."""
        fd = os.memfd_create("ring")
        os.ftruncate(fd, (1 + pages) * _PAGE)
        return Producer(number, pages * _PAGE, fd, mmap.mmap(fd, (1 + pages) * _PAGE))

    def write(self, kind: int, size: int) -> None:
        """Write one record before the newest, over the oldest."""
        key = self.number << 32 | len(self.records)
        data = struct.pack("=IHHQQ", kind, 2, size, key, time.monotonic_ns())
        data += bytes((key + at) % 251 for at in range(size - len(data)))
        self.records.append(Written(self.written, data))
        self.written += size
        at = -self.written % self.data_bytes
        first = min(size, self.data_bytes - at)
        self.memory[_PAGE + at : _PAGE + at + first] = data[:first]
        self.memory[_PAGE : _PAGE + size - first] = data[first:]
        # At once: pack_into() clears its place first, and the drain may look meanwhile.
        self.memory[_HEAD_AT : _HEAD_AT + 8] = struct.pack("@Q", -self.written % (1 << 64))

    def take(self) -> None:
        """Take the contents of a window: the newest records that cannot be overwritten."""
        reach = min(self.written, self.data_bytes)
        whole = [r for r in self.records if self.written - r.before <= reach]
        trusted = reach
        if self.written > self.data_bytes:
            largest = max((len(r.data) for r in whole), default=0)
            roomy = largest < reach // (2 * _NESTING)
            trusted -= _NESTING * largest if roomy else reach // 2
        kept = [r for r in whole if self.written - r.before <= trusted]
        new = [r for r in kept if r.before >= self.taken]
        self.stored += [r.data for r in new]
        self.repeated += sum(r.is_sample for r in kept if r.before < self.taken)
        self.overwritten_bytes += self.written - self.taken - sum(len(r.data) for r in new)
        self.taken = self.written

    def close(self) -> None:
        """Give all back."""
        self.memory.close()
        os.close(self.fd)


def _split(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Return type and bytes of each record."""
    at = 0
    while at < len(data):
        kind, _, size = struct.unpack_from("=IHH", data, at)
        assert size >= 8
        assert at + size <= len(data)
        yield kind, data[at : at + size]
        at += size


_BATCH = st.lists(
    st.tuples(
        st.sampled_from([_SAMPLE, _SAMPLE, _SAMPLE, _COMM]),
        st.one_of(st.integers(4, 40), st.integers(4, 511)).map(lambda n: n * 8),
    ),
    min_size=1,
    max_size=80,
)


class Windows(RuleBasedStateMachine):
    """Rings are written, and windows taken of them, in any order; the core runs beside."""

    def __init__(self) -> None:
        super().__init__()
        self.producers: list[Producer] = []

    @initialize(
        pages=st.lists(st.sampled_from([1, 2, 16, 64]), min_size=1, max_size=3),
        shards=st.integers(1, 2),
        chunks=st.sampled_from([2, 16]),
    )
    def begin(self, pages: list[int], shards: int, chunks: int) -> None:
        """Open the rings and start the core."""
        self.core = _core.Core(
            shards=shards, chunks=chunks, chunk_bytes=_CHUNK_BYTES, flush_ns=2_000_000
        )
        self.stream = self.core.add_stream(sideband_bytes=65536, snapshots=True)
        self.producers = [Producer.new(number, count) for number, count in enumerate(pages)]
        self.maps = [_core.RingMap(p.fd, p.data_bytes, overwrite=True) for p in self.producers]
        self.rings = [
            self.core.add_ring(
                number % shards,
                self.stream,
                ring_map,
                -1,  # nobody waits for it
                sideband=False,
                time_offset=_TIME_OFFSET,
                time_trailer=0,
                held=True,
            )
            for number, ring_map in enumerate(self.maps)
        ]
        self.fd = os.memfd_create("segment")
        self.stream.prepare(1, self.fd, 0, 1 << 40)
        self.core.start()

    @rule(data=st.data(), batch=_BATCH, times=st.integers(1, 4))
    def produce(self, data: st.DataObject, batch: list[tuple[int, int]], times: int) -> None:
        """Write a batch into one ring."""
        producer = data.draw(st.sampled_from(self.producers))
        for kind, size in batch * times:
            producer.write(kind, size)

    @rule()
    def look(self) -> None:
        """A pass that finds nothing to take."""
        self.core.request_flush()

    @rule(warm=st.booleans())
    def snapshot(self, *, warm: bool) -> None:
        """Take windows of all rings; they are stored and counted."""
        for ring, producer in zip(self.rings, self.producers, strict=True):
            if warm:
                ring.warm()
            ring.hold(held=False)
            while not ring.answered:
                self._serve()
            producer.take()
        generation = self.core.request_flush()
        while self.stream.written_generation() < generation:
            self._serve()
        for ring, producer in zip(self.rings, self.producers, strict=True):
            counters = ring.counters()
            samples = sum(Written(0, data).is_sample for data in producer.stored)
            assert counters.samples == counters.stored == counters.window_taken == samples
            assert counters.records == len(producer.stored)
            assert counters.window_repeated == producer.repeated
            assert counters.window_overwritten_bytes == producer.overwritten_bytes
            assert counters.used_bytes == min(producer.written, producer.data_bytes)
            assert counters.in_flight == counters.quarantined == 0

    def _serve(self) -> list[_core.Event]:
        poll = select.poll()
        poll.register(self.core.notify_fd, select.POLLIN)
        assert poll.poll(_WAIT_MS), f"the core is silent: {self.core.counters()}"
        os.eventfd_read(self.core.notify_fd)
        return self.core.events()

    def teardown(self) -> None:
        """Finish, and compare the file with what was in the windows."""
        if not self.producers:
            return
        try:
            self.snapshot(warm=False)
            self.stream.finish()
            closed: list[_core.SegmentClosed] = []
            while not closed:
                closed = [e for e in self._serve() if isinstance(e, _core.SegmentClosed)]
            self.core.stop()
            self._compare(os.pread(self.fd, closed[0].end_offset, 0))
        finally:
            self.core.stop()
            for ring_map in self.maps:
                ring_map.close()
            for producer in self.producers:
                producer.close()
            os.close(self.fd)
            del self.core, self.stream, self.rings, self.maps
            self.producers = []

    def _compare(self, data: bytes) -> None:
        """Each ring's records are there, once, in the order of time; and no round."""
        found: dict[int, list[bytes]] = {producer.number: [] for producer in self.producers}
        for kind, record in _split(data):
            assert kind != _FINISHED_ROUND
            if kind != _FINISHED_INIT:
                found[struct.unpack_from("=Q", record, 8)[0] >> 32].append(record)
        for producer in self.producers:
            assert found[producer.number] == producer.stored


Windows.TestCase.settings = settings(max_examples=examples(100), stateful_step_count=30)
TestWindows = Windows.TestCase
