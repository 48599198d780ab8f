/* SPDX-License-Identifier: Apache-2.0 */
#include "stream.h"

#include "ring.h"

/* How far the lanes of a stream are: which generations were drained and written, and up to which time
 * nothing older is to come. */

/* A record's time is taken before it becomes visible in the ring; an interrupt, or a preempted
 * virtual CPU, may lie between. Sideband is settled this much after its time. */
#define PUBLISH_DELAY_NS 100000000u

struct lane *stream__lane(const struct stream *stream, uint32_t shard)
{
	/* Acquire; the partner is the release in shard__add(). */
	struct lane *lane = load_acquire(&stream->lanes[shard]);

	if (lane == NULL)
		return NULL;
	/* Acquire twice; the partners are the decrements in shard__let_go(), after which its
	 * queued items are visible, and in work__end(), after which the counters are. */
	if (load_acquire(&lane->rings) == 0 && load_acquire(&lane->queued) == 0)
		return NULL;
	return lane;
}

/* Returns the least value, at most `most`, over all lanes except `but`. */
static uint64_t stream__least(const struct stream *stream, uint64_t most,
			      uint64_t (*of)(const struct lane *lane), const struct lane *but)
{
	for (uint32_t i = 0; i < SHARDS_MAX; i++) {
		const struct lane *const lane = stream__lane(stream, i);

		if (lane != NULL && lane != but)
			most = least(most, of(lane));
	}
	return most;
}

static uint64_t drained_of(const struct lane *lane)
{
	/* Acquire; the partner is the release in pass__end(): the counters of the passes are
	 * visible. */
	return load_relaxed(&lane->rings) > 0 ? load_acquire(&lane->drained) : UINT64_MAX;
}

static uint64_t settled_of(const struct lane *lane)
{
	return lane->settled_ns;
}

uint64_t stream__drained(const struct stream *stream, uint64_t issued)
{
	return stream__least(stream, issued, drained_of, NULL);
}

uint64_t stream__written(const struct stream *stream, uint64_t issued)
{
	return stream__least(stream, stream__drained(stream, issued), lane__written, NULL);
}

uint64_t stream__round_ns(const struct stream *stream, uint64_t issued)
{
	/* Acquire; the partner is the release in stream__note_end(). */
	const uint64_t ended = load_acquire(&stream->ended);

	if (ended + 1 < issued)
		return 0;
	return load_relaxed(&stream->ended_ns[~issued & 1]);
}

bool stream__completes_round(const struct stream *stream, const struct lane *lane, uint64_t stamp)
{
	return stamp != 0 && stream__least(stream, stamp, lane__written, lane) > stream->round;
}

/* Returns the time before which the ring holds nothing; UINT64_MAX: it keeps nothing for a
 * snapshot. */
static uint64_t ring__horizon(const struct ring *ring)
{
	/* Once removed it delivers only data in flight, which are checked later. */
	if (ring->left && ring->in_flight == 0 &&
	    (ring->front == NULL || ring->front->in_flight == 0))
		return UINT64_MAX;
	return counter__read(&ring->horizon_ns);
}

/* Returns the time before which no ring holds anything, at most `settled_ns`. If a window's history
 * exceeds the memory, its older half lacks names that are gone since. */
static uint64_t stream__horizon(struct stream *stream, uint64_t settled_ns)
{
	uint64_t horizon_ns = settled_ns;

	pthread_mutex_lock(&stream->lock);
	for (uint32_t i = 0; i < stream->ring_count; i++)
		horizon_ns = least(horizon_ns, ring__horizon(stream->rings[i]));
	pthread_mutex_unlock(&stream->lock);
	if (sideband__is_crowded(&stream->sideband)) {
		const uint64_t since_ns =
			horizon_ns > stream->crowded_ns ? horizon_ns : stream->crowded_ns;

		/* A lane added later has settled nothing yet. */
		if (since_ns < settled_ns) {
			horizon_ns = since_ns + (settled_ns - since_ns) / 2;
			stream->crowded_ns = horizon_ns;
		}
	}
	return horizon_ns;
}

uint64_t stream__left_ns(struct stream *stream)
{
	uint64_t left_ns = UINT64_MAX;

	HOLD(&stream->lock);
	for (uint32_t i = 0; i < stream->ring_count; i++)
		left_ns = least(left_ns, counter__read(&stream->rings[i]->left_ns));
	if (left_ns == UINT64_MAX)
		return left_ns;
	return left_ns > PUBLISH_DELAY_NS ? left_ns - PUBLISH_DELAY_NS : 0;
}

static void stream__note_end(struct stream *stream, uint64_t generation)
{
	const uint64_t before = load_relaxed(&stream->ended);
	const uint64_t now_ns = clock__now_ns();

	if (generation <= before)
		return;
	if (generation > before + 1) /* the previous one ended with it */
		store_relaxed(&stream->ended_ns[~generation & 1], now_ns);
	store_relaxed(&stream->ended_ns[generation & 1], now_ns);
	/* Release; the partner is the acquire in stream__round_ns(). */
	store_release(&stream->ended, generation);
}

void stream__pass_written(struct stream *stream, struct lane *lane, const struct item *item)
{
	uint64_t settled_ns, round;

	if (item->stamp == 0)
		return;
	/* Release; the partner is the acquire in lane__written(). */
	store_release(&lane->written_stamp, item->stamp);
	lane->settled_ns = item->begun_ns;
	settled_ns = stream__least(stream, item->begun_ns, settled_of, NULL);
	round = stream__least(stream, item->stamp, lane__written, NULL);
	if (round > stream->round)
		stream->round = round;
	stream__note_end(stream, round);
	if (stream->snapshots || load_relaxed(&stream->holds_back))
		settled_ns = stream__horizon(stream, settled_ns);
	if (settled_ns > PUBLISH_DELAY_NS)
		sideband__settle(&stream->sideband, settled_ns - PUBLISH_DELAY_NS);
}
