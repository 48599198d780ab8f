# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3, embedsignature=True
"""Binding of the native core. Contracts of the calls are in `_core.pyi`."""

import os
from array import array
from collections import namedtuple

cimport cython
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free
from libc.string cimport memset

cdef extern from "chunk.h":
    const uint32_t ALIGN_BYTES "CHUNK_ALIGN_BYTES"

cdef extern from "walk.h":
    const uint32_t WALK_KERNEL_TYPE_MAX
    enum walk_fault:
        WALK_OK
        WALK_FAULTS
    const char *walk_fault__name(walk_fault fault)
    struct walk_ids:
        const uint64_t *all
        uint32_t count
    struct walk_layout:
        uint16_t time_offset
        uint16_t time_trailer
        const walk_ids *ids
    struct walk_tally:
        uint64_t records, samples, lost_records, lost_samples, first_ns, last_ns
    size_t walk__file(const uint8_t *data, size_t bytes, const walk_layout *layout,
                      walk_tally *tally, walk_fault *fault, size_t *last) nogil

cdef extern from "ring_map.h":
    struct ring_map:
        uint64_t data_bytes
        unsigned users
    int ring_map__init(ring_map *map, int fd, uint64_t data_bytes) nogil
    void ring_map__deinit(ring_map *map) nogil
    uint64_t ring_map__head(const ring_map *map)
    uint64_t ring_map__tail(const ring_map *map)

cdef extern from "ring.h":
    const int RING_FILL_BUCKETS
    ctypedef uint64_t counter_t
    uint64_t counter__read(const counter_t *counter)
    struct ring:
        uint32_t id, fault
        uint64_t position
        counter_t samples, records, bytes, stored, in_flight, lost_disk_full, lost_dropped
        counter_t lost_records, lost_samples, neutralised, relabelled, quarantined_bytes
        counter_t throttles, unthrottles, wakeups_watermark, wakeups_timer, starved
        counter_t used_bytes, high_watermark_bytes, last_sample_ns
        counter_t *fill

cdef extern from "sideband.h":
    struct sideband_counters:
        uint64_t tasks, maps, bytes, dropped
    struct sideband:
        pass
    int sideband__load(sideband *sb, const uint8_t *records, size_t bytes) nogil
    void sideband__read_counters(const sideband *sb, sideband_counters *counters) nogil

cdef extern from "stream.h":
    const uint32_t SHARDS_MAX
    struct stream:
        uint32_t id
        sideband sideband

cdef extern from "event_list.h":
    enum event_kind:
        EVENT_SEGMENT_CLOSED, EVENT_SEGMENT_WANTED, EVENT_SPACE_WANTED, EVENT_WRITE_FAILED
    struct event_ring:
        uint64_t samples, bytes
        uint32_t id
    struct event:
        event_kind kind
        int error
        uint32_t stream, ring_count
        bint final
        uint64_t token, end_offset, xxh3, chunks, records, samples, replayed, first_ns, last_ns
        event_ring *rings

cdef extern from "core.h":
    struct core:
        pass
    struct core_options:
        uint32_t shards, chunks, chunk_bytes
        uint64_t flush_ns, floor_bytes
    struct core_counters:
        uint64_t chunks, chunks_free, chunks_free_min
        uint64_t written_bytes, written_chunks, write_errors, write_ns
        uint64_t passes, wakeups, pass_ns, pass_ns_max
        uint64_t rounds, oldest_unwritten_ns
    int core__new(const core_options *options, core **out) nogil
    void core__free(core *c) nogil
    int core__start(core *c) nogil
    void core__stop(core *c) nogil
    int core__notify_fd(const core *c)
    int core__add_stream(core *c, size_t sideband_bytes, stream **out) nogil
    int core__add_ring(core *c, uint32_t shard, stream *s, ring_map *map, int wakeup_fd,
                       const walk_layout *layout, const walk_ids *ids, bint sideband,
                       ring **out) nogil
    int core__remove_ring(core *c, ring *r) nogil
    uint64_t core__issue(core *c) nogil
    uint64_t core__issued(core *c) nogil
    uint64_t core__drained(core *c) nogil
    uint64_t core__written(core *c) nogil
    int core__prepare(core *c, stream *s, uint64_t token, int fd, uint64_t offset,
                      uint64_t limit, uint64_t step_bytes) nogil
    void core__rotate(core *c, stream *s) nogil
    void core__finish(core *c, stream *s) nogil
    void core__answer_space(core *c, stream *s, bint retry) nogil
    event *core__event(core *c) nogil
    ring *core__quarantined(core *c) nogil
    ring *core__hung_up(core *c) nogil
    void core__read_counters(core *c, core_counters *counters) nogil
    int core__tid(core *c, uint32_t index) nogil

SegmentClosed = namedtuple("SegmentClosed", "stream token end_offset xxh3 chunks records samples "
                           "replayed first_ns last_ns rings final", defaults=(False,))
