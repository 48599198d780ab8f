/* SPDX-License-Identifier: Apache-2.0 */
#include "shard.h"

#include <sys/epoll.h>

#include "event_list.h"

enum drained {
	DRAINED,      /* read up to the head of this pass */
	DRAINED_PART, /* its turn is over because chunks are short */
	STARVED,      /* no chunk was free */
};

static struct chunk *pass__take_chunk(struct shard *shard, const struct ring *ring)
{
	struct stream *const stream = ring->lane->stream;
	struct share *const share = &stream->data_share;
	struct chunk *chunk = pool__take(shard->pool, share);

	if (chunk == NULL && ring->sideband != NULL)
		chunk = pool__take(shard->pool, &stream->sideband_share);
	if (chunk != NULL)
		return chunk;
	/* First set it, then try again: a chunk returned in between wakes nobody. */
	atomic_store(&shard->starved, true);
	if (load_relaxed(&share->rank) < shard->starved_rank)
		shard->starved_rank = load_relaxed(&share->rank);
	return pool__take(shard->pool, share);
}

/* Return an empty open chunk, which is useful to others, and which an idle ring would keep for
 * hours. */
static void pass__return_empty(struct shard *shard, struct lane *lane)
{
	if (lane->open == NULL || lane->open->used > 0)
		return;
	lane__yield(lane, shard->pool);
	for (uint32_t i = 0; i < shard->writer->shard_count; i++)
		if (shard->writer->shards[i] != shard)
			shard__wake_starved(shard->writer->shards[i]);
}

/* Drain a ring. While chunks are short its turn, if `bounded`, ends with a chunk that it filled, or
 * with the second if others had most of the first: so a ring that is always full gets an equal
 * share. */
static enum drained pass__fill(struct shard *shard, struct ring *ring, bool bounded)
{
	struct lane *lane = ring->lane;
	uint64_t taken = 0;

	for (;;) {
		enum ring_take took;
		uint32_t used;

		if (lane->open == NULL)
			lane->open = pass__take_chunk(shard, ring);
		if (lane->open == NULL) {
			counter__add(&ring->starved, 1);
			return STARVED;
		}
		used = lane->open->used;
		took = ring->ops->take(ring, lane->open, shard->pool->chunk_bytes);
		chunk__publish(lane->open);
		taken += lane->open->used - used;
		if (took == RING_TICKET) {
			/* Data read earlier come earlier in the file. */
			if (lane->open->used > 0)
				lane__close(lane);
			ring__use(ring);
			lane__queue(lane, ring->ops->ticket(ring));
			continue;
		}
		if (took == RING_CHUNK_FULL || lane->open->span_count == CHUNK_SPANS)
			lane__close(lane);
		if (took != RING_CHUNK_FULL && took != RING_MORE) {
			pass__return_empty(shard, lane);
			ring->owes = false;
			return DRAINED;
		}
		if (bounded && took == RING_CHUNK_FULL && taken * 2 >= shard->pool->chunk_bytes &&
		    pool__is_short(shard->pool, &lane->stream->data_share))
			return DRAINED_PART;
	}
}

static enum drained pass__drain_ring(struct shard *shard, struct ring *ring, bool woken,
				     bool bounded)
{
	const uint64_t position = ring->position;
	enum drained drained;

	if (!ring__is_sound(ring) || (ring->ops->is_unread != NULL && !ring->ops->is_unread(ring)))
		return DRAINED;
	drained = pass__fill(shard, ring, bounded);
	if (!woken && bounded && lane__asked(ring->lane) != 0 && ring->position != position)
		counter__add(&ring->wakeups_timer, 1);
	return drained;
}

/* If chunks are short, none that others could use waits half full for the next generation, or
 * queued for more; a stream's reserve is for no other, and what matters more waits for its own. */
static void pass__yield_chunks(struct shard *shard)
{
	for (struct lane *lane = shard->lanes; lane != NULL; lane = lane->next)
		if (lane->open != NULL &&
		    load_relaxed(&lane->stream->data_share.rank) >= shard->starved_rank &&
		    pool__is_beyond(shard->pool, lane->open->share))
			lane__yield(lane, shard->pool);
	writer__poke(shard->writer);
}

/* Whether it has reached its position at the begin of its lane's generation, or never will. */
static bool ring__is_done(const struct ring *ring)
{
	return !ring->owes || !ring__is_sound(ring) || ring__is_held(ring) ||
	       (int64_t)(ring->position - ring->goal) >= 0;
}

/* While a ring is held with what a predecessor left unread in it, no generation shows that all older
 * data are written: the names of tasks that have ended since are kept. */
static void pass__look_before(struct ring *ring)
{
	if (counter__read(&ring->left_ns) == UINT64_MAX)
		return;
	if (!ring__is_held(ring))
		counter__set(&ring->left_ns, UINT64_MAX);
	else if (ring->first)
		ring->lane->begun_ns = 0;
}

/* Load the head, of a ring behind it first: records that describe the data before that one are then
 * before this ring's. At a generation's first pass it is the goal; an invalid head is none. `all`:
 * the pass also reads data below the watermark. */
