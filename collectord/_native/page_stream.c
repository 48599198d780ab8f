/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "event_list.h"
#include "page_ring.h"

static struct page_track *track_of(const struct ring *ring)
{
	return &page_ring__of(ring)->track;
}

/* Returns how many bytes fit behind the last page. */
static uint64_t page_track__room(const struct page_track *track)
{
	const uint64_t left = track->capacity - counter__read(&track->bytes);

	return left / track->page_bytes * track->page_bytes;
}

static uint64_t page_track__end(const struct page_track *track)
{
	return track->offset + counter__read(&track->bytes);
}

static int page_track__claim(struct page_track *track, struct segment *segment, uint64_t until)
{
	return segment__claim(segment, &track->allocated, until, track->offset + track->capacity);
}

/* Erase the bytes behind the last page, so that they are not taken for a page. */
static void page_track__erase(struct page_track *track, const struct segment *segment,
			      uint64_t bytes)
{
	/* A failure is harmless: later pages overwrite the bytes, or they lie behind the extent's
	 * final size. */
	(void)fallocate(segment->fd, FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE,
			(off_t)page_track__end(track), (off_t)bytes);
}

/* A page continues the tail if its time is the tail's end; the deltas of its events then fit as
 * well. */
static bool page_track__merge(struct page_track *track, const uint8_t *page)
{
	return track->tail_open && subbuf__timestamp(page) == track->tail_ns &&
	       subbuf__append(track->tail, page, track->page_bytes);
}

/* Note that `pages` of the load were written, the first one into the tail if `merged`. */
static void page_track__settle(struct page_track *track, struct load *load, uint64_t pages,
			       bool merged, struct span *written)
{
	const uint32_t size = track->page_bytes;
	const uint64_t left = load->span.bytes - pages * size;
	const bool open = left == 0 && !load->span.sealed;
	const uint64_t own = pages - merged; /* pages added to the extent */
	const uint64_t final = own > 0 && open ? own - 1 : own;
	const uint8_t *const first = load->data + (merged ? size : 0);

	if (track->tail_open && (own > 0 || !open))
		sums__take(&track->sums, track->tail, size);
	sums__take(&track->sums, first, final * size);
	if (final < own)
		memcpy(track->tail, first + final * size, size);
	track->tail_open = open;
	track->tail_ns = load->span.last_ns;
	counter__add(&track->bytes, own * size);
	*written = load->span;
	written->bytes = own * size;
	load->data += pages * size;
	load->span.bytes = left;
	if (left > 0) {
		struct subbuf_tally tally = {0}, rest = {0};
		enum fault fault;

		(void)subbuf__pages(load->data - pages * size, pages * size, size, &tally, &fault);
		(void)subbuf__pages(load->data, left, size, &rest, &fault);
		written->samples = written->records = tally.events;
		written->first_ns = tally.first_ns;
		written->last_ns = tally.last_ns;
		load->span.samples -= tally.events;
		load->span.records = load->span.samples;
		load->span.first_ns = rest.first_ns;
	}
}

/*
 * Write as many of the first pages of `load` as possible, and remove them from it; `written`
 * describes them, with the bytes added to the extent. Returns an error only if none was written:
 * the extent is then unchanged. -EXFULL: the extent has no room left, whatever the disk has. A
 * partial page is undone.
 */
static int page_track__write(struct page_track *track, struct segment *segment, struct load *load,
			     struct span *written)
{
	const uint32_t size = track->page_bytes;
	const uint64_t end = page_track__end(track);
	const uint32_t tail_end =
		SUBBUF_HEADER_BYTES + (subbuf__commit(track->tail) & SUBBUF_LENGTH_MASK);
	/* The tail, and the pages behind it. */
	int error = sums__reserve(&track->sums, load->span.bytes + size, 3);
	const bool merged = error == 0 && page_track__merge(track, load->data);
	const uint64_t begin = merged ? end - size : end;
	uint64_t own = least(load->span.bytes - (merged ? size : 0), page_track__room(track));
	struct iovec vectors[2];
	uint64_t done;
	int count = 0;