SegmentWanted = namedtuple("SegmentWanted", "stream")
SpaceWanted = namedtuple("SpaceWanted", "stream errno")
WriteFailed = namedtuple("WriteFailed", "stream token errno")
RingQuarantined = namedtuple("RingQuarantined", "ring reason position")
RingHungUp = namedtuple("RingHungUp", "ring")
RecordScan = namedtuple("RecordScan", "end records samples lost_samples first_ns last_ns last fault")
RingCounters = namedtuple(
    "RingCounters",
    "samples records bytes stored in_flight lost_disk_full lost_dropped lost_records lost_samples "
    "neutralised relabelled quarantined quarantine_reason quarantined_bytes throttles unthrottles wakeups_watermark "
    "wakeups_timer starved used_bytes high_watermark_bytes last_sample_ns fill_buckets")
CoreCounters = namedtuple(
    "CoreCounters",
    "chunks chunks_free chunks_free_min written_bytes written_chunks write_errors write_ns passes "
    "wakeups pass_ns pass_ns_max rounds oldest_unwritten_ns")

CHUNK_ALIGN_BYTES = ALIGN_BYTES
SAMPLE_RECORD_MAX = WALK_KERNEL_TYPE_MAX
QUARANTINE_REASONS = tuple(walk_fault__name(<walk_fault>i).decode() for i in range(WALK_FAULTS))


cdef int check(int ret) except -1:
    if ret < 0:
        raise OSError(-ret, os.strerror(-ret))
    return ret


def scan_records(const uint8_t[::1] data not None, *, int time_offset=0):
    cdef walk_layout layout = walk_layout(time_offset, 0, NULL)
    cdef walk_tally tally
    cdef size_t end = 0, last = 0
    cdef walk_fault fault = WALK_OK
    memset(&tally, 0, sizeof(tally))
    if data.shape[0] > 0:
        with nogil:
            end = walk__file(&data[0], data.shape[0], &layout, &tally, &fault, &last)
    return RecordScan(end, tally.records, tally.samples, tally.lost_samples, tally.first_ns,
                      tally.last_ns, last, QUARANTINE_REASONS[fault])


cdef class RingMap:
    cdef ring_map map

    def __init__(self, int fd, uint64_t data_bytes):
        cdef int ret
        if self.map.data_bytes != 0:
            raise ValueError("the ring is mapped already")
        with nogil:
            ret = ring_map__init(&self.map, fd, data_bytes)
        check(ret)

    def __dealloc__(self):
        ring_map__deinit(&self.map)

    cdef int usable(self) except -1:
        if self.map.data_bytes == 0:
            raise ValueError("the ring is not mapped any more")
        return 0

    @property
    def data_bytes(self):
        return self.map.data_bytes

    @property
    def head(self):
        self.usable()
        return ring_map__head(&self.map)

    @property
    def tail(self):
        self.usable()
        return ring_map__tail(&self.map)

    def close(self):
        if self.map.users > 0:
            raise ValueError("a running core drains this ring")
        ring_map__deinit(&self.map)


cdef class Ring:
    cdef Core owner
    cdef ring *ring
    cdef RingMap map

    @property
    def id(self):
        return self.ring.id

    def counters(self):
        cdef ring *r = self.ring
        return RingCounters(
            counter__read(&r.samples), counter__read(&r.records), counter__read(&r.bytes),
            counter__read(&r.stored), counter__read(&r.in_flight),
            counter__read(&r.lost_disk_full), counter__read(&r.lost_dropped),
            counter__read(&r.lost_records), counter__read(&r.lost_samples),
            counter__read(&r.neutralised), counter__read(&r.relabelled), 1 if r.fault else 0, r.fault,
            counter__read(&r.quarantined_bytes), counter__read(&r.throttles),
            counter__read(&r.unthrottles), counter__read(&r.wakeups_watermark),
            counter__read(&r.wakeups_timer), counter__read(&r.starved),
            counter__read(&r.used_bytes), counter__read(&r.high_watermark_bytes),
            counter__read(&r.last_sample_ns),
            tuple(counter__read(&r.fill[i]) for i in range(RING_FILL_BUCKETS)))


cdef class Stream:
    cdef Core owner
    cdef stream *stream

    @property
    def id(self):
        return self.stream.id

    def prepare(self, uint64_t token, int fd, uint64_t offset, uint64_t limit_bytes,
                uint64_t step_bytes=0):
        check(core__prepare(self.owner.core, self.stream, token, fd, offset, limit_bytes,
                            step_bytes))

    def rotate(self):
        core__rotate(self.owner.core, self.stream)

    def finish(self):
        core__finish(self.owner.core, self.stream)

    def load_sideband(self, const uint8_t[::1] records not None):
        cdef int ret = 0
        if records.shape[0] > 0:
            with nogil:
                ret = sideband__load(&self.stream.sideband, &records[0], records.shape[0])
        check(ret)

    def space(self, bint retry):
        core__answer_space(self.owner.core, self.stream, retry)

    def sideband_counters(self):
        cdef sideband_counters counters
        with nogil:
            sideband__read_counters(&self.stream.sideband, &counters)
        return counters


