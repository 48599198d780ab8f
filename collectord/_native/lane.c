/* SPDX-License-Identifier: Apache-2.0 */
#include "stream.h"

#include "writer.h"

void lane__begin_pass(struct lane *lane)
{
	const struct cut *const cut = &lane->stream->cut;

	/* Acquire twice; the partners are the releases in cut__step(). */
	lane->cut = load_acquire(&cut->generation);
	lane->names = load_acquire(&cut->names);
	lane__begin_names(lane);
}

void lane__begin_names(struct lane *lane)
{
	if (lane->cut == 0 || lane->ended != lane->cut)
		return;
	lane->naming = true;
	lane->aside = lane->open;
	lane->open = NULL;
}

void lane__end_names(struct lane *lane, struct pool *pool)
{
	if (!lane->naming)
		return;
	lane__yield(lane, pool);
	lane->open = lane->aside;
	lane->aside = NULL;
	lane->naming = false;
}

bool lane__owes_names(const struct lane *lane)
{
	return lane->names != 0 && lane->names != load_relaxed(&lane->named);
}

void lane__answer(struct lane *lane)
{
	/* Release; the partner is the acquire in cut__is_answered(). */
	store_release(&lane->named, lane->names);
	disk__poke(atomic_load(&lane->stream->disk));
}

void lane__queue(struct lane *lane, struct item *item)
{
	item->lane = lane;
	atomic_fetch_add_explicit(&lane->queued, 1, memory_order_relaxed);
	disk__queue(lane->stream, item, !lane->stamping);
}

/* Whether an item of this generation ends the lane's data before the cut. */
static bool lane__ends(const struct lane *lane, uint64_t stamp)
{
	return lane->cut != 0 && lane->ended != lane->cut && stamp >= lane->cut;
}

/* Returns the cut for which it does, or 0. */
static uint64_t lane__end(struct lane *lane, uint64_t stamp)
{
	if (!lane__ends(lane, stamp))
		return 0;
	lane->ended = lane->cut;
	return lane->cut;
}

void lane__close(struct lane *lane)
{
	struct chunk *chunk = lane->open;

	lane->open = NULL;
	chunk->item.names = lane->naming;
	if (!lane->naming) {
		chunk->item.stamp = lane->stamp;
		chunk->item.begun_ns = lane->stamp_ns;
		chunk->item.cut = lane__end(lane, lane->stamp);
		lane->stamp = 0;
	}
	lane__queue(lane, &chunk->item);
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

	if (filled && !holds) {
		/* With one per flush interval, half full chunks would pile up behind a slow disk.
		 * The partner is the decrement in work__end(). A cut waits for this one. */
		if (!lane__ends(lane, lane->stamp) && atomic_load(&lane->queued) > 0 &&
		    pool__is_short(pool, &lane->stream->data_share))
			return false;
		lane__close(lane);
	} else {
		/* The partner is the store in work__end(). */
		if (atomic_load(&lane->mark_queued))
			return false;
		store_relaxed(&lane->mark_queued, true);
		lane->mark = (struct item){.stamp = lane->stamp,
					   .begun_ns = filled ? 0 : lane->stamp_ns,
					   .cut = lane__end(lane, lane->stamp)};
		lane__queue(lane, &lane->mark);
	}
	lane->stamp = 0;
	return true;
}

uint64_t lane__asked(const struct lane *lane)
{
	return load_relaxed(&lane->drained) != lane->begun ? lane->begun : 0;
}

uint64_t lane__written(const struct lane *lane)
{
	/* Acquire; the partner is the release in stream__pass_written(): the counters of
	 * written data are visible. */
	return load_acquire(&lane->written_stamp);
}
