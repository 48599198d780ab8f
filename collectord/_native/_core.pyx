# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3, embedsignature=True
"""Binding of the native core. Contracts of the calls are in `_core.pyi`."""

import os
from array import array
from itertools import chain

cimport cython
from libc.errno cimport EINTR, errno
from libc.stdint cimport UINT64_MAX, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memset
from posix.types cimport off_t

from collectord._native.values import (
    AuxCounters, BlktraceScan, CoreCounters, PageScan, RecordScan, RingCounters, RingFault,
    RingHungUp, SegmentClosed, SegmentWanted, SidebandCounters, SpaceWanted, Sum, WriteFailed)

cdef extern from "<fcntl.h>":
    const int FALLOC_FL_COLLAPSE_RANGE
    int fallocate(int fd, int mode, off_t at, off_t bytes) nogil

cdef extern from "sideband_table.h":
    struct sideband_table:
        uint64_t task_count, map_count, bytes, dropped

cdef extern from "core.h":
    enum fault:
        FAULT_NONE
    const uint32_t FAULTS
    const char **fault_names
    struct walk_id:
        uint64_t own, filed
    struct walk_ids:
        const walk_id *all
        uint32_t count
        bint renamed
    struct walk_layout:
        uint16_t time_offset, time_trailer, cpu_trailer
        const walk_ids *ids
    const uint32_t ALIGN_BYTES "CHUNK_ALIGN_BYTES"
    const int RING_FILL_BUCKETS
    enum command:
        COMMAND_HOLD, COMMAND_LET_GO, COMMAND_LAST, COMMAND_REMOVE
    struct ring:
        lane *lane
        bint held
        uint32_t id, fault, last_fault
        uint64_t position, samples, records, bytes, stored, in_flight, lost_disk_full
        uint64_t lost_dropped, faults, quarantined_bytes, wakeups_watermark, wakeups_timer, starved
        uint64_t used_bytes, high_watermark_bytes, last_sample_ns, abandoned
        uint64_t *fill
    struct mapped_files:
        uint64_t dropped
    uint8_t *mapped_files__copy(mapped_files *files, uint64_t *since, size_t *bytes) nogil
    size_t mapped_files__makers(mapped_files *files, uint32_t *pids) nogil
    enum:
        CODE_MAKERS_MAX
    struct sideband:
        mapped_files files
        const sideband_table *table
        uint64_t log_dropped
    int sideband__load(sideband *sb, const uint8_t *records, size_t bytes,
                       uint64_t until_ns) nogil
    struct chunk_table:
        pass
    int chunk_table__set(chunk_table *table, const uint8_t *data, size_t bytes) nogil
    const uint64_t NO_PLACE
    struct segment:
        uint64_t token, offset, limit, step, tail, capacity
        uint64_t chunks, records, samples, replayed, first_ns, last_ns
        uint64_t *aux_index
        uint32_t aux_count
        uint64_t size_at, size_base
        int fd, size_fd
        chunk_table table
    int segment__set_places(segment *s, uint32_t first_id, const uint64_t *places,
                            uint32_t count) nogil
    struct stream_ops:
        pass
    const stream_ops record_stream__ops
    struct stream_options:
        const stream_ops *ops
        size_t sideband_bytes
        uint32_t page_bytes
        bint snapshots, foreign_clock
    enum request:
        ROTATE, TURN, FINISH, HURRY, REST, SPACE_GIVE_UP, SPACE_RETRY
    struct share:
        uint32_t rank
    struct stream:
        uint32_t id
        share data_share
        sideband sideband
        int tell_error
    void stream__set_rank(stream *s, uint32_t rank)
    enum:
        RANKS
    struct lane:
        stream *stream
    lane *stream__lane(const stream *s, uint32_t shard)
    uint64_t stream__drained(const stream *s, uint64_t issued)
    uint64_t stream__written(const stream *s, uint64_t issued)
    uint64_t stream__round_ns(const stream *s, uint64_t issued)
    uint64_t stream__left_ns(stream *s)
    struct sum:
        uint64_t bytes, xxh3
    enum event_kind:
        EVENT_SEGMENT_CLOSED, EVENT_SEGMENT_WANTED, EVENT_SPACE_WANTED, EVENT_WRITE_FAILED
    struct event_ring:
        uint64_t samples, bytes
        sum *sums
        uint32_t sum_count
        uint32_t id
        bint payload
    struct event:
        event_kind kind
        int error
        uint32_t stream, ring_count
        bint final, early, split
        segment segment
        sum *sums
        uint32_t sum_count
        event_ring *rings
    void event__free(event *e)
    struct event_list:
        int fd
    struct writer:
        uint64_t generation, followed
        uint32_t shard_count
    uint64_t writer__issue(writer *w) nogil
    uint64_t writer__drained(const writer *w) nogil
    void *writer__disk(writer *w, uint64_t device)
    struct shard:
        int tid
        uint64_t passed
    uint64_t disk__waits_ns(stream *s) nogil
    struct pool:
        uint32_t count
        uint32_t chunk_bytes
    size_t pool__bytes(uint32_t count, uint32_t chunk_bytes)
    void pool__keep(pool *p, uint8_t *memory)
    struct core:
        pool pool
        event_list events
        writer writer
        shard *shards
    struct core_options:
        uint32_t shards, chunks, chunk_bytes
        uint64_t flush_ns, floor_bytes
    struct core_counters:
        uint64_t chunks, chunks_free, chunks_free_min
        uint64_t written_bytes, written_chunks, write_errors, write_ns
        uint64_t passes, wakeups, pass_ns, pass_ns_max
        uint64_t oldest_unwritten_ns
    int core__new(const core_options *options, core **out) nogil
    void core__free(core *c) nogil
    int core__start(core *c) nogil
    void core__stop(core *c) nogil
    int core__add_stream(core *c, const stream_options *options, stream **out) nogil
    void core__forget_stream(core *c, stream *s)
    int core__add_ring(core *c, uint32_t shard, stream *s, ring *r) nogil
    void core__forget_ring(ring *r)
    int shard__post(ring *r, command command)
    bint shard__has_answered(const ring *r)
    bint shard__has_left(const ring *r)
    int core__prepare(core *c, stream *st, segment *s) nogil
    void core__reserve(core *c, stream *s, uint64_t device, uint64_t file)
    void core__request(core *c, stream *s, request r) nogil
    void core__rotate_from(core *c, stream *s, uint64_t token) nogil
    event *core__event(core *c) nogil
    ring *core__find_ring(core *c, bint (*told)(ring *))
    bint ring__tells_fault(ring *r)
    bint ring__tells_hang_up(ring *r)
    void core__read_counters(core *c, core_counters *counters) nogil

