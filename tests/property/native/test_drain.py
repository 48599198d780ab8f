# SPDX-License-Identifier: Apache-2.0
"""A producer that follows the kernel's ring protocol, the native drain, and a model of both."""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import xxhash
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from collectord._native import _core
from tests.support.drained import Drained
from tests.support.examples import examples
from tests.support.sums import assert_sums

if TYPE_CHECKING:
    from collections.abc import Iterator

_PAGE: Final = os.sysconf("SC_PAGESIZE")
_CHUNK_BYTES: Final = 65536 + 4096  # the smallest
_HEAD_AT: Final = 1024  # perf_event_mmap_page
_TAIL_AT: Final = 1032
_LOST, _COMM, _THROTTLE, _UNTHROTTLE, _SAMPLE, _UNKNOWN = 2, 3, 5, 6, 9, 30
_FINISHED_ROUND, _FINISHED_INIT = 68, 82
_TIME_OFFSET: Final = 24  # of every record here: header, key, value, time
_RECORD_MIN: Final = 32


def _record(kind: int, size: int, key: int, value: int, now_ns: int) -> bytes:
    body = struct.pack("=IHHQQQ", kind, 2, size, key, value, now_ns)
    return body + bytes((key + at) % 251 for at in range(size - len(body)))


@dataclass(slots=True)
class Producer:
    """The kernel's side of one ring, and all it has put there."""

    number: int
    data_bytes: int
    fd: int
    wakeup_fd: int
    memory: mmap.mmap
    head: int = 0
    lost: int = 0  # since the last record that fitted
    records: list[bytes] = field(default_factory=list)
    visible_ns: dict[int, int] = field(default_factory=dict)  # by key: in the ring by then

    @staticmethod
    def new(number: int, pages: int) -> Producer:
        """Return a ring of so many data pages in a memfd."""
        fd = os.memfd_create("ring")
        os.ftruncate(fd, (1 + pages) * _PAGE)
        memory = mmap.mmap(fd, (1 + pages) * _PAGE)
        return Producer(number, pages * _PAGE, fd, os.eventfd(0, os.EFD_NONBLOCK), memory)

    def _store(self, record: bytes) -> None:
        at = self.head % self.data_bytes
        first = min(len(record), self.data_bytes - at)
        self.memory[_PAGE + at : _PAGE + at + first] = record[:first]
        self.memory[_PAGE : _PAGE + len(record) - first] = record[first:]
        self.head += len(record)
        self.records.append(record)

    def write(self, kind: int, size: int) -> None:
        """Write one record, behind a LOST if earlier ones found no room; or lose it."""
        now_ns = time.monotonic_ns()
        key = self.number << 32 | len(self.records) + 1
        # Native: one access. The standard forms go byte by byte, and a drain may see half a head.
        (tail,) = struct.unpack_from("@Q", self.memory, _TAIL_AT)
        extra = _RECORD_MIN if self.lost else 0
        if self.data_bytes - 1 - (self.head - tail) < size + extra:
            self.lost += 1
            return
        if self.lost:
            self._store(_record(_LOST, _RECORD_MIN, key, self.lost, now_ns))
            key += 1
            self.lost = 0
        self._store(_record(kind, size, key, 0, now_ns))
        # At once: pack_into() clears its place first, and the drain may look meanwhile.
        self.memory[_HEAD_AT : _HEAD_AT + 8] = struct.pack("@Q", self.head)
        visible_ns = time.monotonic_ns()
        for written in (key - 1, key):
            self.visible_ns.setdefault(written, visible_ns)

    def count(self, kind: int) -> int:
        """Count records of this type."""
        return sum(struct.unpack_from("=I", record)[0] == kind for record in self.records)

    def told_lost(self) -> int:
        """Return the sum over its LOST records."""
        heads = (struct.unpack_from("=IHHQQ", record) for record in self.records)
        return sum(value for kind, _, _, _, value in heads if kind == _LOST)

    def stored_records(self) -> list[bytes]:
        """Return records as a segment has them: types unknown to readers become padding."""
        return [
            struct.pack("=IHH", _FINISHED_INIT, 0, len(record)) + record[8:]
            if struct.unpack_from("=I", record)[0] == _UNKNOWN
            else record
            for record in self.records
        ]

    def close(self) -> None:
        """Give all back."""
        self.memory.close()
        os.close(self.fd)
        os.close(self.wakeup_fd)


