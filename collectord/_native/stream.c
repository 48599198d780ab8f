/* SPDX-License-Identifier: Apache-2.0 */
#include "stream.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "event_list.h"
#include "ring.h"

/* A record's time is taken before it becomes visible in the ring; an interrupt, or a preempted
 * virtual CPU, may lie between. Sideband is settled this much after its time. */
#define PUBLISH_DELAY_NS 100000000u

int stream__init(struct stream *stream, uint32_t id, uint32_t chunk_bytes,
		 const struct stream_options *options, struct event_list *events)
{
	int ret;

	if (options->page_bytes > chunk_bytes)
		return -EINVAL;
	memset(stream, 0, sizeof(*stream));
	pthread_mutex_init(&stream->lock, NULL);
	stream->id = id;
	stream->page_bytes = options->page_bytes;
	stream->last = &stream->first;
	stream->ops = options->ops;
	stream->snapshots = options->snapshots;
	stream->data_share.stream = stream->sideband_share.stream = id;
	stream->events = events;
	stream->space_answer = SPACE_UNANSWERED;
	stream->hash = XXH3_createState();
	/* Aligned for O_DIRECT, with room for a marker behind a full chunk. */
	stream->scratch = aligned_alloc(CHUNK_ALIGN_BYTES, chunk_bytes + CHUNK_ALIGN_BYTES);
	stream->scratch_bytes = chunk_bytes;
	ret = sideband__init(&stream->sideband, options->sideband_bytes);
	stream->sideband.foreign_clock = options->foreign_clock;
	if (ret == 0)
		ret = sums__init(&stream->sums);
	if (ret == 0 && (stream->hash == NULL || stream->scratch == NULL))
		ret = -ENOMEM;
	if (ret < 0)
		stream__deinit(stream);
	return ret;
}

void stream__set_rank(struct stream *stream, uint32_t rank)
{
	store_relaxed(&stream->data_share.rank, rank);
	store_relaxed(&stream->sideband_share.rank, rank);
}

void stream__free(struct stream *stream)
{
	for (uint32_t i = 0; i < stream->ring_count; i++)
		stream->rings[i]->ops->free(stream->rings[i]);
	stream__deinit(stream);
	free(stream);
}

void stream__deinit(struct stream *stream)
{
	free(stream->scratch);
	XXH3_freeState(stream->hash);
	sums__deinit(&stream->sums);
	sideband__deinit(&stream->sideband);
	free(stream->rings);
	free(stream->gone);
	for (uint32_t i = 0; i < SHARDS_MAX; i++)
		free(stream->lanes[i]);
	segment__forget(&stream->current);
	segment__forget(&stream->next);
	pthread_mutex_destroy(&stream->lock);
	memset(stream, 0, sizeof(*stream));
}

static bool stream__takes(const struct stream *stream, const struct segment *segment)
{
	const bool extents = segment->capacity > 0;

	if (segment->begin % CHUNK_ALIGN_BYTES != 0 || extents != (stream->page_bytes > 0) ||
	    (segment->places != NULL) != stream->ops->split)
		return false;
	for (uint32_t i = 0; extents && i < segment->place_count; i++)
		if (segment->places[i] != NO_PLACE && segment->places[i] % CHUNK_ALIGN_BYTES != 0)
			return false;
	return true;
}

int stream__prepare(struct stream *stream, const struct segment *segment)
{
	if (!stream__takes(stream, segment))
		return -EINVAL;
	HOLD(&stream->lock);
	if (stream->finished)
		return -ESHUTDOWN;
	if (stream->next.open)
		return -EBUSY;
	stream->next = *segment;
	store_relaxed(&stream->begun, true);
	return 0;
}

int stream__add_ring(struct stream *stream, struct ring *ring)
{
	struct ring **rings;

	HOLD(&stream->lock);
	if (stream->finished)
		return -ESHUTDOWN;
	rings = realloc(stream->rings, (stream->ring_count + 1) * sizeof(struct ring *));
	if (rings == NULL)
		return -ENOMEM;
	rings[stream->ring_count++] = ring;
	stream->rings = rings;
	if (stream->current.open && stream->ops->split)
		stream->ops->begin_ring(ring, &stream->current);
	return 0;
}

