/* SPDX-License-Identifier: Apache-2.0 */
#include "page_ring.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define PIPE_SLOTS_DEFAULT 16u
#define PIPE_SLOTS_MAX (1u << 15)

static void page_ring__free(struct ring *ring)
{
	struct page_ring *const pages = page_ring__of(ring);

	for (int i = 0; i < 2; i++)
		if (pages->pipe[i] >= 0)
			close(pages->pipe[i]);
	sums__deinit(&pages->track.sums);
	free(pages->track.tail);
	free(pages);
}

static void page_ring__open_pipe(struct page_ring *pages)
{
	uint32_t slots = 1;

	if (pipe2(pages->pipe, O_CLOEXEC | O_NONBLOCK) < 0) {
		pages->pipe[0] = pages->pipe[1] = -1;
		pages->options.transport = PAGE_READ;
		return;
	}
	while (slots <= pages->options.subbufs && slots < PIPE_SLOTS_MAX)
		slots *= 2;
	/* A slot takes a sub-buffer of any size. Without CAP_SYS_RESOURCE there is a limit, 256
	 * by default; sub-buffers beyond the pipe are read. */
	while (slots > PIPE_SLOTS_DEFAULT &&
	       fcntl(pages->pipe[1], F_SETPIPE_SZ, (int)(slots * (uint32_t)sysconf(_SC_PAGESIZE))) <
		       0)
		slots /= 2;
}

/* A predecessor may have read part of the reader's page: continue behind that. */
static void page_ring__look(struct page_ring *pages)
{
	struct subbuf_tally tally = {0};
	struct subbuf_head head;
	struct subbuf_walk walk;
	const uint8_t *page = page_cursor__look(&pages->cursor);

	if (page == NULL)
		return;
	(void)page_cursor__follow(&pages->cursor, false, 0);
	(void)subbuf__open(page, pages->options.page_bytes, &head);
	walk = subbuf__start(&head);
	(void)subbuf__run(page, SUBBUF_HEADER_BYTES + pages->cursor.read, &walk, &tally);
	pages->last_ns = walk.now_ns;
	pages->taken = pages->cursor.read;
}

int page_ring__new(const struct page_ring_options *options, struct ring **out)
{
	struct page_ring *pages;

	if (options->page_bytes < SUBBUF_BYTES_MIN || options->page_bytes > SUBBUF_BYTES_MAX ||
	    options->page_bytes % CHUNK_ALIGN_BYTES != 0 || options->subbufs == 0 ||
	    (options->transport == PAGE_MMAP) != (options->map != NULL) ||
	    (options->map != NULL && options->map->subbuf_bytes != options->page_bytes))
		return -EINVAL;
	pages = calloc(1, sizeof(*pages));
	if (pages == NULL)
		return -ENOMEM;
	ring__init(&pages->ring, &page_ring__ops, options->fd);
	pages->options = *options;
	pages->cursor.map = options->map;
	pages->pipe[0] = pages->pipe[1] = -1;
	pages->track.page_bytes = options->page_bytes;
	/* Aligned for O_DIRECT. */
	pages->track.tail = aligned_alloc(CHUNK_ALIGN_BYTES, options->page_bytes);
	if (sums__init(&pages->track.sums) < 0 || pages->track.tail == NULL) {
		page_ring__free(&pages->ring);
		return -ENOMEM;
	}
	memset(pages->track.tail, 0, SUBBUF_HEADER_BYTES);
	if (pages->options.transport == PAGE_SPLICE)
		page_ring__open_pipe(pages);
	if (pages->options.transport == PAGE_MMAP)
		page_ring__look(pages);
	*out = &pages->ring;
	return 0;
}

static int page_ring__join(struct ring *ring, struct stream *stream)
{
	return stream->page_bytes == page_ring__of(ring)->options.page_bytes ? 0 : -EINVAL;
}

/* Begin a pass; only the last pass shows how much the ring held. */
static void page_ring__begin(struct ring *ring)
{
	struct page_ring *const pages = page_ring__of(ring);
	const uint64_t page_bytes = pages->options.page_bytes;
	const uint64_t capacity = pages->options.subbufs * page_bytes;

	ring__count_fill(ring, least(pages->pass_pages * page_bytes, capacity), capacity);
	pages->pass_pages = pages->pass_pieces = 0;
	pages->pass_spliced = false;
	/* The generation's goal: the ring may hold this much, and the reader's page. */
	ring->head = ring->position + (ring->first ? capacity + page_bytes : 0);
}

