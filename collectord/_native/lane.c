/* SPDX-License-Identifier: Apache-2.0 */
#include "lane.h"

#include "writer.h"

void lane__close(struct lane *lane, struct writer *writer, uint64_t stamp, uint64_t begun_ns)
{
	struct chunk *chunk = lane->open;

	lane->open = NULL;
	chunk->item.lane = lane;
	chunk->item.stamp = stamp;
	chunk->item.begun_ns = begun_ns;
	atomic_fetch_add_explicit(&lane->queued, 1, memory_order_relaxed);
	writer__queue(writer, &chunk->item);
}

bool lane__mark(struct lane *lane, struct writer *writer, uint64_t stamp, uint64_t begun_ns)
{
	/* The partner is the store in writer__process(). */
	if (atomic_load(&lane->mark_queued))
		return false;
	atomic_store_explicit(&lane->mark_queued, true, memory_order_relaxed);
	lane->mark = (struct item){.lane = lane, .stamp = stamp, .begun_ns = begun_ns};
	atomic_fetch_add_explicit(&lane->queued, 1, memory_order_relaxed);
	writer__queue(writer, &lane->mark);
	return true;
}

void lane__yield(struct lane *lane, struct writer *writer, struct pool *pool)
{
	if (lane->open != NULL && lane->open->used > 0) {
		lane__close(lane, writer, 0, 0);
	} else if (lane->open != NULL) {
		pool__give(pool, lane->open);
		lane->open = NULL;
	}
}

uint64_t lane__written(const struct lane *lane)
{
	/* Acquire; the partner is the release in stream__pass_written(): the counters of what was
	 * written show. */
	return atomic_load_explicit(&lane->written_stamp, memory_order_acquire);
}
