/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "pass.h"

#include <sys/epoll.h>

#include "aux_ring.h"
#include "clock.h"
#include "event_list.h"
#include "page_ring.h"
#include "relay_ring.h"
#include "window.h"

enum drained {
	DRAINED,      /* up to the head of this pass */
	DRAINED_PART, /* the ring's turn is over, chunks are short */
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
	/* First say so, then look again: a chunk given back in between wakes nobody. */
	atomic_store(&shard->starved, true);
	return pool__take(shard->pool, share);
}

/* An open chunk that nothing went into is of use to others, and an idle ring would keep it for
 * hours. */
static void pass__return_empty(struct shard *shard, struct lane *lane)
{
	if (lane->open == NULL || lane->open->used > 0)
		return;
	lane__yield(lane, shard->writer, shard->pool);
	for (uint32_t i = 0; i < shard->writer->shard_count; i++)
		if (shard->writer->shards[i] != shard)
			shard__wake_starved(shard->writer->shards[i]);
}

static enum ring_take pass__take(struct ring *ring, struct chunk *chunk, uint32_t chunk_bytes)
{
	if (ring->pages != NULL)
		return page_ring__take(ring, chunk, chunk_bytes);
	if (ring->relay != NULL)
		return relay_ring__take(ring, chunk, chunk_bytes);
	if (ring->window != NULL)
		return window__give(ring, chunk, chunk_bytes);
	if (ring->aux != NULL)
		return aux_ring__take(ring, chunk, chunk_bytes);
	return ring__take(ring, chunk, chunk_bytes);
}

/*
 * While chunks are short the turn of a ring, if it is `bounded`, ends with a chunk that it filled, or
 * with the second where others had most of the first: who is always full gets what others get.
 */
static enum drained pass__drain_ring(struct shard *shard, struct ring *ring, bool bounded)
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
		took = pass__take(ring, lane->open, shard->pool->chunk_bytes);
		taken += lane->open->used - used;
		if (took == RING_SPLICED) {
			/* What was read before comes before in the file. */
			if (lane->open->used > 0)
				lane__close(lane, shard->writer);
			page_ring__queue_ticket(ring, shard->writer);
			continue;
		}
		if (took == RING_CHUNK_FULL || lane->open->span_count == CHUNK_SPANS)
			lane__close(lane, shard->writer);
		if (took != RING_CHUNK_FULL && took != RING_MORE) {
			pass__return_empty(shard, lane);
			ring->owes = false;
			return DRAINED;
		}
		if (bounded && took == RING_CHUNK_FULL && taken * 2 >= shard->pool->chunk_bytes &&
		    pool__is_short(shard->pool))
			return DRAINED_PART;
	}
}

/* Have epoll look at the ring, and tell once when it is above its watermark. */
static void pass__arm(struct shard *shard, struct ring *ring)
{
	struct epoll_event event = {.events = EPOLLIN | EPOLLONESHOT, .data.ptr = ring};

	/* An error leaves it to the full passes. */
	ring->pages->armed =
		epoll_ctl(shard->epoll_fd, EPOLL_CTL_MOD, ring->wakeup_fd, &event) == 0;
}

static enum drained pass__drain_pages(struct shard *shard, struct ring *ring)
{
	struct page_ring *const pages = ring->pages;
	const bool asked = lane__asked(ring->lane) != 0;
	const uint64_t position = ring->position;
	const bool woken = ring->woken;
	enum drained drained;

	if (ring->held || !(woken || pages->full) ||
	    atomic_load_explicit(&ring->fault, memory_order_relaxed) != 0)
		return DRAINED;
	ring->woken = false;
	if (woken)
		counter__add(&ring->wakeups_watermark, 1);
	drained = pass__drain_ring(shard, ring, true);
	if (!woken && asked && ring->position != position)
		counter__add(&ring->wakeups_timer, 1);
	if (drained == DRAINED && !pages->armed && (pages->full || !pages->erred))
		pass__arm(shard, ring);
	return drained;
}

