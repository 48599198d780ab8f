/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "event_list.h"
#include "page_ring.h"

static struct page_track *track_of(const struct ring *ring)
{
	return &page_ring__of(ring)->track;
}

int page_stream__progress(struct stream *stream, struct page_progress *progress)
{
	*progress = (struct page_progress){0};
	pthread_mutex_lock(&stream->lock);
	progress->rings = calloc(stream->ring_count + 1, sizeof(*progress->rings));
	if (stream->current.open)
		progress->token = stream->current.token;
	for (uint32_t i = 0; progress->rings != NULL && i < stream->ring_count; i++) {
		const struct page_ring *const pages = page_ring__of(stream->rings[i]);

		if (stream->current.open && pages != NULL && pages->track.capacity > 0)
			progress->rings[progress->count++] = (struct page_progress_ring){
				.bytes = counter__read(&pages->track.bytes),
				.id = pages->ring.id,
			};
	}
	pthread_mutex_unlock(&stream->lock);
	return progress->rings != NULL ? 0 : -ENOMEM;
}

static void page_stream__begin_ring(struct ring *ring, const struct segment *segment)
{
	const uint64_t place = segment__place(segment, ring->id);
	const bool has = place != NO_PLACE;

	page_track__begin(track_of(ring), has ? place : 0, has ? segment->capacity : 0);
}

static void page_stream__tell_ring(struct ring *ring, struct event_ring *told)
{
	told->sums = page_track__give_sums(track_of(ring), &told->sum_count);
}

/* Read exactly `bytes` from a pipe that has them. */
static bool read_pipe(int fd, uint8_t *to, uint64_t bytes)
{
	while (bytes > 0) {
		const ssize_t n = read(fd, to, (size_t)bytes);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return false;
		to += n;
		bytes -= (uint64_t)n;
	}
	return true;
}

/* Move what the ring has in its pipe, or a part. Returns bytes, or -errno when nothing went. */
static int64_t page_stream__splice(struct stream *stream, struct page_ring *pages)
{
	uint32_t torn;
	const int64_t went = page_track__splice(&pages->track, &stream->current, pages->pipe[0],
						pages->pipe_bytes, &torn);

	if (went > 0) {
		const struct span span = {.ring = &pages->ring, .bytes = (uint64_t)went};

		pages->pipe_bytes -= span.bytes;
		counter__add(&pages->spliced_bytes, span.bytes);
		stream__account_part(stream, &span);
	}
	if (torn > 0) {
		/* Half of a page is in neither place: nobody can count its events any more. */
		(void)read_pipe(pages->pipe[0], stream->scratch, pages->options.page_bytes - torn);
		pages->pipe_bytes -= pages->options.page_bytes;
		counter__add(&pages->torn, 1);
	}
	/* This file takes nothing from a pipe. */
	return went == 0 ? -EINVAL : went;
}

/* Take pages out of the ring's pipe: they are in flight from now on. False: the pipe is empty. */
static bool page_stream__load_pipe(struct stream *stream, struct ring *ring, struct load *load)
{
	struct page_ring *pages = page_ring__of(ring);
	const uint64_t room = stream->scratch_bytes / pages->options.page_bytes * pages->options.page_bytes;
	const uint64_t bytes = least(room, pages->pipe_bytes);
	struct subbuf_tally tally = {0};
	enum fault fault;

	if (bytes == 0)
		return false;
	pages->pipe_bytes -= bytes;
	if (!read_pipe(pages->pipe[0], stream->scratch, bytes)) {
		pages->pipe_bytes = 0;
		return false;
	}
	(void)subbuf__pages(stream->scratch, (size_t)bytes, pages->options.page_bytes, &tally, &fault);
	atomic_fetch_add_explicit(&ring->in_flight, tally.events, memory_order_relaxed);
	*load = (struct load){
		.span = {.ring = ring,
			 .samples = tally.events,
			 .bytes = bytes,
			 .records = tally.events,
			 .first_ns = tally.first_ns,
			 .last_ns = tally.last_ns,
			 .sealed = true},
		.data = stream->scratch,
	};
	return true;
}

