/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "page_fetch.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

static struct page_fetched fetch_by_read(struct page_ring *pages, uint8_t *page)
{
	struct page_fetched found = {0};
	uint32_t commit;
	ssize_t n;

	/* Exactly a sub-buffer: of a shorter read the rest would come without a header. */
	do
		n = read(pages->fd, page, pages->page_bytes);
	while (n < 0 && errno == EINTR);
	if (n <= 0)
		return found;
	found.bytes = (size_t)n;
	memset(page + n, 0, pages->page_bytes - (size_t)n);
	if (found.bytes < SUBBUF_HEADER_BYTES)
		return found;
	found.base_ns = subbuf__timestamp(page);
	commit = subbuf__commit(page);
	/* The kernel makes a page of a remainder, and stamps it with the time of what was read. */
	found.goes_on = pages->taken > 0 && (commit & SUBBUF_LOST) == 0 &&
			found.base_ns == pages->last_ns - pages->behind_ns &&
			(commit & SUBBUF_LENGTH_MASK) <= page_ring__capacity(pages) - pages->taken;
	if (found.goes_on)
		found.base_ns = pages->last_ns;
	return found;
}

/* A page of our own: what was handed out of a mapped one from `from` on. */
static void copy_mapped(uint8_t *page, const uint8_t *mapped, uint32_t from, uint32_t until,
			uint64_t base_ns, uint32_t page_bytes)
{
	uint32_t commit = until - from, behind = SUBBUF_HEADER_BYTES + commit;
	struct subbuf_head head = {0};

	memcpy(page + SUBBUF_HEADER_BYTES, mapped + SUBBUF_HEADER_BYTES + from, commit);
	if (from == 0)
		(void)subbuf__open(mapped, page_bytes, &head);
	if (head.lost_any)
		commit |= SUBBUF_LOST;
	if (head.lost_known && page_bytes - behind >= sizeof(head.lost)) {
		commit |= SUBBUF_LOST_STORED;
		subbuf__store64(page + behind, head.lost);
		behind += (uint32_t)sizeof(head.lost);
	}
	memset(page + behind, 0, page_bytes - behind);
	subbuf__store64(page, base_ns);
	subbuf__store64(page + 8, commit);
}

void page_ring__follow_resets(struct page_ring *pages, bool reset, uint64_t events)
{
	const uint64_t read_events = page_map__read_events(pages->map);

	if (reset || read_events < pages->read_events + events)
		counter__add(&pages->resets, 1);
	pages->read_events = read_events;
}

static struct page_fetched fetch_mapped(struct page_ring *pages, uint8_t *page)
{
	struct page_fetched found = {0};
	struct page_place place;
	const uint8_t *mapped;
	uint32_t from = 0;
	uint64_t page_ns;

	/* An error here is one that passes: a signal, or no such CPU for now. */
	if (page_map__advance(pages->map, pages->fd) < 0)
		return found;
	place = page_map__place(pages->map);
	if (place.id >= pages->map->subbufs || place.read > page_ring__capacity(pages)) {
		found.bytes = pages->page_bytes;
		found.fault = SUBBUF_DATA_BEYOND_PAGE;
		return found;
	}
	mapped = page_map__page(pages->map, place.id);
	page_ns = subbuf__timestamp(mapped);
	if (place.id == pages->place.id && pages->place.read > 0) {
		/* Nobody but a reset takes back what was handed out, or begins a page anew. */
		if (place.read >= pages->place.read && page_ns == pages->page_ns)
			from = pages->refused ? place.read : pages->place.read;
		else
			found.reset = true;
	}
	pages->place = place;
	pages->page_ns = page_ns;
	if (from == place.read) {
		page_ring__follow_resets(pages, found.reset, 0);
		return found;
	}
	found.bytes = pages->page_bytes;
	found.goes_on = from > 0;
	found.base_ns = found.goes_on ? pages->last_ns : page_ns;
	copy_mapped(page, mapped, from, place.read, found.base_ns, pages->page_bytes);
	return found;
}

struct page_fetched page_ring__fetch(struct page_ring *pages, uint8_t *page)
{
	struct page_fetched found = {0};
	size_t bytes;
	ssize_t n;

	if (pages->transport == PAGE_MMAP)
		return fetch_mapped(pages, page);
	/* Acquire; the partner is the release in page_stream__end(): the pipe was emptied. */
	if (pages->transport != PAGE_SPLICE || pages->taken > 0 ||
	    atomic_load_explicit(&pages->ticket_queued, memory_order_acquire))
		return fetch_by_read(pages, page);
	bytes = (size_t)(pages->subbufs + 1 - pages->pass_pages) * pages->page_bytes;
	do
		n = splice(pages->fd, NULL, pages->pipe[1], NULL, bytes,
			   SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
	while (n < 0 && errno == EINTR);
	if (n > 0) {
		found.bytes = (size_t)n;
		found.spliced = true;
		return found;
	}
	if (n < 0 && errno == EINVAL)
		pages->transport = PAGE_READ;
	if (pages->transport == PAGE_READ || pages->ring.swept)
		return fetch_by_read(pages, page);
	return found;
}
