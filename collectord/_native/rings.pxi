# SPDX-License-Identifier: Apache-2.0
# Rings, and the streams of a core; included by `_core.pyx`.

cdef extern from "aux_ring.h":
    struct perf_ring:
        uint64_t lost_records, lost_samples, neutralised, relabelled, throttles
        uint64_t overwritten_samples
    struct perf_ring_options:
        ring_map *map
        int wakeup_fd
        walk_layout layout
        walk_ids ids
        bint sideband
        ring_note *note
    int perf_ring__new(const perf_ring_options *options, ring **out) nogil
    perf_ring *perf_ring__of(const ring *r)
    int perf_ring__set_ids(ring *r, const walk_ids *ids) nogil
    enum aux_head_rule:
        AUX_MONOTONIC, AUX_OFFSET, AUX_LEARNED
    enum aux_framing:
        AUX_AUXTRACE, AUX_HIDDEN
    struct aux_origin:
        uint32_t idx, tid, cpu
    const uint64_t HIDDEN_MAGIC "AUX_HIDDEN_MAGIC"
    struct aux_window:
        aux_head_rule rule
    struct aux_ring:
        uint64_t pieces, aux_records, truncated, partial, collisions
        uint64_t unrecorded_bytes, orphan_bytes, enables, restarts, disabled_ns
        uint64_t windows, window_bytes, window_taken_bytes, repeated_bytes, overwritten_bytes
        aux_window window
    struct aux_ring_options:
        ring_map *map
        aux_framing framing
        aux_origin origin
        bint reference_tsc, whole_records
        const int *enable_fds
        uint32_t enable_count
        aux_head_rule head_rule
        ring_note *note
    int aux_ring__new(const aux_ring_options *options, ring *front, ring **out) nogil
    aux_ring *aux_ring__of(const ring *r)
    struct window:
        uint64_t windows, taken, repeated, repeated_bytes, overwritten_bytes, held_ns
    int window__new(const perf_ring_options *options, ring **out) nogil
    window *window__of(const ring *r)
    void window__warm(const ring *r) nogil
    struct bpf_ring_options:
        perf_ring_options perf
        uint64_t id
        uint32_t fields_bytes
    int bpf_ring__new(const bpf_ring_options *options, ring **out) nogil

cdef extern from "slot_ring.h":
    struct slot_kind:
        uint64_t id
        uint16_t bytes, task_at
    struct slot_ring_options:
        const slot_map *map
        uint32_t cpu
        walk_layout layout
        const slot_kind *kinds
        uint32_t kind_count
    struct slot_ring:
        window window
    const uint32_t SLOT_KINDS
    const uint16_t SLOT_NO_TASK
    int slot_ring__new(const slot_ring_options *options, ring **out) nogil
    slot_ring *slot_ring__of(const ring *r)

cdef extern from "page_ring.h":
    struct page_ring:
        uint64_t pages, resets, spliced_bytes, torn
    enum page_transport:
        PAGE_READ, PAGE_MMAP, PAGE_SPLICE
    struct page_ring_options:
        page_transport transport
        int fd
        uint32_t page_bytes, subbufs
        page_map *map
    int page_ring__new(const page_ring_options *options, ring **out) nogil
    page_ring *page_ring__of(const ring *r)
    const stream_ops page_stream__ops
    event *page_stream__progress(stream *stream) nogil

cdef extern from "relay_ring.h":
    struct relay_ring:
        uint64_t numbered, missing, skipped_bytes, torn_bytes
    enum relay_contents:
        RELAY_BYTES, RELAY_BLKTRACE
    struct relay_note:
        pass
    uint32_t RELAY_SLOT_BYTES
    struct relay_ring_options:
        relay_contents contents
        int fd
        uint64_t capacity
        uint32_t longest
        relay_note *note
        uint8_t *slots
    int relay_ring__new(const relay_ring_options *options, ring **out) nogil
    relay_ring *relay_ring__of(const ring *r)
    const stream_ops relay_stream__ops


cdef tuple common_counters(const ring *r):
    return (r.bytes, r.stored, r.in_flight, r.lost_disk_full, r.lost_dropped + r.abandoned,
            1 if r.fault else 0, r.fault, r.quarantined_bytes, r.faults, r.wakeups_watermark,
            r.wakeups_timer, r.starved, r.used_bytes, r.high_watermark_bytes,
            tuple(r.fill[i] for i in range(RING_FILL_BUCKETS)))