CHUNK_ALIGN_BYTES = ALIGN_BYTES
# The least size of a sideband table, for streams without sideband.
NO_SIDEBAND_BYTES = 1 << 20
QUARANTINE_REASONS = tuple(fault_names[i].decode() for i in range(FAULTS))
AUX_HIDDEN_MAGIC = HIDDEN_MAGIC
cdef dict HEAD_RULES = {"monotonic": AUX_MONOTONIC, "offset": AUX_OFFSET, "learned": AUX_LEARNED}
AUX_HEAD_RULES = tuple(HEAD_RULES)
cdef dict FRAMINGS = {"auxtrace": AUX_AUXTRACE, "hidden": AUX_HIDDEN}
cdef dict TRANSPORTS = {"read": PAGE_READ, "mmap": PAGE_MMAP, "splice": PAGE_SPLICE}


cdef int check(int ret) except -1 nogil:
    if ret < 0:
        with gil:
            raise OSError(-ret, os.strerror(-ret))
    return ret


cdef const uint8_t *begin_of(const uint8_t[::1] data) noexcept nogil:
    return &data[0] if data.shape[0] > 0 else NULL


# Pairs, as struct walk_id.
cdef uint64_t[::1] pairs_of(dict ids):
    return array("Q", chain.from_iterable(ids.items()))


