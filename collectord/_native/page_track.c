/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "page_ring.h"

int page_track__init(struct page_track *track, uint32_t page_bytes)
{
	void *tail = NULL;

	memset(track, 0, sizeof(*track));
	track->page_bytes = page_bytes;
	if (sums__init(&track->sums) < 0)
		return -ENOMEM;
	/* Aligned for O_DIRECT. */
	if (posix_memalign(&tail, CHUNK_ALIGN_BYTES, page_bytes) != 0) {
		sums__deinit(&track->sums);
		return -ENOMEM;
	}
	track->tail = tail;
	memset(tail, 0, SUBBUF_HEADER_BYTES);
	return 0;
}

void page_track__deinit(struct page_track *track)
{
	free(track->tail);
	sums__deinit(&track->sums);
	memset(track, 0, sizeof(*track));
}

void page_track__begin(struct page_track *track, uint64_t offset, uint64_t capacity)
{
	track->offset = track->allocated = offset;
	track->capacity = capacity;
	track->tail_open = track->unseen = false;
	track->sent = 0;
	sums__begin(&track->sums);
	counter__set(&track->bytes, 0);
}

struct sum *page_track__give_sums(struct page_track *track, uint32_t *count)
{
	*count = 0;
	if (track->unseen)
		return NULL;
	if (track->tail_open && sums__reserve(&track->sums, track->page_bytes, 1) < 0)
		return NULL;
	if (track->tail_open)
		sums__take(&track->sums, track->tail, track->page_bytes);
	return sums__give(&track->sums, count);
}

uint64_t page_track__room(const struct page_track *track)
{
	const uint64_t left = track->capacity - counter__read(&track->bytes);

	return left / track->page_bytes * track->page_bytes;
}

static int page_track__claim(struct page_track *track, struct segment *segment, uint64_t until)
{
	return segment__claim(segment, &track->allocated, until, track->offset + track->capacity);
}

/* Of what stands behind the last page nobody is to take anything for one. */
static void page_track__erase(struct page_track *track, const struct segment *segment,
			      uint64_t bytes)
{
	/* Where that does not go it is written over, or is behind what the extent's size says. */
	(void)fallocate(segment->fd, FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE,
			(off_t)(track->offset + counter__read(&track->bytes)), (off_t)bytes);
}

/* A page goes on where the tail ends if time does; the deltas of its events then fit as well. */
static bool page_track__merge(struct page_track *track, const uint8_t *page)
{
	return track->tail_open && subbuf__timestamp(page) == track->tail_ns &&
	       subbuf__append(track->tail, page, track->page_bytes);
}

/* `pages` of the load went, the first one into the tail if `merged`. */
static void page_track__settle(struct page_track *track, struct load *load, uint64_t pages,
			       bool merged, struct span *written)
{
	const uint32_t size = track->page_bytes;
	const uint64_t left = load->span.bytes - pages * size;
	const bool open = left == 0 && !load->span.sealed;
	const uint64_t own = pages - merged; /* pages that the extent grew by */
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

/* Part of a new tail is in the file: as far as that goes, it becomes the old one again. */
static void page_track__restore(struct page_track *track, const struct segment *segment,
				uint64_t begin)
{
	struct iovec vector = {track->tail, track->page_bytes};
	uint64_t done;

	/*
	 * Where that does not go either the tail stays open all the same: it counts in the digest
	 * as what it is to be, and the next page that goes into it writes it anew.
	 */
	(void)segment__write(segment->fd, &vector, 1, begin, &done);
}

int page_track__write(struct page_track *track, struct segment *segment, struct load *load,
		      struct span *written)
{
	const uint32_t size = track->page_bytes;
	const uint64_t end = track->offset + counter__read(&track->bytes);
	const uint32_t tail_end =
		SUBBUF_HEADER_BYTES + (subbuf__commit(track->tail) & SUBBUF_LENGTH_MASK);
	/* The tail, and what comes behind it. */
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
		if (done > 0)
			page_track__restore(track, segment, begin);
	} else if (done > 0) {
		page_track__erase(track, segment, size);
	}
	return error;
}

bool page_track__send(struct page_track *track, struct segment *segment, const struct load *load,
		      uint32_t calls, struct flight *flight)
{
	const struct span *const span = &load->span;
	const uint64_t begin = track->offset + counter__read(&track->bytes) + track->sent;
	const uint64_t tail_ns = track->tail_open ? track->tail_ns : 0;

	if (subbuf__timestamp(load->data) == (track->sent > 0 ? track->sent_ns : tail_ns) ||
	    page_track__room(track) < track->sent + span->bytes ||
	    sums__reserve(&track->sums, track->sent + span->bytes + track->page_bytes,
			  3 * calls) < 0 ||
	    page_track__claim(track, segment, begin + span->bytes) < 0)
		return false;
	*flight = (struct flight){
		.fd = segment->fd, .offset = begin, .bytes = (uint32_t)span->bytes};
	track->sent += span->bytes;
	track->sent_ns = span->sealed ? 0 : span->last_ns;
	return true;
}

void page_track__land(struct page_track *track, struct load *load, struct span *written)
{
	track->sent -= load->span.bytes;
	page_track__settle(track, load, load->span.bytes / track->page_bytes, false, written);
}

void page_track__recall(struct page_track *track, const struct segment *segment)
{
	if (track->sent > 0)
		page_track__erase(track, segment, track->sent);
	track->sent = 0;
}

int64_t page_track__splice(struct page_track *track, struct segment *segment, int pipe_fd,
			   uint64_t bytes, uint32_t *torn)
{
	const uint64_t end = track->offset + counter__read(&track->bytes);
	off_t at = (off_t)end;
	uint64_t done = 0;
	int error = 0;

	*torn = 0;
	bytes = least(bytes, page_track__room(track));
	if (bytes == 0)
		return -EXFULL;
	error = page_track__claim(track, segment, end + bytes);
	while (error == 0 && done < bytes) {
		const ssize_t n =
			splice(pipe_fd, NULL, segment->fd, &at, (size_t)(bytes - done), SPLICE_F_MOVE);

		if (n > 0)
			done += (uint64_t)n;
		else if (n == 0 || errno != EINTR)
			error = n < 0 ? -errno : -EIO;
	}
	*torn = (uint32_t)(done % track->page_bytes);
	if (done > 0)
		track->unseen = true;
	done -= *torn;
	if (done > 0)
		track->tail_open = false;
	counter__add(&track->bytes, done);
	if (*torn > 0)
		page_track__erase(track, segment, track->page_bytes);
	return done > 0 ? (int64_t)done : error;
}