static enum drained pass__drain_relay(struct shard *shard, struct ring *ring)
{
	const bool asked = lane__asked(ring->lane) != 0;
	const uint64_t position = ring->position;
	const bool woken = ring->woken;
	enum drained drained;

	if (ring->held || ring->relay->ended || !(woken || ring->relay->full) ||
	    atomic_load_explicit(&ring->fault, memory_order_relaxed) != 0)
		return DRAINED;
	ring->woken = false;
	if (woken)
		counter__add(&ring->wakeups_watermark, 1);
	drained = pass__drain_ring(shard, ring, true);
	if (!woken && asked && ring->position != position)
		counter__add(&ring->wakeups_timer, 1);
	return drained;
}

/* Where chunks are short, none waits half full for the next generation that others may have; what
 * is kept for its stream is for nobody else. */
static void pass__yield_chunks(struct shard *shard)
{
	for (uint32_t i = 0; i < STREAMS_MAX; i++) {
		struct lane *const lane = shard->lanes[i];

		if (lane != NULL && lane->open != NULL &&
		    pool__is_beyond(shard->pool, lane->open->share))
			lane__yield(lane, shard->writer, shard->pool);
	}
}

/* What an ftrace ring held shows only in what the last pass took. */
static void pass__begin_pages(struct ring *ring, bool full)
{
	struct page_ring *pages = ring->pages;
	const uint32_t took =
		pages->pass_pages < pages->subbufs ? pages->pass_pages : pages->subbufs;

	ring__count_fill(ring, (uint64_t)took * pages->page_bytes,
			 (uint64_t)pages->subbufs * pages->page_bytes);
	page_ring__begin(pages, full);
}

/* A perf ring's heads: that of its AUX area first, so that the AUX records of what is below it are
 * below the other. */
static void pass__begin_perf(struct ring *ring)
{
	if (ring->aux_pair != NULL)
		aux_ring__begin(ring->aux_pair->aux);
	ring__begin(ring);
}

/* Does the pass take what is below the watermark too? */
static bool ring__is_swept(const struct ring *ring, bool all)
{
	return all || lane__asked(ring->lane) != 0;
}

static void pass__load_head(struct ring *ring, bool all)
{
	const bool full = ring__is_swept(ring, all);

	if (ring->pages != NULL)
		pass__begin_pages(ring, full);
	else if (ring->relay != NULL)
		relay_ring__begin(ring, full, ring->lane->first);
	else if (ring->window != NULL)
		window__look(ring, full);
	else
		pass__begin_perf(ring);
}

/* The generation waits for what the ring holds now. A bad head is none. */
static void ring__set_goal(struct ring *ring)
{
	const bool sound = atomic_load_explicit(&ring->fault, memory_order_relaxed) == 0;

	ring->goal = ring->head;
	ring->owes = sound || ring->window != NULL;
	if (ring->pages != NULL)
		ring->pages->goal_pages = ring->pages->subbufs + 1;
	if (ring->relay != NULL)
		ring->relay->goal_bytes = ring->relay->capacity;
}

/* Has it come to where it was when its lane's generation began, or will it never? */
static bool ring__is_done(const struct ring *ring)
{
	if (!ring->owes || (ring->window == NULL &&
			    atomic_load_explicit(&ring->fault, memory_order_relaxed) != 0))
		return true;
	if (ring->pages != NULL)
		return ring->held || ring->pages->pass_pages >= ring->pages->goal_pages;
	if (ring->relay != NULL)
		return ring->held || ring->relay->ended ||
		       ring->relay->pass_bytes >= ring->relay->goal_bytes;
	return (ring->held && ring->window == NULL) || (int64_t)(ring->position - ring->goal) >= 0;
}