cdef walk_ids ids_of(uint64_t[::1] pairs):
    cdef walk_ids ids = walk_ids(NULL, <uint32_t>(pairs.shape[0] // 2), False)
    if ids.count > 0:
        ids.all = <const walk_id *>&pairs[0]
    return ids


cdef tuple sums_of(const sum *sums, uint32_t count):
    return tuple(Sum(sums[i].bytes, sums[i].xxh3) for i in range(count))


# Shares of rings whose samples are bytes of payload, or of the others.
cdef tuple shares_of(const event *e, bint payload):
    return tuple((e.rings[i].id, e.rings[i].samples, e.rings[i].bytes)
                 for i in range(e.ring_count) if e.rings[i].payload == payload)


cdef tuple tracks_of(const event *e):
    return tuple((e.rings[i].id, e.rings[i].bytes, sums_of(e.rings[i].sums, e.rings[i].sum_count))
                 for i in range(e.ring_count))


def close_gap(int fd, uint64_t at, uint64_t size):
    with nogil:
        while fallocate(fd, FALLOC_FL_COLLAPSE_RANGE, <off_t>at, <off_t>size) < 0:
            if errno != EINTR:
                check(-errno)


include "maps.pxi"
include "rings.pxi"
include "scans.pxi"


@cython.no_gc_clear
cdef class Core:
    cdef core *core
    # They keep their maps until the core has stopped, even when all are garbage: the collector
    # clears lists, but not tuples.
    cdef tuple rings
    cdef uint8_t[::1] staging
    cdef readonly int notify_fd

    def __cinit__(self, *, uint32_t shards=1, uint32_t chunks=64, uint32_t chunk_bytes=1 << 20,
                  uint64_t flush_ns=1_000_000_000, uint64_t floor_bytes=65536):
        cdef core_options options = core_options(shards, chunks, chunk_bytes, flush_ns,
                                                 floor_bytes)
        check(core__new(&options, &self.core))
        self.notify_fd = self.core.events.fd
        self.rings = ()

    def __dealloc__(self):
        if self.core != NULL:
            with nogil:
                core__free(self.core)

    def keep_staging(self, uint8_t[::1] memory not None):
        cdef pool *own = &self.core.pool
        if memory.shape[0] < <Py_ssize_t>pool__bytes(own.count, own.chunk_bytes):
            raise ValueError("too little memory")
        self.staging = memory
        pool__keep(own, &memory[0])

    def start(self):
        check(core__start(self.core))

    def add_disk(self, uint64_t device):
        writer__disk(&self.core.writer, device)

    def add_stream(self, *, size_t sideband_bytes=16 << 20, uint32_t subbuf_bytes=0,
                   bint foreign_clock=False, bint snapshots=False):
        return self.take_stream(
            &page_stream__ops if subbuf_bytes > 0 else &record_stream__ops,
            stream_options(NULL, sideband_bytes, subbuf_bytes, snapshots, foreign_clock))

    def add_relay_stream(self):
        return self.take_stream(
            &relay_stream__ops, stream_options(NULL, NO_SIDEBAND_BYTES, 0, False, False))

    cdef Stream take_stream(self, const stream_ops *ops, stream_options options):
        cdef Stream stream = Stream.__new__(Stream)
        options.ops = ops
        check(core__add_stream(self.core, &options, &stream.stream))
        stream.owner = self
        stream.id = stream.stream.id
        return stream

    cdef int adopt(self, Drained drained, uint32_t shard, Stream stream, ring *made) except -1:
        drained.ring = NULL  # on an error it is freed
        with nogil:
            check(core__add_ring(self.core, shard, stream.stream, made))
        drained.owner = self
        drained.stream = stream
        drained.ring = made
        drained.id = made.id
        drained.shard = shard
        return 0

    cdef Ring take(self, uint32_t shard, Stream stream, ring *made, tuple maps, bint held):
        cdef Ring ring = Ring.__new__(Ring)
        made.held = held
        self.adopt(ring, shard, stream, made)
        ring.maps = ()
        self.rings += (ring,)
        for map in maps:
            if map is not None:
                ring.use(map)
        return ring

    def add_ring(self, uint32_t shard, Stream stream not None, RingMap ring_map not None,
                 int wakeup_fd, *, bint sideband, uint16_t time_offset, uint16_t time_trailer,
                 ids=None, bint held=False, uint16_t cpu_trailer=0, RingNote note=None):
        cdef uint64_t[::1] listed = pairs_of(ids or {})
        cdef perf_ring_options options = perf_ring_options(
            &ring_map.map, wakeup_fd, walk_layout(time_offset, time_trailer, cpu_trailer, NULL),
            ids_of(listed), sideband, note_of(note))
        cdef ring *made
        ring_map.usable()
        if ring_map.map.overwrite:
            check(window__new(&options, &made))
        else:
            check(perf_ring__new(&options, &made))
        return self.take(shard, stream, made, (ring_map, note), held)

    def add_page_ring(self, uint32_t shard, Stream stream not None, int fd, *,
                      uint32_t subbuf_bytes, uint32_t subbufs, str transport,
                      PageMap page_map=None, bint held=False):
        cdef page_ring_options options
        cdef ring *made
        if transport not in TRANSPORTS:
            raise ValueError(f"no transport {transport!r}")
        options = page_ring_options(<page_transport><int>TRANSPORTS[transport], fd, subbuf_bytes,
                                    subbufs, NULL)
        if page_map is not None:
            page_map.usable()
            options.map = &page_map.map
        check(page_ring__new(&options, &made))
        return self.take(shard, stream, made, (page_map,), held)

    def add_bpf_ring(self, uint32_t shard, Stream stream not None, BpfMap bpf_map not None,
                     int wakeup_fd, *, uint64_t id, uint32_t fields_bytes, uint16_t time_offset,
                     bint held=False, RingNote note=None):
        cdef bpf_ring_options options = bpf_ring_options(
            perf_ring_options(&bpf_map.map, wakeup_fd, walk_layout(time_offset, 0, 0, NULL),
                              walk_ids(NULL, 0, False), False, note_of(note)), id, fields_bytes)
        cdef ring *made
        bpf_map.usable()
        check(bpf_ring__new(&options, &made))
        return self.take(shard, stream, made, (bpf_map, note), held)

    def add_slot_ring(self, uint32_t shard, Stream stream not None, SlotMap slot_map not None, *,
                      uint32_t cpu, kinds, uint16_t time_offset, bint held=True):
        cdef slot_kind[127] listed
        cdef slot_ring_options options = slot_ring_options(
            &slot_map.map, cpu, walk_layout(time_offset, 0, 0, NULL), &listed[0], 0)
        cdef ring *made
        slot_map.usable()
        if len(kinds) >= SLOT_KINDS:
            raise ValueError(f"{len(kinds)} kinds of records")
        for number, size_bytes, task_at in kinds:
            listed[options.kind_count] = slot_kind(
                number, size_bytes, SLOT_NO_TASK if task_at is None else task_at)
            options.kind_count += 1
        check(slot_ring__new(&options, &made))
        return self.take(shard, stream, made, (slot_map,), held)

    def add_relay_ring(self, uint32_t shard, Stream stream not None, int fd, *,
                       uint64_t capacity_bytes, uint32_t longest_bytes=0, bint blktrace=False,
                       bint held=False, RingNote note=None, Py_ssize_t slots_at=0):
        cdef relay_ring_options options = relay_ring_options(
            RELAY_BLKTRACE if blktrace else RELAY_BYTES, fd, capacity_bytes, longest_bytes, NULL,
            NULL)
        cdef ring *made
        if note is not None:
            options.note = <relay_note *>note_of(note)
            if not 0 < slots_at <= note.memory.shape[0] - 2 * <Py_ssize_t>RELAY_SLOT_BYTES:
                raise ValueError("not the offset of two slots")
            options.slots = &note.memory[slots_at]
        check(relay_ring__new(&options, &made))
        return self.take(shard, stream, made, (note,), held)

    def add_aux_ring(self, Ring ring not None, AuxMap aux_map not None, *, str framing, int idx,
                     int cpu, int tid, bint whole_records=False, bint reference_tsc=False,
                     enable_fds=(), str head_rule="monotonic", RingNote note=None):
        cdef int[::1] fds = array("i", enable_fds)
        cdef aux_ring_options options
        cdef AuxRing aux = AuxRing.__new__(AuxRing)
        if framing not in FRAMINGS or head_rule not in HEAD_RULES:
            raise ValueError(f"no framing {framing!r}, or no head rule {head_rule!r}")
        if ring not in self.rings or aux_map.ring_map not in ring.maps:
            raise ValueError("the AUX area belongs to another ring")
        aux_map.usable()
        options = aux_ring_options(
            &aux_map.map, <aux_framing><int>FRAMINGS[framing],
            aux_origin(<uint32_t>idx, <uint32_t>tid, <uint32_t>cpu), reference_tsc, whole_records,
            NULL, <uint32_t>fds.shape[0], <aux_head_rule><int>HEAD_RULES[head_rule],
            note_of(note))
        if options.enable_count > 0:
            options.enable_fds = &fds[0]
        check(aux_ring__new(&options, ring.ring, &aux.ring))
        self.adopt(aux, ring.shard, ring.stream, aux.ring)
        for map in (aux_map, note):
            if map is not None:
                ring.use(map)
        return aux

    def remove_ring(self, Ring ring not None):
        if ring not in self.rings:
            return True
        if not ring.leaves:
            check(shard__post(ring.ring, COMMAND_REMOVE))
            ring.leaves = True
        if not shard__has_left(ring.ring):
            return False
        ring.release()
        self.rings = tuple(other for other in self.rings if other is not ring)
        return True

    def request_flush(self):
        return writer__issue(&self.core.writer)

    def follow(self, uint64_t generation):
        self.core.writer.followed = generation

    def issued_generation(self):
        return self.core.writer.generation

    def drained_generation(self):
        return writer__drained(&self.core.writer)

    def silent_shards(self, uint64_t generation):
        return tuple(i for i in range(self.core.writer.shard_count)
                     if self.core.shards[i].passed < generation)

    def events(self):
        cdef list found = []
        cdef event *e
        cdef segment *s
        cdef ring *r
        while (e := core__event(self.core)) != NULL:
            s = &e.segment
            if e.kind == EVENT_SEGMENT_CLOSED:
                found.append(SegmentClosed(
                    e.stream, s.token, 0 if e.split else s.offset, sums_of(e.sums, e.sum_count),
                    s.chunks, s.records, s.samples, s.replayed, s.first_ns, s.last_ns,
                    shares_of(e, False), e.final != 0, tracks_of(e) if e.split else (),
                    shares_of(e, True), tuple(s.aux_index[i] for i in range(s.aux_count)),
                    e.early != 0))
            elif e.kind == EVENT_SEGMENT_WANTED:
                found.append(SegmentWanted(e.stream))
            elif e.kind == EVENT_SPACE_WANTED:
                found.append(SpaceWanted(e.stream, e.error))
            else:
                found.append(WriteFailed(e.stream, s.token, e.error))
            event__free(e)
        while (r := core__find_ring(self.core, ring__tells_fault)) != NULL:
            found.append(RingFault(r.lane.stream.id, r.id, r.last_fault, r.position, r.fault != 0))
        while (r := core__find_ring(self.core, ring__tells_hang_up)) != NULL:
            found.append(RingHungUp(r.lane.stream.id, r.id))
        return found

    def counters(self):
        cdef core_counters c
        with nogil:
            core__read_counters(self.core, &c)
        return CoreCounters(**c)

    def drain_tids(self):
        return tuple(self.core.shards[i].tid for i in range(self.core.writer.shard_count)
                     if self.core.shards[i].tid != 0)

    def stop(self):
        with nogil:
            core__stop(self.core)
        for ring in self.rings:
            (<Ring>ring).release()
        self.rings = ()