def _split(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Return offset, type and bytes of each record."""
    at = 0
    while at < len(data):
        kind, _, size = struct.unpack_from("=IHH", data, at)
        assert size >= 8
        assert size % 8 == 0
        assert at + size <= len(data)
        yield at, kind, data[at : at + size]
        at += size


def _is_padding(at: int, record: bytes) -> bool:
    """Return whether the record is the writer's padding, which ends a chunk with its footer."""
    ends = (at + len(record)) % _core.CHUNK_ALIGN_BYTES == 0
    return ends and not any(record[8:-24]) and record[-24:-16] == _FOOTER


_FOOTER = b"CHNKEND1"
_PAGES = st.sampled_from([1, 2, 16])
_BATCH = st.lists(
    st.tuples(
        st.sampled_from([_SAMPLE, _SAMPLE, _SAMPLE, _COMM, _THROTTLE, _UNTHROTTLE, _UNKNOWN]),
        st.one_of(st.integers(4, 40), st.integers(4, 511), st.just(8191)).map(lambda n: n * 8),
    ),
    min_size=1,
    max_size=60,
)


class Drain(Drained):
    """Rings are written, woken, flushed and rotated in any order; the drain runs beside."""

    def __init__(self) -> None:
        super().__init__()
        self.producers: list[Producer] = []

    @initialize(
        pages=st.lists(_PAGES, min_size=1, max_size=4),
        shards=st.integers(1, 2),
        chunks=st.sampled_from([1, 2, 16]),
        limit_bytes=st.sampled_from([4096, 3 * _CHUNK_BYTES, 1 << 30]),
        floor_bytes=st.sampled_from([0, 2048, 65536]),
    )
    def begin(
        self, pages: list[int], shards: int, chunks: int, limit_bytes: int, floor_bytes: int
    ) -> None:
        """Open the rings and start the core."""
        self.start(
            shards=shards,
            chunks=chunks,
            chunk_bytes=_CHUNK_BYTES,
            floor_bytes=floor_bytes,
            limit_bytes=limit_bytes,
        )
        self.rings = []
        self.maps = []
        for number, ring_pages in enumerate(pages, start=1):
            producer = Producer.new(number, ring_pages)
            self.producers.append(producer)
            ring_map = _core.RingMap(producer.fd, producer.data_bytes)
            self.maps.append(ring_map)
            ring = self.core.add_ring(
                number % shards,
                self.stream,
                ring_map,
                producer.wakeup_fd,
                sideband=False,
                time_offset=_TIME_OFFSET,
                time_trailer=0,
            )
            self.rings.append(ring)
        self.prepare()
        self.core.start()

    @rule(data=st.data(), batch=_BATCH)
    def produce(self, data: st.DataObject, batch: list[tuple[int, int]]) -> None:
        """Write a batch into one ring, as far as it has room."""
        producer = data.draw(st.sampled_from(self.producers))
        for kind, size in batch:
            producer.write(kind, size)

    @rule(data=st.data())
    def wake(self, data: st.DataObject) -> None:
        """The watermark of one ring is reached."""
        os.eventfd_write(data.draw(st.sampled_from(self.producers)).wakeup_fd, 1)

    @rule()
    def ask_for_a_pass(self) -> None:
        """Generations may overlap."""
        self.core.request_flush()

    @rule()
    def flush(self) -> None:
        """The contents of the rings are written, and the counters agree."""
        generation = self.await_generation()
        assert self.stream.drained_generation() >= generation
        for ring, producer in zip(self.rings, self.producers, strict=True):
            counters = ring.counters()
            assert counters.samples == counters.stored == producer.count(_SAMPLE)
            assert counters.in_flight == 0
            assert counters.records == len(producer.records)
            assert counters.bytes == producer.head
            assert counters.lost_records == producer.told_lost()
            assert counters.neutralised == producer.count(_UNKNOWN)
            assert counters.throttles == producer.count(_THROTTLE)
            assert counters.high_watermark_bytes <= producer.data_bytes
            assert not counters.quarantined
            assert not counters.lost_disk_full + counters.lost_dropped

    def teardown(self) -> None:
        """Finish, and compare the files with what was produced."""
        if self.producers:
            self.end(self.maps, self.producers)
            del self.rings, self.maps
            self.producers = []

    def await_end(self) -> None:
        """See `Drained`."""
        self.flush()
        written = sum(ring.counters().records for ring in self.rings)
        self.stream.finish()
        while not self.closed or sum(c.records for c in self.closed.values()) < written:
            self.serve()

    def compare(self) -> None:
        """See `Drained`."""
        found: defaultdict[int, list[bytes]] = defaultdict(list)
        samples = 0
        for token in sorted(self.closed):
            closed = self.closed[token]
            data = os.pread(self.files[token], closed.end_offset, 0)
            assert len(data) == closed.end_offset
            assert closed.end_offset % _core.CHUNK_ALIGN_BYTES == 0
            assert_sums(data, closed.sums)
            in_segment = self._read_segment(data, found)
            assert closed.samples == in_segment
            assert closed.samples == sum(ring[1] for ring in closed.rings)
            samples += in_segment
        assert samples == sum(producer.count(_SAMPLE) for producer in self.producers)
        for producer in self.producers:
            assert found[producer.number] == producer.stored_records()

    def _read_segment(self, data: bytes, found: dict[int, list[bytes]]) -> int:
        """Sort the records by ring; returns how many samples there are.

        Behind a FINISHED_ROUND nothing may come that was in its ring before the newest record
        that stands before the marker before: a reader has printed up to there.
        """
        samples = newest_ns = newest_at_marker_ns = printed_ns = chunk = 0
        for at, kind, record in _split(data):
            if kind == _FINISHED_ROUND:
                assert len(record) == 8
                printed_ns, newest_at_marker_ns = newest_at_marker_ns, newest_ns
                continue
            if kind == _FINISHED_INIT and _is_padding(at, record):
                assert len(record) < _core.CHUNK_ALIGN_BYTES + 32
                end = at + len(record)
                start, digest = struct.unpack("=QQ", record[-16:])
                assert start == chunk
                assert digest == xxhash.xxh3_64_intdigest(data[start : end - 8])
                chunk = end
                continue
            key, _, time_ns = struct.unpack_from("=QQQ", record, 8)
            number = key >> 32
            assert self.producers[number - 1].visible_ns[key] >= printed_ns
            newest_ns = max(newest_ns, time_ns)
            found[number].append(record)
            samples += kind == _SAMPLE
        return samples


Drain.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=40)
TestDrain = Drain.TestCase