static struct event_ring stream__share(const struct ring *ring)
{
	return (struct event_ring){
		.id = ring->id,
		.samples = counter__read(&ring->segment_samples),
		.bytes = counter__read(&ring->segment_bytes),
		.payload = ring->ops->payload,
	};
}

bool stream__keep_share(struct stream *stream, const struct ring *ring)
{
	const struct event_ring share = stream__share(ring);
	struct event_ring *gone;

	if (share.samples == 0 && share.bytes == 0)
		return true;
	if (stream->ops->split)
		return false;
	gone = realloc(stream->gone, (stream->gone_count + 1) * sizeof(*gone));
	if (gone == NULL)
		return false;
	gone[stream->gone_count++] = share;
	stream->gone = gone;
	return true;
}

/* Close the running segment; under `lock`. */
static void stream__close_current(struct stream *stream, bool final, bool early)
{
	struct segment *segment = &stream->current;
	struct event *event = event__new(EVENT_SEGMENT_CLOSED, stream->id,
					 stream->ring_count + stream->gone_count);

	if (event != NULL) {
		event->final = final;
		event->early = early;
		event->split = stream->ops->split;
		event->segment = *segment;
		segment->places = segment->aux_index = NULL;
		if (!event->split)
			event->sums = sums__give(&stream->sums, &event->sum_count);
	} else {
		segment__forget(segment);
	}
	for (uint32_t i = 0; i < stream->ring_count; i++) {
		struct ring *ring = stream->rings[i];

		if (event != NULL)
			event->rings[i] = stream__share(ring);
		if (event != NULL && stream->ops->split)
			stream->ops->tell_ring(ring, &event->rings[i]);
		counter__set(&ring->segment_samples, 0);
		counter__set(&ring->segment_bytes, 0);
	}
	for (uint32_t i = 0; event != NULL && i < stream->gone_count; i++)
		event->rings[stream->ring_count + i] = stream->gone[i];
	stream->gone_count = 0;
	stream->current.open = false;
	stream->rotate_wanted = stream->turn_wanted = stream->round_due = false;
	cut__end(&stream->cut);
	mapped_files__turn(&stream->sideband.files);
	event_list__push(stream->events, event);
}

/* Open the prepared segment; under `lock`. */
static void stream__open_next(struct stream *stream)
{
	if (!stream->next.open)
		return;
	segment__forget(&stream->current);
	stream->current = stream->next;
	stream->next.open = false;
	stream->next.places = NULL;
	for (uint32_t i = 0; stream->ops->split && i < stream->ring_count; i++)
		stream->ops->begin_ring(stream->rings[i], &stream->current);
	sums__begin(&stream->sums);
	event_list__push(stream->events, event__new(EVENT_SEGMENT_WANTED, stream->id, 0));
}

/* Whether a running segment cannot take `bytes` more; under `lock`. */
static bool stream__is_full(const struct stream *stream, uint64_t bytes)
{
	const struct segment *segment = &stream->current;

	return segment->open && (segment->chunks > 0 || stream->turn_wanted) &&
	       (stream->rotate_wanted || segment->offset + bytes > segment->limit);
}

bool stream__has_room(struct stream *stream, uint64_t bytes)
{
	HOLD(&stream->lock);
	return stream->current.open && !stream__is_full(stream, bytes);
}

/* Whether the running segment is to end before `bytes` more, as another one can begin; under
 * `lock`. */
static bool stream__ends(const struct stream *stream, uint64_t bytes)
{
	return stream__is_full(stream, bytes) && stream->next.open;
}

/* Whether readers of the running segment are to be told of its end before another one begins: what
 * they find of the stream has no gap then. */
static bool stream__owes(struct stream *stream)
{
	return stream__has_news(stream) && load_relaxed(&stream->tell_error) == 0;
}

void stream__tell_end(struct stream *stream, uint64_t bytes)
{
	bool ends;

	pthread_mutex_lock(&stream->lock);
	ends = stream__ends(stream, bytes);
	pthread_mutex_unlock(&stream->lock);
	if (ends)
		stream__tell(stream);
}

void stream__advance(struct stream *stream, uint64_t bytes, bool full)
{
	const struct segment *segment = &stream->current;

	HOLD(&stream->lock);
	stream->rotate_wanted |= segment->open && full;
	/* Without a next segment this one continues: a file that is too long loses nothing. */
	if (stream__ends(stream, bytes) && !stream__owes(stream)) {
		const bool waits = cut__is_needed(stream);

		if (waits && !stream->cut.at_once)
			stream->cut.asked = load_relaxed(&stream->cut.generation) == 0;
		else
			stream__close_current(stream, false, waits);
	}
	if (!segment->open)
		stream__open_next(stream);
}