static void pass__load_heads(struct ring *ring, bool all)
{
	if (ring->behind != NULL)
		pass__load_heads(ring->behind, all);
	ring->swept = all || lane__asked(ring->lane) != 0;
	ring->first = ring->lane->first;
	ring->ops->begin(ring);
	if (ring->first) {
		ring->goal = ring->head;
		ring->owes = ring__is_sound(ring);
	}
	pass__look_before(ring);
}

/* Begin the last issued generation in each lane that is done with its own. */
static void pass__begin_generation(struct shard *shard, uint64_t generation, uint64_t now_ns)
{
	for (struct lane *lane = shard->lanes; lane != NULL; lane = lane->next) {
		lane__begin_pass(lane);
		lane->due = lane__owes_names(lane);
		lane->unnamed = false;
		lane->first = lane->rings > 0 && lane__asked(lane) == 0 && generation > lane->begun;
		if (lane->first) {
			lane->begun = generation;
			lane->begun_ns = now_ns;
		}
	}
}

static bool ring__is_due(const struct ring *ring, uint64_t floor_bytes)
{
	uint64_t most = 0;

	for (const struct ring *each = ring; each != NULL; each = each->behind)
		if (each->head - each->position > most)
			most = each->head - each->position;
	return ring->woken || ring->swept || (most > 0 && most >= floor_bytes);
}

/* Load all heads first: the copies are then of one instant. Heads of sideband come last: so the
 * pass has all names of its samples. */
static void pass__begin(struct shard *shard, bool all)
{
	for (int sideband = 0; sideband <= 1; sideband++)
		for (struct ring *ring = shard->rings; ring != NULL; ring = ring->next) {
			if ((ring->sideband != NULL) != sideband)
				continue;
			pass__load_heads(ring, all);
			ring->lane->due |= !sideband && !ring__is_held(ring) &&
					   ring__is_due(ring, shard->floor_bytes);
		}
}

/* Drain a ring behind one that was read to its head, or past its goal: then as far as this one's
 * goal. */
static enum drained pass__drain_behind(struct shard *shard, struct ring *ring, bool woken,
				       bool bounded)
{
	const uint64_t generation = bounded ? lane__asked(ring->lane) : 0;
	enum drained drained;

	ring->ops->follow(ring, generation);
	if (woken && ring->ops->is_unread(ring))
		counter__add(&ring->wakeups_watermark, 1);
	drained = pass__drain_ring(shard, ring, woken, bounded);
	if (drained == DRAINED)
		ring->ops->resume(ring, woken, generation);
	return drained;
}

/* Drain a ring, and the one behind it. A ring in quarantine describes nothing: the one behind
 * it is drained all the same. */
static enum drained pass__drain(struct shard *shard, struct ring *ring, bool woken, bool bounded)
{
	struct ring *const behind = ring->behind;
	const enum drained drained = pass__drain_ring(shard, ring, woken, bounded);

	if (behind == NULL || drained == STARVED)
		return drained;
	if (drained == DRAINED_PART) {
		if (!behind->owes || !ring__is_done(ring) || ring__is_done(behind))
			return drained;
		behind->head = behind->goal;
		return pass__drain_behind(shard, behind, woken, bounded) == STARVED ? STARVED
										    : drained;
	}
	return pass__drain_behind(shard, behind, woken, bounded);
}

/* Have epoll poll the ring, and report once when it is above its watermark. */
static void pass__rearm(struct shard *shard, struct ring *ring)
{
	struct epoll_event event = {.events = ring->ops->poll, .data.ptr = ring};

	/* While there is no ring behind the fd, swept passes check for it; after an error too. */
	if ((event.events & EPOLLONESHOT) != 0 && !ring->armed && ring__is_sound(ring) &&
	    (ring->swept || !ring->erred))
		ring->armed =
			epoll_ctl(shard->epoll_fd, EPOLL_CTL_MOD, ring->wakeup_fd, &event) == 0;
}

static enum drained pass__drain_due(struct shard *shard, struct ring *ring, uint64_t floor_bytes)
{
	const bool woken = ring->woken;
	enum drained drained;

	if (ring__is_held(ring)) {
		if (ring->behind != NULL)
			ring->behind->ops->recycle(ring->behind);
		return DRAINED;
	}
	if (!ring__is_due(ring, floor_bytes))
		return DRAINED;
	ring->woken = false;
	if (woken)
		counter__add(&ring->wakeups_watermark, 1);
	drained = pass__drain(shard, ring, woken, true);
	if (drained == DRAINED)
		pass__rearm(shard, ring);
	return drained;
}

/* Drain all sideband rings completely: they are small. */
static void pass__drain_sideband(struct shard *shard)
{
	for (struct ring *ring = shard->rings; ring != NULL; ring = ring->next) {
		enum drained drained;

		if (ring->sideband == NULL)
			continue;
		do
			drained = pass__drain_due(shard, ring,
						  ring->lane->due ? 0 : shard->floor_bytes);
		while (drained == DRAINED_PART);
		ring->lane->unnamed |= drained == STARVED;
	}
	for (struct lane *lane = shard->lanes; lane != NULL; lane = lane->next) {
		lane__end_names(lane, shard->pool);
		if (lane__owes_names(lane) && !lane->unnamed)
			lane__answer(lane);
	}
}