# What a ring of another kind counts.
cdef perf_ring NO_PERF
cdef page_ring NO_PAGES
cdef relay_ring NO_RELAY
cdef window NO_WINDOW


# Its core and its stream are needed to forget the ring.
@cython.no_gc_clear
cdef class Drained:
    cdef Core owner
    cdef Stream stream
    cdef ring *ring
    cdef readonly uint32_t id, shard

    def __dealloc__(self):
        if self.ring != NULL:
            core__forget_ring(self.ring)

    @property
    def answered(self):
        return shard__has_answered(self.ring)

    def read_all(self):
        check(shard__post(self.ring, COMMAND_LAST))


@cython.no_gc_clear
cdef class Ring(Drained):
    cdef tuple maps
    cdef bint leaves

    cdef int use(self, Mapped map) except -1:
        map.users += 1
        self.maps += (map,)
        return 0

    cdef int release(self) except -1:
        cdef Mapped map
        for map in self.maps:
            map.users -= 1
        return 0

    def hold(self, bint held):
        check(shard__post(self.ring, COMMAND_HOLD if held else COMMAND_LET_GO))

    def warm(self):
        with nogil:
            window__warm(self.ring)

    def set_ids(self, ids):
        cdef uint64_t[::1] listed = pairs_of(ids)
        cdef walk_ids made = ids_of(listed)
        with nogil:
            check(perf_ring__set_ids(self.ring, &made))

    def counters(self):
        cdef const ring *r = self.ring
        cdef const perf_ring *p = perf_ring__of(r)
        cdef const page_ring *s = page_ring__of(r)
        cdef const relay_ring *a = relay_ring__of(r)
        cdef const slot_ring *k = slot_ring__of(r)
        cdef const window *w = window__of(r) if k == NULL else &k.window
        p = p if p != NULL else &NO_PERF
        s = s if s != NULL else &NO_PAGES
        a = a if a != NULL else &NO_RELAY
        w = w if w != NULL else &NO_WINDOW
        # For blktrace, events are read before numbers, so each event is among the numbers.
        return RingCounters(
            r.samples, r.records, r.last_sample_ns, *common_counters(r), p.lost_records,
            p.lost_samples, p.neutralised, p.relabelled, p.throttles, p.overwritten_samples,
            s.pages, s.torn, s.resets, s.spliced_bytes, a.numbered, a.missing, a.skipped_bytes,
            a.torn_bytes, w.windows, w.taken, w.repeated, w.repeated_bytes, w.overwritten_bytes,
            w.held_ns)


@cython.no_gc_clear
cdef class AuxRing(Drained):
    def counters(self):
        cdef const aux_ring *a = aux_ring__of(self.ring)
        return AuxCounters(
            *common_counters(self.ring), a.pieces, a.aux_records, a.truncated, a.partial,
            a.collisions, a.unrecorded_bytes, a.orphan_bytes, a.enables, a.restarts,
            a.disabled_ns, a.windows, a.window_bytes, a.window_taken_bytes, a.repeated_bytes,
            a.overwritten_bytes, a.window.rule)


cdef segment segment__new(uint64_t token, int fd, uint64_t limit, uint64_t step):
    cdef segment made
    memset(&made, 0, sizeof(made))
    made.token = token
    made.fd = fd
    made.limit = limit
    made.step = step
    return made


