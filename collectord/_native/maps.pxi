# SPDX-License-Identifier: Apache-2.0
# The mappings of rings, and the notes that outlive a process; included by `_core.pyx`.

cdef extern from "perf_ring.h":
    struct ring_note:
        uint64_t counted
    void ring_note__read(const ring_note *note, uint64_t *position, uint64_t *samples)
    struct ring_map:
        uint64_t data_bytes
        bint overwrite
    int ring_map__init(ring_map *map, int fd, uint64_t data_bytes, bint overwrite) nogil
    int ring_map__init_aux(ring_map *map, ring_map *ring, int fd, uint64_t data_bytes,
                           bint overwrite) nogil
    int ring_map__init_bpf(ring_map *map, int fd, uint64_t data_bytes) nogil
    void ring_map__deinit(ring_map *map) nogil
    int ring_map__feed(ring_map *map, const uint8_t *records, size_t bytes) nogil
    uint64_t ring_map__head(const ring_map *map)

cdef extern from "slot_ring.h":
    struct slot_map:
        uint32_t cpus, slots_each
        const slot_head *heads
    struct slot_head:
        uint64_t slots, records, missed
    int slot_map__init(slot_map *map, int heads_fd, int slots_fd, uint32_t cpus,
                       uint32_t slots_each) nogil
    void slot_map__deinit(slot_map *map) nogil
    void slot_map__read(const slot_map *map, uint32_t cpu, uint64_t *records, uint64_t *missed)

cdef extern from "page_ring.h":
    struct page_meta:
        uint64_t read
    struct page_map:
        const page_meta *meta
        uint32_t subbuf_bytes, subbufs
    int page_map__init(page_map *map, int fd) nogil
    void page_map__deinit(page_map *map)


cdef class Mapped:
    cdef bint mapped
    # The number of running cores that drain it, and of mappings behind it.
    cdef unsigned users

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
    cdef readonly uint32_t subbuf_bytes, subbufs

    def __cinit__(self, int fd):
        with nogil:
            check(page_map__init(&self.map, fd))
        self.subbuf_bytes = self.map.subbuf_bytes
        self.subbufs = self.map.subbufs
        self.mapped = True

    def __dealloc__(self):
        page_map__deinit(&self.map)

    cdef void unmap(self):
        page_map__deinit(&self.map)

    @property
    def read(self):
        self.usable()
        return self.map.meta.read


cdef class DataMap(Mapped):
    cdef ring_map map

    def __dealloc__(self):
        ring_map__deinit(&self.map)

    cdef void unmap(self):
        ring_map__deinit(&self.map)

    @property
    def data_bytes(self):
        return self.map.data_bytes

    @property
    def head(self):
        self.usable()
        return ring_map__head(&self.map)


cdef class RingMap(DataMap):
    def __cinit__(self, int fd, uint64_t data_bytes, *, bint overwrite=False):
        with nogil:
            check(ring_map__init(&self.map, fd, data_bytes, overwrite))
        self.mapped = True

    def feed(self, const uint8_t[::1] records not None):
        cdef int ret = 0
        self.usable()
        if records.shape[0] > 0:
            with nogil:
                ret = ring_map__feed(&self.map, &records[0], records.shape[0])
        return ret == 0


# `note` points into `memory`.
@cython.no_gc_clear
cdef class RingNote(Mapped):
    cdef ring_note *note
    cdef uint8_t[::1] memory

    def __cinit__(self, uint8_t[::1] memory not None, Py_ssize_t offset):
        cdef Py_ssize_t size = sizeof(ring_note)
        if offset < 0 or offset % size != 0 or offset > memory.shape[0] - size:
            raise ValueError("not the offset of a note")
        self.memory = memory
        self.note = <ring_note *>&memory[offset]
        self.mapped = True

    cdef void unmap(self):
        self.note = NULL
        self.memory = None

    @property
    def taken(self):
        cdef uint64_t position = 0, samples = 0
        self.usable()
        ring_note__read(self.note, &position, &samples)
        return samples

    @property
    def position(self):
        cdef uint64_t position = 0, samples = 0
        self.usable()
        ring_note__read(self.note, &position, &samples)
        return position

    @property
    def counted(self):
        self.usable()
        return self.note.counted

    @counted.setter
    def counted(self, uint64_t count):
        self.usable()
        self.note.counted = count


cdef ring_note *note_of(RingNote note) except? NULL:
    if note is None:
        return NULL
    note.usable()
    return note.note


cdef class BpfMap(DataMap):
    def __cinit__(self, int fd, uint64_t data_bytes):
        with nogil:
            check(ring_map__init_bpf(&self.map, fd, data_bytes))
        self.mapped = True


cdef class SlotMap(Mapped):
    cdef slot_map map

    def __cinit__(self, int heads_fd, int slots_fd, *, uint32_t cpus, uint32_t slots_each):
        with nogil:
            check(slot_map__init(&self.map, heads_fd, slots_fd, cpus, slots_each))
        self.mapped = True

    def __dealloc__(self):
        slot_map__deinit(&self.map)

    cdef void unmap(self):
        slot_map__deinit(&self.map)

    def counted(self, uint32_t cpu):
        cdef uint64_t records = 0, missed = 0
        self.usable()
        if cpu >= self.map.cpus:
            raise ValueError(f"no CPU {cpu}")
        slot_map__read(&self.map, cpu, &records, &missed)
        return records, missed


# `ring_map` is used until the end.
@cython.no_gc_clear
cdef class AuxMap(DataMap):
    cdef RingMap ring_map

    def __cinit__(self, int fd, RingMap ring_map not None, uint64_t data_bytes, *,
                  bint snapshot):
        ring_map.usable()
        with nogil:
            check(ring_map__init_aux(&self.map, &ring_map.map, fd, data_bytes, snapshot))
        self.mapped = True
        self.ring_map = ring_map
        ring_map.users += 1

    def __dealloc__(self):
        self.unmap()

    cdef void unmap(self):
        ring_map__deinit(&self.map)
        if self.ring_map is not None:
            self.ring_map.users -= 1
        self.ring_map = None
