/* SPDX-License-Identifier: Apache-2.0 */
/* When a stream's sideband becomes state: see sideband.h. */
#include "ring.h"
#include "stream.h"

/*
 * A record's time is taken before it becomes visible in the ring; an interrupt, or a preempted
 * virtual CPU, may lie between. Sideband settles that much later than its time says.
 */
#define PUBLISH_DELAY_NS 100000000u

/* The time before which the ring holds nothing; UINT64_MAX: it keeps nothing for a snapshot. */
static uint64_t ring__horizon(const struct ring *ring)
{
	/* Once it was removed no more comes than what is on its way, if that is looked at later. */
	if (ring->left && ring->in_flight == 0 &&
	    (ring->front == NULL || ring->front->in_flight == 0))
		return UINT64_MAX;
	return counter__read(&ring->horizon_ns);
}

/*
 * The time before which no ring holds anything, at most `settled_ns`. Where more happens within the
 * window than there is memory for, the older half of it does without names that are gone since.
 */
static uint64_t stream__horizon(struct stream *stream, uint64_t settled_ns)
{
	uint64_t horizon_ns = settled_ns;

	pthread_mutex_lock(&stream->lock);
	for (uint32_t i = 0; i < stream->ring_count; i++) {
		const uint64_t own_ns = ring__horizon(stream->rings[i]);

		if (own_ns < horizon_ns)
			horizon_ns = own_ns;
	}
	pthread_mutex_unlock(&stream->lock);
	if (sideband__is_crowded(&stream->sideband)) {
		const uint64_t since_ns = horizon_ns > stream->crowded_ns ? horizon_ns
									   : stream->crowded_ns;

		/* A lane that came later has settled nothing yet. */
		if (since_ns < settled_ns) {
			horizon_ns = since_ns + (settled_ns - since_ns) / 2;
			stream->crowded_ns = horizon_ns;
		}
	}
	return horizon_ns;
}

void stream__pass_written(struct stream *stream, struct lane *lane, const struct item *item)
{
	uint64_t settled_ns, least;

	if (item->stamp == 0)
		return;
	/* Release; the partner is the acquire in lane__written(). */
	atomic_store_explicit(&lane->written_stamp, item->stamp, memory_order_release);
	lane->settled_ns = item->begun_ns;
	settled_ns = item->begun_ns;
	least = item->stamp;
	for (uint32_t i = 0; i < SHARDS_MAX; i++) {
		const struct lane *other = stream__lane(stream, i);

		if (other == NULL)
			continue;
		if (other->settled_ns < settled_ns)
			settled_ns = other->settled_ns;
		if (lane__written(other) < least)
			least = lane__written(other);
	}
	if (least > stream->round)
		stream->round = least;
	if (stream->snapshots ||
	    atomic_load_explicit(&stream->holds_back, memory_order_relaxed))
		settled_ns = stream__horizon(stream, settled_ns);
	if (settled_ns > PUBLISH_DELAY_NS)
		sideband__settle(&stream->sideband, settled_ns - PUBLISH_DELAY_NS);
}
