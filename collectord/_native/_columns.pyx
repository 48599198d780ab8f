# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3, embedsignature=True
"""Binding of the columnar decoder. Contracts are in `_columns.pyi`."""

import collections
import os

from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

cdef extern from "columns/arrow.h":
    struct ArrowSchema:
        void (*release)(ArrowSchema *schema) noexcept nogil
    struct ArrowArrayStream:
        void (*release)(ArrowArrayStream *stream) noexcept nogil

cdef extern from "columns/clocks.h":
    struct clock_reading:
        int64_t stamp_ns, utc_ns

cdef extern from "columns/names.h":
    struct c_names "names":
        pass
    int names__add(c_names *names, int32_t tid, uint64_t since_ns, const char *text, size_t bytes)
    int names__settle(c_names *names)

cdef extern from "columns/perf.h":
    enum perf_rows:
        PERF_ROWS_RAW, PERF_ROWS_SAMPLES, PERF_ROWS_TASKS, PERF_ROWS_MMAP, PERF_ROWS_MMAP2
        PERF_ROWS_BUILD_ID, PERF_ROWS_AUX
    struct perf_event:
        uint64_t sample_type, read_format
        bint has_trailer, is_wanted
        int32_t label
    struct perf_events:
        pass
    int perf_events__add(perf_events *events, const perf_event *event)
    int perf_events__add_id(perf_events *events, uint64_t id)

cdef extern from "columns/blktrace.h":
    enum blk_rows:
        BLK_ROWS_REQUESTS, BLK_ROWS_NOTES

cdef extern from "columns/column.h":
    enum field_place:
        FIELD_MISSING, FIELD_STAMP, FIELD_UTC, FIELD_CPU, FIELD_PID, FIELD_TID, FIELD_COMM,
        FIELD_COMM_OF
        FIELD_LABEL, FIELD_INLINE, FIELD_DATA_LOC, FIELD_REL_LOC, FIELD_CHAIN, FIELD_TAIL
        FIELD_RWBS, FIELD_DEVICE, FIELD_CGROUP
    struct field:
        field_place place
        uint32_t offset, bytes
        uint8_t element
        bint is_signed

cdef extern from "columns/scan.h":
    enum c_wanted "wanted":
        WANT_EVENTS, WANT_LOSSES, WANT_DAMAGE, WANT_ALL
    enum:
        CPU_WORDS, CPU_WORD_BITS
    struct cpu_set:
        uint64_t *word
        bint has_unknown
    struct c_counts "counts":
        uint64_t rows, lost, lost_in_all, lost_untold, damaged
        cpu_set cpus, cpus_in_all
    struct c_source "source":
        uint64_t since_ns, until_ns
        field *fields
        c_names names
        uint32_t page_bytes, event, tid_offset
        perf_events perf
        perf_rows rows_of "perf_rows"
        blk_rows blk_rows_of "blk_rows"
    struct c_scan "scan":
        size_t column_count
    c_scan *scan__new(c_wanted wanted)
    void scan__drop(c_scan *scan)
    int scan__add_column(c_scan *scan, const char *kind, const char *name)
    int scan__add_source(c_scan *scan, const char *kind, int fd, c_source **source)
    int scan__add_span(c_scan *scan, int32_t cpu, uint64_t offset, uint64_t bytes)
    int source__add_label(c_source *source, const char *text, size_t bytes)
    int source__set_text(c_source *source, size_t column, const char *text, size_t bytes)
    int source__set_readings(c_source *source, const clock_reading *readings, size_t count)
    c_counts source__counts(const c_source *source)
    int scan__stream(c_scan *scan, ArrowArrayStream *stream)
    int scan__schema(const c_scan *scan, ArrowSchema *schema)

cdef dict WANTED = {
    "events": WANT_EVENTS, "losses": WANT_LOSSES, "damage": WANT_DAMAGE, "all": WANT_ALL,
}
cdef dict PLACES = {
    "missing": FIELD_MISSING, "stamp": FIELD_STAMP, "utc": FIELD_UTC, "cpu": FIELD_CPU,
    "pid": FIELD_PID, "tid": FIELD_TID, "comm": FIELD_COMM, "label": FIELD_LABEL,
    "inline": FIELD_INLINE, "data_loc": FIELD_DATA_LOC, "rel_loc": FIELD_REL_LOC,
    "chain": FIELD_CHAIN, "tail": FIELD_TAIL, "rwbs": FIELD_RWBS, "device": FIELD_DEVICE,
    "cgroup": FIELD_CGROUP, "comm_of": FIELD_COMM_OF,
}
cdef dict PERF_ROWS = {
    "raw": PERF_ROWS_RAW, "samples": PERF_ROWS_SAMPLES, "tasks": PERF_ROWS_TASKS,
    "mmap": PERF_ROWS_MMAP, "mmap2": PERF_ROWS_MMAP2, "build_id": PERF_ROWS_BUILD_ID,
    "aux": PERF_ROWS_AUX,
}
cdef dict BLK_ROWS = {"requests": BLK_ROWS_REQUESTS, "notes": BLK_ROWS_NOTES}


cdef int check(int ret) except -1:
    if ret < 0:
        raise OSError(-ret, os.strerror(-ret))
    return 0


