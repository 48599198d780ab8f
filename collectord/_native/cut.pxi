# SPDX-License-Identifier: Apache-2.0
# Cuts of files; included by `_columns.pyx`.

cdef extern from "columns/cut.h":
    struct cut_id:
        uint64_t from_ "from"
        uint64_t to
    struct cut_ids:
        cut_id *id
        size_t count
        uint64_t unnamed
        bint adds
    struct c_cut "cut":
        int out
        uint64_t at
        cut_ids ids
        bint keeps_rounds
        c_counts counts
        uint64_t records, first_ns, last_ns, aux
    int cut__run(c_cut *cut, const c_scan *scan) nogil
    void cut__deinit(c_cut *cut)


Cut = collections.namedtuple("Cut", "end records first_ns last_ns lost lost_untold damaged aux")


def cut(Scan scan, int out, uint64_t at, *, ids=(), uint64_t unnamed=0, bint adds_id=False,
        bint keeps_rounds=False):
    cdef c_cut cut
    cdef int ret
    memset(&cut, 0, sizeof(cut))
    cut.out = out
    cut.at = at
    cut.keeps_rounds = keeps_rounds
    cut.ids.unnamed = unnamed
    cut.ids.adds = adds_id
    try:
        cut.ids.id = <cut_id *>calloc(len(ids) + 1, sizeof(cut_id))
        if cut.ids.id == NULL:
            raise MemoryError
        for number, new in sorted(ids):
            cut.ids.id[cut.ids.count].from_ = number
            cut.ids.id[cut.ids.count].to = new
            cut.ids.count += 1
        with nogil:
            ret = cut__run(&cut, scan.scan)
        check(ret)
        # No loss is told twice: those at the end of a ring have no place.
        lost = max(cut.counts.lost, cut.counts.lost_in_all)
        return Cut(cut.at, cut.records, cut.first_ns, cut.last_ns, lost, cut.counts.lost_untold,
                   cut.counts.damaged, cut.aux)
    finally:
        cut__deinit(&cut)