static struct page_fetched fetch_by_read(struct page_ring *pages, uint8_t *page)
{
	struct page_fetched found = {0};
	uint32_t commit;
	ssize_t n;

	/* Exactly a sub-buffer: after a shorter read the rest would come without a header. */
	n = TEMP_FAILURE_RETRY(read(pages->options.fd, page, pages->options.page_bytes));
	if (n <= 0)
		return found;
	found.bytes = (size_t)n;
	memset(page + n, 0, pages->options.page_bytes - (size_t)n);
	if (found.bytes < SUBBUF_HEADER_BYTES)
		return found;
	commit = subbuf__commit(page);
	/* The kernel makes a page of the rest, and stamps it with the time of the data read. */
	found.goes_on = pages->taken > 0 && (commit & SUBBUF_LOST) == 0 &&
			subbuf__timestamp(page) == pages->last_ns - pages->behind_ns &&
			(commit & SUBBUF_LENGTH_MASK) <=
				pages->options.page_bytes - SUBBUF_HEADER_BYTES - pages->taken;
	return found;
}

/* Fetch the next page to `page`, or into the pipe: `bytes` is its size then. */
static struct page_fetched page_ring__fetch(struct page_ring *pages, uint8_t *page)
{
	struct page_fetched found = {0};
	size_t bytes;
	ssize_t n;

	if (pages->options.transport == PAGE_MMAP)
		return page_cursor__fetch(&pages->cursor, pages->options.fd, page);
	/* Acquire; the partner is the release in page_stream__end(): the pipe was emptied. */
	if (pages->options.transport != PAGE_SPLICE || pages->taken > 0 ||
	    load_acquire(&pages->ticket_queued))
		return fetch_by_read(pages, page);
	bytes = (size_t)(pages->options.subbufs + 1 - pages->pass_pages) * pages->options.page_bytes;
	n = TEMP_FAILURE_RETRY(splice(pages->options.fd, NULL, pages->pipe[1], NULL, bytes,
				      SPLICE_F_MOVE | SPLICE_F_NONBLOCK));
	if (n > 0) {
		found.bytes = (size_t)n;
		found.spliced = true;
		return found;
	}
	if (n < 0 && errno == EINVAL)
		pages->options.transport = PAGE_READ;
	if (pages->options.transport == PAGE_READ || pages->ring.swept)
		return fetch_by_read(pages, page);
	return found;
}

/* Append the page to the previous one, if that is the chunk's last, or as a page of its own. */
static void page_ring__append(struct page_ring *pages, struct chunk *chunk, bool goes_on,
			      const struct subbuf_tally *tally, bool sealed)
{
	const uint32_t size = pages->options.page_bytes;
	uint8_t *const page = chunk->data + chunk->used;
	const struct span *last =
		chunk->span_count > 0 ? &chunk->spans[chunk->span_count - 1] : NULL;
	const bool joined = goes_on && last != NULL && last->ring == &pages->ring &&
			    !last->sealed && subbuf__append(page - size, page, size);

	chunk__append(chunk,
		      &(struct span){.ring = &pages->ring,
				     .samples = tally->events,
				     .bytes = joined ? 0 : size,
				     .records = tally->events,
				     .first_ns = tally->first_ns,
				     .sealed = sealed},
		      false);
	chunk->spans[chunk->span_count - 1].last_ns = tally->last_ns;
}

