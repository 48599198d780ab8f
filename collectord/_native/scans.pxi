# SPDX-License-Identifier: Apache-2.0
# Scans of data that may be damaged, as files have them; included by `_core.pyx`.

cdef extern from "core.h":
    struct walk_tally:
        uint64_t records, samples, lost_samples, first_ns, last_ns
        uint64_t aux_pieces, aux_bytes
    size_t walk__file(const uint8_t *data, size_t bytes, const walk_layout *layout,
                      walk_tally *tally, fault *why, size_t *last) nogil

cdef extern from "page_ring.h":
    const uint32_t SUBBUF_BYTES_MIN
    struct subbuf_tally:
        uint64_t pages, events, lost, lost_unknown, first_ns, last_ns
    size_t subbuf__pages(const uint8_t *data, size_t bytes, uint32_t page_bytes,
                         subbuf_tally *tally, fault *why) nogil

cdef extern from "relay_ring.h":
    struct blk_tally:
        uint64_t events, notes, numbered, missing, first_ns, last_ns
    struct blk_state:
        uint32_t sequence
        bint begun
        uint32_t last_bytes
    size_t blk__run(const uint8_t *data, size_t bytes, uint32_t longest, blk_state *state,
                    blk_tally *tally, fault *why) nogil


def scan_records(const uint8_t[::1] data not None, *, int time_offset=0):
    cdef walk_layout layout = walk_layout(time_offset, 0, 0, NULL)
    cdef walk_tally tally
    cdef size_t end = 0, last = 0
    cdef fault why = FAULT_NONE
    memset(&tally, 0, sizeof(tally))
    with nogil:
        end = walk__file(begin_of(data), data.shape[0], &layout, &tally, &why, &last)
    return RecordScan(end=end, last=last, fault=QUARANTINE_REASONS[why], **tally)


def scan_pages(const uint8_t[::1] data not None, uint32_t subbuf_bytes):
    cdef subbuf_tally tally
    cdef fault why = FAULT_NONE
    cdef size_t end = 0
    if subbuf_bytes < SUBBUF_BYTES_MIN:
        raise ValueError(f"sub-buffers of {subbuf_bytes} bytes")
    memset(&tally, 0, sizeof(tally))
    with nogil:
        end = subbuf__pages(begin_of(data), data.shape[0], subbuf_bytes, &tally, &why)
    return PageScan(end=end, fault=QUARANTINE_REASONS[why], **tally)


def scan_blktrace(const uint8_t[::1] data not None, after=None):
    cdef blk_tally tally
    cdef blk_state state = blk_state(after or 0, after is not None, 0)
    cdef fault why = FAULT_NONE
    cdef size_t end = 0
    memset(&tally, 0, sizeof(tally))
    with nogil:
        end = blk__run(begin_of(data), data.shape[0], 0, &state, &tally, &why)
    return BlktraceScan(end=end, last=end - state.last_bytes, fault=QUARANTINE_REASONS[why],
                        sequence=state.sequence if state.begun else None, **tally)