/* A lane that is done with its generation begins the last one that was issued. */
static void pass__begin_generation(struct shard *shard, uint64_t generation, uint64_t now_ns)
{
	for (uint32_t i = 0; i < STREAMS_MAX; i++) {
		struct lane *const lane = shard->lanes[i];

		if (lane == NULL)
			continue;
		lane->unnamed = false;
		lane->first =
			lane->rings > 0 && lane__asked(lane) == 0 && generation > lane->begun;
		if (lane->first) {
			lane->begun = generation;
			lane->begun_ns = now_ns;
		}
	}
}

/* All heads first: what follows copies a cut through the rings at one instant. Those of sideband
 * last: the cut has whatever names a sample in it. */
static void pass__begin(struct shard *shard, bool all)
{
	for (uint32_t i = 0; i < shard->ring_count; i++)
		if (shard->rings[i]->sideband == NULL)
			pass__load_head(shard->rings[i], all);
	for (uint32_t i = 0; i < shard->ring_count; i++)
		if (shard->rings[i]->sideband != NULL)
			ring__begin(shard->rings[i]);
	for (uint32_t i = 0; i < shard->ring_count; i++) {
		struct ring *const ring = shard->rings[i];

		if (!ring->lane->first)
			continue;
		ring__set_goal(ring);
		if (ring->aux_pair != NULL)
			ring__set_goal(ring->aux_pair);
	}
}

/* The window of a ring is in our memory, whatever has become of the ring; the AUX area of one in
 * quarantine is drained on. */
static bool ring__is_left_alone(const struct ring *ring)
{
	return ring->window == NULL &&
	       (ring->held ||
		(ring->aux_pair == NULL &&
		 atomic_load_explicit(&ring->fault, memory_order_relaxed) != WALK_OK));
}

static bool ring__is_due(const struct ring *ring, uint64_t floor_bytes)
{
	const struct ring *const aux = ring->aux_pair;

	return ring->woken || ring->head - ring->position >= floor_bytes ||
	       (aux != NULL && aux->head - aux->position >= floor_bytes);
}

static uint64_t ring__floor(const struct shard *shard, const struct ring *ring, bool all)
{
	return ring__is_swept(ring, all) ? 0 : shard->floor_bytes;
}

static bool pass__data_is_due(const struct shard *shard, bool all)
{
	for (uint32_t i = 0; i < shard->ring_count; i++)
		if (shard->rings[i]->sideband == NULL && shard->rings[i]->pages == NULL &&
		    shard->rings[i]->relay == NULL && !ring__is_left_alone(shard->rings[i]) &&
		    ring__is_due(shard->rings[i], ring__floor(shard, shard->rings[i], all)))
			return true;
	return false;
}

static bool ring__is_unread(const struct ring *ring)
{
	/* A window was checked when it was copied: a fault is what ended it. */
	return ring->head != ring->position &&
	       (ring->window != NULL ||
		atomic_load_explicit(&ring->fault, memory_order_relaxed) == 0);
}

static void ring__count_wakeup(struct ring *ring, bool woken, bool asked)
{
	if (woken)
		counter__add(&ring->wakeups_watermark, 1);
	else if (asked)
		counter__add(&ring->wakeups_timer, 1);
}

/*
 * Drain an AUX area whose data ring was read to its head, or past its goal: then as far as the goal
 * of the area, whose AUX records lie below that of the data ring.
 */
static enum drained pass__drain_aux(struct shard *shard, struct ring *ring, bool woken,
				    bool bounded)
{
	const uint64_t generation = bounded ? lane__asked(ring->lane) : 0;
	enum drained drained = DRAINED;

	aux_ring__note_emptied(ring->aux, generation);
	if (ring__is_unread(ring)) {
		ring__count_wakeup(ring, woken, generation != 0);
		drained = pass__drain_ring(shard, ring, bounded);
	}
	/* An event with a full area would be stopped again at once, and maybe nothing would tell. */
	if (drained == DRAINED)
		aux_ring__enable(ring->aux, woken, generation);
	return drained;
}

