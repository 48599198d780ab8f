/* SPDX-License-Identifier: Apache-2.0 */
#include "stream.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "event_list.h"
#include "ring.h"

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
