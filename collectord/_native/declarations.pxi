# SPDX-License-Identifier: Apache-2.0
# What the binding uses of the C core, by the header that includes it; included by `_core.pyx`.

cdef extern from "core.h":
    enum fault:
        FAULT_NONE
    const uint32_t FAULTS
    const char **fault_names
    struct walk_ids:
        const uint64_t *all
        uint32_t count
    struct walk_layout:
        uint16_t time_offset, time_trailer, cpu_trailer
        const walk_ids *ids
    struct walk_tally:
        uint64_t records, samples, lost_records, lost_samples, first_ns, last_ns
        uint64_t aux_pieces, aux_bytes
    size_t walk__file(const uint8_t *data, size_t bytes, const walk_layout *layout,
                      walk_tally *tally, fault *why, size_t *last) nogil
    const uint32_t ALIGN_BYTES "CHUNK_ALIGN_BYTES"
    const int RING_FILL_BUCKETS
    enum command:
        COMMAND_HOLD, COMMAND_LET_GO, COMMAND_LAST, COMMAND_REMOVE
    struct ring:
        lane *lane
        uint32_t id, fault, last_fault
        uint64_t position, samples, records, bytes, stored, in_flight, lost_disk_full
        uint64_t lost_dropped, faults, quarantined_bytes, wakeups_watermark, wakeups_timer, starved
        uint64_t used_bytes, high_watermark_bytes, last_sample_ns, abandoned
        uint64_t *fill
    struct sideband_counters:
        uint64_t tasks, maps, bytes, dropped, files_dropped
    struct mapped_files:
        pass
    uint8_t *mapped_files__copy(mapped_files *files, uint64_t *since, size_t *bytes) nogil
    struct sideband:
        mapped_files files
    int sideband__load(sideband *sb, const uint8_t *records, size_t bytes) nogil
    void sideband__read_counters(const sideband *sb, sideband_counters *counters) nogil
    const uint64_t NO_PLACE
    struct segment:
        uint64_t token, offset, limit, step, tail, capacity
        int fd
    int segment__set_places(segment *s, uint32_t first_id, const uint64_t *places,
                            uint32_t count) nogil
    int segment__close_gap(int fd, uint64_t at, uint64_t bytes) nogil
    struct stream_ops:
        pass
    const stream_ops record_stream__ops
    struct stream_options:
        const stream_ops *ops
        size_t sideband_bytes
        uint32_t page_bytes
        bint snapshots, foreign_clock
    struct stream:
        uint32_t id
        sideband sideband
    struct lane:
        stream *stream
    uint64_t stream__drained(const stream *s, uint64_t issued)
    uint64_t stream__written(const stream *s, uint64_t issued)
    uint64_t stream__round_ns(const stream *s, uint64_t issued)
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
        sum *sums
        uint32_t sum_count
        uint64_t token, end_offset, chunks, records, samples, replayed, first_ns, last_ns
        uint64_t *aux_index
        uint32_t aux_count
        event_ring *rings
    void event__free(event *e)
    struct event_list:
        int fd
    struct writer:
        uint64_t generation, followed
    uint64_t writer__issue(writer *w) nogil
    uint64_t writer__drained(const writer *w) nogil
    void *writer__disk(writer *w, uint64_t device)
    struct core:
        event_list events
        writer writer
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
    void core__warm(ring *r) nogil
    int core__post(core *c, ring *r, command command)
    bint core__has_answered(core *c, const ring *r)
    bint core__has_left(core *c, const ring *r)
    int core__silent_shard(const core *c, const stream *s, uint64_t generation) nogil
    int core__prepare(core *c, stream *st, segment *s) nogil
    void core__rotate(core *c, stream *s) nogil
    void core__finish(core *c, stream *s) nogil
    void core__answer_space(core *c, stream *s, bint retry) nogil
    event *core__event(core *c) nogil
    ring *core__faulty(core *c)
    ring *core__hung_up(core *c)
    void core__read_counters(core *c, core_counters *counters) nogil
    int core__drain_tid(const core *c, uint32_t index) nogil