static enum drained pass__drain_perf(struct shard *shard, struct ring *ring, bool woken,
				     bool bounded)
{
	struct ring *const aux = ring->aux_pair;
	enum drained drained = DRAINED;

	if (ring__is_unread(ring)) {
		if (!woken && bounded && lane__asked(ring->lane) != 0)
			counter__add(&ring->wakeups_timer, 1);
		drained = pass__drain_ring(shard, ring, bounded);
	}
	if (aux == NULL || drained == STARVED)
		return drained;
	if (drained == DRAINED_PART) {
		if (!aux->owes || !ring__is_done(ring) || ring__is_done(aux))
			return drained;
		aux->head = aux->goal;
		return pass__drain_aux(shard, aux, woken, bounded) == STARVED ? STARVED : drained;
	}
	return pass__drain_aux(shard, aux, woken, bounded);
}

static enum drained pass__drain_due(struct shard *shard, struct ring *ring, uint64_t floor_bytes)
{
	const bool due = ring__is_due(ring, floor_bytes);
	const bool woken = ring->woken;

	if (ring->pages != NULL)
		return pass__drain_pages(shard, ring);
	if (ring->relay != NULL)
		return pass__drain_relay(shard, ring);
	ring->woken = false;
	if (woken)
		counter__add(&ring->wakeups_watermark, 1);
	if (ring->held && ring->aux_pair != NULL)
		aux_ring__recycle(ring->aux_pair->aux);
	if (!due || (ring->held && ring->window == NULL))
		return DRAINED;
	return pass__drain_perf(shard, ring, woken, true);
}

/* Sideband is read whole or not at all: its rings are small. */
static void pass__drain_sideband(struct shard *shard, bool all)
{
	const bool data_is_due = pass__data_is_due(shard, all);

	for (uint32_t i = 0; i < shard->ring_count; i++) {
		struct ring *ring = shard->rings[i];
		enum drained drained;

		if (ring->sideband == NULL)
			continue;
		do
			drained = pass__drain_due(
				shard, ring, data_is_due ? 0 : ring__floor(shard, ring, all));
		while (drained == DRAINED_PART);
		ring->lane->unnamed |= drained == STARVED;
	}
}

/* The next pass begins with the ring that was the first to find no chunk, or with the next one. */
static void pass__drain_data(struct shard *shard, bool all)
{
	const uint32_t count = shard->ring_count, begin = count > 0 ? shard->turn % count : 0;
	bool starved = false;

	shard->turn = begin + 1;
	for (uint32_t i = 0; i < count; i++) {
		const uint32_t turn = (begin + i) % count;
		struct ring *ring = shard->rings[turn];
		enum drained drained;

		if (ring->sideband != NULL)
			continue;
		if (ring->lane->unnamed) {
			counter__add(&ring->starved, 1);
			continue;
		}
		drained = pass__drain_due(shard, ring, ring__floor(shard, ring, all));
		if (drained == STARVED && !starved) {
			starved = true;
			shard->turn = turn;
		}
		shard->again |= drained == DRAINED_PART;
	}
}

/* Tell the writer of what the lanes are done with. False: call again, when it has gone on. */
static bool pass__stamp(struct shard *shard)
{
	bool stamped = true;

	for (uint32_t i = 0; i < STREAMS_MAX; i++) {
		struct lane *const lane = shard->lanes[i];

		if (lane == NULL || lane->rings == 0)
			continue;
		/* Before the first segment there is only sideband: it waits here, and is not settled. */
		stamped &= lane__stamp(
			lane, shard->writer, shard->pool,
			!stream__is_split(lane->stream) &&
				!atomic_load_explicit(&lane->stream->begun, memory_order_relaxed));
	}
	return stamped;
}

