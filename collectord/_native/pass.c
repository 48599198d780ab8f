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

static struct chunk *pass__take_chunk(struct shard *shard)
{
	struct chunk *chunk = pool__take(shard->pool);

	if (chunk != NULL)
		return chunk;
	/* First say so, then look again: a chunk given back in between wakes nobody. */
	atomic_store(&shard->starved, true);
	return pool__take(shard->pool);
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

/* False: no chunk was free, part of the ring is unread. */
static bool pass__drain_ring(struct shard *shard, struct ring *ring)
{
	struct lane *lane = ring->lane;

	for (;;) {
		enum ring_take took;

		if (lane->open == NULL)
			lane->open = pass__take_chunk(shard);
		if (lane->open == NULL) {
			counter__add(&ring->starved, 1);
			return false;
		}
		took = pass__take(ring, lane->open, shard->pool->chunk_bytes);
		if (took == RING_SPLICED) {
			/* What was read before comes before in the file. */
			if (lane->open->used > 0)
				lane__close(lane, shard->writer, 0, 0);
			page_ring__queue_ticket(ring, shard->writer);
			continue;
		}
		if (took == RING_CHUNK_FULL || lane->open->span_count == CHUNK_SPANS)
			lane__close(lane, shard->writer, 0, 0);
		if (took != RING_CHUNK_FULL && took != RING_MORE) {
			pass__return_empty(shard, lane);
			return true;
		}
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

static bool pass__drain_pages(struct shard *shard, struct ring *ring, bool asked)
{
	struct page_ring *const pages = ring->pages;
	const uint64_t position = ring->position;
	const bool woken = ring->woken;
	bool complete;

	if (ring->held || !(woken || pages->full) ||
	    atomic_load_explicit(&ring->fault, memory_order_relaxed) != 0)
		return true;
	ring->woken = false;
	if (woken)
		counter__add(&ring->wakeups_watermark, 1);
	complete = pass__drain_ring(shard, ring);
	if (!woken && asked && ring->position != position)
		counter__add(&ring->wakeups_timer, 1);
	if (complete && !pages->armed && (pages->full || !pages->erred))
		pass__arm(shard, ring);
	return complete;
}

static bool pass__drain_relay(struct shard *shard, struct ring *ring, bool asked)
{
	const uint64_t position = ring->position;
	const bool woken = ring->woken;
	bool complete;

	if (ring->held || ring->relay->ended || !(woken || ring->relay->full) ||
	    atomic_load_explicit(&ring->fault, memory_order_relaxed) != 0)
		return true;
	ring->woken = false;
	if (woken)
		counter__add(&ring->wakeups_watermark, 1);
	complete = pass__drain_ring(shard, ring);
	if (!woken && asked && ring->position != position)
		counter__add(&ring->wakeups_timer, 1);
	return complete;
}

/* End a full pass: each lane's last item carries the generation. False: call again, for the
 * lanes whose mark of an earlier generation is still queued. */
static bool pass__stamp(struct shard *shard, uint64_t generation, uint64_t begun_ns)
{
	bool stamped = true;

	for (uint32_t i = 0; i < STREAMS_MAX; i++) {
		struct lane *lane = shard->lanes[i];
		bool filled;

		if (lane == NULL || lane->rings == 0 || lane->stamped == generation)
			continue;
		filled = lane->open != NULL && lane->open->used > 0;
		/* Before the first segment there is only sideband: it waits here, and is not settled. */
		if (filled && (stream__is_split(lane->stream) ||
			       atomic_load_explicit(&lane->stream->begun, memory_order_relaxed))) {
			lane__close(lane, shard->writer, generation, begun_ns);
		} else if (!lane__mark(lane, shard->writer, generation, filled ? 0 : begun_ns)) {
			stamped = false;
			continue;
		}
		lane->stamped = generation;
	}
	return stamped;
}

/* Where chunks are short, none waits half full for the next generation. */
static void pass__yield_chunks(struct shard *shard)
{
	for (uint32_t i = 0; i < STREAMS_MAX; i++)
		if (shard->lanes[i] != NULL)
			lane__yield(shard->lanes[i], shard->writer, shard->pool);
}

static bool pass__end(struct shard *shard, uint64_t generation, uint64_t begun_ns)
{
	if (pass__stamp(shard, generation, begun_ns))
		return true;
	/* First say so, then look again: the writer wakes who was waiting before it freed a mark. */
	atomic_store(&shard->starved, true);
	return pass__stamp(shard, generation, begun_ns);
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

/* All heads first: what follows copies a cut through the rings at one instant. Those of sideband
 * last: the cut has whatever names a sample in it. */
static void pass__begin(struct shard *shard, bool full)
{
	const bool first = shard->asked > shard->begun;

	if (first)
		shard->begun = shard->asked;
	for (uint32_t i = 0; i < shard->ring_count; i++)
		if (shard->rings[i]->pages != NULL)
			pass__begin_pages(shard->rings[i], full);
		else if (shard->rings[i]->relay != NULL)
			relay_ring__begin(shard->rings[i], full, first);
		else if (shard->rings[i]->window != NULL)
			window__look(shard->rings[i], full);
		else if (shard->rings[i]->sideband == NULL)
			pass__begin_perf(shard->rings[i]);
	for (uint32_t i = 0; i < shard->ring_count; i++)
		if (shard->rings[i]->sideband != NULL)
			ring__begin(shard->rings[i]);
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

static bool pass__data_is_due(const struct shard *shard)
{
	for (uint32_t i = 0; i < shard->ring_count; i++)
		if (shard->rings[i]->sideband == NULL && shard->rings[i]->pages == NULL &&
		    shard->rings[i]->relay == NULL && !ring__is_left_alone(shard->rings[i]) &&
		    ring__is_due(shard->rings[i], shard->floor_bytes))
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

/* Drain an AUX area whose data ring was due; `complete`: that one was read to its head. */
static bool pass__drain_aux(struct shard *shard, struct ring *ring, bool complete, bool woken,
			    bool asked)
{
	if (complete) {
		aux_ring__note_emptied(ring->aux, shard->asked);
		if (ring__is_unread(ring)) {
			ring__count_wakeup(ring, woken, asked);
			complete = pass__drain_ring(shard, ring);
		}
	}
	/* An event with a full area would be stopped again at once, and maybe nothing would tell. */
	if (complete)
		aux_ring__enable(ring->aux, woken, shard->asked);
	return complete;
}

static bool pass__drain_perf(struct shard *shard, struct ring *ring, bool woken, bool asked)
{
	bool complete = true;

	if (ring__is_unread(ring)) {
		if (!woken && asked)
			counter__add(&ring->wakeups_timer, 1);
		complete = pass__drain_ring(shard, ring);
	}
	if (ring->aux_pair != NULL)
		complete = pass__drain_aux(shard, ring->aux_pair, complete, woken, asked);
	return complete;
}

/* Drain the sideband rings, or the others, that hold at least so much or that woke the shard.
 * False: no chunk was free, part of a ring is unread. */
static bool pass__drain(struct shard *shard, bool sideband, uint64_t floor_bytes, bool asked)
{
	bool complete = true;

	for (uint32_t i = 0; i < shard->ring_count; i++) {
		struct ring *ring = shard->rings[i];
		const bool due = ring__is_due(ring, floor_bytes);
		const bool woken = ring->woken;

		if ((ring->sideband != NULL) != sideband)
			continue;
		if (ring->pages != NULL) {
			complete &= pass__drain_pages(shard, ring, asked);
			continue;
		}
		if (ring->relay != NULL) {
			complete &= pass__drain_relay(shard, ring, asked);
			continue;
		}
		ring->woken = false;
		if (woken)
			counter__add(&ring->wakeups_watermark, 1);
		if (ring->held && ring->aux_pair != NULL)
			aux_ring__recycle(ring->aux_pair->aux);
		if (!due || (ring->held && ring->window == NULL))
			continue;
		complete &= pass__drain_perf(shard, ring, woken, asked);
	}
	return complete;
}

void pass__run(struct shard *shard, uint64_t generation)
{
	const uint64_t begun_ns = clock__now_ns();
	const bool asked =
		generation != atomic_load_explicit(&shard->drained, memory_order_relaxed);
	/* Rings that a starved pass left behind may not wake again. */
	const bool full =
		asked || atomic_load_explicit(&shard->starved, memory_order_relaxed);
	const uint64_t floor_bytes = full ? 0 : shard->floor_bytes;
	bool complete;
	uint64_t took_ns;

	atomic_store_explicit(&shard->starved, false, memory_order_relaxed);
	shard->asked = asked ? generation : 0;
	pass__begin(shard, full);
	/* No sample gets into a chunk before what names it: a segment may end between the two, and
	 * the next one replays only what was read. */
	complete = pass__drain(shard, true, pass__data_is_due(shard) ? 0 : floor_bytes, asked);
	if (complete)
		complete = pass__drain(shard, false, floor_bytes, asked);
	if (!complete)
		pass__yield_chunks(shard);
	if (asked && complete && pass__end(shard, generation, begun_ns)) {
		/* Release; the partner is the acquire in shard__drained(). */
		atomic_store_explicit(&shard->drained, generation, memory_order_release);
		event_list__poke(shard->writer->events);
	}
	took_ns = clock__now_ns() - begun_ns;
	counter__add(&shard->passes, 1);
	counter__add(&shard->pass_ns, took_ns);
	counter__max(&shard->pass_ns_max, took_ns);
}

bool pass__last(struct shard *shard, struct ring *ring)
{
	bool unread;

	shard->asked = 0;
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
	if (ring->map != NULL ? pass__drain_perf(shard, ring, false, false)
			      : pass__drain_ring(shard, ring))
		return true;
	pass__yield_chunks(shard);
	return false;
}
