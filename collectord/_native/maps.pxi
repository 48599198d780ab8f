# SPDX-License-Identifier: Apache-2.0
# Shared mappings of rings; included by `_core.pyx`.

cdef class PageMap:
    cdef page_map map

    def __init__(self, int fd):
        cdef int ret
        if self.map.meta != NULL:
            raise ValueError("the ring is mapped already")
        with nogil:
            ret = page_map__init(&self.map, fd)
        check(ret)

    def __dealloc__(self):
        page_map__deinit(&self.map)

    cdef int usable(self) except -1:
        if self.map.meta == NULL:
            raise ValueError("the ring is not mapped any more")
        return 0

    @property
    def subbuf_bytes(self):
        return self.map.subbuf_bytes

    @property
    def subbufs(self):
        return self.map.subbufs

    @property
    def read(self):
        self.usable()
        return self.map.meta.read

    def close(self):
        if self.map.users > 0:
            raise ValueError("a running core drains this ring")
        page_map__deinit(&self.map)


cdef class RingMap:
    cdef ring_map map

    def __init__(self, int fd, uint64_t data_bytes, *, bint overwrite=False):
        cdef int ret
        if self.map.data_bytes != 0:
            raise ValueError("the ring is mapped already")
        with nogil:
            ret = ring_map__init(&self.map, fd, data_bytes, overwrite)
        check(ret)

    def __dealloc__(self):
        ring_map__deinit(&self.map)

    cdef int usable(self) except -1:
        if self.map.data_bytes == 0:
            raise ValueError("the ring is not mapped any more")
        return 0

    def feed(self, const uint8_t[::1] records not None):
        cdef int ret = 0
        self.usable()
        if records.shape[0] > 0:
            with nogil:
                ret = ring_map__feed(&self.map, &records[0], records.shape[0])
        return ret == 0

    @property
    def data_bytes(self):
        return self.map.data_bytes

    @property
    def overwrite(self):
        return self.map.overwrite

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
            raise ValueError("a running core drains this ring, or its AUX area is mapped")
        ring_map__deinit(&self.map)


cdef class BpfMap:
    cdef bpf_map map

    def __init__(self, int fd, uint64_t data_bytes):
        cdef int ret
        if self.map.data_bytes != 0:
            raise ValueError("the ring is mapped already")
        with nogil:
            ret = bpf_map__init(&self.map, fd, data_bytes)
        check(ret)

    def __dealloc__(self):
        bpf_map__deinit(&self.map)

    cdef int usable(self) except -1:
        if self.map.data_bytes == 0:
            raise ValueError("the ring is not mapped any more")
        return 0

    def close(self):
        if self.map.users > 0:
            raise ValueError("a running core drains this ring")
        bpf_map__deinit(&self.map)


# What `ring_map` points to is used until the end.
@cython.no_gc_clear
cdef class AuxMap:
    cdef aux_map map
    cdef RingMap ring_map

    def __init__(self, int fd, RingMap ring_map not None, uint64_t aux_bytes, *, bint snapshot):
        cdef int ret
        if self.map.bytes != 0:
            raise ValueError("the AUX area is mapped already")
        ring_map.usable()
        with nogil:
            ret = aux_map__init(&self.map, &ring_map.map, fd, aux_bytes, snapshot)
        check(ret)
        self.ring_map = ring_map

    def __dealloc__(self):
        aux_map__deinit(&self.map)

    cdef int usable(self) except -1:
        if self.map.bytes == 0:
            raise ValueError("the AUX area is not mapped any more")
        return 0

    @property
    def aux_bytes(self):
        return self.map.bytes

    @property
    def snapshot(self):
        return self.map.snapshot != 0

    @property
    def head(self):
        self.usable()
        return aux_map__head(&self.map)

    @property
    def tail(self):
        self.usable()
        return aux_map__tail(&self.map)

    def close(self):
        if self.map.users > 0:
            raise ValueError("a running core drains this AUX area")
        aux_map__deinit(&self.map)
        self.ring_map = None
