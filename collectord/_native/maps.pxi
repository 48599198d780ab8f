# SPDX-License-Identifier: Apache-2.0
# Shared mappings of rings; included by `_core.pyx`.

cdef class Mapped:
    cdef bint mapped
    # Running cores that drain it, and mappings behind it.
    cdef unsigned users

    cdef int vacant(self) except -1:
        if self.mapped:
            raise ValueError("mapped already")
        return 0

    cdef int usable(self) except -1:
        if not self.mapped:
            raise ValueError("not mapped any more")
        return 0

    cdef void unmap(self):
        pass

    def close(self):
        if self.users > 0:
            raise ValueError("a running core drains it, or an AUX area is mapped behind it")
        self.unmap()
        self.mapped = False


cdef class PageMap(Mapped):
    cdef page_map map

    def __init__(self, int fd):
        self.vacant()
        with nogil:
            check(page_map__init(&self.map, fd))
        self.mapped = True

    def __dealloc__(self):
        page_map__deinit(&self.map)

    cdef void unmap(self):
        page_map__deinit(&self.map)

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


cdef class RingMap(Mapped):
    cdef ring_map map

    def __init__(self, int fd, uint64_t data_bytes, *, bint overwrite=False):
        self.vacant()
        with nogil:
            check(ring_map__init(&self.map, fd, data_bytes, overwrite))
        self.mapped = True

    def __dealloc__(self):
        ring_map__deinit(&self.map)

    cdef void unmap(self):
        ring_map__deinit(&self.map)

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
    def head(self):
        self.usable()
        return ring_map__head(&self.map)


cdef class BpfMap(Mapped):
    cdef bpf_map map

    def __init__(self, int fd, uint64_t data_bytes):
        self.vacant()
        with nogil:
            check(bpf_map__init(&self.map, fd, data_bytes))
        self.mapped = True

    def __dealloc__(self):
        bpf_map__deinit(&self.map)

    cdef void unmap(self):
        bpf_map__deinit(&self.map)


# What `ring_map` points to is used until the end.
@cython.no_gc_clear
cdef class AuxMap(Mapped):
    cdef aux_map map
    cdef RingMap ring_map

    def __init__(self, int fd, RingMap ring_map not None, uint64_t aux_bytes, *, bint snapshot):
        self.vacant()
        ring_map.usable()
        with nogil:
            check(aux_map__init(&self.map, &ring_map.map, fd, aux_bytes, snapshot))
        self.mapped = True
        self.ring_map = ring_map
        ring_map.users += 1

    def __dealloc__(self):
        self.unmap()

    cdef void unmap(self):
        aux_map__deinit(&self.map)
        if self.ring_map is not None:
            self.ring_map.users -= 1
        self.ring_map = None

    @property
    def aux_bytes(self):
        return self.map.bytes

    @property
    def head(self):
        self.usable()
        return aux_map__head(&self.map)
