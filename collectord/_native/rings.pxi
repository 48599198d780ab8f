# SPDX-License-Identifier: Apache-2.0
# Rings and streams of a core; included by `_core.pyx`.

cdef class Ring:
    cdef Core owner
    cdef ring *ring
    cdef RingMap map
    cdef PageMap page_map
    cdef BpfMap bpf_map
    cdef AuxMap aux_map

    @property
    def id(self):
        return self.ring.id

    cdef void use(self, int more):
        # How many running cores drain what is mapped.
        if self.map is not None:
            self.map.map.users += more
        if self.page_map is not None:
            self.page_map.map.users += more
        if self.bpf_map is not None:
            self.bpf_map.map.users += more
        if self.aux_map is not None:
            self.aux_map.map.users += more

    def hold(self, bint held):
        cdef int ret
        with nogil:
            ret = core__hold(self.owner.core, self.ring, held)
        if ret < 0:
            raise ValueError("the ring's AUX area is no snapshot")

    def warm(self):
        with nogil:
            core__warm(self.ring)

    cdef tuple window_counters(self):
        cdef window *w = window__of(self.ring)
        if w == NULL:
            return (0, 0, 0, 0, 0, 0)
        return (counter__read(&w.windows), counter__read(&w.taken), counter__read(&w.repeated),
                counter__read(&w.repeated_bytes), counter__read(&w.overwritten_bytes),
                counter__read(&w.held_ns))

    def read_all(self):
        cdef int ret
        with nogil:
            ret = core__last(self.owner.core, self.ring)
        if ret < 0:
            raise ValueError("only a relay ring has parts of sub-buffers")

    cdef tuple page_counters(self):
        cdef page_ring *p = page_ring__of(self.ring)
        if p == NULL:
            return (0, 0, 0, 0, 0)
        return (counter__read(&p.pages), counter__read(&p.losses),
                counter__read(&p.losses_unknown) + counter__read(&p.torn),
                counter__read(&p.resets), counter__read(&p.spliced_bytes))

    cdef tuple relay_counters(self):
        cdef relay_ring *p = relay_ring__of(self.ring)
        if p == NULL:
            return (0, 0, 0, 0, 0)
        # Events were read before: each is among the numbers.
        counter__fence()
        return (counter__read(&p.numbered), counter__read(&p.missing), counter__read(&p.notes),
                counter__read(&p.skipped_bytes), counter__read(&p.torn_bytes))

    cdef tuple perf_counters(self):
        cdef perf_ring *p = perf_ring__of(self.ring)
        if p == NULL:
            return (0,) * 8
        return (counter__read(&p.lost_records), counter__read(&p.lost_samples),
                counter__read(&p.neutralised), counter__read(&p.relabelled),
                counter__read(&p.throttles), counter__read(&p.unthrottles),
                counter__read(&p.overwritten_samples), counter__read(&p.overwritten_records))

    def counters(self):
        cdef ring *r = self.ring
        perf = self.perf_counters()
        return RingCounters(
            counter__read(&r.samples), counter__read(&r.records), counter__read(&r.bytes),
            counter__read(&r.stored), counter__read(&r.in_flight),
            counter__read(&r.lost_disk_full),
            counter__read(&r.lost_dropped) + counter__read(&r.abandoned), *perf[:4],
            1 if r.fault else 0, r.fault, counter__read(&r.quarantined_bytes), *perf[4:6],
            counter__read(&r.wakeups_watermark), counter__read(&r.wakeups_timer),
            counter__read(&r.starved), counter__read(&r.used_bytes),
            counter__read(&r.high_watermark_bytes), counter__read(&r.last_sample_ns),
            tuple(counter__read(&r.fill[i]) for i in range(RING_FILL_BUCKETS)),
            *self.page_counters(), *self.relay_counters(), *perf[6:], *self.window_counters(),
            counter__read(&r.faults))