cdef void free_stream(object capsule) noexcept:
    cdef ArrowArrayStream *stream = <ArrowArrayStream *>PyCapsule_GetPointer(
        capsule, "arrow_array_stream")
    if stream.release != NULL:
        stream.release(stream)
    free(stream)


cdef void free_schema(object capsule) noexcept:
    cdef ArrowSchema *schema = <ArrowSchema *>PyCapsule_GetPointer(capsule, "arrow_schema")
    if schema.release != NULL:
        schema.release(schema)
    free(schema)


cdef class Scan:
    cdef c_scan *scan
    cdef list sources

    def __cinit__(self, str wanted, columns):
        self.sources = []
        self.scan = scan__new(WANTED[wanted])
        if self.scan == NULL:
            raise MemoryError
        for name, kind in columns:
            check(scan__add_column(self.scan, kind.encode(), name.encode()))

    def __dealloc__(self):
        if self.scan != NULL:
            scan__drop(self.scan)

    def add(self, int fd, str kind, fields, spans, *, uint32_t page_bytes=4096,
            uint32_t event=0, uint32_t tid_offset=4, str rows="", attrs=(), labels=(),
            since_ns=None, until_ns=None, comms=(), clock=()):
        cdef c_source *source
        cdef bytes text
        if len(fields) != self.scan.column_count:
            raise ValueError(f"{len(fields)} fields of {self.scan.column_count} columns")
        check(scan__add_source(self.scan, kind.encode(), fd, &source))
        self.sources.append(<size_t>source)
        source.page_bytes = page_bytes
        source.event = event
        source.tid_offset = tid_offset
        if kind == "blktrace":
            source.blk_rows_of = BLK_ROWS[rows or "requests"]
        else:
            source.rows_of = PERF_ROWS[rows or "raw"]
        set_attrs(source, attrs)
        for label in labels:
            text = label.encode()
            check(source__add_label(source, text, len(text)))
        if since_ns is not None:
            source.since_ns = since_ns
        if until_ns is not None:
            source.until_ns = until_ns
        for at, told in enumerate(fields):
            set_field(source, at, told)
        set_comms(source, comms)
        set_clock(source, clock)
        for cpu, offset, size in spans:
            check(scan__add_span(self.scan, cpu, offset, size))

    def counts(self):
        cdef c_counts counts
        found = []
        for source in self.sources:
            counts = source__counts(<c_source *><size_t>source)
            found.append((
                counts.rows, counts.lost, counts.lost_untold, counts.damaged,
                cpus_in(&counts.cpus), cpus_in(&counts.cpus_in_all),
            ))
        return found

    def __arrow_c_schema__(self):
        cdef ArrowSchema *schema = <ArrowSchema *>calloc(1, sizeof(ArrowSchema))
        if schema == NULL:
            raise MemoryError
        capsule = PyCapsule_New(schema, "arrow_schema", free_schema)
        check(scan__schema(self.scan, schema))
        return capsule

    def __arrow_c_stream__(self, requested_schema=None):
        cdef ArrowArrayStream *stream = <ArrowArrayStream *>calloc(1, sizeof(ArrowArrayStream))
        if stream == NULL:
            raise MemoryError
        capsule = PyCapsule_New(stream, "arrow_array_stream", free_stream)
        check(scan__stream(self.scan, stream))
        return capsule


cdef frozenset cpus_in(const cpu_set *cpus):
    cdef size_t number
    found = {-1} if cpus.has_unknown else set()
    for number in range(CPU_WORDS * CPU_WORD_BITS):
        if cpus.word[number // CPU_WORD_BITS] >> number % CPU_WORD_BITS & 1:
            found.add(number)
    return frozenset(found)


cdef int set_field(c_source *source, size_t at, told) except -1:
    cdef bytes text
    if isinstance(told, str):
        text = told.encode()
        return check(source__set_text(source, at, text, len(text)))
    place, offset, size, element, is_signed = told
    source.fields[at].place = PLACES[place]
    source.fields[at].offset = offset
    source.fields[at].bytes = size
    source.fields[at].element = element
    source.fields[at].is_signed = is_signed
    return 0


cdef int set_comms(c_source *source, comms) except -1:
    cdef bytes text
    for tid, since_ns, name in comms:
        text = name.encode()
        check(names__add(&source.names, tid, since_ns, text, len(text)))
    return check(names__settle(&source.names))


cdef int set_attrs(c_source *source, attrs) except -1:
    cdef perf_event event
    for at, (sample_type, read_format, has_trailer, is_wanted, ids) in enumerate(attrs):
        event.sample_type = sample_type
        event.read_format = read_format
        event.has_trailer = has_trailer
        event.is_wanted = is_wanted
        event.label = at
        check(perf_events__add(&source.perf, &event))
        for number in ids:
            check(perf_events__add_id(&source.perf, number))
    return 0


cdef int set_clock(c_source *source, clock) except -1:
    cdef clock_reading *readings = <clock_reading *>calloc(len(clock) + 1, sizeof(clock_reading))
    if readings == NULL:
        raise MemoryError
    try:
        for at, (stamp_ns, utc_ns) in enumerate(clock):
            readings[at].stamp_ns = stamp_ns
            readings[at].utc_ns = utc_ns
        return check(source__set_readings(source, readings, len(clock)))
    finally:
        free(readings)


include "lines.pxi"
include "parquet.pxi"
include "cut.pxi"
