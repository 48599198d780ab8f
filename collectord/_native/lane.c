/* SPDX-License-Identifier: Apache-2.0 */
#include "lane.h"

#include "disk.h"

void lane__queue(struct lane *lane, struct item *item)
{
	item->lane = lane;
	atomic_fetch_add_explicit(&lane->queued, 1, memory_order_relaxed);
	disk__queue(lane->stream, item);
}

void lane__close(struct lane *lane)
{
	struct chunk *chunk = lane->open;

	lane->open = NULL;
	chunk->item.stamp = lane->stamp;
	chunk->item.begun_ns = lane->stamp_ns;
	lane->stamp = 0;
	lane__queue(lane, &chunk->item);
}

bool lane__mark(struct lane *lane, uint64_t stamp, uint64_t begun_ns)
{
	/* The partner is the store in writer__end(). */
	if (atomic_load(&lane->mark_queued))
		return false;
	atomic_store_explicit(&lane->mark_queued, true, memory_order_relaxed);
	lane->mark = (struct item){.stamp = stamp, .begun_ns = begun_ns};
	lane__queue(lane, &lane->mark);
	return true;
}

void lane__yield(struct lane *lane, struct pool *pool)
{
	if (lane->open != NULL && lane->open->used > 0) {
		lane__close(lane);
	} else if (lane->open != NULL) {
		pool__give(pool, lane->open);
		lane->open = NULL;
	}
}

bool lane__stamp(struct lane *lane, struct pool *pool, bool holds)
{
	const bool filled = lane->open != NULL && lane->open->used > 0;

	if (lane->stamp == 0)
		return true;
	if (filled && !holds) {
		/*
		 * Once a flush interval half full chunks would pile up behind a slow disk. The partner
		 * is the decrement in writer__end().
		 */
		if (atomic_load(&lane->queued) > 0 && pool__is_short(pool))
			return false;
		lane__close(lane);
	} else if (!lane__mark(lane, lane->stamp, filled ? 0 : lane->stamp_ns)) {
		return false;
	}
	lane->stamp = 0;
	return true;
}

uint64_t lane__asked(const struct lane *lane)
{
	return atomic_load_explicit(&lane->drained, memory_order_relaxed) != lane->begun
		       ? lane->begun
		       : 0;
}

uint64_t lane__drained(const struct lane *lane)
{
	/* Acquire; the partner is the release in pass__end(): the counters of the passes show. */
	return atomic_load_explicit(&lane->drained, memory_order_acquire);
}

uint64_t lane__written(const struct lane *lane)
{
	/* Acquire; the partner is the release in stream__pass_written(): the counters of what was
	 * written show. */
	return atomic_load_explicit(&lane->written_stamp, memory_order_acquire);
}
