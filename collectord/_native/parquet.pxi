# SPDX-License-Identifier: Apache-2.0
# Records as columns of Parquet; included by `_columns.pyx`.

cdef extern from "parquet/tables.h":
    enum encoding:
        pass
    struct chunk:
        store dictionary, data
        size_t entries, values, nulls
        encoding encoding
        bint is_told
        uint32_t least_bytes, most_bytes
        uint8_t *least
        uint8_t *most
    struct c_event_table "event_table":
        c_scan *scan
        bint is_unordered
    struct c_tables "tables":
        c_event_table *table
        bint is_odd
        chunk *chunk
    c_tables *tables__new(c_scan *scan)
    void tables__free(c_tables *tables)
    int tables__add(c_tables *tables, c_scan *scan)
    int tables__next(c_tables *tables, size_t *number, size_t *rows) nogil


Chunk = collections.namedtuple(
    "Chunk", "values nulls encoding data entries dictionary least most")


cdef class Tables:
    cdef c_tables *tables

    def __cinit__(self, Scan scan, tables):
        cdef Scan table
        self.tables = tables__new(scan.scan)
        if self.tables == NULL:
            raise MemoryError
        for table in tables:
            check(tables__add(self.tables, table.scan))

    def __dealloc__(self):
        if self.tables != NULL:
            tables__free(self.tables)

    def read(self):
        cdef size_t number, rows
        cdef int ret
        with nogil:
            ret = tables__next(self.tables, &number, &rows)
        check(ret)
        if ret == 0:
            return None
        columns = self.tables.table[number].scan.column_count
        return number, rows, [chunk_at(&self.tables.chunk[at]) for at in range(columns)]

    @property
    def is_odd(self):
        return self.tables.is_odd

    def is_unordered(self, size_t number):
        return self.tables.table[number].is_unordered


cdef object chunk_at(const chunk *made):
    return Chunk(
        made.values,
        made.nulls,
        <int>made.encoding,
        bytes_of(&made.data),
        made.entries,
        bytes_of(&made.dictionary) if made.entries > 0 else b"",
        made.least[:made.least_bytes] if made.is_told else None,
        made.most[:made.most_bytes] if made.is_told else None,
    )


cdef bytes bytes_of(const store *held):
    return held.data[:held.bytes] if held.bytes > 0 else b""