	if (error < 0)
		return error;
	if (own > 0)
		error = page_track__claim(track, segment, end + own);
	if (error < 0)
		own = 0;
	if (!merged && own == 0)
		return error < 0 ? error : -EXFULL;
	if (merged)
		vectors[count++] = (struct iovec){track->tail, size};
	if (own > 0)
		vectors[count++] = (struct iovec){load->data + (merged ? size : 0), own};
	error = segment__write(segment->fd, vectors, count, begin, &done);
	if (done >= size) {
		page_track__settle(track, load, done / size, merged, written);
		if (done % size != 0)
			page_track__erase(track, segment, size);
		return 0;
	}
	if (merged) {
		subbuf__cut(track->tail, tail_end, size);
		/* Restore it in the file. If that fails too the tail stays open: the digest has it
		 * as intended, and the next page that goes into it rewrites it. */
		vectors[0] = (struct iovec){track->tail, size};
		if (done > 0)
			(void)segment__write(segment->fd, vectors, 1, begin, &done);
	} else if (done > 0) {
		page_track__erase(track, segment, size);
	}
	return error;
}

/* Prepare a write of all pages of `load`, behind earlier ones; `calls`: the number of loads in
 * flight with it. False: a part of it has no room, or goes into the tail. */
static bool page_track__send(struct page_track *track, struct segment *segment,
			     const struct load *load, uint32_t calls, struct flight *flight)
{
	const struct span *const span = &load->span;
	const uint64_t begin = page_track__end(track) + track->sent;
	const uint64_t tail_ns = track->tail_open ? track->tail_ns : 0;

	if (subbuf__timestamp(load->data) == (track->sent > 0 ? track->sent_ns : tail_ns) ||
	    page_track__room(track) < track->sent + span->bytes ||
	    sums__reserve(&track->sums, track->sent + span->bytes + track->page_bytes, 3 * calls) <
		    0 ||
	    page_track__claim(track, segment, begin + span->bytes) < 0)
		return false;
	*flight =
		(struct flight){.fd = segment->fd, .offset = begin, .bytes = (uint32_t)span->bytes};
	track->sent += span->bytes;
	track->sent_ns = span->sealed ? 0 : span->last_ns;
	return true;
}

struct event *page_stream__progress(struct stream *stream)
{
	struct event *event;

	HOLD(&stream->lock);
	event = event__new(EVENT_PROGRESS, stream->id, stream->ring_count);
	if (event == NULL)
		return NULL;
	event->segment.token = stream->current.open ? stream->current.token : 0;
	event->ring_count = 0;
	for (uint32_t i = 0; stream->current.open && i < stream->ring_count; i++) {
		const struct page_ring *const pages = page_ring__of(stream->rings[i]);

		if (pages != NULL && pages->track.capacity > 0)
			event->rings[event->ring_count++] = (struct event_ring){
				.id = pages->ring.id,
				.bytes = counter__read(&pages->track.bytes),
			};
	}
	return event;
}

static void page_stream__begin_ring(struct ring *ring, const struct segment *segment)
{
	struct page_track *const track = track_of(ring);
	const uint64_t place = segment__place(segment, ring->id);
	const bool has = place != NO_PLACE;

	track->offset = track->allocated = has ? place : 0;
	track->capacity = has ? segment->capacity : 0;
	track->tail_open = track->unseen = false;
	track->sent = 0;
	sums__begin(&track->sums);
	counter__set(&track->bytes, 0);
}

/* Report the checksums of all pages, including the tail, if all were seen. */
static void page_stream__tell_ring(struct ring *ring, struct event_ring *told)
{
	struct page_track *const track = track_of(ring);

	if (track->unseen ||
	    (track->tail_open && sums__reserve(&track->sums, track->page_bytes, 1) < 0))
		return;
	if (track->tail_open)
		sums__take(&track->sums, track->tail, track->page_bytes);
	told->sums = sums__give(&track->sums, &told->sum_count);
}

/* Read exactly `bytes` from a pipe that has that many. */
static bool read_pipe(int fd, uint8_t *to, uint64_t bytes)
{
	while (bytes > 0) {
		const ssize_t n = TEMP_FAILURE_RETRY(read(fd, to, (size_t)bytes));

		if (n <= 0)
			return false;
		to += n;
		bytes -= (uint64_t)n;
	}
	return true;
}

/* Splice the ring's pipe into its extent, wholly or partly. Returns the bytes of whole pages
 * moved, or -errno if there were none; -EXFULL as above. */