void stream__turn(struct stream *stream, bool early)
{
	stream__tell(stream);
	HOLD(&stream->lock);
	stream__close_current(stream, false, early);
	stream__open_next(stream);
}

bool stream__load(struct stream *stream, const struct item *item)
{
	struct work *const work = &stream->work;

	if (work->load.span.bytes > 0)
		return true;
	if (item->chunk == NULL || work->span == item->chunk->span_count)
		return false;
	work->load = (struct load){
		.span = item->chunk->spans[work->span++],
		.data = item->chunk->data + work->at,
	};
	work->at += work->load.span.bytes;
	return true;
}

uint32_t stream__drop_load(struct stream *stream, struct item *item, const struct span **spans)
{
	struct work *const work = &stream->work;

	(void)item;
	work->load.span.bytes = 0;
	*spans = &work->load.span;
	return 1;
}

void stream__account(struct stream *stream, const struct span *span)
{
	struct segment *const segment = &stream->current;
	struct ring *const ring = span->ring;

	segment->records += span->records;
	if (!ring->ops->payload)
		segment->samples += span->samples;
	note_times(&segment->first_ns, &segment->last_ns, span->first_ns, span->last_ns);
	counter__add(&ring->stored, span->samples);
	counter__add(&ring->segment_samples, span->samples);
	counter__add(&ring->segment_bytes, span->bytes);
	atomic_fetch_sub_explicit(&ring->in_flight, span->samples, memory_order_relaxed);
}

void stream__account_part(struct stream *stream, const struct span *span)
{
	stream->current.offset += span->bytes;
	stream->current.chunks++;
	stream__account(stream, span);
}

void stream__make_evictable(struct stream *stream, uint64_t bytes)
{
	stream__tell(stream);
	HOLD(&stream->lock);
	if (stream__is_full(stream, bytes))
		stream__close_current(stream, false, cut__is_needed(stream));
}

bool stream__serve(struct stream *stream)
{
	const struct segment *segment = &stream->current;
	bool queued = false, finish, held;

	for (uint32_t i = 0; i < SHARDS_MAX; i++) {
		const struct lane *const lane = stream__lane(stream, i);

		queued |= lane != NULL && load_acquire(&lane->queued) > 0;
	}
	pthread_mutex_lock(&stream->lock);
	finish = stream->finish_wanted;
	if (!segment->open || (segment->chunks == 0 && !stream->turn_wanted))
		stream->rotate_wanted = stream->turn_wanted = false;
	if (finish && !queued) {
		/* If nothing was written, the prepared segment closes empty. */
		if (!segment->open)
			stream__open_next(stream);
		if (segment->open)
			stream__close_current(stream, true, false);
		stream->finish_wanted = false;
		/* The caller may now close a prepared file, and reuse its number for another. */
		segment__forget(&stream->next);
		stream->next.open = false;
		stream->finished = true;
	}
	/* It ends at the next call, once readers are told. */
	held = stream__ends(stream, 0) && stream__owes(stream);
	pthread_mutex_unlock(&stream->lock);
	/* An item that waits for the next segment opens it itself: its presence ends the wait. */
	if (!finish && stream->work.waits_for == 0)
		stream__advance(stream, 0, false);
	return held || (finish && queued);
}

bool stream__has_news(const struct stream *stream)
{
	const struct segment *const segment = &stream->current;

	return segment->open && segment->size_at > 0 && segment->end > segment->told;
}

void stream__tell(struct stream *stream)
{
	struct segment *const segment = &stream->current;
	uint64_t size = segment->end - segment->size_base, done;
	struct iovec word = {&size, sizeof(size)};
	int ret;

	stream->tells = false;
	if (!stream__has_news(stream))
		return;
	ret = segment__write(segment->size_fd, &word, 1, segment->size_at, &done);
	if (ret == 0)
		segment->told = segment->end;
	store_relaxed(&stream->tell_error, -ret);
}

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
		const uint64_t since_ns = horizon_ns > stream->crowded_ns ? horizon_ns
									   : stream->crowded_ns;

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
