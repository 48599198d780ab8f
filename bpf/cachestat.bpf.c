/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The page cache is counted in pages: those that reads ask for, those that are put into it and
 * taken off it, and those that become dirty. All but the last are counted under locks or in tasks
 * that an interrupt may disturb, so adds are atomic.
 */
#include <uapi/linux/ptrace.h>
#include "collectord.h"

struct cache_counts {
	u64 reads; /* reads, in parts of up to 15 folios */
	u64 asked; /* pages that they ask for */
	u64 added;
	u64 removed;
	u64 dirtied;
};

BPF_PERCPU_ARRAY(counts, struct cache_counts, 1);

static inline struct cache_counts *wanted_counts(void)
{
	u32 zero = 0;

	return collectord_open() && collectord_wanted() ? counts.lookup(&zero) : NULL;
}

TRACEPOINT_PROBE(filemap, mm_filemap_get_pages)
{
	struct cache_counts *found = wanted_counts();

	if (found) {
		__sync_fetch_and_add(&found->reads, 1);
		__sync_fetch_and_add(&found->asked, args->last_index - args->index + 1);
	}
	return 1;
}

TRACEPOINT_PROBE(filemap, mm_filemap_add_to_page_cache)
{
	struct cache_counts *found = wanted_counts();

	if (found)
		__sync_fetch_and_add(&found->added, 1ULL << args->order);
	return 1;
}

TRACEPOINT_PROBE(filemap, mm_filemap_delete_from_page_cache)
{
	struct cache_counts *found = wanted_counts();

	if (found)
		__sync_fetch_and_add(&found->removed, 1ULL << args->order);
	return 1;
}

TRACEPOINT_PROBE(writeback, writeback_dirty_folio)
{
	struct cache_counts *found = wanted_counts();

	if (found)
		__sync_fetch_and_add(&found->dirtied, 1);
	return 1;
}