static int64_t page_stream__splice(struct stream *stream, struct page_ring *pages)
{
	struct page_track *const track = &pages->track;
	struct segment *const segment = &stream->current;
	const uint64_t bytes = least(pages->pipe_bytes, page_track__room(track));
	off_t at = (off_t)page_track__end(track);
	uint64_t done = 0, torn;
	int error;

	if (bytes == 0)
		return -EXFULL;
	error = page_track__claim(track, segment, (uint64_t)at + bytes);
	while (error == 0 && done < bytes) {
		const ssize_t n = splice(pages->pipe[0], NULL, segment->fd, &at,
					 (size_t)(bytes - done), SPLICE_F_MOVE);

		if (n > 0)
			done += (uint64_t)n;
		else if (n == 0 || errno != EINTR)
			error = n < 0 ? -errno : -EIO;
	}
	track->unseen |= done > 0;
	torn = done % track->page_bytes;
	done -= torn;
	if (done > 0) {
		track->tail_open = false;
		counter__add(&track->bytes, done);
		pages->pipe_bytes -= done;
		counter__add(&pages->spliced_bytes, done);
		stream__account_part(stream, &(struct span){.ring = &pages->ring, .bytes = done});
	}
	if (torn > 0) {
		page_track__erase(track, segment, track->page_bytes);
		/* Half of a page is in neither place: its events cannot be counted. */
		(void)read_pipe(pages->pipe[0], stream->scratch, track->page_bytes - torn);
		pages->pipe_bytes -= track->page_bytes;
		counter__add(&pages->torn, 1);
	}
	return done > 0 ? (int64_t)done : error;
}

/* Read pages from the ring's pipe: they are in flight from now on. False: the pipe is empty. */
static bool page_stream__load_pipe(struct stream *stream, struct ring *ring, struct load *load)
{
	struct page_ring *pages = page_ring__of(ring);
	const uint64_t room =
		stream->scratch_bytes / pages->options.page_bytes * pages->options.page_bytes;
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
	(void)subbuf__pages(stream->scratch, (size_t)bytes, pages->options.page_bytes, &tally,
			    &fault);
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

static int page_stream__write(struct stream *stream, struct item *item, uint64_t *bytes)
{
	struct load *const load = &stream->work.load;
	const bool moves = item->ticket != NULL && !stream->work.loads;
	struct page_ring *pages;
	struct page_track *track;
	struct span written;
	int64_t went;

	if (moves ? page_ring__of(item->ticket)->pipe_bytes == 0
		  : !stream__load(stream, item) &&
			    (item->ticket == NULL ||
			     !page_stream__load_pipe(stream, item->ticket, load)))
		return 0;
	pages = page_ring__of(moves ? item->ticket : load->span.ring);
	track = &pages->track;
	*bytes = moves ? pages->pipe_bytes : load->span.bytes;
	stream__advance(stream, *bytes, page_track__room(track) < track->page_bytes);
	if (!stream->current.open)
		return -EXFULL;
	if (moves) {
		went = page_stream__splice(stream, pages);
	} else {
		went = page_track__write(track, &stream->current, load, &written);
		if (went == 0) {
			stream__account_part(stream, &written);
			went = (int64_t)(*bytes - load->span.bytes);
		}
	}
	if (went < 0)
		return (int)went;
	*bytes = (uint64_t)went;
	return 1;
}

/* Skip the refused part; if splicing failed, its pages are read and written like others. */
static uint32_t page_stream__pass_over(struct stream *stream, struct item *item,
				       const struct span **spans)
{
	struct work *const work = &stream->work;

	if (item->ticket != NULL && !work->loads) {
		work->loads = true;
		return 0;
	}
	return stream__drop_load(stream, item, spans);
}

/* Send a chunk of a single ring as one write. */
static bool page_stream__send(struct stream *stream, struct chunk *chunk)
{
	const struct load load = {.span = chunk->spans[0], .data = chunk->data};

	return chunk->span_count == 1 &&
	       stream__has_room(stream, stream->sent.bytes + load.span.bytes) &&
	       page_track__send(track_of(load.span.ring), &stream->current, &load,
				stream->sent.items + 1, &chunk->flight);
}

static void page_stream__land(struct stream *stream, const struct chunk *chunk)
{
	struct load load = {.span = chunk->spans[0], .data = chunk->data};
	struct page_track *const track = track_of(load.span.ring);
	struct span written;

	track->sent -= load.span.bytes;
	page_track__settle(track, &load, load.span.bytes / track->page_bytes, false, &written);
	stream__account_part(stream, &written);
}

static void page_stream__recall(struct stream *stream)
{
	HOLD(&stream->lock);
	for (uint32_t i = 0; i < stream->ring_count; i++) {
		struct page_track *const track = track_of(stream->rings[i]);

		if (track->sent > 0)
			page_track__erase(track, &stream->current, track->sent);
		track->sent = 0;
	}
}

static bool page_stream__end(struct stream *stream, struct item *item)
{
	(void)stream;
	if (item->ticket != NULL)
		/* Release; the partner is the acquire in page_ring__fetch(): the pipe is empty. */
		store_release(&page_ring__of(item->ticket)->ticket_queued, false);
	return false;
}

const struct stream_ops page_stream__ops = {
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