/* Drain data rings. The next pass begins with the first ring that found no chunk, or with the
 * next one. */
static void pass__drain_data(struct shard *shard)
{
	struct ring *const begin = shard->turn != NULL ? shard->turn : shard->rings;
	struct ring *starved = NULL, *next = begin;

	while (next != NULL) {
		struct ring *const ring = next;
		enum drained drained;

		next = ring->next != NULL ? ring->next : shard->rings;
		if (next == begin)
			next = NULL;
		if (ring->sideband != NULL)
			continue;
		if (ring->lane->unnamed) {
			counter__add(&ring->starved, 1);
			continue;
		}
		drained = pass__drain_due(shard, ring, shard->floor_bytes);
		if (drained == STARVED && starved == NULL)
			starved = ring;
		shard->again |= drained == DRAINED_PART;
	}
	shard->turn = starved != NULL || begin == NULL ? starved : begin->next;
}

/* Report to the writer which generations are done. False: call again when the writer has
 * advanced. */
static bool pass__stamp(struct shard *shard)
{
	bool stamped = true, any = false;

	for (struct lane *lane = shard->lanes; lane != NULL; lane = lane->next) {
		if (lane->rings == 0 || lane->stamp == 0)
			continue;
		any = lane->stamping = true;
		/* Before the first segment there is only sideband: it waits here, unsettled. */
		stamped &= lane__stamp(lane, shard->pool,
				       !lane->stream->ops->split &&
					       !load_relaxed(&lane->stream->begun));
		lane->stamping = false;
	}
	if (any)
		writer__wake(shard->writer);
	return stamped;
}

/* End the generation of each lane whose rings have all reached their goals. */
static void pass__end(struct shard *shard, uint64_t generation)
{
	uint64_t done = generation;
	bool asked = false, ended;

	for (struct ring *each = shard->rings; each != NULL; each = each->next)
		for (struct ring *ring = each; ring != NULL; ring = ring->behind) {
			ring->owes = !ring__is_done(ring);
			ring->lane->owes |= ring->owes;
		}
	for (struct lane *lane = shard->lanes; lane != NULL; lane = lane->next) {
		if (lane->rings == 0)
			continue;
		if (lane__asked(lane) != 0 && !lane->owes) {
			lane->stamp = lane->begun;
			lane->stamp_ns = lane->begun_ns;
			asked |= writer__is_asked(shard->writer, load_relaxed(&lane->drained));
			/* Release; the partner is the acquire in drained_of(). */
			store_release(&lane->drained, lane->begun);
			shard->again |= lane->begun < generation;
		}
		lane->owes = false;
		done = least(done, load_relaxed(&lane->drained));
	}
	if (!pass__stamp(shard)) {
		/* First set it, then try again: the writer wakes those that waited before it
		 * advanced. */
		atomic_store(&shard->unstamped, true);
		if (!pass__stamp(shard))
			writer__poke(shard->writer); /* what it holds back is in the way */
	}
	ended = done != load_relaxed(&shard->drained);
	/* Release; the partner is the acquire in shard__drained(). */
	store_release(&shard->drained, done);
	/* Among several shards, the last one reports that all are done. The partners are the
	 * fences here: of two that end at the same time, one sees the other. */
	atomic_thread_fence(memory_order_seq_cst);
	if (asked || (ended && writer__is_followed(shard->writer, done) &&
		      writer__drained(shard->writer) == done))
		event_list__poke(shard->writer->events);
}

void pass__run(struct shard *shard, uint64_t generation)
{
	const uint64_t begun_ns = clock__now_ns();
	/* Rings that the last pass left unread may not wake again. */
	const bool all = shard->again || load_relaxed(&shard->starved);
	uint64_t took_ns;

	shard->again = false;
	store_relaxed(&shard->starved, false);
	shard->starved_rank = RANKS;
	store_relaxed(&shard->unstamped, false);
	pass__begin_generation(shard, generation, begun_ns);
	pass__begin(shard, all);
	/* No sample gets into a chunk before its names: a segment may end between the two, and
	 * the next one replays only sideband read by then. */
	pass__drain_sideband(shard);
	pass__drain_data(shard);
	if (load_relaxed(&shard->starved))
		pass__yield_chunks(shard);
	pass__end(shard, generation);
	store_relaxed(&shard->passed, generation);
	took_ns = clock__now_ns() - begun_ns;
	counter__add(&shard->passes, 1);
	counter__add(&shard->pass_ns, took_ns);
	counter__max(&shard->pass_ns_max, took_ns);
}

bool pass__last(struct shard *shard, struct ring *ring)
{
	bool drained;

	ring__last(ring);
	ring->lane->first = false;
	pass__load_heads(ring, true);
	if (ring->sideband != NULL)
		lane__begin_names(ring->lane);
	drained = ring__is_held(ring) || pass__drain(shard, ring, false, false) == DRAINED;
	lane__end_names(ring->lane, shard->pool);
	if (!drained)
		pass__yield_chunks(shard);
	return drained;
}
