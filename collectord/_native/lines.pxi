# SPDX-License-Identifier: Apache-2.0
# Lines of records; included by `_columns.pyx`.

cdef extern from "lines/lines.h":
    struct op:
        uint8_t code, a
        uint16_t b
        uint32_t c
        uint64_t d
    const char *op_names[]
    enum: OP_CODES
    struct entry:
        uint64_t value
        uint32_t text
    struct words:
        pass
    int words__add_text(words *words, const char *text, size_t bytes)
    int words__add_table(words *words, const entry *entry, size_t count)
    int words__add_width(words *words, uint32_t width)
    struct c_line "line":
        bint of_raw
        uint32_t least
        uint64_t *counts
        size_t cpus
    enum note_kind:
        NOTE_DAMAGED, NOTE_LOST, NOTE_LOST_UNTOLD, NOTE_LOST_IN_ALL
    struct c_note "note":
        note_kind kind
        uint64_t offset, lost
        int32_t cpu, label
        char *reason
    struct machine:
        words words
    struct store:
        uint8_t *data
        size_t bytes
    struct order:
        size_t runs
    struct c_lines "lines":
        order order
        machine machine
        store out
        c_line *line
        size_t count, notes
        uint32_t loss, unknown
        c_note *note
        uint64_t left
    c_lines *lines__new(c_scan *scan)
    void lines__free(c_lines *lines)
    int lines__add(c_lines *lines, const c_line *line, const op *op, size_t count,
                   uint32_t *number)
    int lines__add_key(c_lines *lines, uint32_t key)
    int lines__mute(c_lines *lines, uint32_t key)
    int lines__read(c_lines *lines, size_t size, uint64_t end, bint everything) nogil
    int lines__count(c_lines *lines, uint64_t end) nogil
    int64_t order__end(int fd, uint64_t offset, bint of_rounds) nogil


def settled(int fd, uint64_t offset):
    return end_of(fd, offset, True)


def intact(int fd, uint64_t offset):
    return end_of(fd, offset, False)


cdef int64_t end_of(int fd, uint64_t offset, bint of_rounds) except -1:
    cdef int64_t at
    with nogil:
        at = order__end(fd, offset, of_rounds)
    if at < 0:
        raise OSError(-at, os.strerror(-at))
    return at


cdef dict OPS = {(<bytes>op_names[code]).decode(): code for code in range(OP_CODES)}


Note = collections.namedtuple("Note", "kind cpu label lost offset reason")

cdef dict NOTES = {
    NOTE_DAMAGED: "damaged", NOTE_LOST: "lost", NOTE_LOST_UNTOLD: "lost",
    NOTE_LOST_IN_ALL: "lost_in_all",
}


cdef class Lines:
    cdef c_lines *lines

    def __cinit__(self, Scan scan, texts, tables, widths):
        cdef bytes text
        self.lines = lines__new(scan.scan)
        if self.lines == NULL:
            raise MemoryError
        for text in texts:
            check(words__add_text(&self.lines.machine.words, text, len(text)))
        for table in tables:
            add_table(self.lines, table)
        for width in widths:
            check(words__add_width(&self.lines.machine.words, width))

    def __dealloc__(self):
        if self.lines != NULL:
            lines__free(self.lines)

    def add(self, keys, ops, *, str role="event", bint of_raw=False, uint32_t least=0):
        cdef uint32_t number
        cdef c_line line
        cdef op *made = <op *>calloc(len(ops) + 1, sizeof(op))
        if made == NULL:
            raise MemoryError
        try:
            for at, (code, a, b, c, d) in enumerate(ops):
                made[at].code = OPS[code]
                made[at].a = a
                made[at].b = b
                made[at].c = c
                made[at].d = d
            line.of_raw = of_raw
            line.least = least
            check(lines__add(self.lines, &line, made, len(ops), &number))
        finally:
            free(made)
        for key in keys:
            check(lines__add_key(self.lines, key))
        if role == "loss":
            self.lines.loss = number
        elif role == "unknown":
            self.lines.unknown = number
        return number

    def mute(self, uint32_t key):
        check(lines__mute(self.lines, key))

    @property
    def waiting(self):
        return self.lines.order.runs > 0

    def limit(self, uint64_t lines):
        self.lines.left = lines

    @property
    def left(self):
        return self.lines.left

    def read(self, size_t size, uint64_t end, *, bint everything=True):
        cdef int ret
        with nogil:
            ret = lines__read(self.lines, size, end, everything)
        check(ret)
        if ret == 0 and self.lines.out.bytes == 0 and self.lines.notes == 0:
            return None
        if self.lines.out.bytes == 0:
            return b""
        made = self.lines.out.data[:self.lines.out.bytes]
        self.lines.out.bytes = 0
        return made

    def count(self, uint64_t end):
        cdef c_line *line
        cdef int ret
        with nogil:
            ret = lines__count(self.lines, end)
        check(ret)
        found = []
        for number in range(self.lines.count):
            line = &self.lines.line[number]
            for at in range(line.cpus):
                if line.counts[at] > 0:
                    found.append((number + 1, <int64_t>at - 1, line.counts[at]))
        return found

    def notes(self):
        cdef c_note *note
        found = []
        for at in range(self.lines.notes):
            note = &self.lines.note[at]
            lost = None if note.kind == NOTE_LOST_UNTOLD else note.lost
            reason = (<bytes>note.reason).decode()
            found.append(
                Note(NOTES[note.kind], note.cpu, note.label, lost, note.offset, reason))
        self.lines.notes = 0
        return found


cdef int add_table(c_lines *lines, table) except -1:
    cdef entry *made = <entry *>calloc(len(table) + 1, sizeof(entry))
    if made == NULL:
        raise MemoryError
    try:
        for at, (value, text) in enumerate(table):
            made[at].value = value
            made[at].text = text
        return check(words__add_table(&lines.machine.words, made, len(table)))
    finally:
        free(made)