/* Walk the page behind the chunk's used bytes, and add its sound part to the chunk. */
static enum fault page_ring__accept(struct page_ring *pages, struct chunk *chunk,
				    const struct page_fetched *found)
{
	struct ring *const ring = &pages->ring;
	uint8_t *const page = chunk->data + chunk->used;
	struct subbuf_tally tally = {0};
	struct subbuf_head head;
	struct subbuf_walk walk;
	enum fault fault;
	uint32_t data;

	if (found->goes_on)
		walk__store(page, pages->last_ns);
	fault = subbuf__open(page, found->bytes, &head);
	if (fault != FAULT_NONE)
		return fault;
	MUTATE(mutation__page(page, pages->options.page_bytes));
	MUTATE((void)subbuf__open(page, found->bytes, &head));
	walk = subbuf__start(&head);
	walk.skipped_ns = found->goes_on ? pages->behind_ns : 0;
	fault = subbuf__run(page, head.end, &walk, &tally);
	if (fault != FAULT_NONE)
		subbuf__cut(page, walk.at, pages->options.page_bytes);
	data = walk.at - SUBBUF_HEADER_BYTES;
	ring__count(ring, tally.events, tally.events, data);
	counter__max(&ring->last_sample_ns, tally.last_ns);
	ring->position += data;
	counter__add(&pages->resets,
		     page_cursor__follow(&pages->cursor, found->reset, tally.events));
	if (!found->goes_on)
		counter__add(&pages->pages, 1);
	/* An empty page would be taken for the end of the data. */
	if (data > 0 || head.lost_any)
		page_ring__append(pages, chunk, found->goes_on, &tally,
				  walk.rest_unused || fault != FAULT_NONE);

	pages->taken = data + (found->goes_on ? pages->taken : 0);
	if (walk.rest_unused ||
	    pages->options.page_bytes - SUBBUF_HEADER_BYTES - pages->taken < SUBBUF_EVENT_BYTES_MIN)
		pages->taken = 0;
	pages->last_ns = walk.now_ns;
	pages->behind_ns = walk.skipped_ns;
	return fault;
}

/*
 * Whether the pass has read up to the kernel's writer: it has if another piece of one sub-buffer
 * came and that still has room. A first piece does not say it: the next event may have been too
 * long for the room left. One more read costs little, and a full pass, which must not end early,
 * reads twice.
 */
static bool page_ring__caught_up(struct page_ring *pages, bool goes_on)
{
	if (!goes_on) {
		pages->pass_pages++;
		pages->pass_pieces = 0;
		return false;
	}
	return pages->taken > 0 && ++pages->pass_pieces >= (pages->ring.swept ? 2u : 1u);
}

static enum ring_take page_ring__take(struct ring *ring, struct chunk *chunk, uint32_t chunk_bytes)
{
	struct page_ring *const pages = page_ring__of(ring);

	/* This many were in the ring when the pass began, including the reader's own. */
	while (pages->pass_pages <= pages->options.subbufs && (ring->swept || !pages->pass_spliced)) {
		const uint64_t position = ring->position;
		struct page_fetched found;
		enum fault fault;

		if (chunk_bytes - chunk->used < pages->options.page_bytes)
			return RING_CHUNK_FULL;
		found = page_ring__fetch(pages, chunk->data + chunk->used);
		if (found.bytes == 0) {
			counter__add(&pages->resets,
				     page_cursor__follow(&pages->cursor, found.reset, 0));
			return RING_EMPTY;
		}
		if (found.spliced) {
			const uint32_t count = (uint32_t)(found.bytes / pages->options.page_bytes);

			counter__add(&pages->pages, count);
			counter__add(&ring->bytes, found.bytes);
			ring->position += found.bytes;
			pages->pass_pages += count;
			pages->pipe_bytes = found.bytes;
			pages->pass_spliced = true;
			return RING_TICKET;
		}
		fault = found.fault;
		if (fault == FAULT_NONE) {
			fault = page_ring__accept(pages, chunk, &found);
			pages->cursor.refused = fault != FAULT_NONE;
		}
		if (fault != FAULT_NONE) {
			/* Continue at the next page. */
			pages->taken = 0;
			pages->pass_pages++;
			ring__refuse(ring, fault,
				     pages->options.page_bytes - (ring->position - position));
			return RING_FAULTY;
		}
		if (page_ring__caught_up(pages, found.goes_on))
			return RING_EMPTY;
	}
	return RING_EMPTY;
}

static struct item *page_ring__ticket(struct ring *ring)
{
	struct page_ring *const pages = page_ring__of(ring);

	store_relaxed(&pages->ticket_queued, true);
	pages->ticket = (struct item){.ticket = ring};
	return &pages->ticket;
}

const struct ring_ops page_ring__ops = {
	.poll = EPOLLIN | EPOLLONESHOT,
	.stream = &page_stream__ops,
	.join = page_ring__join,
	.begin = page_ring__begin,
	.take = page_ring__take,
	.ticket = page_ring__ticket,
	.free = page_ring__free,
};