/* End the generation of each lane whose rings have all come to their goals. */
static void pass__end(struct shard *shard, uint64_t generation)
{
	uint64_t least = generation;
	bool ended = false;

	for (uint32_t i = 0; i < shard->ring_count; i++) {
		struct ring *const ring = shard->rings[i];

		ring->owes &= !ring__is_done(ring);
		if (ring->aux_pair != NULL)
			ring->aux_pair->owes &= !ring->held && !ring__is_done(ring->aux_pair);
		ring->lane->owes |= ring->owes || (ring->aux_pair != NULL && ring->aux_pair->owes);
	}
	for (uint32_t i = 0; i < STREAMS_MAX; i++) {
		struct lane *const lane = shard->lanes[i];

		if (lane == NULL || lane->rings == 0)
			continue;
		if (lane__asked(lane) != 0 && !lane->owes) {
			lane->stamp = lane->begun;
			lane->stamp_ns = lane->begun_ns;
			/* Release; the partner is the acquire in lane__drained(). */
			atomic_store_explicit(&lane->drained, lane->begun, memory_order_release);
			shard->again |= lane->begun < generation;
			ended = true;
		}
		lane->owes = false;
		if (lane__drained(lane) < least)
			least = lane__drained(lane);
	}
	if (!pass__stamp(shard)) {
		/* First say so, then look again: the writer wakes who was waiting before it went on. */
		atomic_store(&shard->unstamped, true);
		(void)pass__stamp(shard);
	}
	ended |= least != atomic_load_explicit(&shard->drained, memory_order_relaxed);
	/* Release; the partner is the acquire in shard__drained(). */
	atomic_store_explicit(&shard->drained, least, memory_order_release);
	if (ended)
		event_list__poke(shard->writer->events);
}

void pass__run(struct shard *shard, uint64_t generation)
{
	const uint64_t begun_ns = clock__now_ns();
	/* Rings that the last pass left behind may not wake again. */
	const bool all =
		shard->again || atomic_load_explicit(&shard->starved, memory_order_relaxed);
	uint64_t took_ns;

	shard->again = false;
	atomic_store_explicit(&shard->starved, false, memory_order_relaxed);
	atomic_store_explicit(&shard->unstamped, false, memory_order_relaxed);
	pass__begin_generation(shard, generation, begun_ns);
	pass__begin(shard, all);
	/* No sample gets into a chunk before what names it: a segment may end between the two, and
	 * the next one replays only what was read. */
	pass__drain_sideband(shard, all);
	pass__drain_data(shard, all);
	if (atomic_load_explicit(&shard->starved, memory_order_relaxed))
		pass__yield_chunks(shard);
	pass__end(shard, generation);
	took_ns = clock__now_ns() - begun_ns;
	counter__add(&shard->passes, 1);
	counter__add(&shard->pass_ns, took_ns);
	counter__max(&shard->pass_ns_max, took_ns);
}

bool pass__last(struct shard *shard, struct ring *ring)
{
	bool unread;

	if (ring->pages != NULL) {
		page_ring__begin(ring->pages, true);
		unread = atomic_load_explicit(&ring->fault, memory_order_relaxed) == 0;
	} else if (ring->relay != NULL) {
		ring->relay->last = true;
		relay_ring__begin(ring, true, false);
		unread = !ring->relay->ended &&
			 atomic_load_explicit(&ring->fault, memory_order_relaxed) == 0;
	} else if (ring->window != NULL) {
		unread = ring->head != ring->position;
	} else {
		if (ring->aux_pair != NULL)
			ring->aux_pair->aux->stopping = true;
		pass__begin_perf(ring);
		unread = true;
	}
	if (!unread || (ring->held && ring->window == NULL))
		return true;
	if ((ring->map != NULL ? pass__drain_perf(shard, ring, false, false)
			       : pass__drain_ring(shard, ring, false)) == DRAINED)
		return true;
	pass__yield_chunks(shard);
	return false;
}
