/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "page_stream.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "event_list.h"

int page_stream__progress(struct stream *stream, struct page_progress *progress)
{
	int ret = 0;

	*progress = (struct page_progress){0};
	pthread_mutex_lock(&stream->lock);
	if (stream->current.open && stream->ring_count > 0) {
		progress->rings = calloc(stream->ring_count, sizeof(*progress->rings));
		if (progress->rings == NULL)
			ret = -ENOMEM;
	}
	if (stream->current.open && ret == 0)
		progress->token = stream->current.token;
	for (uint32_t i = 0; progress->rings != NULL && i < stream->ring_count; i++) {
		const struct page_ring *const pages = page_ring__of(stream->rings[i]);

		if (pages != NULL && pages->track.capacity > 0)
			progress->rings[progress->count++] = (struct page_progress_ring){
				.bytes = counter__read(&pages->track.bytes),
				.id = pages->ring.id,
			};
	}
	pthread_mutex_unlock(&stream->lock);
	return ret;
}

static void page_stream__begin(struct ring *ring, const struct segment *segment)
{
	struct page_track *const track = &page_ring__of(ring)->track;
	const uint64_t place = segment__place(segment, ring->id);

	if (place == NO_PLACE)
		page_track__begin(track, 0, 0);
	else
		page_track__begin(track, place, segment->capacity);
}

static void page_stream__tell(struct ring *ring, struct event_ring *told)
{
	struct page_track *const track = &page_ring__of(ring)->track;

	told->sums = page_track__give_sums(track, &told->sum_count);
}

void page_stream__advance(struct stream *stream, const struct ring *ring, uint64_t bytes)
{
	const struct page_track *track = &page_ring__of(ring)->track;

	if (stream->current.open && page_track__room(track) < track->page_bytes) {
		pthread_mutex_lock(&stream->lock);
		stream->rotate_wanted = true;
		pthread_mutex_unlock(&stream->lock);
	}
	stream__advance(stream, bytes);
}

static void page_stream__account(struct stream *stream, const struct span *span)
{
	struct segment *const segment = &stream->current;

	segment->offset += span->bytes;
	segment->chunks++;
	segment->records += span->samples;
	stream__account(stream, span);
	if (span->samples > 0)
		segment__note_times(segment, span->first_ns, span->last_ns);
}

int64_t page_stream__write(struct stream *stream, struct load *load)
{
	struct page_track *track = &page_ring__of(load->span.ring)->track;
	const uint64_t before = load->span.bytes;
	struct span written;
	int ret;

	if (!stream->current.open)
		return -EXFULL;
	ret = page_track__write(track, &stream->current, load, &written);
	if (ret < 0)
		return ret;
	page_stream__account(stream, &written);
	return (int64_t)(before - load->span.bytes);
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

int64_t page_stream__splice(struct stream *stream, struct ring *ring)
{
	struct page_ring *pages = page_ring__of(ring);
	struct page_track *track = &pages->track;
	uint32_t torn;
	int64_t went;

	if (!stream->current.open)
		return -EXFULL;
	went = page_track__splice(track, &stream->current, pages->pipe[0], pages->pipe_bytes,
				  &torn);
	if (went > 0) {
		const struct span span = {.ring = ring, .bytes = (uint64_t)went};

		pages->pipe_bytes -= span.bytes;
		counter__add(&pages->spliced_bytes, span.bytes);
		page_stream__account(stream, &span);
	}
	if (torn > 0) {
		/* Half of a page is in neither place: nobody can count its events any more. */
		(void)read_pipe(pages->pipe[0], stream->scratch, track->page_bytes - torn);
		pages->pipe_bytes -= track->page_bytes;
		counter__add(&pages->torn, 1);
	}
	return went;
}

bool page_stream__load_pipe(struct stream *stream, struct ring *ring, struct load *load)
{
	struct page_ring *pages = page_ring__of(ring);
	struct subbuf_tally tally = {0};
	enum fault fault;
	uint64_t bytes = stream->scratch_bytes / pages->page_bytes * pages->page_bytes;

	if (bytes > pages->pipe_bytes)
		bytes = pages->pipe_bytes;
	if (bytes == 0)
		return false;
	pages->pipe_bytes -= bytes;
	if (!read_pipe(pages->pipe[0], stream->scratch, bytes)) {
		pages->pipe_bytes = 0;
		return false;
	}
	(void)subbuf__pages(stream->scratch, (size_t)bytes, pages->page_bytes, &tally, &fault);
	atomic_fetch_add_explicit(&ring->in_flight, tally.events, memory_order_relaxed);
	*load = (struct load){
		.span = {.ring = ring,
			 .samples = tally.events,
			 .bytes = bytes,
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

static int page_stream__write_part(struct stream *stream, struct item *item, uint64_t *bytes)
{
	struct work *const work = &stream->work;
	struct ring *ring = item->ticket;
	int64_t went;

	if (ring != NULL && !work->loads) {
		*bytes = page_ring__of(ring)->pipe_bytes;
		if (*bytes == 0)
			return 0;
		page_stream__advance(stream, ring, *bytes);
		went = page_stream__splice(stream, ring);
		if (went == 0)
			went = -EINVAL;
	} else {
		if (!page_stream__load(stream, item))
			return 0;
		ring = work->load.span.ring;
		*bytes = work->load.span.bytes;
		page_stream__advance(stream, ring, *bytes);
		went = page_stream__write(stream, &work->load);
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
	       page_track__send(&page_ring__of(load.span.ring)->track, &stream->current, &load,
				stream->sent.items + 1, &chunk->flight);
}

static void page_stream__land(struct stream *stream, const struct chunk *chunk)
{
	struct load load = {.span = chunk->spans[0], .data = chunk->data};
	struct span written;

	page_track__land(&page_ring__of(load.span.ring)->track, &load, &written);
	page_stream__account(stream, &written);
}

static void page_stream__recall(struct stream *stream)
{
	pthread_mutex_lock(&stream->lock);
	for (uint32_t i = 0; i < stream->ring_count; i++)
		page_track__recall(&page_ring__of(stream->rings[i])->track, &stream->current);
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
	.begin_ring = page_stream__begin,
	.tell_ring = page_stream__tell,
	.write = page_stream__write_part,
	.pass_over = page_stream__pass_over,
	.send = page_stream__send,
	.land = page_stream__land,
	.recall = page_stream__recall,
	.end = page_stream__end,
};