cdef extern from "aux_ring.h":
    struct ring_map:
        uint64_t data_bytes
        bint overwrite
    int ring_map__init(ring_map *map, int fd, uint64_t data_bytes, bint overwrite) nogil
    void ring_map__deinit(ring_map *map) nogil
    int ring_map__feed(ring_map *map, const uint8_t *records, size_t bytes) nogil
    uint64_t ring_map__head(const ring_map *map)
    struct perf_ring:
        uint64_t lost_records, lost_samples, neutralised, relabelled, throttles
        uint64_t overwritten_samples
    struct perf_ring_options:
        ring_map *map
        int wakeup_fd
        walk_layout layout
        walk_ids ids
        bint sideband, held
    int perf_ring__new(const perf_ring_options *options, ring **out) nogil
    perf_ring *perf_ring__of(const ring *r)
    enum aux_head_rule:
        AUX_MONOTONIC, AUX_OFFSET, AUX_LEARNED
    struct aux_map:
        uint64_t bytes
    int aux_map__init(aux_map *map, ring_map *ring, int fd, uint64_t bytes, bint snapshot) nogil
    void aux_map__deinit(aux_map *map)
    uint64_t aux_map__head(const aux_map *map)
    enum aux_framing:
        AUX_AUXTRACE, AUX_HIDDEN
    struct aux_origin:
        uint32_t idx, tid, cpu
    const uint64_t HIDDEN_MAGIC "AUX_HIDDEN_MAGIC"
    struct aux_ring:
        uint64_t pieces, aux_records, truncated, partial, collisions
        uint64_t unrecorded_bytes, orphan_bytes, enables, restarts, disabled_ns
        uint64_t windows, window_bytes, window_taken_bytes, repeated_bytes, overwritten_bytes
        uint64_t head_rule
    struct aux_ring_options:
        aux_map *map
        aux_framing framing
        aux_origin origin
        bint reference_tsc, whole_records
        const int *enable_fds
        uint32_t enable_count
        aux_head_rule head_rule
    int aux_ring__new(const aux_ring_options *options, ring *front, ring **out) nogil
    aux_ring *aux_ring__of(const ring *r)

cdef extern from "window.h":
    struct window:
        uint64_t windows, taken, repeated, repeated_bytes, overwritten_bytes, held_ns
    int window__new(const perf_ring_options *options, ring **out) nogil
    window *window__of(const ring *r)

cdef extern from "bpf_ring.h":
    struct bpf_map:
        uint64_t data_bytes
    struct bpf_ring_options:
        bpf_map *map
        int wakeup_fd
        uint64_t id
        uint32_t fields_bytes
        walk_layout layout
        bint held
    int bpf_map__init(bpf_map *map, int fd, uint64_t data_bytes) nogil
    void bpf_map__deinit(bpf_map *map)
    int bpf_ring__new(const bpf_ring_options *options, ring **out) nogil

cdef extern from "page_stream.h":
    const uint32_t SUBBUF_BYTES_MIN
    struct subbuf_tally:
        uint64_t pages, events, lost, lost_unknown, first_ns, last_ns
    size_t subbuf__pages(const uint8_t *data, size_t bytes, uint32_t page_bytes,
                         subbuf_tally *tally, fault *why) nogil
    struct page_meta:
        uint64_t read
    struct page_map:
        const page_meta *meta
        uint32_t subbuf_bytes, subbufs
    int page_map__init(page_map *map, int fd) nogil
    void page_map__deinit(page_map *map)
    struct page_ring:
        uint64_t pages, resets, spliced_bytes, torn
    enum page_transport:
        PAGE_READ, PAGE_MMAP, PAGE_SPLICE
    struct page_ring_options:
        page_transport transport
        int fd
        uint32_t page_bytes, subbufs
        page_map *map
        bint held
    int page_ring__new(const page_ring_options *options, ring **out) nogil
    page_ring *page_ring__of(const ring *r)
    const stream_ops page_stream__ops
    struct page_progress_ring:
        uint64_t bytes
        uint32_t id
    struct page_progress:
        uint64_t token
        uint32_t count
        page_progress_ring *rings
    int page_stream__progress(stream *stream, page_progress *progress) nogil

cdef extern from "disk.h":
    uint64_t disk__waits_ns(stream *s) nogil

cdef extern from "relay_ring.h":
    struct blk_tally:
        uint64_t events, notes, numbered, missing, first_ns, last_ns
    struct blk_state:
        uint32_t sequence
        bint begun
        uint32_t last_bytes
    size_t blk__run(const uint8_t *data, size_t bytes, uint32_t longest, blk_state *state,
                    blk_tally *tally, fault *why) nogil
    struct relay_ring:
        uint64_t numbered, missing, skipped_bytes, torn_bytes
    enum relay_contents:
        RELAY_BYTES, RELAY_BLKTRACE
    struct relay_ring_options:
        relay_contents contents
        int fd
        uint64_t capacity
        uint32_t longest
        bint held
    int relay_ring__new(const relay_ring_options *options, ring **out) nogil
    relay_ring *relay_ring__of(const ring *r)
    const stream_ops relay_stream__ops