/* Have the next pages of the item in `work.load`. False: there are none. */
static bool page_stream__load(struct stream *stream, const struct item *item)
{
	struct work *const work = &stream->work;

	if (work->load.span.bytes > 0)
		return true;
	if (item->ticket != NULL)
		return page_stream__load_pipe(stream, item->ticket, &work->load);
	if (item->chunk == NULL || work->span == item->chunk->span_count)
		return false;
	work->load = (struct load){
		.span = item->chunk->spans[work->span++],
		.data = item->chunk->data + work->at,
	};
	work->at += work->load.span.bytes;
	return true;
}

static int page_stream__write(struct stream *stream, struct item *item, uint64_t *bytes)
{
	struct load *const load = &stream->work.load;
	const bool moves = item->ticket != NULL && !stream->work.loads;
	const struct page_track *track;
	struct span written;
	uint64_t before;
	int64_t went;

	if (moves ? page_ring__of(item->ticket)->pipe_bytes == 0 : !page_stream__load(stream, item))
		return 0;
	before = moves ? page_ring__of(item->ticket)->pipe_bytes : load->span.bytes;
	*bytes = before;
	track = track_of(moves ? item->ticket : load->span.ring);
	stream__advance(stream, before, page_track__room(track) < track->page_bytes);
	if (!stream->current.open)
		return -EXFULL;
	if (moves) {
		went = page_stream__splice(stream, page_ring__of(item->ticket));
	} else {
		went = page_track__write(track_of(load->span.ring), &stream->current, load,
					 &written);
		if (went == 0) {
			stream__account_part(stream, &written);
			went = (int64_t)(before - load->span.bytes);
		}
	}
	if (went < 0)
		return (int)went;
	*bytes = (uint64_t)went;
	return 1;
}

/* What cannot be moved from a pipe is read and written as other pages. */
static uint32_t page_stream__pass_over(struct stream *stream, struct item *item,
				       const struct span **spans)
{
	struct work *const work = &stream->work;

	if (item->ticket != NULL && !work->loads) {
		work->loads = true;
		return 0;
	}
	work->lost = work->load.span;
	work->load.span.bytes = 0;
	*spans = &work->lost;
	return 1;
}

/* A chunk of one ring alone is one write. */
static bool page_stream__send(struct stream *stream, struct chunk *chunk)
{
	const struct load load = {.span = chunk->spans[0], .data = chunk->data};
	bool full;

	pthread_mutex_lock(&stream->lock);
	full = stream__is_full(stream, stream->sent.bytes + load.span.bytes);
	pthread_mutex_unlock(&stream->lock);
	return stream->current.open && !full && chunk->span_count == 1 &&
	       page_track__send(track_of(load.span.ring), &stream->current, &load,
				stream->sent.items + 1, &chunk->flight);
}

static void page_stream__land(struct stream *stream, const struct chunk *chunk)
{
	struct load load = {.span = chunk->spans[0], .data = chunk->data};
	struct span written;

	page_track__land(track_of(load.span.ring), &load, &written);
	stream__account_part(stream, &written);
}

static void page_stream__recall(struct stream *stream)
{
	pthread_mutex_lock(&stream->lock);
	for (uint32_t i = 0; i < stream->ring_count; i++)
		page_track__recall(track_of(stream->rings[i]), &stream->current);
	pthread_mutex_unlock(&stream->lock);
}

static bool page_stream__end(struct stream *stream, struct item *item)
{
	(void)stream;
	if (item->ticket != NULL)
		/* Release; the partner is the acquire in page_ring__fetch(): the pipe is empty. */
		atomic_store_explicit(&page_ring__of(item->ticket)->ticket_queued, false,
				      memory_order_release);
	return false;
}

static bool page_stream__suits(const struct segment *segment)
{
	for (uint32_t i = 0; i < segment->place_count; i++)
		if (segment->places[i] != NO_PLACE && segment->places[i] % CHUNK_ALIGN_BYTES != 0)
			return false;
	return segment->places != NULL && segment->capacity > 0;
}

const struct stream_ops page_stream__ops = {
	.suits = page_stream__suits,
	.split = true,
	.begin_ring = page_stream__begin_ring,
	.tell_ring = page_stream__tell_ring,
	.write = page_stream__write,
	.pass_over = page_stream__pass_over,
	.send = page_stream__send,
	.land = page_stream__land,
	.recall = page_stream__recall,
	.end = page_stream__end,
};