cdef class AuxRing:
    cdef Core owner
    cdef ring *ring

    @property
    def id(self):
        return self.ring.id

    def stop(self):
        with nogil:
            core__last(self.owner.core, self.ring)

    def counters(self):
        cdef ring *r = self.ring
        cdef aux_ring *a = aux_ring__of(r)
        return AuxCounters(
            counter__read(&r.bytes), counter__read(&r.stored), counter__read(&r.in_flight),
            counter__read(&r.lost_disk_full),
            counter__read(&r.lost_dropped) + counter__read(&r.abandoned),
            1 if r.fault else 0, r.fault, counter__read(&r.quarantined_bytes),
            counter__read(&a.pieces), counter__read(&a.aux_records), counter__read(&a.truncated),
            counter__read(&a.partial), counter__read(&a.collisions),
            counter__read(&a.unrecorded_bytes), counter__read(&a.orphan_bytes),
            counter__read(&a.enables), counter__read(&a.restarts), counter__read(&a.disabled_ns),
            counter__read(&r.wakeups_watermark),
            counter__read(&r.wakeups_timer), counter__read(&r.starved),
            counter__read(&r.used_bytes), counter__read(&r.high_watermark_bytes),
            tuple(counter__read(&r.fill[i]) for i in range(RING_FILL_BUCKETS)),
            counter__read(&a.windows), counter__read(&a.window_bytes),
            counter__read(&a.window_taken_bytes), counter__read(&a.repeated_bytes),
            counter__read(&a.overwritten_bytes),
            counter__read(&a.head_rule), counter__read(&r.faults))


cdef class Stream:
    cdef Core owner
    cdef stream *stream

    @property
    def id(self):
        return self.stream.id

    cdef int give(self, segment *made, int ret) except -1:
        if ret == 0:
            with nogil:
                ret = core__prepare(self.owner.core, self.stream, made)
        return check(ret)

    def prepare(self, uint64_t token, int fd, uint64_t offset, uint64_t limit_bytes,
                uint64_t step_bytes=0, uint64_t tail_bytes=0):
        cdef segment made
        memset(&made, 0, sizeof(made))
        made.token = token
        made.fd = fd
        made.offset = offset
        made.limit = limit_bytes
        made.step = step_bytes
        made.tail = tail_bytes
        self.give(&made, 0)

    def prepare_pages(self, uint64_t token, int fd, *, offsets, uint64_t capacity_bytes,
                      uint64_t limit_bytes, uint64_t step_bytes=0):
        cdef uint64_t[::1] extents = array("Q", [NO_EXTENT]) * (max(offsets, default=-1) + 1)
        cdef uint32_t count = <uint32_t>extents.shape[0]
        cdef segment made
        for ring, offset in offsets.items():
            extents[ring] = offset
        memset(&made, 0, sizeof(made))
        made.token = token
        made.fd = fd
        made.limit = limit_bytes
        made.step = step_bytes
        made.capacity = capacity_bytes
        self.give(&made, segment__set_extents(&made, &extents[0] if count > 0 else NULL, count))

    def prepare_files(self, uint64_t token, *, files, uint64_t limit_bytes):
        cdef int[::1] listed = array("i", [-1]) * (max(files, default=-1) + 1)
        cdef uint32_t count = <uint32_t>listed.shape[0]
        cdef segment made
        for ring, fd in files.items():
            listed[ring] = fd
        memset(&made, 0, sizeof(made))
        made.token = token
        made.fd = -1
        made.limit = limit_bytes
        self.give(&made, segment__set_files(&made, &listed[0] if count > 0 else NULL, count))

    def track_bytes(self):
        cdef page_progress progress
        cdef int ret
        with nogil:
            ret = page_stream__progress(self.stream, &progress)
        check(ret)
        found = {progress.rings[i].id: progress.rings[i].bytes for i in range(progress.count)}
        free(progress.rings)
        return progress.token, found

    def issued_generation(self):
        return core__issued(self.owner.core)

    def drained_generation(self):
        return core__stream_drained(self.owner.core, self.stream)

    def written_generation(self):
        return core__stream_written(self.owner.core, self.stream)

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

    def mapped_files(self, uint64_t since=0):
        cdef size_t size = 0
        cdef uint8_t *copy
        with nogil:
            copy = sideband__files(&self.stream.sideband, &since, &size)
        try:
            return since, copy[:size] if copy != NULL else b""
        finally:
            free(copy)

    def space(self, bint retry):
        core__answer_space(self.owner.core, self.stream, retry)

    def sideband_counters(self):
        cdef sideband_counters counters
        with nogil:
            sideband__read_counters(&self.stream.sideband, &counters)
        return counters