# Its core is needed to forget the stream.
@cython.no_gc_clear
cdef class Stream:
    cdef Core owner
    cdef stream *stream
    cdef readonly uint32_t id

    def __dealloc__(self):
        if self.stream != NULL:
            core__forget_stream(self.owner.core, self.stream)

    @property
    def rank(self):
        return self.stream.data_share.rank

    @rank.setter
    def rank(self, uint32_t rank):
        if rank >= RANKS:
            raise ValueError("no such rank")
        stream__set_rank(self.stream, rank)

    cdef int give(self, segment made, places) except -1:
        cdef uint64_t[::1] listed
        cdef uint32_t first
        if places is not None:
            first = min(places, default=0)
            listed = array("Q", [NO_PLACE]) * (max(places, default=-1) + 1 - first)
            for ring, place in places.items():
                listed[ring - first] = place
            check(segment__set_places(&made, first, &listed[0] if listed.shape[0] > 0 else NULL,
                                      <uint32_t>listed.shape[0]))
        with nogil:
            check(core__prepare(self.owner.core, self.stream, &made))
        return 0

    def prepare(self, uint64_t token, int fd, uint64_t offset, uint64_t limit_bytes,
                uint64_t step_bytes=0, uint64_t tail_bytes=0, table=b"", size=(-1, 0, 0)):
        cdef const uint8_t[::1] entries = table
        cdef segment made = segment__new(token, fd, limit_bytes, step_bytes)
        made.offset = offset
        made.tail = tail_bytes
        made.size_fd, made.size_at, made.size_base = size
        check(chunk_table__set(&made.table, begin_of(entries), entries.shape[0]))
        self.give(made, None)

    def prepare_pages(self, uint64_t token, int fd, *, offsets, uint64_t capacity_bytes,
                      uint64_t limit_bytes, uint64_t step_bytes=0):
        cdef segment made = segment__new(token, fd, limit_bytes, step_bytes)
        made.capacity = capacity_bytes
        self.give(made, offsets)

    def prepare_files(self, uint64_t token, *, files, uint64_t limit_bytes):
        self.give(segment__new(token, -1, limit_bytes, 0), files)

    def track_bytes(self):
        cdef event *e
        with nogil:
            e = page_stream__progress(self.stream)
        if e == NULL:
            raise MemoryError
        found = {e.rings[i].id: e.rings[i].bytes for i in range(e.ring_count)}
        token = e.segment.token
        event__free(e)
        return token, found

    def tell_error(self):
        return self.stream.tell_error

    def issued_generation(self):
        return self.owner.core.writer.generation

    def drained_generation(self):
        return stream__drained(self.stream, self.owner.core.writer.generation)

    def written_generation(self):
        return stream__written(self.stream, self.owner.core.writer.generation)

    def silent_shard(self, uint64_t generation):
        cdef const core *owner = self.owner.core
        return next((i for i in range(owner.writer.shard_count)
                     if owner.shards[i].passed < generation and
                     stream__lane(self.stream, i) != NULL), -1)

    def waits_ns(self):
        return disk__waits_ns(self.stream)

    def round_ns(self):
        return stream__round_ns(self.stream, self.owner.core.writer.generation)

    def rotate(self):
        core__request(self.owner.core, self.stream, ROTATE)

    def rotate_from(self, uint64_t token):
        core__rotate_from(self.owner.core, self.stream, token)

    def turn(self):
        core__request(self.owner.core, self.stream, TURN)

    def hurry(self, bint on):
        core__request(self.owner.core, self.stream, HURRY if on else REST)

    def finish(self):
        core__request(self.owner.core, self.stream, FINISH)

    def reserve(self, uint64_t device, uint64_t file):
        core__reserve(self.owner.core, self.stream, device, file)

    def left_ns(self):
        return stream__left_ns(self.stream)

    def load_sideband(self, const uint8_t[::1] records not None, uint64_t until_ns=UINT64_MAX):
        with nogil:
            check(sideband__load(&self.stream.sideband, begin_of(records), records.shape[0],
                                 until_ns))

    def mapped_files(self, uint64_t since=0):
        cdef size_t size = 0
        cdef uint8_t *copy
        with nogil:
            copy = mapped_files__copy(&self.stream.sideband.files, &since, &size)
        try:
            return since, copy[:size] if copy != NULL else b""
        finally:
            free(copy)

    def code_makers(self):
        cdef uint32_t[2 * CODE_MAKERS_MAX] pids
        cdef size_t count
        with nogil:
            count = mapped_files__makers(&self.stream.sideband.files, pids)
        return frozenset([pids[i] for i in range(count)])

    def space(self, bint retry):
        core__request(self.owner.core, self.stream, SPACE_RETRY if retry else SPACE_GIVE_UP)

    def sideband_counters(self):
        cdef const sideband *s = &self.stream.sideband
        return SidebandCounters(s.table.task_count, s.table.map_count, s.table.bytes,
                                s.table.dropped + s.log_dropped, s.files.dropped)