# The collector must not unmap the rings of a core that is part of garbage before it stopped.
@cython.no_gc_clear
cdef class Core:
    cdef core *core
    cdef list rings
    cdef uint32_t shards
    cdef bint stopped

    def __init__(self, *, uint32_t shards=1, uint32_t chunks=64, uint32_t chunk_bytes=1 << 20,
                 uint64_t flush_ns=1_000_000_000, uint64_t floor_bytes=65536):
        cdef core_options options = core_options(shards, chunks, chunk_bytes, flush_ns,
                                                 floor_bytes)
        if self.core != NULL:
            raise ValueError("the core exists already")
        check(core__new(&options, &self.core))
        self.rings = []
        self.shards = shards

    def __dealloc__(self):
        if self.core != NULL:
            with nogil:
                core__free(self.core)

    @property
    def notify_fd(self):
        return core__notify_fd(self.core)

    def start(self):
        check(core__start(self.core))

    def add_stream(self, *, size_t sideband_bytes=16 << 20):
        cdef Stream stream = Stream.__new__(Stream)
        check(core__add_stream(self.core, sideband_bytes, &stream.stream))
        stream.owner = self
        return stream

    def add_ring(self, uint32_t shard, Stream stream not None, RingMap ring_map not None,
                 int wakeup_fd, *, bint sideband, uint16_t time_offset, uint16_t time_trailer,
                 ids=()):
        cdef walk_layout layout = walk_layout(time_offset, time_trailer, NULL)
        cdef uint64_t[::1] listed = array("Q", ids)
        cdef walk_ids known = walk_ids(NULL, <uint32_t>listed.shape[0])
        cdef Ring ring = Ring.__new__(Ring)
        cdef int ret
        ring_map.usable()
        if known.count > 0:
            known.all = &listed[0]
        with nogil:
            ret = core__add_ring(self.core, shard, stream.stream, &ring_map.map, wakeup_fd,
                                 &layout, &known, sideband, &ring.ring)
        check(ret)
        ring.owner = self
        ring.map = ring_map
        ring_map.map.users += 1
        self.rings.append(ring)
        return ring

    def remove_ring(self, Ring ring not None):
        cdef int ret
        if ring not in self.rings:
            return
        with nogil:
            ret = core__remove_ring(self.core, ring.ring)
        check(ret)
        self.rings.remove(ring)
        ring.map.map.users -= 1

    def request_flush(self):
        return core__issue(self.core)

    def issued_generation(self):
        return core__issued(self.core)

    def drained_generation(self):
        return core__drained(self.core)

    def written_generation(self):
        return core__written(self.core)

    def events(self):
        cdef list found = []
        cdef event *e
        cdef ring *r
        while True:
            e = core__event(self.core)
            if e == NULL:
                break
            if e.kind == EVENT_SEGMENT_CLOSED:
                found.append(SegmentClosed(
                    e.stream, e.token, e.end_offset, e.xxh3, e.chunks, e.records, e.samples,
                    e.replayed, e.first_ns, e.last_ns,
                    tuple((e.rings[i].id, e.rings[i].samples, e.rings[i].bytes)
                          for i in range(e.ring_count)),
                    e.final != 0))
            elif e.kind == EVENT_SEGMENT_WANTED:
                found.append(SegmentWanted(e.stream))
            elif e.kind == EVENT_SPACE_WANTED:
                found.append(SpaceWanted(e.stream, e.error))
            else:
                found.append(WriteFailed(e.stream, e.token, e.error))
            free(e)
        while (r := core__quarantined(self.core)) != NULL:
            found.append(RingQuarantined(r.id, r.fault, r.position))
        while (r := core__hung_up(self.core)) != NULL:
            found.append(RingHungUp(r.id))
        return found

    def counters(self):
        cdef core_counters c
        with nogil:
            core__read_counters(self.core, &c)
        return CoreCounters(c.chunks, c.chunks_free, c.chunks_free_min, c.written_bytes,
                            c.written_chunks, c.write_errors, c.write_ns, c.passes, c.wakeups,
                            c.pass_ns, c.pass_ns_max, c.rounds, c.oldest_unwritten_ns)

    def thread_ids(self):
        tids = {f"drain/{i}": core__tid(self.core, i) for i in range(self.shards)}
        tids["writer"] = core__tid(self.core, SHARDS_MAX)
        return tids

    def stop(self):
        with nogil:
            core__stop(self.core)
        while self.rings:
            (<Ring>self.rings.pop()).map.map.users -= 1
